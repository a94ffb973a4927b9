//! Loads the configuration: `postrider.toml`, then `POSTRIDER_…` from the environment, then flags.
//!
//! Every key is a field of [`Config`]. A key that is not is refused, wherever it comes from.

mod mistakes;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::Context;
use figment::{
    Figment,
    providers::{Env, Format, Serialized, Toml},
};
use postrider::{Config, Error};
use serde::Serialize;

use self::mistakes::explain;

/// Where the configuration is looked for when no flag names a file.
const DEFAULT_FILE: &str = "postrider.toml";

/// Variables that stand for a flag: POSTRIDER_CONFIG, POSTRIDER_API_KEY, POSTRIDER_TENANT and POSTRIDER_WORKSPACE.
const FLAG_VARIABLES: [&str; 4] = ["config", "api_key", "tenant", "workspace"];

/// What flags override.
#[derive(Debug, Default, Serialize)]
pub struct Overrides {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub database: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub http: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub log: BTreeMap<&'static str, String>,
}

/// Reads everything there is to read. `file` must exist; the default file may.
pub fn load(file: Option<&Path>, overrides: &Overrides) -> anyhow::Result<Config> {
    let mut figment = Figment::new();
    if let Some(file) = file {
        std::fs::metadata(file)
            .with_context(|| format!("cannot read the configuration {}", file.display()))?;
    }
    let file = file.unwrap_or(Path::new(DEFAULT_FILE));
    if file.exists() {
        figment = figment.merge(Toml::file_exact(file));
    }
    let config: Config = figment
        // These are read by flags of the same name: they are not keys of the file.
        .merge(Env::prefixed("POSTRIDER_").ignore(&FLAG_VARIABLES).split("__"))
        .merge(Serialized::defaults(overrides))
        .extract()
        .map_err(explain)?;
    config.check().map_err(Error::into_inner)?;
    Ok(config)
}

#[cfg(test)]
mod tests;
