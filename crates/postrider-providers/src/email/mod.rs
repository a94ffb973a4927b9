//! E-mail, one file (or folder) per vendor.

mod smtp;

pub use smtp::SmtpAdapter;
