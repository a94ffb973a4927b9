//! Descriptions of vendors for people: words, and the forms in which an operator enters an account.
//!
//! The forms are JSON Schemas of the structs that [`Adapter::open`](crate::Adapter::open) reads, so a form and its adapter cannot
//! differ. They use a small part of JSON Schema: an object of texts, URLs, integers, booleans and words to choose from.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

/// A vendor in words, and the forms of its accounts.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// The name for people.
    pub title: &'static str,
    /// One or two sentences for the operator who adds an account.
    pub help: &'static str,
    /// JSON Schema of the settings.
    pub settings: Value,
    /// JSON Schema of the secret.
    pub secret: Value,
    /// Whether the vendor sends webhooks with inbound messages.
    pub takes_webhooks: bool,
    /// Whether the vendor sends status callbacks about items.
    pub takes_callbacks: bool,
}

impl Description {
    /// A vendor whose accounts have settings of this form. Without a form, any object is shown as JSON.
    #[must_use]
    pub fn new(title: &'static str, help: &'static str) -> Self {
        Self {
            title,
            help,
            settings: json!({ "type": "object" }),
            secret: json!({ "type": "string", "writeOnly": true }),
            takes_webhooks: false,
            takes_callbacks: false,
        }
    }

    /// Describes the settings by the struct that `open` reads.
    pub(crate) fn settings<T: JsonSchema>(self) -> Self {
        Self { settings: form::<T>(), ..self }
    }

    /// Describes a secret of several parts, by the struct that `open` reads.
    pub(crate) fn secrets<T: JsonSchema>(self) -> Self {
        let mut secret = form::<T>();
        for (_, part) in properties(&mut secret) {
            part.insert("writeOnly".to_owned(), true.into());
            part.insert("minLength".to_owned(), 1.into());
        }
        Self { secret, ..self }
    }

    /// Describes a secret that is one text.
    pub(crate) fn secret(self, title: &str, help: &str) -> Self {
        let mut described = self.maybe_secret(title, help);
        described.secret["minLength"] = 1.into();
        described
    }

    /// Describes a secret that is one text and may be empty.
    pub(crate) fn maybe_secret(self, title: &str, help: &str) -> Self {
        let secret = json!({ "type": "string", "title": title, "description": help, "writeOnly": true });
        Self { secret, ..self }
    }
}

/// The schema of a struct, without definitions and without the names of Rust.
fn form<T: JsonSchema>() -> Value {
    let generator = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut form = generator.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(form) = form.as_object_mut() {
        for name in ["$schema", "title", "description"] {
            form.remove(name);
        }
        form.entry("properties").or_insert_with(|| json!({}));
    }
    for (name, field) in properties(&mut form) {
        simplify(field);
        field.entry("title").or_insert_with(|| title_of(name).into());
    }
    form
}

fn properties(form: &mut Value) -> impl Iterator<Item = (&String, &mut Map<String, Value>)> {
    let fields = form.get_mut("properties").and_then(Value::as_object_mut);
    fields.into_iter().flatten().filter_map(|(name, field)| Some((name, field.as_object_mut()?)))
}

/// Writes a field as a form shows it: a field that may be left out is not also null, and words to choose from are one list.
fn simplify(field: &mut Map<String, Value>) {
    if let Some(Value::Array(kinds)) = field.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [only] = &kinds[..] {
            field["type"] = only.clone();
        }
    }
    let Some(Value::Array(words)) = field.get("oneOf") else { return };
    let listed: Vec<Value> = words.iter().flat_map(words_of).collect();
    let described: Map<String, Value> = words
        .iter()
        .filter_map(|word| Some((word["const"].as_str()?.to_owned(), word.get("description")?.clone())))
        .collect();
    field.remove("oneOf");
    field.insert("type".to_owned(), "string".into());
    field.insert("enum".to_owned(), listed.into());
    if !described.is_empty() {
        field.insert("enumDescriptions".to_owned(), described.into());
    }
}

fn words_of(word: &Value) -> Vec<Value> {
    match (&word["const"], &word["enum"]) {
        (one @ Value::String(_), _) => vec![one.clone()],
        (_, Value::Array(several)) => several.clone(),
        _ => Vec::new(),
    }
}

/// `callback_url` as people read it: Callback URL.
fn title_of(name: &str) -> String {
    let words = name.split('_').enumerate().map(|(at, word)| match word {
        "id" | "sid" | "url" => word.to_uppercase(),
        _ if at == 0 => {
            let mut letters = word.chars();
            letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
        }
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_words() {
        assert_eq!(
            ["url", "callback_url", "reply_to", "phone_number_id"].map(title_of),
            ["URL", "Callback URL", "Reply to", "Phone number ID"]
        );
    }
}
