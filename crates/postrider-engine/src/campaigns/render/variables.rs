//! The variables of a template: the attributes of a lead by their names, `lead` with the fields of every lead, and `unsubscribe_url`.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use minijinja::{
    Value,
    value::{Enumerator, Object, Serde},
};
use postrider_store::campaigns::send_jobs::Lead;

use super::RenderError;

/// The variables for a lead, or none for a post.
pub(super) fn of(lead: Option<&Arc<Lead>>, unsubscribe_url: Option<&str>) -> Result<Value, RenderError> {
    let Some(lead) = lead else { return Ok(empty()) };
    Ok(with(lead, attributes(lead)?, unsubscribe_url))
}

/// The attributes of a lead.
pub(super) fn attributes(lead: &Lead) -> Result<serde_json::Map<String, serde_json::Value>, RenderError> {
    serde_json::from_str(lead.attributes.get())
        .map_err(|error| RenderError::Lead { part: "attributes", problem: error.to_string() })
}

/// The variables for a lead with these attributes.
pub(super) fn with(
    lead: &Arc<Lead>,
    attributes: serde_json::Map<String, serde_json::Value>,
    unsubscribe_url: Option<&str>,
) -> Value {
    Value::from_object(Variables {
        attributes,
        converted: Mutex::default(),
        lead: Arc::clone(lead),
        unsubscribe_url: unsubscribe_url.map(Value::from),
    })
}

/// No variables.
pub(super) fn empty() -> Value {
    Value::from(Serde(serde_json::Map::new()))
}

/// The variables of a template. A value is converted when it is first used, because a lead has many attributes and a template uses few.
#[derive(Debug)]
struct Variables {
    attributes: serde_json::Map<String, serde_json::Value>,
    /// Converted values, so that a loop converts an attribute once.
    converted: Mutex<HashMap<String, Value>>,
    lead: Arc<Lead>,
    unsubscribe_url: Option<Value>,
}

impl Object for Variables {
    fn get_value(self: &Arc<Self>, name: &Value) -> Option<Value> {
        let name = name.as_str()?;
        // First, so that no attribute can replace the lead.
        if name == "lead" {
            return Some(Value::from_object(Fields(Arc::clone(&self.lead))));
        }
        if name == "unsubscribe_url" {
            return self.unsubscribe_url.clone();
        }
        let attribute = self.attributes.get(name)?;
        let mut converted = self.converted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = converted.get(name) {
            return Some(value.clone());
        }
        let value = match attribute {
            serde_json::Value::String(text) => Value::from(text.as_str()),
            other => Value::from(Serde(other)),
        };
        converted.insert(name.to_owned(), value.clone());
        Some(value)
    }
}

/// The fields of every lead.
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
