//! Slack's markup of texts: entities, links and mentions.
//!
//! | Slack sends | an agent sees |
//! |---|---|
//! | `&amp;` `&lt;` `&gt;` | `&` `<` `>` |
//! | `<https://example.com>` | `https://example.com` |
//! | `<https://example.com\|our page>` | `our page (https://example.com)` |
//! | `<http://example.com\|example.com>` | `http://example.com` |
//! | `<mailto:ada@example.com\|ada@example.com>` | `ada@example.com` |
//! | `<@U123>`, `<@U123\|ada>` | `@U123`, `@ada` |
//! | `<#C123>`, `<#C123\|general>` | `#C123`, `#general` |
//! | `<!here>`, `<!subteam^S123\|@team>`, `<!date^…\|fallback>` | `@here`, `@team`, `fallback` |

/// Escapes a text, so that Slack does not interpret it as markup.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The text as a person reads it.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    // In a text of Slack these characters are markup; those that a person typed are entities.
    while let Some((before, after)) = rest.split_once('<') {
        plain.push_str(&unescaped(before));
        match after.split_once('>') {
            Some((inside, after)) => {
                plain.push_str(&unescaped(&link(inside)));
                rest = after;
            }
            None => {
                plain.push('<');
                rest = after;
            }
        }
    }
    plain.push_str(&unescaped(rest));
    plain
}

/// The ampersand comes last, so that `&amp;lt;` becomes `&lt;` and no further.
fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

/// The inside of `<…>`.
fn link(inside: &str) -> String {
    let (target, label) = match inside.split_once('|') {
        Some((target, label)) => (target, Some(label).filter(|label| !label.is_empty())),
        None => (inside, None),
    };
    let named = |sign: char, name: &str| {
        let label = label.unwrap_or(name);
        if label.starts_with(sign) { label.to_owned() } else { format!("{sign}{label}") }
    };
    if let Some(user) = target.strip_prefix('@') {
        return named('@', user);
    }
    if let Some(channel) = target.strip_prefix('#') {
        return named('#', channel);
    }
    if let Some(special) = target.strip_prefix('!') {
        return match (special.split_once('^'), label) {
            (Some(_), Some(label)) => label.to_owned(),
            (Some((kind, _)), None) => format!("@{kind}"),
            (None, _) => format!("@{special}"),
        };
    }
    let address = target.strip_prefix("mailto:").or_else(|| target.strip_prefix("tel:")).unwrap_or(target);
    let bare = address.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    match label {
        Some(label) if label.trim_end_matches('/') != bare && label != address => {
            format!("{label} ({address})")
        }
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_becomes_the_text_that_a_person_reads() {
        for (sent, read) in [
            ("Hello.", "Hello."),
            ("Fish &amp; &lt;chips&gt;", "Fish & <chips>"),
            ("&amp;lt;", "&lt;"),
            ("see <https://example.com/a?b=1&amp;c=2>!", "see https://example.com/a?b=1&c=2!"),
            ("<https://example.com|our page>", "our page (https://example.com)"),
            ("<http://example.com|example.com>", "http://example.com"),
            ("<https://example.com/|https://example.com/>", "https://example.com/"),
            ("<mailto:ada@example.com|ada@example.com>", "ada@example.com"),
            ("<tel:+4930123|+4930123>", "+4930123"),
            ("<@U123> and <@U123|ada>", "@U123 and @ada"),
            ("<#C123> and <#C123|general> and <#C123|>", "#C123 and #general and #C123"),
            ("<!here> <!channel|channel>", "@here @channel"),
            ("<!subteam^S123|@team> <!subteam^S123>", "@team @subteam"),
            ("<!date^1392734382^{date}|18 February>", "18 February"),
            ("a < b", "a < b"),
            ("<", "<"),
            ("<>", ""),
            ("a<b", "a<b"),
        ] {
            assert_eq!(plain(sent), read, "{sent}");
        }
    }

    #[test]
    fn a_plain_text_survives_the_way_out_and_back() {
        for text in ["", "Fish & <chips>", "&lt;", "&amp;lt;", "<@U123>", "<https://x|y>", "a < b > c"] {
            assert_eq!(plain(&escaped(text)), text);
        }
    }
}
