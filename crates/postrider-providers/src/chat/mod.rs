//! Chat, one file per vendor: an answer in a conversation, and what people write there.
//!
//! What comes in is verified before it is read, as [`Adapter::receive`](crate::Adapter::receive) says. What is not text that a person wrote
//! is no error and says nothing: what bots say, edits, reactions, pictures.

pub(crate) mod inbound;
mod slack;
mod telegram;
mod whatsapp;

pub use slack::SlackAdapter;
pub use telegram::TelegramAdapter;
pub use whatsapp::WhatsappAdapter;
