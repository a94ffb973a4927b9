//! A person in commands: the leads that a text names, and what campaigns sent to them.

use postrider_model::ids::LeadId;
use postrider_store::{
    PgConnection, StoreError,
    campaigns::{
        leads::{self, Lead, LeadItem},
        messages::{self, SingleMessage},
    },
    tenancy::tenants::Tenant,
};
use serde_json::{Value, json};

use crate::cli::output;

/// The leads that a text names: a lead's id, an e-mail address, a phone number or an external id.
pub async fn find(
    connection: &mut PgConnection,
    tenant: &Tenant,
    wanted: &str,
) -> Result<Vec<Lead>, StoreError> {
    let mut ids = leads::find_all(&mut *connection, tenant.id, wanted).await?;
    ids.extend(wanted.parse::<LeadId>().ok());
    let mut found = Vec::new();
    for id in ids {
        found.extend(leads::find(&mut *connection, tenant.id, id).await?);
    }
    Ok(found)
}

/// Same as [`find`]; an error if there is no such lead.
pub async fn require(
    connection: &mut PgConnection,
    tenant: &Tenant,
    wanted: &str,
) -> anyhow::Result<Vec<Lead>> {
    let found = find(connection, tenant, wanted).await?;
    anyhow::ensure!(
        !found.is_empty(),
        "tenant `{}` has no lead with the id, e-mail address, phone number or external id `{wanted}`; `postrider leads list` shows \
         the leads",
        tenant.name
    );
    Ok(found)
}

/// A lead with its newest items. All runs are searched.
pub async fn history(
    connection: &mut PgConnection,
    tenant: &Tenant,
    lead: &Lead,
    limit: i64,
) -> Result<Vec<LeadItem>, StoreError> {
    leads::items(connection, tenant.id, lead.id, None, i64::MAX, limit).await
}

/// The newest single messages to an address, or to an address of one of these leads, newest first.
pub async fn messages(
    connection: &mut PgConnection,
    tenant: &Tenant,
    wanted: &str,
    leads: &[Lead],
    limit: i64,
) -> Result<Vec<SingleMessage>, StoreError> {
    let of_leads = leads.iter().flat_map(|lead| [lead.email.as_deref(), lead.phone.as_deref()]).flatten();
    let mut addresses: Vec<String> = std::iter::once(wanted).chain(of_leads).map(str::to_lowercase).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let mut found = Vec::new();
    for address in addresses {
        let filter = messages::Filter { recipient: Some(address), ..messages::Filter::default() };
        found.extend(messages::page(&mut *connection, tenant.id, &filter, None, limit).await?);
    }
    found.sort_by_key(|message| std::cmp::Reverse((message.created_at, message.id)));
    Ok(found)
}

/// Prints single messages for a person.
pub fn show_messages(messages: &[SingleMessage]) -> anyhow::Result<()> {
    if !messages.is_empty() {
        output::line("single messages")?;
    }
    for (n, message) in messages.iter().enumerate() {
        let branch = if n + 1 == messages.len() { "└─ " } else { "├─ " };
        let state = if message.in_doubt_since.is_some() { "in doubt" } else { &message.status };
        let fields = [
            Some(output::time(message.ended_at.unwrap_or(message.created_at))),
            Some(state.to_owned()),
            message.key.as_ref().map(|key| format!("key {key}")),
            message.recipient.clone(),
            message.provider_message_id.as_ref().map(|id| format!("message id {id}")),
            message.error.clone(),
            Some(message.id.to_string()),
        ];
        let fields = fields.into_iter().flatten().collect::<Vec<_>>().join("  ");
        output::line(format_args!("{branch}{fields}"))?;
    }
    Ok(())
}

/// A lead as the commands print it for programs.
pub fn lead_json(lead: &Lead) -> Value {
    json!({
        "id": lead.id.0,
        "workspace_id": lead.workspace_id.0,
        "external_id": lead.external_id,
        "email": lead.email,
        "phone": lead.phone,
        "timezone": lead.timezone,
        "attributes": lead.attributes,
        "suppressed_at": lead.suppressed_at,
        "suppression_reason": lead.suppression_reason,
        "created_at": lead.created_at,
        "updated_at": lead.updated_at,
        "erased_at": lead.erased_at,
    })
}

/// A lead and its items as the commands print them for programs.
pub fn json(lead: &Lead, items: &[LeadItem]) -> Value {
    let items = items.iter().map(|found| {
        let item = &found.item;
        json!({
            "campaign_id": found.campaign_id.0,
            "campaign": found.campaign,
            "phase": found.phase,
            "run_id": found.run_id.0,
            "id": item.id.0,
            "job_id": item.job_id.0,
            "recipient": item.recipient,
            "idempotency_key": item.idempotency_key.to_string(),
            "status": item.status,
            "provider": item.provider,
            "provider_message_id": item.provider_message_id,
            "error": item.error,
            "created_at": item.created_at,
            "finalized_at": item.finalized_at,
            "doubted_since": item.doubted_since,
        })
    });
    let mut shown = lead_json(lead);
    shown["items"] = items.collect();
    shown
}

/// Prints a lead and its items for a person.
pub fn show(lead: &Lead, items: &[LeadItem], limit: i64) -> anyhow::Result<()> {
    let external_id = lead.external_id.as_ref().map(|id| format!("external id {id}"));
    let named = [lead.email.clone(), lead.phone.clone(), external_id];
    let named: Vec<String> = named.into_iter().flatten().collect();
    output::line(format_args!("{}  {}", lead.id, named.join("  ")))?;
    let state = match (lead.erased_at, lead.suppressed_at, &lead.suppression_reason) {
        (Some(at), ..) => format!("erased {}", output::time(at)),
        (None, Some(at), reason) => {
            format!("suppressed {}: {}", output::time(at), reason.as_deref().unwrap_or_default())
        }
        (None, None, _) => "not suppressed".to_owned(),
    };
    output::line(format_args!("│  created {}, {state}", output::time(lead.created_at)))?;
    for (n, found) in items.iter().enumerate() {
        let branch = if n + 1 == items.len() { "└─ " } else { "├─ " };
        output::line(format_args!("{branch}{}", about(found)))?;
    }
    if items.is_empty() {
        output::line("└─ no run has reserved an item for this lead")?;
    }
    if i64::try_from(items.len()).unwrap_or(i64::MAX) >= limit {
        message!("older items may be left out; --limit shows more");
    }
    Ok(())
}

fn about(found: &LeadItem) -> String {
    let item = &found.item;
    let state = match item.doubted_since {
        Some(_) => "in doubt".to_owned(),
        None => item.status.to_string(),
    };
    let fields = [
        Some(output::time(item.finalized_at.unwrap_or(item.created_at))),
        Some(state),
        Some(format!("{}/{}", found.campaign, found.phase)),
        item.recipient.clone(),
        item.provider_message_id.as_ref().map(|id| format!("message id {id}")),
        item.error.clone(),
        Some(item.id.to_string()),
    ];
    fields.into_iter().flatten().collect::<Vec<_>>().join("  ")
}
