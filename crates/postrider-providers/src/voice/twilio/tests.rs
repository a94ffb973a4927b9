use secrecy::SecretString;
use serde_json::{Value, json};
use sha1::Digest;

use super::*;
use crate::{
    guard::Ending,
    http::tests::{NOW, ScriptedServer, answer, assert_request, body, client, key, refused, social, voice},
};

const TOKEN: &str = "hunter2hunter2hunter2hunter2hunt";
const TENANT: TenantId = TenantId(uuid::Uuid::from_u128(3));
const ACCOUNT: ProviderAccountId = ProviderAccountId(uuid::Uuid::from_u128(7));

fn sid() -> String {
    format!("AC{}", "0a".repeat(16))
}

fn settings(callback_url: &str) -> Value {
    json!({ "account_sid": sid(), "from": "+15005550006", "callback_url": callback_url })
}

fn open(settings: &Value) -> Twilio {
    let secret = SecretString::from(TOKEN);
    Twilio::new(&client(true), &Account { id: ACCOUNT, settings, secret: &secret }).ok().unwrap()
}

// By the description of Twilio's API: a form with `To` and `From`, `Twiml` up to 4000 characters, each event in its own
// parameter.
#[test]
fn a_call_is_what_twilio_describes() {
    let twilio = open(&settings("https://postrider.example.com/"));
    let script = "Fish & chips <now>: \"it's\" 5 > 4\u{0}\u{7}\nBye.".to_owned();
    let request =
        twilio.request(TENANT, &key(), &Message::Voice { to: "+4930123456".to_owned(), script }).unwrap();
    let login = format!("Basic {}", STANDARD.encode(format!("{}:{TOKEN}", sid())));
    assert_request(
        &request,
        "POST",
        &format!("https://api.twilio.com/2010-04-01/Accounts/{}/Calls.json", sid()),
        &[("authorization", &login), ("content-type", "application/x-www-form-urlencoded")],
    );
    assert!(request.headers()[AUTHORIZATION].is_sensitive());
    let form: Vec<(String, String)> =
        form_urlencoded::parse(body(&request).as_bytes()).into_owned().collect();
    let form: Vec<(&str, &str)> = form.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let callback = format!(
        "https://postrider.example.com/api/v2/tenants/00000000-0000-0000-0000-000000000003/providers/twilio/00000000-0000-0000-0000-000000000007/callback/{}",
        key()
    );
    assert_eq!(
        form,
        [
            ("To", "+4930123456"),
            ("From", "+15005550006"),
            ("Twiml", "<Response><Say>Fish &amp; chips &lt;now&gt;: \"it's\" 5 &gt; 4 Bye.</Say></Response>"),
            ("StatusCallback", &callback),
            ("StatusCallbackMethod", "POST"),
            ("StatusCallbackEvent", "initiated"),
            ("StatusCallbackEvent", "ringing"),
            ("StatusCallbackEvent", "answered"),
            ("StatusCallbackEvent", "completed"),
        ]
    );
    let long = Message::Voice { to: "+4930123456".to_owned(), script: "x".repeat(4000) };
    assert_eq!(twilio.request(TENANT, &key(), &long).err().unwrap().kind(), "rejected");
    assert_eq!(twilio.request(TENANT, &key(), &social()).err().unwrap().kind(), "rejected");
    assert!(twilio.request(TENANT, &key(), &voice()).is_ok());
}

#[test]
fn a_call_has_a_sid() {
    let delivered = judge(&answer(201, r#"{"sid": "CA1", "status": "queued"}"#), NOW);
    assert_eq!(delivered, Outcome::Delivered { message_id: "CA1".to_owned() });
    assert_eq!(judge(&answer(201, "{}"), NOW).kind(), "unknown");
    let refusal = r#"{"code": 21211, "message": "Invalid 'To' Phone Number", "status": 400}"#;
    assert_eq!(judge(&answer(400, refusal), NOW).kind(), "rejected");
    assert_eq!(judge(&answer(401, r#"{"code": 20003}"#), NOW).kind(), "account_refused");
    // The account, and not the person who is called.
    for (status, code) in [(400, 21210), (400, 21212), (400, 21215), (404, 20404), (400, 20005)] {
        let said = answer(status, &format!(r#"{{"code": {code}, "message": "No", "status": {status}}}"#));
        assert_eq!(judge(&said, NOW).kind(), "account_refused", "{code}");
    }
    for code in [21211, 21214, 21217] {
        let said = answer(400, &format!(r#"{{"code": {code}, "message": "No", "status": 400}}"#));
        assert_eq!(judge(&said, NOW).kind(), "rejected", "{code}");
    }
}

/// HMAC-SHA1 from its definition.
fn hmac_sha1(key: &str, text: &str) -> Vec<u8> {
    let padded = |with: u8| -> Vec<u8> {
        let mut block = [with; 64];
        block.iter_mut().zip(key.bytes()).for_each(|(place, byte)| *place ^= byte);
        block.to_vec()
    };
    let inner = Sha1::digest([padded(0x36), text.as_bytes().to_vec()].concat());
    Sha1::digest([padded(0x5c), inner.to_vec()].concat()).to_vec()
}

// The example in Twilio's documentation.
#[test]
fn a_signature_is_the_one_that_twilio_documents() {
    let secret = SecretString::from("12345");
    let settings = settings("https://mycompany.com");
    let account = Account { id: ACCOUNT, settings: &settings, secret: &secret };
    let twilio = Twilio::new(&client(false), &account).ok().unwrap();
    let form = [
        ("To", "+18005551212"),
        ("From", "+14158675309"),
        ("Digits", "1234"),
        ("Caller", "+14158675309"),
        ("CallSid", "CA1234567890ABCDE"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let url = "https://mycompany.com/myapp.php?foo=1&bar=2";
    let received = STANDARD.decode("RSOYDt4T1cUTdK1PDd93/VVr8B8=").unwrap();
    assert!(twilio.is_signed(url, &form, &received));
    assert!(!twilio.is_signed("https://mycompany.com/myapp.php?foo=1&bar=3", &form, &received));
    assert!(!twilio.is_signed(url, &form[1..], &received));
    assert!(!twilio.is_signed(url, &form, &received[..19]));
    assert!(!twilio.is_signed(url, &form, &[]));
}

const BODY: &str = "CallSid=CA1&CallStatus=no-answer&To=%2B4930123456&From=%2B15005550006&Note=a+b%26c";

fn path() -> String {
    format!("/api/v2/tenants/{}/providers/twilio/{}/callback/{}", TENANT.0, ACCOUNT.0, key())
}

/// The signature of a status callback at `base`.
fn signature(base: &str, path: &str) -> String {
    let sorted = "CallSidCA1CallStatusno-answerFrom+15005550006Notea b&cTo+4930123456";
    STANDARD.encode(hmac_sha1(TOKEN, &format!("{base}{path}{sorted}")))
}

fn read(
    callback_url: &str,
    path: &str,
    key: &str,
    signature: Option<String>,
    body: &str,
) -> Result<Echo, CallbackRefused> {
    let (settings, secret) = (settings(callback_url), SecretString::from(TOKEN));
    let headers: Vec<_> =
        signature.map(|signature| ("x-twilio-signature".to_owned(), signature)).into_iter().collect();
    let account = Account { id: ACCOUNT, settings: &settings, secret: &secret };
    let callback = Callback { path_and_query: path, key, headers: &headers, body: body.as_bytes() };
    TwilioAdapter::new(&client(true)).read_callback(&account, &callback)
}

#[test]
fn a_callback_with_twilios_signature_is_accepted() {
    let (key, path) = (key().to_string(), path());
    let echo = Echo { message_id: "CA1".to_owned(), status: "no-answer".to_owned(), proves_action: true };
    for (callback_url, signed) in [
        ("https://postrider.example.com", "https://postrider.example.com"),
        ("https://postrider.example.com/", "https://postrider.example.com"),
        ("https://postrider.example.com:443", "https://postrider.example.com"),
        ("https://postrider.example.com:8443/mail/", "https://postrider.example.com:8443/mail"),
        // Twilio leaves the port of https out.
        ("https://postrider.example.com:8443", "https://postrider.example.com"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
    ] {
        let read = read(callback_url, &path, &key, Some(signature(signed, &path)), BODY);
        assert_eq!(read, Ok(echo.clone()), "{callback_url}");
    }
    let with_query = format!("{path}?a=1");
    let signed = signature("https://postrider.example.com", &with_query);
    assert_eq!(read("https://postrider.example.com", &with_query, &key, Some(signed), BODY), Ok(echo));
}

#[test]
fn a_forged_callback_is_refused_with_the_reason() {
    let base = "https://postrider.example.com";
    let (key, path) = (key().to_string(), path());
    let good = || signature(base, &path);
    let other_path = path.replace("0123", "3210");
    for (at, path, signature, body, why) in [
        (base, &path, None, BODY, "is missing"),
        (base, &path, Some(String::new()), BODY, "is not Twilio's"),
        (base, &path, Some("no base64!".to_owned()), BODY, "is not base64"),
        (base, &path, Some(STANDARD.encode([0; 20])), BODY, "is not Twilio's"),
        (base, &path, Some(good()), "CallSid=CA2&CallStatus=completed", "is not Twilio's"),
        (base, &other_path, Some(good()), BODY, "is not Twilio's"),
        ("https://other.example.com", &path, Some(good()), BODY, "is not Twilio's"),
        ("http://127.0.0.1:8080", &path, Some(signature("http://127.0.0.1", &path)), BODY, "is not Twilio's"),
    ] {
        let Err(CallbackRefused::Forged(reason)) = read(at, path, &key, signature, body) else {
            panic!("{why}")
        };
        assert!(reason.contains(why) && !reason.contains(TOKEN), "{reason}");
    }
    // The signature is right, but the content is invalid.
    let read_signed = |key: &str, body: &str, sorted: &str| {
        let signature = STANDARD.encode(hmac_sha1(TOKEN, &format!("{base}{path}{sorted}")));
        read(base, &path, key, Some(signature), body)
    };
    for (key, body, sorted) in [
        ("another", "CallSid=CA1&CallStatus=completed", "CallSidCA1CallStatuscompleted"),
        (&*key, "CallSid=CA1", "CallSidCA1"),
        (&*key, "CallSid=&CallStatus=completed", "CallSidCallStatuscompleted"),
        (&*key, "", ""),
    ] {
        let refused = read_signed(key, body, sorted);
        assert!(matches!(refused, Err(CallbackRefused::Malformed(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn a_look_up_lists_calls_and_settles_nothing() {
    let call =
        |sid: &str, created: &str| json!({ "sid": sid, "status": "completed", "date_created": created });
    // NOW is 02:40:00.
    let calls = json!({ "calls": [
        call("CA-late", "Mon, 02 Feb 2026 02:44:01 +0000"),
        call("CA-in-time", "Mon, 02 Feb 2026 02:43:59 +0000"),
        call("CA-at-once", "Mon, 02 Feb 2026 02:40:00 +0000"),
        call("CA-before", "Mon, 02 Feb 2026 02:39:59 +0000"),
        call("CA-undated", "soon"),
    ] });
    let server = ScriptedServer::start(vec![(200, calls), (200, json!({ "calls": [] })), (401, json!({}))]);
    let mut settings = settings("https://postrider.example.com");
    settings["url"] = json!(server.url);
    let twilio = open(&settings);
    for expected in [
        "calls to this number at that time, of this item or of another: CA-in-time (completed), CA-at-once (completed)",
        "Twilio lists no call to this number at that time, which does not prove that there is none",
        "the calls to this number could not be listed: 401 Unauthorized: {}",
    ] {
        let found = twilio.candidates("+4930123456", NOW + Duration::from_millis(700)).await;
        assert_eq!(found, Ok(Finding::Unclear { reason: expected.to_owned() }));
    }
    let list = format!(
        "GET /2010-04-01/Accounts/{}/Calls.json?To=%2B4930123456&From=%2B15005550006&StartTime%3E=2026-02-02&PageSize=20",
        sid()
    );
    assert_eq!(server.lines(), [&*list, &*list, &*list]);
    let half = Answer { ending: Ending::Broken, ..answer(200, r#"{"calls": []}"#) };
    assert!(describe(&half, NOW).starts_with("the calls to this number could not be listed"));
}

#[test]
fn an_account_has_a_sid_a_number_a_callback_url_and_a_token() {
    let with = |name: &str, value: &str| {
        let mut settings = settings("https://postrider.example.com");
        settings[name] = json!(value);
        settings
    };
    refused(
        Twilio::new,
        &[
            (false, json!({}), TOKEN, "missing field `account_sid`; the settings of `twilio` are like {"),
            (false, with("account_sid", "AC1"), TOKEN, "`account_sid` is not `AC` and 32 hex digits"),
            (false, with("account_sid", &format!("AC{}", "/.".repeat(16))), TOKEN, "`account_sid`"),
            (false, with("from", "015005550006"), TOKEN, "`from` is not a number"),
            (false, with("from", "+1500555000a"), TOKEN, "`from` is not a number"),
            (
                false,
                with("callback_url", "http://postrider.example.com"),
                TOKEN,
                "`callback_url`: plain http",
            ),
            (
                false,
                with("callback_url", "https://10.1.2.3"),
                TOKEN,
                "`callback_url`: `10.1.2.3` is a private address",
            ),
            (false, with("url", "https://localhost"), TOKEN, "only public addresses are called"),
            (false, with("voice", "alice"), TOKEN, "unknown field `voice`"),
            (false, with("url", "https://api.twilio.com"), "", "the secret is missing: it is the auth token"),
        ],
    );
}
