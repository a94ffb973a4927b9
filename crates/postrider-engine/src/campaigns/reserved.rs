//! Compares the message that an item would have now with the one that was reserved.

use std::sync::Arc;

use postrider_store::campaigns::{item::Whole, send_jobs::Lead};

use super::render::message_now;

/// Whether the item's message, rendered now with this link to unsubscribe, is the one that was reserved. `None` where no fingerprint was stored. It renders, which
/// takes some milliseconds.
#[must_use]
pub fn message_matches(whole: &Whole, unsubscribe_url: Option<&str>) -> Option<bool> {
    let reserved = whole.message_hash.as_deref()?;
    let lead = whole.lead.as_ref().map(|lead| {
        Arc::new(Lead {
            id: lead.id,
            external_id: lead.external_id.clone(),
            email: lead.email.clone(),
            phone: lead.phone.clone(),
            timezone: lead.timezone.clone(),
            attributes: lead.attributes.clone(),
            suppression_reason: lead.suppression_reason.clone(),
        })
    });
    let message = message_now(whole.channel, &whole.content, lead.as_ref(), unsubscribe_url);
    Some(message.is_some_and(|message| message.hash().as_slice() == reserved))
}
