//! Logs go to stderr, as text for people or as JSON for programs. Each line contains all its fields.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use postrider::config::{Log, LogFormat};

/// Starts logging. To be called once per process.
pub fn start(log: &Log) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&log.filter).map_err(|error| {
        anyhow::anyhow!(
            "cannot filter logs by `{}`: {error}; try `info` or `warn,postrider_engine=debug`",
            log.filter
        )
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        // The subscriber would report a failed write on stderr, and panic in the task that logs when that write fails too.
        .log_internal_errors(false);
    let started = match log.format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_span_list(false).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))
}
