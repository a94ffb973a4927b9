//! The file format of a campaign.
//!
//! ```toml
//! name = "spring"
//!
//! [[phase]]
//! phase = "mail"
//! channel = "email"
//! list = "customers"
//! provider_account = "mailer"
//! failover_account = "other mailer" # optional: for items that the first account provably did not send
//! content.subject = "Hello {{ first_name }}"
//! content.text = "…"
//! ```
//!
//! JSON has the same names, with `phases` as an array.

use anyhow::Context;
use jiff::Timestamp;
use postrider_engine::campaigns::render;
use postrider_model::{Channel, campaigns::PhaseKind};
use serde::{Deserialize, Deserializer, de::Error as _};

/// Maximum size of a campaign file.
const BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Maximum length of an asset name, in bytes.
const ASSET_NAME_MAX: usize = 255;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CampaignFile {
    pub name: String,
    #[serde(default = "yes")]
    pub auto_advance: bool,
    #[serde(default, rename = "phase", alias = "phases")]
    pub phases: Vec<PhaseFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseFile {
    pub phase: String,
    #[serde(default = "delivery")]
    pub kind: PhaseKind,
    pub channel: Option<Channel>,
    #[serde(alias = "asset_id")]
    pub asset: Option<String>,
    pub content: Option<serde_json::Value>,
    pub list: Option<String>,
    pub provider_account: Option<String>,
    pub failover_account: Option<String>,
    pub failure_tolerance: Option<f64>,
    pub scheduled_for: Option<Time>,
    pub quiet_time_seconds: Option<u32>,
}

fn yes() -> bool {
    true
}

fn delivery() -> PhaseKind {
    PhaseKind::Delivery
}

/// A time with its offset, as a text or, in TOML, without quotes.
#[derive(Debug, Clone, Copy)]
pub struct Time(pub Timestamp);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Text(String),
            Native(toml::value::Datetime),
        }

        const RIGHT: &str =
            "write a time with its offset, such as 2030-03-01T09:00:00Z or 2030-03-01T10:00:00+01:00";
        let text = match Written::deserialize(deserializer).map_err(|_| D::Error::custom(RIGHT))? {
            Written::Text(text) => text,
            Written::Native(time) => time.to_string(),
        };
        text.parse()
            .map(Self)
            .map_err(|_| D::Error::custom(format!("`{}` is not a time; {RIGHT}", text.escape_debug())))
    }
}

/// Reads a file, or stdin when its name is `-`.
pub fn read(path: &str) -> anyhow::Result<CampaignFile> {
    let (text, name) = match path {
        "-" => {
            (read_text(std::io::stdin()).context("cannot read the campaign from stdin")?, "stdin".to_owned())
        }
        path => {
            let opened = std::fs::File::open(path);
            let text = opened.map_err(anyhow::Error::from).and_then(read_text);
            (text.with_context(|| format!("cannot read the campaign from {path}"))?, path.to_owned())
        }
    };
    let is_json = match path.rsplit_once('.') {
        Some((_, extension)) if extension.eq_ignore_ascii_case("json") => true,
        Some((_, extension)) if extension.eq_ignore_ascii_case("toml") => false,
        _ => text.trim_start().starts_with('{'),
    };
    let parsed = if is_json { parse_json(&text) } else { parse_toml(&text) };
    parsed.with_context(|| format!("cannot parse {name}"))
}

fn read_text(from: impl std::io::Read) -> anyhow::Result<String> {
    let mut text = String::new();
    // One byte more than allowed, so that a longer file is refused and not cut.
    std::io::Read::read_to_string(&mut from.take(BYTES_MAX + 1), &mut text)?;
    anyhow::ensure!(text.len() as u64 <= BYTES_MAX, "the file is longer than {BYTES_MAX} bytes");
    Ok(text)
}

fn parse_json(text: &str) -> anyhow::Result<CampaignFile> {
    serde_json::from_str(text).map_err(|error| anyhow::anyhow!("{}", in_one_line(&error.to_string())))
}

fn parse_toml(text: &str) -> anyhow::Result<CampaignFile> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let message = in_one_line(error.message());
        match error.span() {
            Some(span) => {
                let line = text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1;
                anyhow::anyhow!("line {line}: {message}")
            }
            None => anyhow::anyhow!("{message}"),
        }
    })
}

fn in_one_line(message: &str) -> String {
    message.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

impl CampaignFile {
    /// Checks that need no database: contradictory fields, missing fields and templates.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.phases.is_empty(),
            "the campaign has no phases; add one under [[phase]], or in JSON under \"phases\""
        );
        for phase in &self.phases {
            phase
                .check(&self.asset_name(phase))
                .with_context(|| format!("phase `{}`", phase.phase.escape_debug()))?;
        }
        Ok(())
    }

    /// The name of the asset that is created from the content of a phase.
    pub fn asset_name(&self, phase: &PhaseFile) -> String {
        format!("{}/{}", self.name, phase.phase)
    }
}

impl PhaseFile {
    fn check(&self, asset_name: &str) -> anyhow::Result<()> {
        match (self.kind, &self.asset, &self.content) {
            (PhaseKind::External, None, None) => return Ok(()),
            (PhaseKind::External, _, _) => {
                anyhow::bail!("another service performs an external phase; leave `asset` and `content` out")
            }
            (PhaseKind::Delivery, Some(_), Some(_)) => {
                anyhow::bail!("`asset` and `content` are both set; give one of them")
            }
            (PhaseKind::Delivery, None, None) => {
                anyhow::bail!(
                    "`asset` and `content` are both missing; name an `asset`, or write what to send under \
                     `content`"
                )
            }
            (PhaseKind::Delivery, _, _) => {}
        }
        let channel = self.channel.context("`channel` is missing; known are email, voice, social")?;
        if let Some(content) = &self.content {
            anyhow::ensure!(
                asset_name.len() <= ASSET_NAME_MAX,
                "its content would be called `{asset_name}`, which is longer than {ASSET_NAME_MAX} bytes; give the campaign a \
                 shorter name"
            );
            render::check(channel, content)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_with_and_without_quotes() {
        let of = |text: &str| parse_toml(text).map(|file| file.phases[0].scheduled_for.map(|time| time.0));
        let at: Timestamp = "2030-03-01T09:00:00Z".parse().unwrap();
        for written in ["2030-03-01T09:00:00Z", "'2030-03-01T09:00:00Z'", "2030-03-01T10:00:00+01:00"] {
            let file = format!("name = 'a'\n[[phase]]\nphase = 'b'\nscheduled_for = {written}");
            assert_eq!(of(&file).unwrap(), Some(at), "{written}");
        }
        for written in ["2030-03-01T09:00:00", "2030-03-01", "09:00:00", "'tomorrow'", "7", "true"] {
            let file = format!("name = 'a'\n[[phase]]\nphase = 'b'\nscheduled_for = {written}");
            let error = of(&file).unwrap_err().to_string();
            assert!(error.starts_with("line 4: ") && error.contains("with its offset"), "{written}: {error}");
        }
    }

    #[test]
    fn toml_and_json_files_are_read_alike() {
        let toml = parse_toml(
            "name = 'spring'\nauto_advance = false\n[[phase]]\nphase = 'mail'\nchannel = 'email'\nfailure_tolerance = 0\n\
             content.subject = 's'",
        );
        let json = parse_json(
            r#"{"name": "spring", "auto_advance": false, "phases": [{"phase": "mail", "channel": "email",
                "failure_tolerance": 0.0, "content": {"subject": "s"}}]}"#,
        );
        assert_eq!(format!("{:?}", toml.unwrap()), format!("{:?}", json.unwrap()));
    }

    #[test]
    fn errors_name_their_line() {
        let cases = [
            ("name = 'a'\ncolour = 'red'", "line 2: unknown field `colour`"),
            ("name = 'a'\n[[phase]]\nphase = 'b'\nchanel = 'email'", "line 4: unknown field `chanel`"),
            ("name = 'a'\n[[phase]]\nphase = 'b'\nchannel = 'fax'", "line 4: unknown variant `fax`"),
            ("name = 'a'\n[[phase]]\nphase = 'b'\nquiet_time_seconds = -1", "line 4: invalid value"),
            ("name = 'a\n", "line 1: "),
            ("[[phase]]\nphase = 'b'", "missing field `name`"),
        ];
        for (text, expected) in cases {
            let error = parse_toml(text).unwrap_err().to_string();
            assert!(error.contains(expected) && error.lines().count() == 1, "{text}: {error}");
        }
        let error = parse_json(r#"{"name": "a", "colour": "red"}"#).unwrap_err().to_string();
        assert!(error.contains("unknown field `colour`") && error.contains("line 1"), "{error}");
    }
}
