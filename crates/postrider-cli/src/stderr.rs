//! Messages for people, on stderr. A failure to write them changes nothing: the reader may be gone, or the disk full.

use std::io::Write;

/// Prints a message to stderr. Unlike `eprintln!` it does not panic when the write fails.
macro_rules! message {
    ($($text:tt)*) => { $crate::stderr::print(format_args!($($text)*)) };
}

pub fn print(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
