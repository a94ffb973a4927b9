//! Renders an asset for a lead as a message.
//!
//! Templates are strict: a variable that a lead does not have fails that lead's item, before any call. Values of a lead
//! cannot become a header, an address or markup: one-line parts refuse control characters, HTML is escaped.
//!
//! A template uses the attributes of the lead by their names (`{{ first_name }}`), and the fields of every lead as
//! `lead.id`, `lead.external_id`, `lead.email`, `lead.phone` and `lead.timezone` (`variables.rs`).
//!
//! Many tenants share one process, so every template is untrusted. `grammar.rs` permits only bounded constructs, `builtins.rs` has
//! the filters and tests with their limits, `budget.rs` counts their work, and the output is bounded while it is written. See
//! docs/decisions/0022-templates-are-translated-before-they-are-compiled.md.

mod budget;
mod builtins;
mod grammar;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
mod variables;

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, LazyLock},
};

use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value, syntax::SyntaxConfig};
use postrider_model::{Channel, Message};
use postrider_store::campaigns::send_jobs::Lead;
use serde::Deserialize;

use self::variables::Variables;

/// Maximum number of steps of one part. An endless loop runs out of them.
const STEPS_MAX: u64 = 100_000;
/// Maximum bytes of a subject.
const SUBJECT_BYTES_MAX: usize = 2_000;
/// Maximum bytes of any other part, and of its template.
const PART_BYTES_MAX: usize = 512 * 1024;
/// Parts of a message that have a template.
const PARTS: [&str; 4] = ["subject", "text", "html", "script"];

/// The environment without templates. It contains only the filters and tests of `builtins.rs`.
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

/// An asset or an item that could not be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The content does not have the parts of its channel.
    #[error("the content is not fit for {channel}: {problem}")]
    Unfit {
        /// The channel.
        channel: Channel,
        /// The problem and its correction.
        problem: String,
    },
    /// A template does not compile.
    #[error("the {part} has an error in line {line}: {problem}")]
    Template {
        /// The part.
        part: &'static str,
        /// The line in the part.
        line: usize,
        /// The problem.
        problem: String,
    },
    /// A template cannot be rendered for this lead.
    #[error("the {part} cannot be filled in: {problem}")]
    Lead {
        /// The part.
        part: &'static str,
        /// The missing or invalid value.
        problem: String,
    },
}

/// Content of an e-mail asset.
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

/// A message, and the variables that its template used.
#[derive(Debug)]
pub struct Rendered {
    /// The message.
    pub message: Message,
    /// The variables, as a JSON object. With the version of the asset and the address they make the message again.
    pub payload: String,
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
        let unreadable = |error: serde_json::Error| unfit(error.to_string());
        let parts: Vec<(&'static str, Option<String>)> = match channel {
            Channel::Email => {
                let EmailContent { subject, text, html } =
                    EmailContent::deserialize(content).map_err(unreadable)?;
                if text.is_none() && html.is_none() {
                    return Err(unfit("an e-mail needs `text`, `html` or both".to_owned()));
                }
                vec![("subject", Some(subject)), ("text", text), ("html", html)]
            }
            Channel::Voice => {
                vec![("script", Some(VoiceContent::deserialize(content).map_err(unreadable)?.script))]
            }
            Channel::Chat => {
                return Err(unfit(
                    "campaigns do not use the channel chat; executors write chat replies".to_owned(),
                ));
            }
            Channel::Social => {
                vec![("text", Some(SocialContent::deserialize(content).map_err(unreadable)?.text))]
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

    /// Renders every part once without a lead. A template that exceeds its limits without a lead is refused here; other errors are
    /// ignored, because they come from the missing lead.
    fn try_out(&self) -> Result<(), RenderError> {
        let mut lenient = self.environment.clone();
        lenient.set_undefined_behavior(UndefinedBehavior::Chainable);
        for part in PARTS {
            let Some(Err(error)) = write_part(&lenient, part, &variables::empty()) else { continue };
            let is_of_the_template = match error.kind() {
                ErrorKind::UnknownFilter
                | ErrorKind::UnknownTest
                | ErrorKind::OutOfFuel
                | ErrorKind::WriteFailure => true,
                _ => error.detail() == Some(PANICKED),
            };
            if is_of_the_template {
                let line = error.line().unwrap_or(1);
                return Err(RenderError::Template { part, line, problem: problem(&error) });
            }
        }
        Ok(())
    }

    /// Renders the message to one lead, or a post without a lead. `address` is the recipient.
    pub fn render(&self, lead: Option<&Arc<Lead>>, address: Option<&str>) -> Result<Message, RenderError> {
        self.fill_in(&Variables::of(lead)?, address)
    }

    /// Same as [`render`](Self::render), with the variables that the template used.
    pub fn render_with_payload(
        &self,
        lead: Option<&Arc<Lead>>,
        address: Option<&str>,
    ) -> Result<Rendered, RenderError> {
        let variables = Variables::of(lead)?;
        let message = self.fill_in(&variables, address)?;
        Ok(Rendered { message, payload: variables.used() })
    }

    /// Renders the message again, from the variables that it used.
    pub fn render_again(
        &self,
        payload: &serde_json::Value,
        address: Option<&str>,
    ) -> Result<Message, RenderError> {
        self.fill_in(&Variables::of_payload(payload), address)
    }

    fn fill_in(&self, variables: &Arc<Variables>, address: Option<&str>) -> Result<Message, RenderError> {
        let context = Value::from_dyn_object(Arc::clone(variables));
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
            "it is empty after rendering".to_owned()
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

/// Output up to the maximum length of a part.
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

/// The address of a lead on a channel, if it has one. Posts have no address.
#[must_use]
pub fn address_of(channel: Channel, lead: &Lead) -> Option<&str> {
    match channel {
        Channel::Email => lead.email.as_deref(),
        Channel::Voice => lead.phone.as_deref(),
        Channel::Social | Channel::Chat => None,
    }
}

/// The message of an item, rendered again. `None` if that is not possible. An item without a payload was not reserved here (an adoption
/// added it), so its message is rendered for the lead as it is now.
pub(super) fn message_of_item(
    channel: Channel,
    content: &serde_json::Value,
    payload: Option<&serde_json::Value>,
    recipient: Option<&str>,
    lead: Option<&Arc<Lead>>,
) -> Option<Message> {
    let template = Template::compile(channel, content).ok()?;
    let render = || match payload {
        Some(payload) => template.render_again(payload, recipient),
        None => template.render(lead, lead.and_then(|lead| address_of(channel, lead))),
    };
    catch_unwind(AssertUnwindSafe(render)).ok()?.ok()
}

/// The message of the template engine, without its file name.
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
