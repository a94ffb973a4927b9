//! From an asset and a lead to a message.
//!
//! Templates are strict: a variable that a lead does not have fails that lead's item, before any call. What a lead says about
//! itself cannot become a header, an address or markup: one-line parts refuse control characters, HTML is escaped.
//!
//! A template sees the attributes of the lead by their names (`{{ first_name }}`), and what every lead has as
//! `lead.id`, `lead.external_id`, `lead.email`, `lead.phone` and `lead.timezone`.

use std::sync::Arc;

use minijinja::{
    Environment, ErrorKind, UndefinedBehavior, Value,
    value::{Enumerator, Object, Serde},
};
use postrider_model::{Channel, Message};
use postrider_store::jobs::Lead;
use serde::Deserialize;

/// Most steps that one template may take. A loop without end runs out of them.
const STEPS_MAX: u64 = 100_000;
/// Most bytes of a subject.
const SUBJECT_BYTES_MAX: usize = 2_000;
/// Most bytes of any other part.
const PART_BYTES_MAX: usize = 512 * 1024;

/// Why there is no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The asset is not what its channel needs.
    #[error("the content is not fit for {channel}: {problem}")]
    Unfit {
        /// The channel.
        channel: Channel,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// A template does not compile.
    #[error("the {part} has an error in line {line}: {problem}")]
    Template {
        /// Which part.
        part: &'static str,
        /// Where.
        line: usize,
        /// What.
        problem: String,
    },
    /// A template does not go together with this lead.
    #[error("the {part} cannot be filled in: {problem}")]
    Lead {
        /// Which part.
        part: &'static str,
        /// What is missing or wrong.
        problem: String,
    },
}

/// What an asset says, per channel.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EmailContent {
    subject: String,
    text: Option<String>,
    html: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VoiceContent {
    script: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SocialContent {
    text: String,
}

/// A compiled asset.
pub struct Template {
    channel: Channel,
    environment: Environment<'static>,
}

/// Whether content is fit for a channel and compiles.
pub fn check(channel: Channel, content: &serde_json::Value) -> Result<(), RenderError> {
    Template::compile(channel, content).map(drop)
}

impl Template {
    /// Compiles an asset.
    pub fn compile(channel: Channel, content: &serde_json::Value) -> Result<Self, RenderError> {
        let unfit = |problem: String| RenderError::Unfit { channel, problem };
        let not_so = |error: serde_json::Error| unfit(error.to_string());
        let parts: Vec<(&'static str, Option<String>)> = match channel {
            Channel::Email => {
                let EmailContent { subject, text, html } =
                    EmailContent::deserialize(content).map_err(not_so)?;
                if text.is_none() && html.is_none() {
                    return Err(unfit("an e-mail needs `text`, `html` or both".to_owned()));
                }
                vec![("subject", Some(subject)), ("text", text), ("html", html)]
            }
            Channel::Voice => {
                vec![("script", Some(VoiceContent::deserialize(content).map_err(not_so)?.script))]
            }
            Channel::Chat => {
                return Err(unfit("campaigns have no chat; replies are made by executors".to_owned()));
            }
            Channel::Social => {
                vec![("text", Some(SocialContent::deserialize(content).map_err(not_so)?.text))]
            }
        };
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(STEPS_MAX));
        environment.set_auto_escape_callback(|name| match name {
            "html" => minijinja::AutoEscape::Html,
            _ => minijinja::AutoEscape::None,
        });
        // What can grow without taking steps. Many tenants share one worker, and its memory.
        environment.remove_filter("indent");
        environment.add_filter("replace", replace);
        for (part, source) in parts {
            let Some(source) = source else { continue };
            if let Some(line) = line_of_assignment(&source) {
                let problem =
                    "templates fill in and do not compute: `set` and `with` are not available".to_owned();
                return Err(RenderError::Template { part, line, problem });
            }
            if source.trim().is_empty() {
                return Err(unfit(format!("`{part}` is empty")));
            }
            if source.len() > PART_BYTES_MAX {
                return Err(unfit(format!(
                    "`{part}` has {} bytes; the limit is {PART_BYTES_MAX}",
                    source.len()
                )));
            }
            environment.add_template_owned(part, source).map_err(|error| RenderError::Template {
                part,
                line: error.line().unwrap_or(1),
                problem: problem(&error),
            })?;
        }
        let template = Self { channel, environment };
        template.try_out()?;
        Ok(template)
    }

    /// Filters and functions that do not exist are noticed only when a template is filled in; so it is filled in once, with
    /// nothing. Whatever else goes wrong then is for want of a lead.
    fn try_out(&self) -> Result<(), RenderError> {
        let mut lenient = self.environment.clone();
        lenient.set_undefined_behavior(UndefinedBehavior::Chainable);
        for part in ["subject", "text", "html", "script"] {
            let Ok(template) = lenient.get_template(part) else { continue };
            let Err(error) = template.render(nobody()) else { continue };
            let unknown = [ErrorKind::UnknownFilter, ErrorKind::UnknownTest, ErrorKind::UnknownFunction];
            if unknown.contains(&error.kind()) {
                let line = error.line().unwrap_or(1);
                return Err(RenderError::Template { part, line, problem: problem(&error) });
            }
        }
        Ok(())
    }

    /// The message to one lead, or the post for nobody in particular. `address` is where it goes.
    pub fn render(&self, lead: Option<&Arc<Lead>>, address: Option<&str>) -> Result<Message, RenderError> {
        let context = context(lead)?;
        let to = || address.unwrap_or_default().to_owned();
        Ok(match self.channel {
            Channel::Email => Message::Email {
                to: to(),
                subject: self.one_line("subject", &context)?,
                text: self.part("text", &context)?,
                html: self.part("html", &context)?,
            },
            Channel::Voice => {
                Message::Voice { to: to(), script: self.part("script", &context)?.unwrap_or_default() }
            }
            Channel::Social => Message::Social { text: self.part("text", &context)?.unwrap_or_default() },
            Channel::Chat => Message::Chat {
                to: to(),
                thread: None,
                text: self.part("text", &context)?.unwrap_or_default(),
            },
        })
    }

    fn one_line(&self, part: &'static str, context: &Value) -> Result<String, RenderError> {
        let line = self.part(part, context)?.unwrap_or_default();
        let line = line.trim();
        let problem = if line.chars().any(char::is_control) {
            "it holds a line break or another control character".to_owned()
        } else if line.len() > SUBJECT_BYTES_MAX {
            format!("it has {} bytes; the limit is {SUBJECT_BYTES_MAX}", line.len())
        } else {
            return Ok(line.to_owned());
        };
        Err(RenderError::Lead { part, problem })
    }

    fn part(&self, part: &'static str, context: &Value) -> Result<Option<String>, RenderError> {
        let Ok(template) = self.environment.get_template(part) else { return Ok(None) };
        let text =
            template.render(context).map_err(|error| RenderError::Lead { part, problem: problem(&error) })?;
        let wrong = if text.len() > PART_BYTES_MAX {
            format!("it has {} bytes; the limit is {PART_BYTES_MAX}", text.len())
        } else if text.contains('\0') {
            "it holds a NUL character".to_owned()
        } else if text.trim().is_empty() {
            "nothing is left of it".to_owned()
        } else {
            return Ok(Some(text));
        };
        Err(RenderError::Lead { part, problem: wrong })
    }
}

/// `{{ text | replace("a", "b") }}`, as long as the result is not too long.
fn replace(text: &str, from: &str, to: &str) -> Result<String, minijinja::Error> {
    if text.len() + text.matches(from).count() * to.len() > PART_BYTES_MAX {
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "the text becomes too long"));
    }
    Ok(text.replace(from, to))
}

/// Where a template gives a name to a value. Doing so again and again, each value made of two of the last, takes few steps
/// and all the memory there is.
fn line_of_assignment(source: &str) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = source[at..].find("{%") {
        at += found + 2;
        let statement = source[at..].trim_start_matches(['-', '+']).trim_start();
        let word: String = statement.chars().take_while(char::is_ascii_alphabetic).collect();
        if word == "set" || word == "with" {
            return Some(source[..at].lines().count());
        }
    }
    None
}

/// Where a message to this lead goes, if it can be reached on the channel. A post goes nowhere in particular.
#[must_use]
pub fn address_of(channel: Channel, lead: &Lead) -> Option<&str> {
    match channel {
        Channel::Email => lead.email.as_deref(),
        Channel::Voice => lead.phone.as_deref(),
        Channel::Social | Channel::Chat => None,
    }
}

fn context(lead: Option<&Arc<Lead>>) -> Result<Value, RenderError> {
    let Some(lead) = lead else { return Ok(nobody()) };
    let attributes = serde_json::from_str(lead.attributes.get())
        .map_err(|error| RenderError::Lead { part: "attributes", problem: error.to_string() })?;
    Ok(Value::from_object(Names { attributes, lead: Arc::clone(lead) }))
}

fn nobody() -> Value {
    Value::from(Serde(serde_json::Map::new()))
}

/// What a template sees. A value is made when it is asked for: a lead has many attributes, and a template uses few.
#[derive(Debug)]
struct Names {
    attributes: serde_json::Map<String, serde_json::Value>,
    lead: Arc<Lead>,
}

impl Object for Names {
    fn get_value(self: &Arc<Self>, name: &Value) -> Option<Value> {
        let name = name.as_str()?;
        // First, so that no attribute can pass itself off as the lead.
        if name == "lead" {
            return Some(Value::from_object(Fields(Arc::clone(&self.lead))));
        }
        self.attributes.get(name).map(|attribute| match attribute {
            serde_json::Value::String(text) => Value::from(text.as_str()),
            other => Value::from(Serde(other)),
        })
    }
}

/// What every lead has.
#[derive(Debug)]
struct Fields(Arc<Lead>);

impl Object for Fields {
    fn get_value(self: &Arc<Self>, name: &Value) -> Option<Value> {
        let lead = &self.0;
        Some(match name.as_str()? {
            "id" => Value::from(lead.id.0.to_string()),
            "external_id" => Value::from(lead.external_id.as_deref()),
            "email" => Value::from(lead.email.as_deref()),
            "phone" => Value::from(lead.phone.as_deref()),
            "timezone" => Value::from(lead.timezone.as_deref()),
            _ => return None,
        })
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Str(&["email", "external_id", "id", "phone", "timezone"])
    }
}

/// The template engine's words, without the file name that it made up.
fn problem(error: &minijinja::Error) -> String {
    let kind = error.kind().to_string();
    match error.detail() {
        Some(detail) => format!("{kind}: {detail}"),
        None => kind,
    }
}

#[cfg(test)]
mod tests {
    use postrider_model::ids::LeadId;
    use serde_json::{json, value::RawValue};

    use super::*;

    fn lead(attributes: Box<RawValue>) -> Arc<Lead> {
        Arc::new(Lead {
            id: LeadId::new(),
            external_id: None,
            email: Some("ann@example.com".to_owned()),
            phone: None,
            timezone: None,
            attributes,
            suppression_reason: None,
        })
    }

    fn email(content: serde_json::Value, attributes: impl serde::Serialize) -> Result<Message, RenderError> {
        let template = Template::compile(Channel::Email, &content);
        let attributes = serde_json::value::to_raw_value(&attributes).unwrap();
        drop(content);
        template?.render(Some(&lead(attributes)), Some("ann@example.com"))
    }

    #[test]
    fn a_message_is_filled_in_from_the_lead() {
        let content = json!({
            "subject": "Hello {{ name }}",
            "text": "{% for item in cart %}{{ item }};{% endfor %} {{ lead.email }}",
            "html": "<p>{{ name }}</p>",
        });
        let message =
            email(content, json!({ "name": "Ann & Bo", "cart": ["a", "b"], "lead": "mallory" })).unwrap();
        assert_eq!(
            message,
            Message::Email {
                to: "ann@example.com".to_owned(),
                subject: "Hello Ann & Bo".to_owned(),
                text: Some("a;b; ann@example.com".to_owned()),
                html: Some("<p>Ann &amp; Bo</p>".to_owned()),
            }
        );
    }

    #[test]
    fn what_a_lead_lacks_fails_its_item() {
        let error = email(json!({ "subject": "Hello {{ name }}", "text": "t" }), json!({})).unwrap_err();
        assert!(matches!(&error, RenderError::Lead { part: "subject", .. }), "{error}");
        let nested =
            email(json!({ "subject": "s", "text": "{{ order.id }}" }), json!({ "order": {} })).unwrap_err();
        assert!(matches!(&nested, RenderError::Lead { part: "text", .. }), "{nested}");
    }

    #[test]
    fn a_lead_cannot_write_headers() {
        for name in ["Ann\r\nBcc: all@example.com", "Ann\nX: y", "Ann\u{0}", "Ann\u{85}X"] {
            let error =
                email(json!({ "subject": "Hello {{ name }}.", "text": "t" }), json!({ "name": name }))
                    .unwrap_err();
            assert!(
                error.to_string().contains("control character") || error.to_string().contains("NUL"),
                "{error}"
            );
        }
    }

    #[test]
    fn bad_content_is_refused_with_what_is_wrong() {
        let refused = |channel, content| check(channel, &content).unwrap_err().to_string();
        let cases = [
            (Channel::Email, json!({ "subject": "s" }), "needs `text`, `html` or both"),
            (Channel::Email, json!({ "text": "t" }), "missing field `subject`"),
            (Channel::Email, json!({ "subject": "s", "text": "t", "body": "b" }), "unknown field `body`"),
            (Channel::Email, json!({ "subject": " ", "text": "t" }), "`subject` is empty"),
            (
                Channel::Email,
                json!({ "subject": "s", "text": "a\n{{ name" }),
                "the text has an error in line 2",
            ),
            (Channel::Email, json!({ "subject": "s", "text": "{% include 'x' %}" }), "the text has an error"),
            (
                Channel::Email,
                json!({ "subject": "s", "text": "{{ name | nosuch }}" }),
                "the text has an error",
            ),
            (
                Channel::Email,
                json!({ "subject": "s", "text": "a\n{%- set a = 'x' %}" }),
                "error in line 2: templates fill in",
            ),
            (
                Channel::Email,
                json!({ "subject": "s", "text": "{% with a = 'x' %}{% endwith %}" }),
                "templates fill in",
            ),
            (
                Channel::Email,
                json!({ "subject": "s", "text": "{{ 'x' | indent(9) }}" }),
                "the text has an error",
            ),
            (Channel::Voice, json!({ "text": "t" }), "unknown field `text`"),
            (Channel::Social, json!("text"), "the content is not fit for social"),
        ];
        for (channel, content, expected) in cases {
            let message = refused(channel, content.clone());
            assert!(message.contains(expected), "{content}: {message}");
        }
    }

    #[test]
    fn a_template_without_end_and_one_that_grows_are_stopped() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
        let error = email(json!({ "subject": "s", "text": endless }), json!({})).unwrap_err();
        assert!(matches!(error, RenderError::Lead { .. }), "{error}");
        let grows = "{% for a in range(9000) %}{{ big }}{% endfor %}";
        let error =
            email(json!({ "subject": "s", "text": grows }), json!({ "big": "x".repeat(1000) })).unwrap_err();
        assert!(error.to_string().contains("the limit is"), "{error}");
        let replaces = format!("{{{{ 'x' {} }}}}", r#"| replace("x", "xxxxxxxxxx")"#.repeat(12));
        let error = email(json!({ "subject": "s", "text": replaces }), json!({})).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    }
}
