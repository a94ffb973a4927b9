//! The message of an item, rendered again from its asset and the variables that were kept with its reservation.

use std::sync::Arc;

use postrider_model::Message;
use postrider_store::campaigns::{item::Whole, send_jobs::Lead};

use super::render::message_of_item;

/// The message that was reserved, as far as it can be rendered again, and whether it has the fingerprint from its reservation. The
/// second is `None` where no fingerprint was stored. This renders, which takes some milliseconds.
#[must_use]
pub fn message_of(whole: &Whole) -> (Option<Message>, Option<bool>) {
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
    let Some(reserved) = whole.message_hash.as_deref() else { return (None, None) };
    let (payload, recipient) = (whole.payload.as_ref(), whole.item.recipient.as_deref());
    let message = message_of_item(whole.channel, &whole.content, payload, recipient, lead.as_ref());
    let matches = message.as_ref().is_some_and(|message| message.hash().as_slice() == reserved);
    (message.filter(|_| matches), Some(matches))
}
