//! Arguments in the query, in a form or in a JSON object, as the methods of Slack and Telegram accept them.

use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;
use serde_json::{Map, Value};

/// Why the arguments of a body cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The content type is JSON, but the body is not.
    Json,
    /// The JSON is not an object.
    NoObject,
    /// Another content type.
    Type,
}

/// The arguments of a method call.
#[derive(Default)]
pub struct Arguments(Map<String, Value>);

impl Arguments {
    /// Reads the query and the body. The body takes precedence.
    pub fn read(head: &Parts, body: &[u8]) -> Result<Self, Unreadable> {
        let mut all = form(head.uri.query().unwrap_or_default().as_bytes());
        let content_type =
            head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/json" => match serde_json::from_slice(body) {
                Ok(Value::Object(object)) => all.extend(object),
                Ok(_) => return Err(Unreadable::NoObject),
                Err(_) => return Err(Unreadable::Json),
            },
            "application/x-www-form-urlencoded" => all.extend(form(body)),
            _ if body.is_empty() => {}
            _ => return Err(Unreadable::Type),
        }
        Ok(Self(all))
    }

    /// Text that is not empty, or a number as text.
    pub fn text(&self, name: &str) -> Option<String> {
        match self.0.get(name)? {
            Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// Whether the flag is true.
    pub fn is_set(&self, name: &str) -> bool {
        match self.0.get(name) {
            Some(Value::Bool(set)) => *set,
            Some(Value::String(text)) => ["true", "1"].contains(&text.as_str()),
            _ => false,
        }
    }

    /// An object, which a form contains as text; any other value is returned unchanged.
    pub fn object(&self, name: &str) -> Option<Value> {
        match self.0.get(name)? {
            Value::Null => None,
            Value::String(text) => Some(serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into())),
            value => Some(value.clone()),
        }
    }
}

fn form(text: &[u8]) -> Map<String, Value> {
    url::form_urlencoded::parse(text).into_owned().map(|(name, value)| (name, Value::String(value))).collect()
}

#[cfg(test)]
mod tests {
    use hyper::Request;
    use serde_json::json;

    use super::*;

    fn read(content_type: &str, body: &str) -> Result<Arguments, Unreadable> {
        let request = Request::post("/a?chat_id=7&limit=5").header(CONTENT_TYPE, content_type);
        Arguments::read(&request.body(()).unwrap().into_parts().0, body.as_bytes())
    }

    #[test]
    fn arguments_come_as_json_as_a_form_or_in_the_query() {
        for (content_type, body) in [
            ("application/json; charset=utf-8", r#"{"chat_id": -12, "all": true, "meta": {"a": 1}}"#),
            ("application/x-www-form-urlencoded", "chat_id=-12&all=true&meta=%7B%22a%22:1%7D"),
        ] {
            let arguments = read(content_type, body).unwrap();
            assert_eq!(arguments.text("chat_id").as_deref(), Some("-12"), "the body comes first");
            assert_eq!(arguments.text("limit").as_deref(), Some("5"));
            assert_eq!((arguments.is_set("all"), arguments.is_set("limit")), (true, false));
            assert_eq!(arguments.object("meta"), Some(json!({ "a": 1 })));
        }
        assert_eq!(read("", "").unwrap().text("chat_id").as_deref(), Some("7"));
        for (content_type, body, why) in [
            ("application/json", "{", Unreadable::Json),
            ("application/json", "[]", Unreadable::NoObject),
            ("text/xml", "<a/>", Unreadable::Type),
        ] {
            assert_eq!(read(content_type, body).err(), Some(why), "{body}");
        }
    }
}
