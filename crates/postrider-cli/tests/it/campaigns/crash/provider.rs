//! The provider of a run: a sim whose faults can be ended, and whose receipts are read while it writes them.

use std::{fs::File, io::Read, path::PathBuf};

use anyhow::Context;
use postrider_model::IdempotencyKey;
use postrider_providers::social::record_key;
use postrider_testkit::crash::Plan;
use serde_json::Value;

use super::{audit::Receipt, setup::SETUP};
use crate::{
    http::send,
    world::{Process, postrider},
};

pub struct Provider {
    _process: Process,
    pub http_url: String,
    pub smtp_port: u16,
    receipts: PathBuf,
    _home: tempfile::TempDir,
    /// The receipts, read up to the last count.
    file: File,
    received: usize,
}

impl Provider {
    pub fn start(plan: &Plan, setup: &str) -> anyhow::Result<Self> {
        let home = tempfile::tempdir()?;
        let receipts = home.path().join("receipts.ndjson");
        let mut command = postrider();
        command.env(SETUP, setup);
        command.args(["sim", "--stall-seconds", "1", "--receipts"]).arg(&receipts).args(plan.sim_arguments());
        let process = Process::start(&mut command)?;
        let said: Value = serde_json::from_str(&process.wait_for_line("http_url")?)?;
        let http_url = said["http_url"].as_str().context("no http_url")?.to_owned();
        let smtp =
            said["smtp_address"].as_str().and_then(|address| address.rsplit_once(':')).context("no smtp")?;
        let smtp_port = smtp.1.parse()?;
        let file = File::open(&receipts)?;
        Ok(Self { _process: process, http_url, smtp_port, receipts, _home: home, file, received: 0 })
    }

    /// How many requests it has received.
    pub fn received(&mut self) -> anyhow::Result<usize> {
        let mut new = Vec::new();
        self.file.read_to_end(&mut new)?;
        self.received += new.iter().filter(|byte| **byte == b'\n').count();
        Ok(self.received)
    }

    /// From now on everything is answered well.
    pub fn end_faults(&self) -> anyhow::Result<()> {
        let answer = send(&self.http_url, "PUT", "/faults", &[], "{}")?;
        anyhow::ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Ok(())
    }

    /// Every line that names this key.
    pub fn lines_about(&self, key: &str) -> anyhow::Result<Vec<String>> {
        let record = record_key(&IdempotencyKey::from_row(key.to_owned()));
        let text = std::fs::read_to_string(&self.receipts)?;
        let names = |line: &&str| line.contains(key) || line.contains(&record);
        Ok(text.lines().filter(names).map(str::to_owned).collect())
    }

    /// All receipts, each with the fault that occurred.
    pub fn receipts(&self) -> anyhow::Result<Vec<(Receipt, Option<String>)>> {
        let text = std::fs::read_to_string(&self.receipts)?;
        crate::world::whole_lines(&text).map(|line| Ok(read(&serde_json::from_str(line)?))).collect()
    }
}

fn read(line: &Value) -> (Receipt, Option<String>) {
    let text = |name: &str| line[name].as_str().map(str::to_owned);
    let is_mail = line["path"] == "smtp";
    let key = if is_mail {
        // The key is the first part of the Message-ID.
        text("message_id").and_then(|id| Some(id.strip_prefix('<')?.split_once('@')?.0.to_owned()))
    } else {
        text("key")
    };
    let fault = text("fault");
    let left_in_doubt = match fault.as_deref() {
        // To a mail, "something broke here" is an answer: it was not taken.
        Some("fail") => !is_mail,
        Some(
            "stall" | "fail_after" | "reset" | "reset_before" | "half" | "act_late" | "key_late"
            | "lookup_early",
        ) => true,
        _ => false,
    };
    (Receipt { key, record: text("rkey"), acted: line["acted"] == true, left_in_doubt }, fault)
}
