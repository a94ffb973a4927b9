//! Who will find out what became of an item in doubt.

use std::fmt;

use postrider_model::DoubtClass;
use postrider_providers::Adapters;
use postrider_store::doubts::Doubt;
use serde::Serialize;

/// Who finds out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SettledBy {
    /// The resolver repeats it, which is harmless at this provider.
    Repeat,
    /// The resolver asks the provider.
    LookUp,
    /// The provider tells without being asked.
    Callback,
    /// Somebody has to look.
    Person,
}

impl SettledBy {
    /// Every one of them.
    pub const ALL: &[Self] = &[Self::Repeat, Self::LookUp, Self::Callback, Self::Person];
}

impl fmt::Display for SettledBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Repeat => "a repeat",
            Self::LookUp => "a look-up",
            Self::Callback => "a callback",
            Self::Person => "a person",
        })
    }
}

/// Who finds out what became of this item.
#[must_use]
pub fn settled_by(doubt: &Doubt, adapters: &Adapters) -> SettledBy {
    let class = adapters.get(&doubt.provider).map(|adapter| adapter.manifest().doubt);
    match class {
        _ if doubt.is_for_person => SettledBy::Person,
        Some(DoubtClass::Key | DoubtClass::Natural) => SettledBy::Repeat,
        Some(DoubtClass::Lookup) => SettledBy::LookUp,
        Some(DoubtClass::Echo) => SettledBy::Callback,
        Some(DoubtClass::Person) | None => SettledBy::Person,
    }
}
