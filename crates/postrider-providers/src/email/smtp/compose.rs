//! Writes a rendered message as the bytes of a mail. No text of a tenant or a lead can become a header.

use base64::{Engine, engine::general_purpose::STANDARD};
use lettre::{
    Address,
    message::{
        Mailbox, MultiPart, SinglePart,
        header::{ContentType, HeaderName, HeaderValue},
    },
};
use postrider_model::{IdempotencyKey, Message};
use url::Host;

/// Longest word of a subject that needs no encoding.
const SUBJECT_WORD_BYTES_MAX: usize = 66;
/// Bytes of an encoded word, which may have 75 characters in all.
const ENCODED_WORD_BYTES_MAX: usize = 45;
/// Longest name and address of a sender.
const MAILBOX_CHARS_MAX: usize = 320;

/// The sender of a mail.
#[derive(Debug, Clone)]
pub struct Sender {
    pub from: Mailbox,
    pub reply_to: Option<Mailbox>,
}

/// A mail that is ready to go.
#[derive(Debug)]
pub struct Mail {
    pub from: String,
    pub to: String,
    /// Message id, the same for every attempt, so that recipients and logs of mail servers show a repeat.
    pub id: String,
    /// Headers and text, without the end of the last line.
    pub bytes: Vec<u8>,
}

impl Mail {
    /// Whether the mail needs a server with SMTPUTF8.
    pub fn needs_utf8(&self) -> bool {
        !self.from.is_ascii() || !self.to.is_ascii() || !self.bytes.is_ascii()
    }
}

/// Writes a mail. The error is the reason why the message cannot be a mail.
pub fn compose(sender: &Sender, key: &IdempotencyKey, message: &Message) -> Result<Mail, String> {
    let Message::Email { to, subject, text, html, unsubscribe_url } = message else {
        return Err(format!("smtp carries e-mail and no {} messages", message.channel()));
    };
    let to = address(to).map_err(|wrong| format!("the lead's address {wrong}"))?;
    if subject.contains(char::is_control) {
        return Err("the subject holds a line break or another control character".to_owned());
    }
    let from = &sender.from.email;
    let id = format!("<{key}@{}>", from.domain());
    let mut builder = lettre::Message::builder()
        .message_id(Some(id.clone()))
        .from(sender.from.clone())
        .to(Mailbox::new(None, to.clone()))
        .raw_header(HeaderValue::dangerous_new_pre_encoded(
            HeaderName::new_from_ascii_str("Subject"),
            subject.clone(),
            encoded(subject),
        ))
        .date_now();
    if let Some(reply_to) = &sender.reply_to {
        builder = builder.reply_to(reply_to.clone());
    }
    for (name, value) in unsubscribing(unsubscribe_url.as_deref())? {
        let name = HeaderName::new_from_ascii_str(name);
        builder = builder.raw_header(HeaderValue::dangerous_new_pre_encoded(name, value.clone(), value));
    }
    let composed = match (text, html) {
        (None, None) => return Err("the message has neither text nor HTML".to_owned()),
        (Some(text), None) => builder.singlepart(part(ContentType::TEXT_PLAIN, text)?),
        (None, Some(html)) => builder.singlepart(part(ContentType::TEXT_HTML, html)?),
        (Some(text), Some(html)) => builder.multipart(
            MultiPart::alternative()
                .singlepart(part(ContentType::TEXT_PLAIN, text)?)
                .singlepart(part(ContentType::TEXT_HTML, html)?),
        ),
    };
    let mut bytes = composed.map_err(|error| format!("the mail could not be written: {error}"))?.formatted();
    // lettre adds a line end, and the final dot begins with another one: a text that ends with a line end needs neither.
    for _ in 0..2 {
        if bytes.ends_with(b"\r\n") {
            bytes.truncate(bytes.len() - 2);
        }
    }
    Ok(Mail { from: from.to_string(), to: to.to_string(), id, bytes })
}

/// The headers by which a mail client offers to unsubscribe (RFC 2369, RFC 8058). The link is not folded, because clients read it whole.
pub fn unsubscribing(url: Option<&str>) -> Result<Vec<(&'static str, String)>, String> {
    let Some(url) = url else { return Ok(Vec::new()) };
    if !url.bytes().all(|byte| byte.is_ascii_graphic() && !b"<>,".contains(&byte)) {
        return Err("the link to unsubscribe holds a character that a header cannot carry".to_owned());
    }
    Ok(vec![
        ("List-Unsubscribe", format!("<{url}>")),
        ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click".to_owned()),
    ])
}

/// The subject for a header: unchanged if that is safe, otherwise in encoded words (RFC 2047). lettre does not encode a word
/// that looks like an encoded one, or a word that is longer than a line.
fn encoded(subject: &str) -> String {
    let plain =
        subject.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) && !subject.contains("=?");
    let short = || subject.split(' ').all(|word| (1..=SUBJECT_WORD_BYTES_MAX).contains(&word.len()));
    if subject.is_empty() {
        return String::new();
    }
    if plain && short() {
        return folded(subject.split(' '), " ", SUBJECT_WORD_BYTES_MAX).join("\r\n ");
    }
    let words = folded(subject.split("").filter(|c| !c.is_empty()), "", ENCODED_WORD_BYTES_MAX);
    words
        .iter()
        .map(|word| format!("=?utf-8?B?{}?=", STANDARD.encode(word)))
        .collect::<Vec<_>>()
        .join("\r\n ")
}

/// Joins pieces to lines that are not longer than this.
fn folded<'a>(pieces: impl Iterator<Item = &'a str>, between: &str, bytes_max: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for piece in pieces {
        if !line.is_empty() {
            if line.len() + between.len() + piece.len() > bytes_max {
                lines.push(std::mem::take(&mut line));
            } else {
                line.push_str(between);
            }
        }
        line.push_str(piece);
    }
    lines.push(line);
    lines
}

fn part(kind: ContentType, text: &str) -> Result<SinglePart, String> {
    Ok(SinglePart::builder().header(kind).body(lines(text)?))
}

/// Parses an address for a command and a header. Its domain is in ASCII; the part before the `@` stays unchanged.
pub fn address(input: &str) -> Result<Address, String> {
    let forbidden = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '<' | '>');
    if input.contains(forbidden) {
        return Err("holds a space, a line break or an angle bracket".to_owned());
    }
    let not_one = |_| "is not an address like name@example.com".to_owned();
    let parsed: Address = input.parse().map_err(not_one)?;
    if parsed.domain().is_ascii() {
        return Ok(parsed);
    }
    match Host::parse(parsed.domain()) {
        Ok(Host::Domain(domain)) => Address::new(parsed.user(), domain).map_err(not_one),
        _ => Err("has a domain that cannot be written in ASCII".to_owned()),
    }
}

/// `Name <name@example.com>`, or the address alone.
pub fn mailbox(input: &str) -> Result<Mailbox, String> {
    if input.contains(char::is_control) {
        return Err("holds a line break or another control character".to_owned());
    }
    if input.chars().count() > MAILBOX_CHARS_MAX {
        return Err(format!("is longer than {MAILBOX_CHARS_MAX} characters"));
    }
    let Some((name, email)) = input.trim_end().strip_suffix('>').and_then(|input| input.rsplit_once('<'))
    else {
        return Ok(Mailbox::new(None, address(input)?));
    };
    let name = name.trim();
    // A name with commas may be quoted or not; the mailbox is the same.
    let name = match name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
        Some(quoted) => quoted.replace("\\\"", "\"").replace("\\\\", "\\"),
        None if name.contains(['<', '>', '"']) => {
            return Err("is not an address like name@example.com or Name <name@example.com>".to_owned());
        }
        None => name.to_owned(),
    };
    Ok(Mailbox::new(Some(name).filter(|name| !name.is_empty()), address(email)?))
}

/// Ends all lines of a text in CR LF. Servers disagree whether a bare CR ends a line, and between two such servers a text
/// can become a second mail. lettre would change bare LFs, too, but with one insertion at a time, which takes minutes for a
/// text of many lines.
fn lines(text: &str) -> Result<String, String> {
    if text.contains('\0') {
        return Err("the text holds a NUL character".to_owned());
    }
    Ok(text.replace("\r\n", "\n").replace('\r', "\n").replace('\n', "\r\n"))
}

#[cfg(test)]
mod tests;
