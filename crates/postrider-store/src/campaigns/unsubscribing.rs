//! Unsubscribing: the tokens of links, and suppressions for one list.

use std::collections::HashMap;

use jiff::Timestamp;
use postrider_model::{
    campaigns::unsubscribe::UnsubscribeScope,
    ids::{LeadId, RunId, TenantId},
};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{StoreError, postgres::unprepared::unprepared};

/// The reason of a suppression by a link.
const REASON: &str = "unsubscribed";

/// The tokens of leads for links in messages of a run. Empty if the tenant has no such run.
pub async fn tokens(
    connection: &mut PgConnection,
    tenant: TenantId,
    run: RunId,
    leads: &[Uuid],
) -> Result<HashMap<Uuid, String>, StoreError> {
    let tokens = sqlx::query_scalar!(
        "select execution.unsubscribe_tokens($1, $2, $3) as tokens",
        tenant.0,
        run.0,
        leads,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("signing the links to unsubscribe"))?;
    Ok(leads.iter().copied().zip(tokens.unwrap_or_default()).collect())
}

/// Whether a token is valid and, if so, whether its message was sent to a list.
pub async fn verify(
    connection: &mut PgConnection,
    tenant: TenantId,
    token: &str,
) -> Result<Option<bool>, StoreError> {
    let row = sqlx::query!(
        r#"
        select lead_id is not null as "is_valid!",
               list_id is not null as "has_list!"
          from execution.unsubscribe_subject($1, $2)
        "#,
        tenant.0,
        token,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("verifying the link to unsubscribe"))?;
    Ok(row.is_valid.then_some(row.has_list))
}

/// Suppresses the lead of a token. `None`: the token is not valid.
pub async fn unsubscribe(
    connection: &mut PgConnection,
    tenant: TenantId,
    token: &str,
    scope: UnsubscribeScope,
) -> Result<Option<UnsubscribeScope>, StoreError> {
    let verdict = sqlx::query_scalar!(
        r#"select execution.unsubscribe($1, $2, $3, $4) as "verdict!""#,
        tenant.0,
        token,
        scope.as_str(),
        REASON,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("unsubscribing the lead"))?;
    Ok(verdict.parse().ok())
}

/// The result for a lead and a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfList {
    /// The lead is, or is no longer, suppressed for the list.
    Done,
    /// There is no such lead.
    NoLead,
    /// The workspace of the lead has no such list.
    NoList,
}

impl OfList {
    fn of(word: &str) -> Self {
        match word {
            "no_lead" => Self::NoLead,
            "no_list" => Self::NoList,
            _ => Self::Done,
        }
    }
}

/// Suppresses a lead for the list of this name. Doing it twice is the same as once.
pub async fn suppress(
    connection: &mut PgConnection,
    tenant: TenantId,
    lead: LeadId,
    list: &str,
    reason: &str,
    actor: &str,
) -> Result<OfList, StoreError> {
    let verdict = sqlx::query_scalar!(
        r#"select execution.suppress_on_list($1, $2, $3, $4, $5) as "verdict!""#,
        tenant.0,
        lead.0,
        list,
        reason,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("suppressing the lead for the list"))?;
    Ok(OfList::of(&verdict))
}

/// Ends the suppression of a lead for the list of this name, with a note for the audit log. Also returns the other leads with its address
/// that are suppressed for the list.
pub async fn unsuppress(
    connection: &mut PgConnection,
    tenant: TenantId,
    lead: LeadId,
    list: &str,
    note: &str,
    actor: &str,
) -> Result<(OfList, Vec<LeadId>), StoreError> {
    let row = sqlx::query!(
        r#"
        select verdict as "verdict!",
               also_suppressed as "also_suppressed!"
          from execution.unsuppress_on_list($1, $2, $3, $4, $5)
        "#,
        tenant.0,
        lead.0,
        list,
        note,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("ending the suppression of the lead for the list"))?;
    Ok((OfList::of(&row.verdict), row.also_suppressed.into_iter().map(LeadId).collect()))
}

/// The suppression of a lead for one list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListSuppression {
    /// Name of the list.
    pub list: String,
    /// The reason.
    pub reason: String,
    /// Time of the suppression.
    pub suppressed_at: Timestamp,
}

/// The lists for which a lead is suppressed, by name.
pub async fn lists(
    connection: &mut PgConnection,
    tenant: TenantId,
    lead: LeadId,
) -> Result<Vec<ListSuppression>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select list.name,
               listed.reason,
               listed.suppressed_at as "suppressed_at: jiff_sqlx::Timestamp"
          from execution.lead_lists as list
               join execution.list_suppressions as listed
                 on listed.tenant_id = $1
                and listed.list_id = list.id
                and listed.lead_id = $2
         where list.tenant_id = $1
         order by list.name
        "#,
        tenant.0,
        lead.0,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the suppressions of the lead for lists"))?;
    Ok(rows
        .into_iter()
        .map(|row| ListSuppression {
            list: row.name,
            reason: row.reason,
            suppressed_at: row.suppressed_at.to_jiff(),
        })
        .collect())
}
