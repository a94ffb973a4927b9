//! The receipts of the simulated providers.

use std::{collections::BTreeMap, path::Path};

use anyhow::Context;
use serde_json::Value;

/// The receipts of everything that the providers acted on.
pub struct Receipts(Vec<Receipt>);

struct Receipt {
    key: String,
    channel: String,
}

impl Receipts {
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(file).context("cannot read the receipts")?;
        // The last line may be incomplete.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(Self(lines.filter(|line| line["acted"] == true).filter_map(|line| receipt(&line)).collect()))
    }

    /// Counts the actions per key of a channel.
    pub fn of_channel(&self, channel: &str) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for receipt in self.0.iter().filter(|receipt| receipt.channel == channel) {
            *counts.entry(receipt.key.clone()).or_default() += 1;
        }
        counts
    }
}

/// The receipt in a line. Most requests contain the idempotency key; otherwise the provider's own message id identifies the item.
fn receipt(line: &Value) -> Option<Receipt> {
    let key = line["key"].as_str().or(line["message_id"].as_str())?.to_owned();
    let channel = line["channel"].as_str().unwrap_or("email").to_owned();
    Some(Receipt { key, channel })
}
