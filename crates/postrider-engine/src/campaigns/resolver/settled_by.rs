//! The way in which an item in doubt will be settled.

use std::fmt;

use postrider_model::DoubtClass;
use postrider_providers::Adapters;
use postrider_store::campaigns::doubts::{Doubt, Settled};
use serde::Serialize;

/// The way in which an item in doubt will be settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SettledBy {
    /// The resolver repeats the call, which is harmless at this provider.
    Repeat,
    /// The resolver queries the provider.
    LookUp,
    /// The provider reports the result in a callback.
    Callback,
    /// A person decides.
    Person,
}

impl SettledBy {
    /// All values.
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

/// The way in which this item will be settled.
#[must_use]
pub fn settled_by(doubt: &Doubt, adapters: &Adapters) -> SettledBy {
    settled_at(&doubt.provider, doubt.is_for_person, adapters)
}

/// The way in which an item at this vendor will be settled.
#[must_use]
pub fn settled_at(provider: &str, is_for_person: bool, adapters: &Adapters) -> SettledBy {
    if is_for_person {
        return SettledBy::Person;
    }
    settled_by_class(adapters.get(provider).map(|adapter| adapter.manifest().doubt))
}

/// The items that will be settled in one of these ways, in terms of vendors.
#[must_use]
pub fn settled_in(ways: &[SettledBy], adapters: &Adapters) -> Settled {
    let names = |is_among: &dyn Fn(SettledBy) -> bool| {
        let manifests =
            adapters.manifests().filter(|manifest| is_among(settled_by_class(Some(manifest.doubt))));
        manifests.map(|manifest| manifest.name.to_owned()).collect()
    };
    Settled {
        by_vendors: names(&|way| way != SettledBy::Person && ways.contains(&way)),
        without_person: names(&|way| way != SettledBy::Person),
        by_person: ways.contains(&SettledBy::Person),
    }
}

/// The way in which items of this class are settled until the resolver leaves one to a person. `None` is a provider without an adapter.
#[must_use]
pub fn settled_by_class(class: Option<DoubtClass>) -> SettledBy {
    match class {
        Some(DoubtClass::Key | DoubtClass::Natural) => SettledBy::Repeat,
        Some(DoubtClass::Lookup) => SettledBy::LookUp,
        Some(DoubtClass::Echo) => SettledBy::Callback,
        Some(DoubtClass::Person) | None => SettledBy::Person,
    }
}
