//! Chat, one file per vendor: replies in a conversation, and inbound messages.
//!
//! An adapter verifies a webhook before it reads it, see [`Adapter::receive`](crate::Adapter::receive). Everything except the text of a person
//! is ignored without an error: messages of bots, edits, reactions, pictures.

pub(crate) mod inbound;
mod slack;
mod telegram;
mod whatsapp;

pub use slack::SlackAdapter;
pub use telegram::TelegramAdapter;
pub use whatsapp::WhatsappAdapter;
