//! The variables of a template: the attributes of a lead by their names, and `lead` with the fields of every lead.
//!
//! They record what the template uses, because the item keeps exactly that: the message can be rendered again from it after the
//! lead has changed.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};

use minijinja::{
    Value,
    value::{Enumerator, Object, Serde},
};
use postrider_model::ids::LeadId;
use postrider_store::campaigns::send_jobs::Lead;
use serde_json::{Map, value::RawValue};
use uuid::Uuid;

use super::RenderError;

/// The fields of every lead.
const FIELDS: [&str; 5] = ["email", "external_id", "id", "phone", "timezone"];
/// The name under which a template has these fields.
const LEAD: &str = "lead";

/// No variables.
pub(super) fn empty() -> Value {
    Value::from(Serde(Map::new()))
}

/// The variables of a template. A value is converted when it is first used, because a lead has many attributes and a template uses few.
#[derive(Debug)]
pub(super) struct Variables {
    attributes: Map<String, serde_json::Value>,
    /// Converted values, so that a loop converts an attribute once. Their names are the attributes that the template used.
    converted: Mutex<HashMap<String, Value>>,
    /// A post to the public has none.
    lead: Option<Arc<Fields>>,
    uses_lead: AtomicBool,
}

impl Variables {
    /// The variables for a lead, or none for a post.
    pub(super) fn of(lead: Option<&Arc<Lead>>) -> Result<Arc<Self>, RenderError> {
        let Some(lead) = lead else { return Ok(Self::new(Map::new(), None)) };
        let attributes = serde_json::from_str(lead.attributes.get())
            .map_err(|error| RenderError::Lead { part: "attributes", problem: error.to_string() })?;
        Ok(Self::new(attributes, Some(Arc::clone(lead))))
    }

    /// The variables that [`used`](Self::used) returned.
    pub(super) fn of_payload(payload: &serde_json::Value) -> Arc<Self> {
        let mut attributes = payload.as_object().cloned().unwrap_or_default();
        let lead = attributes.remove(LEAD).map(|fields| {
            let field = |name: &str| Some(fields.get(name)?.as_str()?.to_owned());
            Arc::new(Lead {
                id: LeadId(field("id").and_then(|id| id.parse().ok()).unwrap_or(Uuid::nil())),
                external_id: field("external_id"),
                email: field("email"),
                phone: field("phone"),
                timezone: field("timezone"),
                attributes: RawValue::NULL.to_owned(),
                suppression_reason: None,
            })
        });
        Self::new(attributes, lead)
    }

    fn new(attributes: Map<String, serde_json::Value>, lead: Option<Arc<Lead>>) -> Arc<Self> {
        let lead = lead.map(|lead| Arc::new(Fields { lead, used: AtomicU8::new(0) }));
        Arc::new(Self { attributes, converted: Mutex::default(), lead, uses_lead: AtomicBool::new(false) })
    }

    /// The variables that the template has used so far, as a JSON object.
    pub(super) fn used(&self) -> String {
        let converted = self.converted.lock().unwrap_or_else(PoisonError::into_inner);
        let names = converted.keys().filter_map(|name| self.attributes.get_key_value(name));
        let mut used: Map<_, _> = names.map(|(name, value)| (name.clone(), value.clone())).collect();
        if let Some(fields) = self.lead.as_ref().filter(|_| self.uses_lead.load(Ordering::Relaxed)) {
            used.insert(LEAD.to_owned(), fields.used());
        }
        serde_json::Value::Object(used).to_string()
    }
}

impl Object for Variables {
    fn get_value(self: &Arc<Self>, name: &Value) -> Option<Value> {
        let name = name.as_str()?;
        // First, so that no attribute can replace the lead.
        if name == LEAD {
            self.uses_lead.store(true, Ordering::Relaxed);
            return self.lead.as_ref().map(|lead| Value::from_dyn_object(Arc::clone(lead)));
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

/// The fields of a lead.
#[derive(Debug)]
struct Fields {
    lead: Arc<Lead>,
    /// One bit for each of [`FIELDS`] that the template used.
    used: AtomicU8,
}

impl Fields {
    fn field(&self, n: usize) -> Option<String> {
        let lead = &self.lead;
        match n {
            0 => lead.email.clone(),
            1 => lead.external_id.clone(),
            2 => Some(lead.id.0.to_string()),
            3 => lead.phone.clone(),
            _ => lead.timezone.clone(),
        }
    }

    fn used(&self) -> serde_json::Value {
        let used = self.used.load(Ordering::Relaxed);
        let fields = FIELDS.iter().enumerate().filter(|(n, _)| used & (1 << n) != 0);
        fields.map(|(n, name)| ((*name).to_owned(), self.field(n).into())).collect::<Map<_, _>>().into()
    }
}

impl Object for Fields {
    fn get_value(self: &Arc<Self>, name: &Value) -> Option<Value> {
        let name = name.as_str()?;
        let n = FIELDS.iter().position(|field| *field == name)?;
        self.used.fetch_or(1 << n, Ordering::Relaxed);
        Some(Value::from(self.field(n)))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Str(&FIELDS)
    }
}
