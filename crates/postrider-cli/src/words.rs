//! Words for people, on stderr. Whether they can be written changes nothing: their reader may be gone, or the disk full.

use std::io::Write;

/// Like `eprintln!`, which panics where it cannot write.
macro_rules! tell {
    ($($words:tt)*) => { $crate::words::tell(format_args!($($words)*)) };
}

pub fn tell(words: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{words}");
}
