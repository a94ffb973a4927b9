//! Closed sets of words, as the database, the API and people write them.

/// A text that is none of the words it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a {kind}; known are {known}")]
pub struct NotAWord {
    pub(crate) given: String,
    pub(crate) kind: &'static str,
    pub(crate) known: String,
}

/// A closed set of words, as the database, the API and people write them.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $kind:literal { $($(#[$variant_doc:meta])* $variant:ident => $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($(#[$variant_doc])* $variant),+
        }

        impl $name {
            /// Every one of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// As it is written everywhere.
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

            fn from_str(given: &str) -> Result<Self, $crate::words::NotAWord> {
                Self::ALL.iter().copied().find(|word| word.as_str() == given).ok_or_else(|| $crate::words::NotAWord {
                    given: given.to_owned(),
                    kind: $kind,
                    known: [$($word),+].join(", "),
                })
            }
        }
    };
}

pub(crate) use words;
