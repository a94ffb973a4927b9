//! Closed sets of words, such as the states of a table, as the database, the API and the CLI write them.

/// A text that is not in a closed set of words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{input}` is not a {kind}; known are {known}")]
pub struct NotAWord {
    pub(crate) input: String,
    pub(crate) kind: &'static str,
    pub(crate) known: String,
}

/// Declares an enum for a closed set of words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $kind:literal { $($(#[$variant_doc:meta])* $variant:ident => $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($(#[$variant_doc])* $variant),+
        }

        impl $name {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The word in the database, the API and the CLI.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::words::NotAWord;

            fn from_str(input: &str) -> Result<Self, $crate::words::NotAWord> {
                Self::ALL.iter().copied().find(|word| word.as_str() == input).ok_or_else(|| $crate::words::NotAWord {
                    input: input.to_owned(),
                    kind: $kind,
                    known: [$($word),+].join(", "),
                })
            }
        }
    };
}

pub(crate) use words;
