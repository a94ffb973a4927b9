//! Calls, one file per vendor.

mod twilio;

pub use twilio::TwilioAdapter;
