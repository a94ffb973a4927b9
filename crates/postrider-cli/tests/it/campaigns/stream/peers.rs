//! Readers that nobody here wrote, on a network that breaks all the time.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::Context;
use serde_json::Value;

use super::{Stage, cutter::Cutter};
use crate::world::run;

/// Many readers in one process. Each comes back by itself, with the id that it saw last; each ends with the phase.
const READERS: &str = r#"
import { EventSource } from "eventsource";
const [url, key, count] = process.argv.slice(2);
const authorized = (input, init) => fetch(input, { ...init, headers: { ...init.headers, Authorization: `Bearer ${key}` } });
const readers = Array.from({ length: Number(count) }, (_, n) => new Promise((done, failed) => {
    const source = new EventSource(`${url}?after=0`, { fetch: authorized });
    const read = [];
    let opened = 0;
    source.onopen = () => opened += 1;
    source.onmessage = (message) => {
        const event = JSON.parse(message.data);
        if (String(event.sequence) !== message.lastEventId) failed(new Error(`${message.lastEventId} is not ${message.data}`));
        read.push(event.sequence);
        if (event.type === "phase_completed") { source.close(); done({ opened, read }); }
    };
    for (const control of ["snapshot_required", "bye"])
        source.addEventListener(control, (message) => failed(new Error(`${control}: ${message.data}`)));
    source.onerror = (error) => {
        if (source.readyState === EventSource.CLOSED) failed(new Error(`gave up: ${error.code} ${error.message}`));
    };
}));
process.stdout.write(JSON.stringify(await Promise.all(readers)), () => process.exit(0));
"#;

#[tokio::test]
async fn a_thousand_breaks_lose_and_repeat_nothing_for_npm_eventsource() -> anyhow::Result<()> {
    const CUTS: usize = 1000;
    const PARALLEL: usize = 100;
    let stage = Stage::new().await?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/peers-node");
    let home = tokio::task::spawn_blocking(move || run(&mut Command::new(script))).await??;
    anyhow::ensure!(home.code == 0, "{}", home.stderr);
    let home = Path::new(home.stdout.trim()).to_owned();
    // Beside its modules, because that is where node looks for them.
    let program = tempfile::Builder::new().suffix(".mjs").tempfile_in(&home)?;
    std::fs::write(program.path(), READERS)?;

    let cutter = Cutter::start(stage.url(), CUTS, 0, 6000).await?;
    let node = tokio::process::Command::new("node")
        .arg(program.path())
        .args([
            &format!("{}{}", cutter.http_url, stage.path()),
            &stage.api.acme.viewer,
            &PARALLEL.to_string(),
        ])
        .current_dir(&home)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let reading = node.wait_with_output();
    let writing = async {
        // Until every break has happened; then the phase ends, and the readers with it.
        while cutter.cuts() < CUTS {
            stage.write(1).await?;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await; // a pace, not a wait
        }
        let mut transaction = super::acting_for(&stage.app, &stage.api.acme).await?;
        for trigger in ["resume", "complete"] {
            sqlx::query(
                "select execution.control_phase(tenancy.current_tenant_id(), $1, 'only', $2, null, 'a test')",
            )
            .bind(stage.campaign)
            .bind(trigger)
            .execute(&mut *transaction)
            .await?;
        }
        transaction.commit().await?;
        anyhow::Ok(())
    };
    let (read, written) = tokio::join!(reading, writing);
    written?;
    let read = read?;
    anyhow::ensure!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let history: Vec<i64> =
        stage.history().await?.iter().filter_map(|event| event["sequence"].as_i64()).collect();
    assert!(history.iter().zip(1..).all(|(sequence, expected)| *sequence == expected));
    let readers: Vec<Value> = serde_json::from_slice(&read.stdout)?;
    assert_eq!((readers.len(), cutter.cuts()), (PARALLEL, CUTS));
    for reader in &readers {
        let got: Vec<i64> = serde_json::from_value(reader["read"].clone())?;
        assert_eq!(got, history);
    }
    let opened: u64 = readers.iter().filter_map(|reader| reader["opened"].as_u64()).sum();
    assert!(opened > CUTS as u64 / 2, "most breaks came after the head of an answer: {opened}");
    Ok(())
}

#[tokio::test]
async fn a_hundred_breaks_lose_and_repeat_nothing_for_curl() -> anyhow::Result<()> {
    const BREAKS: usize = 100;
    let stage = Stage::new().await?;
    stage.write(1).await?;
    let url = format!("{}{}", stage.url(), stage.path());
    let authorization = format!("Authorization: Bearer {}", stage.api.acme.viewer);
    let writing = async {
        loop {
            anyhow::ensure!(stage.write(1).await? < 50_000, "curl never came to its end");
        }
    };
    let reading = tokio::task::spawn_blocking(move || {
        let mut read: Vec<i64> = Vec::new();
        for _ in 0..BREAKS {
            let position = format!("Last-Event-ID: {}", read.last().copied().unwrap_or_default());
            let mut curl = Command::new("curl")
                .args(["--silent", "--no-buffer", "--fail", "-H", &authorization, "-H", &position, &url])
                .stdout(Stdio::piped())
                .spawn()?;
            let (_, random) = uuid::Uuid::now_v7().as_u64_pair();
            let mut wanted = random % 40 + 1;
            let mut id = None;
            for line in BufReader::new(curl.stdout.take().context("no stdout")?).lines() {
                let line = line?;
                if let Some(given) = line.strip_prefix("id: ") {
                    id = Some(given.parse::<i64>()?);
                } else if let Some(data) = line.strip_prefix("data: ") {
                    anyhow::ensure!(
                        serde_json::from_str::<Value>(data)?["sequence"].as_i64() == id,
                        "{data}"
                    );
                } else if line.is_empty()
                    && let Some(id) = id.take()
                {
                    // Only what ended with an empty line has come.
                    read.push(id);
                    wanted -= 1;
                    if wanted == 0 {
                        break;
                    }
                }
            }
            curl.kill()?;
            curl.wait()?;
        }
        anyhow::Ok(read)
    });
    let read = tokio::select! {
        read = reading => read??,
        failed = writing => return failed,
    };
    assert!(
        read.len() >= BREAKS && read.iter().zip(1..).all(|(sequence, expected)| *sequence == expected),
        "{read:?}"
    );
    Ok(())
}
