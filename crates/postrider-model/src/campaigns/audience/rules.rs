//! Validation of the values of a line.

use std::{collections::BTreeMap, str::FromStr};

use email_address::EmailAddress;
use jiff::tz::TimeZoneDatabase;
use phonenumber::{Mode, country};
use serde_json::value::RawValue;

use super::{
    EMAIL_BYTES_MAX, EXTERNAL_ID_BYTES_MAX, LINE_BYTES_MAX, LIST_NAME_BYTES_MAX, Lead, Problem,
    REASON_BYTES_MAX,
    column::{IDENTIFYING, Renamed},
    lead::{check_size, problem},
};

/// The reason of a suppression for which the file gives none.
const UNSUBSCRIBED: &str = "unsubscribed";
/// Longest text that is parsed as a phone number, in bytes.
const PHONE_BYTES_MAX: usize = 64;

/// A country, by its ISO 3166 code of two letters.
#[derive(Debug, Clone, Copy)]
pub struct Country(country::Id);

/// A text that is no country code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{input}` is not a country code; use two letters, such as DE or US")]
pub struct NotACountry {
    input: String,
}

impl FromStr for Country {
    type Err = NotACountry;

    fn from_str(input: &str) -> Result<Self, NotACountry> {
        let id = input.to_ascii_uppercase().parse();
        id.map(Self).map_err(|_| NotACountry { input: input.to_owned() })
    }
}

/// Validates the name of a list and trims it.
pub fn list_name(input: &str) -> Result<String, Problem> {
    let name = input.trim();
    if name.is_empty() || name.len() > LIST_NAME_BYTES_MAX {
        return Err(problem!("a list needs a name of 1 to {LIST_NAME_BYTES_MAX} bytes"));
    }
    no_control("the name of the list", name)?;
    Ok(name.to_owned())
}

/// The values of a line before validation.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub external_id: Option<String>,
    pub email: Option<String>,
    pub phone: Option<String>,
    pub timezone: Option<String>,
    pub unsubscribed: Option<String>,
    pub attributes: BTreeMap<String, Box<RawValue>>,
    /// Names of the line whose attributes have other names.
    pub renamed: Vec<Renamed>,
}

/// Settings of the validation.
#[derive(Debug)]
pub(super) struct Rules {
    /// Country of phone numbers without a country code.
    country: Option<Country>,
    /// The bundled time zones, so that every machine accepts the same names.
    zones: TimeZoneDatabase,
}

impl Rules {
    pub(super) fn new(country: Option<Country>) -> Self {
        Self { country, zones: TimeZoneDatabase::bundled() }
    }

    /// Validates a draft. Returns the first problem found.
    pub(super) fn check(&self, draft: Draft) -> Result<Lead, Problem> {
        let external_id = non_empty(draft.external_id).map(external_id).transpose()?;
        let email = non_empty(draft.email).map(email).transpose()?;
        let phone = non_empty(draft.phone).map(|text| self.phone(&text)).transpose()?;
        let timezone = non_empty(draft.timezone).map(|text| self.timezone(&text)).transpose()?;
        let suppression_reason = non_empty(draft.unsubscribed).map(suppression).transpose()?.flatten();
        check_size(&draft.attributes)?;
        let identity = match (&external_id, &email, &phone) {
            (Some(id), _, _) => format!("id:{id}"),
            (None, Some(email), _) => format!("email:{}", email.to_lowercase()),
            (None, None, Some(phone)) => format!("phone:{phone}"),
            (None, None, None) => return Err(problem!("it has none of {IDENTIFYING}")),
        };
        let attributes = draft.attributes;
        Ok(Lead { identity, external_id, email, phone, timezone, attributes, suppression_reason })
    }

    fn phone(&self, text: &str) -> Result<String, Problem> {
        let refused = |why: &str| problem!("phone `{}` {why}", shown(text));
        no_control("phone", text)?;
        // The parser maps letters to a dial pad and drops extensions, so it would return another person's number.
        let dialled = text.strip_prefix('+').unwrap_or(text);
        let plain = dialled.chars().all(|c| c.is_ascii_digit() || " ()-./\u{a0}".contains(c));
        if !plain || text.len() > PHONE_BYTES_MAX {
            return Err(refused("is not a phone number; one looks like +49 30 901820, without an extension"));
        }
        if self.country.is_none() && !text.starts_with('+') {
            return Err(refused("has no country code; write it as +49…, or use --country"));
        }
        let number = phonenumber::parse(self.country.map(|country| country.0), text)
            .ok()
            .filter(phonenumber::is_valid)
            .ok_or_else(|| refused("is not a number that exists; check its country code and length"))?;
        Ok(number.format().mode(Mode::E164).to_string())
    }

    fn timezone(&self, text: &str) -> Result<String, Problem> {
        let zone = self.zones.get(text).ok();
        let name = zone.as_ref().and_then(|zone| zone.iana_name());
        name.map(str::to_owned).ok_or_else(|| {
            problem!("timezone `{}` is not known; use an IANA name, such as Europe/Berlin", shown(text))
        })
    }
}

/// A text without the space around it; empty is absent.
fn non_empty(text: Option<String>) -> Option<String> {
    let text = text?;
    let trimmed = text.trim();
    match trimmed.len() {
        0 => None,
        length if length == text.len() => Some(text),
        _ => Some(trimmed.to_owned()),
    }
}

fn external_id(text: String) -> Result<String, Problem> {
    no_control("external_id", &text)?;
    if text.len() > EXTERNAL_ID_BYTES_MAX {
        return Err(problem!("external_id has {} bytes; the limit is {EXTERNAL_ID_BYTES_MAX}", text.len()));
    }
    Ok(text)
}

fn email(text: String) -> Result<String, Problem> {
    no_control("email", &text)?;
    let options =
        email_address::Options::default().with_required_tld().without_display_text().without_domain_literal();
    // Checked before parsing, because a text of 64 KiB is not an address.
    if text.len() > EMAIL_BYTES_MAX {
        return Err(problem!("email has {} bytes; the limit is {EMAIL_BYTES_MAX}", text.len()));
    }
    let parsed = EmailAddress::parse_with_options(&text, options).ok();
    // The last label of a domain is a name; a number there means that the file holds an IP address.
    let named = |address: &EmailAddress| {
        address
            .domain()
            .rsplit('.')
            .next()
            .is_some_and(|last| !last.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if !parsed.as_ref().is_some_and(named) {
        let shown = shown(&text);
        return Err(problem!("email `{shown}` is not an address; one looks like name@example.org"));
    }
    Ok(text)
}

/// The reason of a suppression. Any text that does not clearly mean "no" is a reason, so that an unclear value suppresses.
fn suppression(text: String) -> Result<Option<String>, Problem> {
    no_control("unsubscribed", &text)?;
    Ok(match text.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "1" => Some(UNSUBSCRIBED.to_owned()),
        "false" | "f" | "no" | "n" | "0" => None,
        _ if text.len() > REASON_BYTES_MAX => {
            return Err(problem!("unsubscribed has {} bytes; the limit is {REASON_BYTES_MAX}", text.len()));
        }
        _ => Some(text),
    })
}

/// Refuses control characters: headers cannot carry them, and terminals act on them.
fn no_control(what: &str, text: &str) -> Result<(), Problem> {
    if text.chars().any(char::is_control) {
        return Err(problem!("{what} contains a control character, such as a line break; remove it"));
    }
    Ok(())
}

/// Checks that the bytes are text that Postgres can store.
pub(super) fn text(bytes: &[u8]) -> Result<&str, Problem> {
    let text = str::from_utf8(bytes).map_err(|_| problem!("it is not UTF-8 text; save the file as UTF-8"))?;
    if text.contains('\0') {
        return Err(nul());
    }
    Ok(text)
}

pub(super) fn too_long() -> Problem {
    problem!("it is longer than {LINE_BYTES_MAX} bytes")
}

pub(super) fn nul() -> Problem {
    problem!("it holds the character with the number zero, which Postgres cannot store; remove it")
}

/// Shortens a text of the file for an error message and replaces control characters.
pub(super) fn shown(text: &str) -> String {
    const CHARACTERS_MAX: usize = 60;
    let harmless = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut shown: String = text.chars().take(CHARACTERS_MAX).map(harmless).collect();
    if text.chars().nth(CHARACTERS_MAX).is_some() {
        shown.push('…');
    }
    shown
}
