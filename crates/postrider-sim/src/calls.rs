//! Twilio's reports about a call: forms, signed with the auth token of the account.

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use sha1::Sha1;

use super::callbacks::Report;
use super::results::Ending;
use super::twilio::{Call, rfc_2822};

/// An event of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The call began.
    Initiated,
    /// The call ended.
    Completed,
}

impl Event {
    /// Name in `StatusCallbackEvent` and in `CallStatus`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Initiated => "initiated",
            Self::Completed => "completed",
        }
    }
}

/// Returns one report per event, in this order. The signature covers the URL as the caller wrote it.
pub fn reports(
    call: &Call,
    events: &[Event],
    result: Ending,
    url: &str,
    token: &SecretString,
) -> anyhow::Result<Vec<Report>> {
    let report = |(nth, event): (usize, &Event)| {
        let parameters = parameters(call, *event, result, nth);
        let signature = vec![("x-twilio-signature", signature(url, &parameters, token)?)];
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(&parameters).finish();
        Ok(Report { content_type: "application/x-www-form-urlencoded; charset=UTF-8", signature, body })
    };
    events.iter().enumerate().map(report).collect()
}

fn parameters(call: &Call, event: Event, result: Ending, nth: usize) -> Vec<(&'static str, String)> {
    let status = match event {
        Event::Initiated => event.name(),
        Event::Completed => result.call_status(),
    };
    let mut parameters = vec![
        ("AccountSid", call.account.clone()),
        ("ApiVersion", "2010-04-01".to_owned()),
        ("CallSid", call.sid.clone()),
        ("CallStatus", status.to_owned()),
        ("CallbackSource", "call-progress-events".to_owned()),
        ("Called", call.to.clone()),
        ("Caller", call.from.clone()),
        ("Direction", "outbound-api".to_owned()),
        ("From", call.from.clone()),
        ("SequenceNumber", nth.to_string()),
        ("Timestamp", rfc_2822(Timestamp::now())),
        ("To", call.to.clone()),
    ];
    if event == Event::Completed {
        parameters.push(("CallDuration", "1".to_owned()));
        parameters.push(("Duration", "1".to_owned()));
        if result == Ending::Machine {
            parameters.push(("AnsweredBy", "machine_start".to_owned()));
        }
    }
    parameters
}

/// Signs the URL and every parameter, sorted by name, with the account's auth token.
fn signature(
    url: &str,
    parameters: &[(&'static str, String)],
    token: &SecretString,
) -> anyhow::Result<String> {
    let mut sorted: Vec<_> = parameters.iter().collect();
    sorted.sort();
    let mut signed = Hmac::<Sha1>::new_from_slice(token.expose_secret().as_bytes())?;
    signed.update(url.as_bytes());
    for (name, value) in sorted {
        signed.update(name.as_bytes());
        signed.update(value.as_bytes());
    }
    Ok(STANDARD.encode(signed.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_that_of_twilio_s_documentation() {
        // The example of "Validating signatures from Twilio".
        let url = "https://example.com/myapp.php?foo=1&bar=2";
        let parameters = [
            ("CallSid", "CA1234567890ABCDE"),
            ("Caller", "+14158675310"),
            ("Digits", "1234"),
            ("From", "+14158675310"),
            ("To", "+18005551212"),
        ];
        let parameters = parameters.map(|(name, value)| (name, value.to_owned()));
        assert_eq!(signature(url, &parameters, &"12345".into()).unwrap(), "L/OH5YylLD5NRKLltdqwSvS0BnU=");
    }
}
