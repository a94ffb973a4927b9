//! From an asset and a lead to a message.
//!
//! Templates are strict: a variable that a lead does not have fails that lead's item, before any call. What a lead says about
//! itself cannot become a header, an address or markup: one-line parts refuse control characters, HTML is escaped.
//!
//! A template sees the attributes of the lead by their names (`{{ first_name }}`), and what every lead has as
//! `lead.id`, `lead.external_id`, `lead.email`, `lead.phone` and `lead.timezone`.
//!
//! Many tenants share one process, so a template is hostile until proven otherwise. `grammar.rs` refuses what is not known to be
//! bounded, `builtins.rs` has the filters and tests with their limits, `budget.rs` counts what they do, and the output is bounded while
//! it is written. Decision 0022 says why.

mod budget;
mod builtins;
mod grammar;
#[cfg(test)]
mod hostile;

use std::{
    collections::HashMap,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use minijinja::{
    Environment, ErrorKind, UndefinedBehavior, Value,
    syntax::SyntaxConfig,
    value::{Enumerator, Object, Serde},
};
use postrider_model::{Channel, Message};
use postrider_store::jobs::Lead;
use serde::Deserialize;

/// Maximum number of steps of one part. An endless loop runs out of them.
const STEPS_MAX: u64 = 100_000;
/// Maximum bytes of a subject.
const SUBJECT_BYTES_MAX: usize = 2_000;
/// Maximum bytes of any other part, and of its template.
const PART_BYTES_MAX: usize = 512 * 1024;
/// Parts of a message that have a template.
const PARTS: [&str; 4] = ["subject", "text", "html", "script"];

/// The environment without templates: nothing is in it but what `builtins.rs` lists.
static EMPTY: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(STEPS_MAX));
    environment.set_auto_escape_callback(|name| match name {
        "html" => minijinja::AutoEscape::Html,
        _ => minijinja::AutoEscape::None,
    });
    // The parser of the template itself has removed the last line break already.
    if let Ok(syntax) = SyntaxConfig::builder().keep_trailing_newline(true).build() {
        environment.set_syntax(syntax);
    }
    builtins::install(&mut environment);
    environment
});

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
        let mut environment = EMPTY.clone();
        for (part, source) in parts {
            let Some(source) = source else { continue };
            if source.trim().is_empty() {
                return Err(unfit(format!("`{part}` is empty")));
            }
            if source.len() > PART_BYTES_MAX {
                return Err(unfit(format!(
                    "`{part}` has {} bytes; the limit is {PART_BYTES_MAX}",
                    source.len()
                )));
            }
            let translation = caught(|| grammar::translate(&source))
                .unwrap_or_else(|| Err(grammar::Refusal { line: 1, problem: PANICKED.to_owned() }))
                .map_err(|grammar::Refusal { line, problem }| RenderError::Template {
                    part,
                    line,
                    problem,
                })?;
            if part == "subject" && translation.has_control_character {
                return Err(unfit("`subject` holds a line break or another control character".to_owned()));
            }
            let added = caught(|| environment.add_template_owned(part, translation.source));
            added.unwrap_or_else(|| Err(engine_panicked())).map_err(|error| RenderError::Template {
                part,
                line: error.line().unwrap_or(1),
                problem: problem(&error),
            })?;
        }
        let template = Self { channel, environment };
        template.try_out()?;
        Ok(template)
    }

    /// Renders every part once without a lead. A template that exceeds its limits by itself is refused here; other failures are
    /// those of the missing lead.
    fn try_out(&self) -> Result<(), RenderError> {
        let mut lenient = self.environment.clone();
        lenient.set_undefined_behavior(UndefinedBehavior::Chainable);
        for part in PARTS {
            let Some(Err(error)) = write_part(&lenient, part, &nobody()) else { continue };
            let is_its_own = match error.kind() {
                ErrorKind::UnknownFilter
                | ErrorKind::UnknownTest
                | ErrorKind::OutOfFuel
                | ErrorKind::WriteFailure => true,
                _ => error.detail() == Some(PANICKED),
            };
            if is_its_own {
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
        let Some(written) = write_part(&self.environment, part, context) else { return Ok(None) };
        let text = written.map_err(|error| RenderError::Lead { part, problem: problem(&error) })?;
        let wrong = if text.contains('\0') {
            "it holds a NUL character".to_owned()
        } else if text.trim().is_empty() {
            "nothing is left of it".to_owned()
        } else {
            return Ok(Some(text));
        };
        Err(RenderError::Lead { part, problem: wrong })
    }
}

/// Renders one part, if the template has it.
fn write_part(
    environment: &Environment<'_>,
    part: &str,
    context: &Value,
) -> Option<Result<String, minijinja::Error>> {
    let template = environment.get_template(part).ok()?;
    let mut output = Bounded(Vec::new());
    let rendered = caught(|| template.render_captured_to(context, &mut output).map(drop));
    Some(rendered.unwrap_or_else(|| Err(engine_panicked())).and_then(|()| {
        String::from_utf8(output.0)
            .map_err(|error| minijinja::Error::new(ErrorKind::WriteFailure, error.to_string()))
    }))
}

/// Output that refuses to become longer than a part may be.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > PART_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const PANICKED: &str = "the template engine panicked; please report the template";

fn engine_panicked() -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, PANICKED)
}

/// Calls the template engine. A panic in it fails this template and nothing else.
fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
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
    Ok(Value::from_object(Names { attributes, made: Mutex::default(), lead: Arc::clone(lead) }))
}

fn nobody() -> Value {
    Value::from(Serde(serde_json::Map::new()))
}

/// The variables of a template. A value is made when it is first used: a lead has many attributes, and a template uses few.
#[derive(Debug)]
struct Names {
    attributes: serde_json::Map<String, serde_json::Value>,
    /// Values that were made. A loop that uses an attribute makes it once.
    made: Mutex<HashMap<String, Value>>,
    lead: Arc<Lead>,
}

impl Object for Names {
    fn get_value(self: &Arc<Self>, name: &Value) -> Option<Value> {
        let name = name.as_str()?;
        // First, so that no attribute can pass itself off as the lead.
        if name == "lead" {
            return Some(Value::from_object(Fields(Arc::clone(&self.lead))));
        }
        let attribute = self.attributes.get(name)?;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = made.get(name) {
            return Some(value.clone());
        }
        let value = match attribute {
            serde_json::Value::String(text) => Value::from(text.as_str()),
            other => Value::from(Serde(other)),
        };
        made.insert(name.to_owned(), value.clone());
        Some(value)
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
    let kind = match error.kind() {
        ErrorKind::WriteFailure => return format!("it has more than {PART_BYTES_MAX} bytes"),
        ErrorKind::OutOfFuel => match error.detail() {
            Some(detail) => return format!("it exceeds its limits: {detail}"),
            None => return format!("it exceeds its limits: it takes more than {STEPS_MAX} steps"),
        },
        kind => kind.to_string(),
    };
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
            (
                Channel::Email,
                json!({ "subject": "s", "text": "{{ name|indent(9) }}" }),
                "the filter `indent` is not available; the filters are abs,",
            ),
            (
                Channel::Email,
                json!({ "subject": "s", "text": "{{ debug() }}" }),
                "the function `debug` is not available",
            ),
            (
                Channel::Email,
                json!({ "subject": "s", "text": "{% macro a() %}{% endmacro %}" }),
                "`macro` is not available",
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
        assert!(error.to_string().contains("more than 100000 steps"), "{error}");
        let grows = "{% for a in range(9000) %}{{ big }}{% endfor %}";
        let error =
            email(json!({ "subject": "s", "text": grows }), json!({ "big": "x".repeat(1000) })).unwrap_err();
        assert!(error.to_string().contains("more than 524288 bytes"), "{error}");
        let replaces = format!("{{{{ 'x' {} }}}}", r#"| replace("x", "xxxxxxxxxx")"#.repeat(12));
        let error = email(json!({ "subject": "s", "text": replaces }), json!({})).unwrap_err();
        assert!(error.to_string().contains("more than 524288 bytes"), "{error}");
    }

    #[test]
    fn the_language_that_is_left_means_what_it_meant() {
        let attributes = json!({
            "name": "ann", "n": 3, "price": 9.5, "vip": true, "cart": [{ "sku": "b", "n": 2 }, { "sku": "a", "n": 1 }],
            "words": ["x", "y", "z"], "lang": "de", "nothing": null, "markup": "<b>",
        });
        let cases = [
            ("{{ name|title }} {{ 'a' ~ n ~ 'b' }} {{ 'a' + 'b' }} {{ [1] + [2] }}", "Ann a3b ab [1, 2]"),
            (
                "{{ n * 2 + 1 }} {{ 1 + 2 * n }} {{ (1 + 2) * n }} {{ price * n }} {{ '-' * 5 }}",
                "7 7 9 28.5 -----",
            ),
            (
                "{{ n - 1 - 1 }} {{ 7 / 2 }} {{ 7 // 2 }} {{ 7 % 4 }} {{ 2 ** 3 }} {{ -n }} {{ -n|abs }}",
                "1 3.5 3 3 8 -3 3",
            ),
            ("{{ '%.2f'|format(price) }} {{ '%05d'|format(n) }} {{ price|round }}", "9.50 00003 10.0"),
            (
                "{{ cart|sort(attribute='sku')|map(attribute='sku')|join(', ') }} {{ cart|sum(attribute='n') }}",
                "a, b 3",
            ),
            (
                "{% for item in cart if item.n > 1 %}{{ loop.index }}{{ item.sku }}{% else %}none{% endfor %}",
                "1b",
            ),
            (
                "{% for w in words %}{{ loop.cycle('1', '2') }}{{ w }}{{ ', ' if not loop.last }}{% endfor %}",
                "1x, 2y, 1z",
            ),
            ("{% for k, v in {'a': 1, 'b': 2}|items %}{{ k }}={{ v }};{% endfor %}", "a=1;b=2;"),
            ("{% if n > 5 %}many{% elif n == 3 %}three{% else %}few{% endif %}", "three"),
            ("{% if vip and not nothing %}vip{% endif %}{{ 'x' if n in [1, 2] else 'y' }}", "vipy"),
            (
                "{{ {'de': 'Hallo', 'en': 'Hello'}[lang] }} {{ words[0] }}{{ words[-1] }}{{ name[1] }}",
                "Hallo xzn",
            ),
            ("{{ words[1:] }} {{ name[:2] }} {{ name[-2:] }} {{ words[1:2]|first }}", "['y', 'z'] an nn y"),
            (
                "{{ missing|default('dear') }} {{ missing is defined }} {{ cart[0].nosuch|default(1) }}",
                "dear False 1",
            ),
            (
                "{{ n is odd }} {{ 9 is divisibleby 3 }} {{ name is startingwith('a') }} {{ n is not even }}",
                "True True True True",
            ),
            (
                "{{ 'ab' < 'b' }} {{ n >= 3 }} {{ n != 3 }} {{ 'n' in name }} {{ 'q' not in name }}",
                "True True False True True",
            ),
            (
                "{% raw %}{{ name }} {% if %}{% endraw %} { {{ '}}{%' }} {# gone #}\"\\",
                "{{ name }} {% if %} { }}{% \"\\",
            ),
            (
                "{{ \"quote \\\" back \\\\ tab \\t ü\" }}{{ 1e3 }} {{ 0.1 }} {{ 170141183460469231731687303715884105727 }}",
                "quote \" back \\ tab \t ü1000.0 0.1 170141183460469231731687303715884105727",
            ),
            ("a {%- if true -%} b {%- endif -%} c\n\n{{ name }}\n", "abc\n\nann"),
            (
                "{% for i in range(2, 8, 3) %}{{ i }} {% endfor %}{{ range(3)|list }}{{ (1, 2) }}{{ () }}",
                "2 5 [0, 1, 2](1, 2)()",
            ),
            (
                "{{ words|batch(2)|list }} {{ 'a,b'|split(',') }} {{ [3, 1, 2]|sort|reverse|list }}",
                "[['x', 'y'], ['z']] ['a', 'b'] [3, 2, 1]",
            ),
        ];
        for (template, expected) in cases {
            let message = email(json!({ "subject": "s", "text": template }), &attributes);
            let Ok(Message::Email { text: Some(text), .. }) = &message else {
                panic!("{template}: {message:?}");
            };
            assert_eq!(text, expected, "{template}");
            // MiniJinja, given the template as it is, agrees.
            let mut plain = Environment::new();
            plain.set_undefined_behavior(UndefinedBehavior::Strict);
            assert_eq!(plain.render_str(template, Value::from(Serde(&attributes))).unwrap(), expected);
        }
        let html = json!({ "subject": "s", "html": "{{ markup }}{{ markup|safe }}{{ markup ~ 'a' }}{{ [markup, 'b']|join('<') }}" });
        let Ok(Message::Email { html: Some(html), .. }) = email(html, &attributes) else { panic!() };
        assert_eq!(html, "&lt;b&gt;<b>&lt;b&gt;a&lt;b&gt;&lt;b");
    }

    #[test]
    fn errors_name_the_line_of_the_template() {
        for (template, line) in [
            ("a\n\n{{ 'x'|nosuch }}", 3),
            ("{{ 1\n + 1\n}}\n{{ 'x' * 999999999 }}", 4),
            ("{# a\nb #}\n{%- if true %}\n\n{{ range(3)|batch(99999999) }}{% endif %}", 5),
        ] {
            let error = check(Channel::Email, &json!({ "subject": "s", "text": template })).unwrap_err();
            assert!(error.to_string().contains(&format!("in line {line}:")), "{template}: {error}");
        }
    }

    #[test]
    fn a_static_subject_with_a_line_break_is_refused_when_the_asset_is_made() {
        for subject in [
            "Hello\nBcc: all@example.com",
            "Hello\r{{ name }}",
            "{{ 'a\\nb' }}",
            "{% if vip %}a\nb{% endif %}",
            "a\u{85}b",
        ] {
            let error = check(Channel::Email, &json!({ "subject": subject, "text": "t" })).unwrap_err();
            assert!(error.to_string().contains("`subject` holds a line break"), "{subject:?}: {error}");
        }
        for subject in [
            "Hello {{ name }}\n",
            "\n Hello",
            "{% if vip %}\nvip\n{% endif %}",
            "a{#\n#}b",
            "{%- if vip -%}\na\n{%- endif -%}",
        ] {
            check(Channel::Email, &json!({ "subject": subject, "text": "t" })).unwrap();
        }
    }
}
