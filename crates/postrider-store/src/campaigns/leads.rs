//! Leads and lists of them.
//!
//! ```text
//! rows ──COPY──▶ lead_intake ──import_leads──▶ leads and lead_list_members     one transaction
//!   └─ refused: halved, until what is refused is one row, which is reported and left out
//! ```

mod checking;
mod listing;
mod lists;
mod people;
mod reading;

use std::collections::HashSet;

use postrider_model::{
    campaigns::audience::{ATTRIBUTES_BYTES_MAX, BadLine, LIST_NAME_BYTES_MAX, Row},
    ids::{LeadId, ListId, TenantId, WorkspaceId},
};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

pub use self::{
    checking::{Audience, COUNTED_MAX, SAMPLE_MAX, audience},
    listing::{Filter, Lead, find, has_list, page},
    lists::{List, MEMBERS_MAX, lists},
    people::{After, Erasure, LeadItem, RUNS_MAX, erase, find_all, items, unsuppress},
    reading::{Summary, read_ahead},
};
use crate::{
    Pool, StoreError,
    postgres::{pool, unprepared::unprepared},
};

/// Maximum size of the data that is gathered before it is sent.
const PIECE_BYTES: usize = 64 * 1024;

/// The destination of leads.
#[derive(Debug, Clone, Copy)]
pub struct Destination<'a> {
    /// The tenant.
    pub tenant: TenantId,
    /// The workspace.
    pub workspace: WorkspaceId,
    /// The list that they are put on. It is made when there is none of this name.
    pub list: &'a str,
}

/// Result of an import of rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imported {
    /// The list, if a lead was put on it.
    pub list: Option<ListId>,
    /// New leads.
    pub added: u64,
    /// Leads that existed before.
    pub updated: u64,
    /// Lines about the person of an earlier line.
    pub repeated: u64,
    /// Lines whose lead was recognised by its address, or by an external id that it got later.
    pub matched: u64,
    /// Lines that the database refused, or that several leads fit.
    pub refused: Vec<BadLine>,
}

/// Stores leads and commits. Rows that the database refuses are left out and reported; all other rows are kept.
pub async fn import(pool: &Pool, to: Destination<'_>, rows: &[Row]) -> Result<Imported, StoreError> {
    let mut transaction = pool::begin_as(pool, to.tenant).await?;
    let imported = add(&mut transaction, to, rows).await?;
    pool::commit(transaction).await?;
    Ok(imported)
}

/// Stores leads in the transaction of the caller, which must act for their tenant. Rows that the database refuses are left out and
/// reported; all other rows are there when the caller commits.
pub async fn add(
    connection: &mut PgConnection,
    to: Destination<'_>,
    rows: &[Row],
) -> Result<Imported, StoreError> {
    let mut imported = Imported::default();
    let mut waiting = vec![rows];
    while let Some(rows) = waiting.pop() {
        match (store(connection, to, rows).await, rows) {
            (Ok(stored), _) => {
                imported.list = stored.list.or(imported.list);
                imported.added += stored.added;
                imported.updated += stored.updated;
                imported.repeated += stored.repeated;
                imported.matched += stored.matched;
                imported.refused.extend(stored.refused);
            }
            (Err(Refusal::Of(error)), _) => return Err(error),
            (Err(Refusal::OfARow(reason)), [row]) => {
                let bad = |line: &u64| BadLine { line: *line, reason: reason.clone() };
                imported.refused.extend(row.lines.iter().map(bad));
            }
            (Err(Refusal::OfARow(_)), rows) => {
                // The earlier half first: a later line about the same person counts.
                let (earlier, later) = rows.split_at(rows.len() / 2);
                waiting.extend([later, earlier]);
            }
        }
    }
    Ok(imported)
}

/// The reason why rows were not stored.
enum Refusal {
    /// One of the rows is wrong.
    OfARow(String),
    /// Another failure.
    Of(StoreError),
}

/// Stores all of the rows or none: a refusal is rolled back, and the transaction goes on.
async fn store(
    connection: &mut PgConnection,
    to: Destination<'_>,
    rows: &[Row],
) -> Result<Imported, Refusal> {
    if rows.is_empty() {
        return Ok(Imported::default());
    }
    let failed = |error| Refusal::Of(StoreError::on("storing leads")(error));
    let mut savepoint = connection.begin().await.map_err(failed)?;
    match copy_and_merge(&mut savepoint, to, rows).await {
        Ok(stored) => {
            savepoint.commit().await.map_err(failed)?;
            Ok(stored)
        }
        Err(error) => {
            // The statement's error is the cause, not a failure to roll back on a connection that is gone.
            let _ = savepoint.rollback().await;
            Err(sorted(error))
        }
    }
}

/// Takes rows into the tenant of the transaction. Each person must be among them once.
async fn copy_and_merge(
    connection: &mut PgConnection,
    to: Destination<'_>,
    rows: &[Row],
) -> Result<Imported, sqlx::Error> {
    let intake = Uuid::now_v7();
    copy(connection, intake, rows).await?;
    let merged = sqlx::query!(
        r#"
        select list_id, added as "added!", updated as "updated!", repeated as "repeated!", matched as "matched!",
               ambiguous as "ambiguous!"
          from execution.import_leads($1, $2, $3, $4, $5)
        "#,
        to.tenant.0,
        intake,
        to.workspace.0,
        to.list,
        ListId::new().0,
    )
    .fetch_one(unprepared(connection))
    .await?;
    let ambiguous: HashSet<u64> = merged.ambiguous.iter().map(|line| line.unsigned_abs()).collect();
    let (left_out, stored): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.lines.last().is_some_and(|line| ambiguous.contains(line)));
    let again: usize = stored.iter().map(|row| row.lines.len().saturating_sub(1)).sum();
    Ok(Imported {
        list: merged.list_id.map(ListId),
        added: merged.added.unsigned_abs(),
        updated: merged.updated.unsigned_abs(),
        repeated: merged.repeated.unsigned_abs() + again as u64,
        matched: merged.matched.unsigned_abs(),
        refused: left_out.into_iter().flat_map(ambiguous_lines).collect(),
    })
}

/// The lines of a row whose address several leads have.
fn ambiguous_lines(row: &Row) -> impl Iterator<Item = BadLine> {
    let address = if row.lead.email.is_some() { "e-mail address" } else { "phone number" };
    row.lines.iter().map(move |line| BadLine {
        line: *line,
        reason: format!(
            "more than one lead has this {address}; add the external_id of the one that is meant"
        ),
    })
}

async fn copy(connection: &mut PgConnection, intake: Uuid, rows: &[Row]) -> Result<(), sqlx::Error> {
    let mut copy = connection
        .copy_in_raw(
            "copy execution.lead_intake
                  (intake, line, lead_id, identity, external_id, email, phone, timezone, attributes, suppression_reason)
             from stdin",
        )
        .await?;
    let mut piece = String::with_capacity(2 * PIECE_BYTES);
    for Row { lines, lead } in rows {
        let line = lines.last().copied().unwrap_or_default();
        let attributes = lead.attributes_json();
        piece.push_str(&format!("{intake}\t{line}\t{}", LeadId::new().0));
        for value in [
            Some(&lead.identity),
            lead.external_id.as_ref(),
            lead.email.as_ref(),
            lead.phone.as_ref(),
            lead.timezone.as_ref(),
            Some(&attributes),
            lead.suppression_reason.as_ref(),
        ] {
            piece.push('\t');
            push_value(&mut piece, value);
        }
        piece.push('\n');
        if piece.len() >= PIECE_BYTES {
            copy.send(piece.as_bytes()).await?;
            piece.clear();
        }
    }
    copy.send(piece.as_bytes()).await?;
    copy.finish().await?;
    Ok(())
}

/// A value in the text format of COPY, where a backslash begins everything special.
fn push_value(piece: &mut String, value: Option<&String>) {
    let Some(value) = value else { return piece.push_str("\\N") };
    for character in value.chars() {
        match character {
            '\\' => piece.push_str("\\\\"),
            '\t' => piece.push_str("\\t"),
            '\n' => piece.push_str("\\n"),
            '\r' => piece.push_str("\\r"),
            other => piece.push(other),
        }
    }
}

/// Nothing more is sent to this lead of the tenant. Doing it twice is the same as once: the first reason stays.
/// False when there is no such lead.
pub async fn suppress(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: LeadId,
    reason: &str,
    actor: &str,
) -> Result<bool, StoreError> {
    sqlx::query_scalar!(
        r#"select execution.suppress_lead($1, $2, $3, $4) as "exists!""#,
        tenant.0,
        id.0,
        reason,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("suppressing the lead"))
}

/// Separates a problem with one row from all other failures.
fn sorted(error: sqlx::Error) -> Refusal {
    match StoreError::constraint(&error) {
        Some("leads_attributes_are_a_small_object") => {
            return Refusal::OfARow(format!(
                "its attributes and those that the lead has already take more than {ATTRIBUTES_BYTES_MAX} bytes together"
            ));
        }
        Some("lead_lists_name_is_given") => {
            return Refusal::Of(StoreError::Refused {
                message: format!("a list needs a name of 1 to {LIST_NAME_BYTES_MAX} bytes"),
                hint: None,
            });
        }
        _ => {}
    }
    let of_a_row = error.as_database_error().is_some_and(|refused| {
        let code = refused.code().unwrap_or_default();
        // Data of a wrong form, and too much data.
        refused.table() == Some("leads") || code.starts_with("22") || code.starts_with("54")
    });
    match error.as_database_error() {
        Some(refused) if of_a_row => {
            Refusal::OfARow(format!("the database refused it: {}", refused.message()))
        }
        _ => Refusal::Of(StoreError::on("storing leads")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_leave_its_field() {
        let mut piece = String::new();
        for value in [Some("a\tb\nc\rd\\."), Some("\\N"), Some(""), None] {
            push_value(&mut piece, value.map(str::to_owned).as_ref());
            piece.push('|');
        }
        assert_eq!(piece, "a\\tb\\nc\\rd\\\\.|\\\\N||\\N|");
    }
}
