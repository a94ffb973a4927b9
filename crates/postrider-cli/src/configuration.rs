//! Loads the configuration: `postrider.toml`, then `POSTRIDER_…` from the environment, then flags.
//!
//! Every key is a field of [`Config`]. An unknown key is refused, in the file and in the environment.

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

/// The configuration file when no flag names one.
const DEFAULT_FILE: &str = "postrider.toml";

/// Variables that set a flag: POSTRIDER_CONFIG, POSTRIDER_API_KEY, POSTRIDER_TENANT and POSTRIDER_WORKSPACE.
const FLAG_VARIABLES: [&str; 4] = ["config", "api_key", "tenant", "workspace"];

/// Settings that flags override.
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

/// Reads the configuration. `file` must exist; the default file may be missing.
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
