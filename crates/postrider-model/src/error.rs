//! Errors as one line of text.

use std::error::Error;

/// An error and its causes, joined by colons. A cause whose text the line contains already is left out.
#[must_use]
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Failed(&'static str, Option<Box<Failed>>);

    impl fmt::Display for Failed {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Failed {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn a_chain_names_each_cause_once() {
        let cause = |text, next| Some(Box::new(Failed(text, next)));
        let error =
            Failed("reading the file", cause("open failed", cause("failed", cause("no space", None))));
        assert_eq!(error_chain(&error), "reading the file: open failed: no space");
    }
}
