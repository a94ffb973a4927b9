//! Errors of the parts that run until a token is cancelled.

use postrider_model::error_chain;

/// Why a configuration is refused, or why a server did not start or ended early. The message says what failed and what to try next;
/// its sources are the causes.
pub struct Error(anyhow::Error);

impl Error {
    /// With the types of its causes, for the program `postrider`.
    #[doc(hidden)]
    #[must_use]
    pub fn into_inner(self) -> anyhow::Error {
        self.0
    }
}

impl From<anyhow::Error> for Error {
    fn from(error: anyhow::Error) -> Self {
        Self(error)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// All causes, as `main` prints them.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&error_chain(self.0.as_ref()))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}
