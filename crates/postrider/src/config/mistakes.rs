//! Errors in the text of a configuration, without its values: they may be secrets.

/// Where the mistake is, and what it is.
pub(super) fn explain(text: &str, error: &toml::de::Error) -> anyhow::Error {
    let place = error.span().map(|span| {
        let line = text.get(..span.start).unwrap_or_default().matches('\n').count() + 1;
        format!("line {line}: ")
    });
    anyhow::anyhow!(
        "{}{}; docs/operations.md lists every key",
        place.unwrap_or_default(),
        without_value(error.message())
    )
}

/// The message with the kind of the value in place of the value, such as `invalid type: string, expected a sequence`.
fn without_value(message: &str) -> String {
    let message = message.trim().replace('\n', " ");
    let Some((found, expected)) = message.rsplit_once(", expected ") else { return message };
    match found.split_once(": ") {
        Some((problem @ ("invalid type" | "invalid value"), value)) => {
            let kind = value.split([' ', '`', '"']).next().unwrap_or_default();
            format!("{problem}: {kind}, expected {expected}")
        }
        _ => message,
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    fn refusal(toml: &str) -> String {
        Config::from_toml(toml).unwrap_err().to_string()
    }

    #[test]
    fn a_mistake_in_a_text_never_repeats_a_value() {
        for toml in [
            "master_key = canary",
            "master_key = ['canary']",
            "[database]\nurl = 'postgres://u:canary@h/d",
            "database = 'postgres://u:canary@h/d'",
            "[relay.sinks.a]\nkind = 'http'\nurl = 'canary@h'\nsecrets = []",
            "[relay.sinks.a]\nkind = 'http'\nurl = 'https://e.example'\nsecrets = 'whsec_canary'",
            "[relay.sinks.a]\nkind = 'nats'\nservers = ['canary']\nsubject = 'x'",
            "[relay.sinks]\na = 'whsec_canary'",
            "[api]\nburst = 'canary, expected'",
        ] {
            let message = refusal(toml);
            assert!(!message.contains("canary") && !message.contains('\n'), "{message}");
        }
        assert!(!refusal("master_key = 73310815").contains("73310815"));
    }

    #[test]
    fn a_mistake_names_its_line_and_what_is_expected() {
        let message = refusal("[http]\nlisten = '127.0.0.1:0'\ncolour = 1");
        assert!(message.starts_with("line 3: unknown field `colour`, expected `listen`"), "{message}");
        assert!(refusal("[relay]\nbatch_size = 0").contains("between 1 and 10000"));
    }
}
