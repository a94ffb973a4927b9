//! Resolves several items with one finding.

use std::{io::Read, path::Path, process::ExitCode};

use anyhow::Context;
use postrider_model::ids::{OutboxId, TenantId};
use postrider_store::{
    Pool,
    campaigns::doubts::{self, Found, RESOLVED_MAX, Resolution, Settlement},
    postgres::pool,
};
use serde_json::json;

use super::{ResolvedAs, wake_workers};
use crate::cli::{actor, output};

/// Reads the items of a file: one per line, with the provider's message id after a blank or a comma. Empty lines and lines that begin
/// with `#` are left out.
pub(super) fn read(file: &Path, resolved_as: ResolvedAs) -> anyhow::Result<Vec<Found>> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("cannot read items from stdin")?;
    } else {
        text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read items from {}", file.display()))?;
    }
    let found = parse(&text, resolved_as).with_context(|| format!("in {}", file.display()))?;
    anyhow::ensure!(!found.is_empty(), "{} names no item; write one per line", file.display());
    Ok(found)
}

fn parse(text: &str, resolved_as: ResolvedAs) -> anyhow::Result<Vec<Found>> {
    let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(n, line)| {
            let (id, message_id) =
                line.split_once(|c: char| c == ',' || c.is_whitespace()).map_or((line, ""), |(id, rest)| {
                    (id, rest.trim_matches(|c: char| c == ',' || c.is_whitespace()))
                });
            let id: OutboxId = id.parse().with_context(|| format!("line {n}"))?;
            anyhow::ensure!(
                message_id.is_empty() || resolved_as == ResolvedAs::Sent,
                "line {n}: a message id belongs to an item that was sent; leave it out, or resolve --as sent"
            );
            Ok(Found { id, message_id: (!message_id.is_empty()).then(|| message_id.to_owned()) })
        })
        .collect()
}

/// Resolves the items, up to 1,000 in one transaction. A refused item leaves the others resolved.
pub(super) async fn resolve(
    pool: &Pool,
    tenant: TenantId,
    found: &[Found],
    resolved_as: ResolvedAs,
    note: &str,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let resolution = match resolved_as {
        ResolvedAs::Sent => Resolution::Sent { message_id: None },
        ResolvedAs::Failed => Resolution::Failed,
    };
    let mut settlements = Vec::with_capacity(found.len());
    for part in found.chunks(RESOLVED_MAX) {
        let mut transaction = pool::begin_as(pool, tenant).await?;
        let settled =
            doubts::resolve_many(&mut transaction, tenant, part, resolution, note, &actor()).await?;
        pool::commit(transaction).await?;
        settlements.extend(settled);
    }
    wake_workers(pool).await?;
    let refused = settlements.iter().filter(|settlement| settlement.settled.is_err()).count();
    if json {
        print_json(&settlements)?;
    } else {
        for Settlement { id, settled } in &settlements {
            match settled {
                Ok(status) => output::line(format_args!("{id} is now {status}"))?,
                Err(reason) => output::line(format_args!("{id} was refused: {reason}"))?,
            }
        }
        message!("{} items were resolved, {refused} were refused", settlements.len() - refused);
    }
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_json(settlements: &[Settlement]) -> anyhow::Result<()> {
    let (mut resolved, mut refused) = (Vec::new(), Vec::new());
    for Settlement { id, settled } in settlements {
        match settled {
            Ok(status) => resolved.push(json!({ "id": id, "status": status })),
            Err(reason) => refused.push(json!({ "id": id, "reason": reason })),
        }
    }
    output::json(&json!({ "resolved": resolved, "refused": refused }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "item_0190f3a2-7c1e-7f00-8000-0123456789ab";

    #[test]
    fn a_file_has_an_item_per_line_and_perhaps_its_message_id() {
        let text = format!("# from their log\n{ID}\n\n  {ID}, m-7 \r\n{ID}\tm 8\n");
        let found = parse(&text, ResolvedAs::Sent).unwrap();
        let ids: Vec<_> = found.iter().map(|found| found.message_id.as_deref()).collect();
        assert_eq!(ids, [None, Some("m-7"), Some("m 8")]);
    }

    #[test]
    fn a_line_that_is_no_item_is_named() {
        let refused = |text: &str, resolved_as| format!("{:#}", parse(text, resolved_as).unwrap_err());
        assert!(refused(&format!("{ID}\nseven\n"), ResolvedAs::Sent).starts_with("line 2: "));
        assert!(refused(&format!("{ID} m-7"), ResolvedAs::Failed).contains("line 1: a message id belongs"));
    }
}
