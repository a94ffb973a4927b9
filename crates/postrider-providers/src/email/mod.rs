//! E-mail, one file (or folder) per vendor.

mod resend;
mod smtp;

pub use resend::ResendAdapter;
pub use smtp::SmtpAdapter;
