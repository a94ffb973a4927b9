//! Shortens untrusted text for logs and error messages: to one short line.

use std::error::Error;

use postrider_model::error_chain;

/// Maximum characters of untrusted text in a message.
pub const EXCERPT_CHARS_MAX: usize = 200;

/// The beginning of a text, without control characters and without the invisible ones that turn or hide text.
pub fn excerpt(text: &str) -> String {
    let mut visible = visible(text);
    let mut short: String = visible.by_ref().take(EXCERPT_CHARS_MAX).collect();
    if visible.next().is_some() {
        short.pop();
        short.push('…');
    }
    short
}

/// Like [`excerpt`], with a limit in bytes.
pub fn excerpt_within(text: &str, bytes_max: usize) -> String {
    let mut short = String::new();
    for c in visible(text) {
        short.push(c);
        if short.len() > bytes_max {
            while short.len() + '…'.len_utf8() > bytes_max && short.pop().is_some() {}
            short.push('…');
            break;
        }
    }
    short
}

fn visible(text: &str) -> impl Iterator<Item = char> {
    text.chars()
        .map(|c| if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c })
        .filter(|c| !c.is_control() && !is_invisible(*c))
}

/// [`excerpt`] of bytes that may not be text.
pub fn excerpt_of_bytes(bytes: &[u8]) -> String {
    // Far more bytes than an excerpt can hold, far fewer than an answer can have.
    let start = bytes.get(..16 * EXCERPT_CHARS_MAX).unwrap_or(bytes);
    excerpt(&String::from_utf8_lossy(start))
}

/// An error with all its causes, in one short line.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    excerpt(&error_chain(error))
}

/// Zero width characters, marks and overrides of the writing direction, line separators, the byte order mark.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_short_and_cannot_forge_a_log_line() {
        assert_eq!(excerpt("all\r\ngood\x1b[31m\0"), "all  good[31m");
        assert_eq!(excerpt("pay\u{202e}lave"), "paylave");
        assert_eq!(excerpt(&"é".repeat(200)), "é".repeat(200));
        assert_eq!(excerpt(&"é".repeat(201)), format!("{}…", "é".repeat(199)));
        assert_eq!(excerpt_within("a\0\nb", 3), "a b");
        assert_eq!(excerpt_within(&"é".repeat(5), 10), "é".repeat(5));
        assert_eq!(excerpt_within(&"é".repeat(6), 10), "ééé…");
        assert_eq!(excerpt_of_bytes(&[b'a'; 1 << 20]).chars().count(), EXCERPT_CHARS_MAX);
        assert_eq!(excerpt_of_bytes(&[0xff, b'a']), "\u{fffd}a");
    }
}
