//! Single messages: a message that cannot be sent is refused when it is handed over. `postrider_store::campaigns::messages` groups those that are
//! due into runs, which the worker sends like any other run.

use std::sync::Arc;

use postrider_model::{
    Channel,
    ids::{LeadId, SingleMessageId, TenantId},
};
use postrider_providers::Adapters;
use postrider_store::{
    PgConnection, StoreError,
    campaigns::{
        assets,
        messages::{self, NewMessage, Sent, SingleMessage},
        send_jobs::Lead,
    },
};
use serde_json::value::to_raw_value;

use super::render::Template;

/// Why a message was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// A part of it is wrong.
    #[error("`{field}`: {problem}")]
    Wrong {
        /// The part.
        field: &'static str,
        /// The problem.
        problem: String,
    },
    /// The key was used for another message.
    #[error("{0}")]
    KeyOfAnother(String),
    /// The store failed, or refused it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Hands a message over, in the transaction of the caller, which must be rolled back after an error. A new message is rendered once, so
/// that an undefined variable is reported at once.
pub async fn send(
    connection: &mut PgConnection,
    adapters: &Adapters,
    new: NewMessage<'_>,
    actor: &str,
) -> Result<(Sent, SingleMessage), SendError> {
    let sent = messages::send(&mut *connection, new, actor).await.map_err(|error| match error {
        StoreError::Conflict { message } => SendError::KeyOfAnother(message),
        error => SendError::Store(error),
    })?;
    let message = find(&mut *connection, new.tenant, sent.id).await?;
    if sent.is_new {
        check_account(adapters, &message)?;
        check_content(connection, new.tenant, &message).await?;
    }
    Ok((sent, message))
}

async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: SingleMessageId,
) -> Result<SingleMessage, StoreError> {
    let found = messages::find(connection, tenant, id).await?;
    found.ok_or_else(|| StoreError::Unfit(format!("{id} is not visible to its own transaction")))
}

fn check_account(adapters: &Adapters, message: &SingleMessage) -> Result<(), SendError> {
    let wrong = |problem| SendError::Wrong { field: "account", problem };
    let adapter = adapters.require(&message.provider).map_err(|error| wrong(error.to_string()))?;
    if adapter.manifest().channels.contains(&message.channel) {
        return Ok(());
    }
    Err(wrong(format!("it is at `{}`, which does not carry channel {}", message.provider, message.channel)))
}

async fn check_content(
    connection: &mut PgConnection,
    tenant: TenantId,
    message: &SingleMessage,
) -> Result<(), SendError> {
    let content = match (message.asset_id, &message.content) {
        (Some(asset), _) => assets::read(connection, tenant, asset).await?.map(|(_, content)| content),
        (None, content) => content.clone(),
    };
    let wrong = |field, problem: String| SendError::Wrong { field, problem };
    let template = Template::compile(message.channel, &content.unwrap_or_default())
        .map_err(|error| wrong("content", error.to_string()))?;
    let attributes =
        to_raw_value(&message.variables).map_err(|error| wrong("variables", error.to_string()))?;
    let address = message.recipient.clone();
    let lead = Lead {
        id: LeadId(message.id.0),
        external_id: None,
        email: address.clone().filter(|_| message.channel == Channel::Email),
        phone: address.clone().filter(|_| message.channel == Channel::Voice),
        timezone: None,
        attributes,
        suppression_reason: None,
    };
    // A template may use up its budget, so it is rendered beside the requests.
    let rendering = move || template.render(Some(&Arc::new(lead)), address.as_deref()).map(drop);
    match tokio::task::spawn_blocking(rendering).await {
        Ok(rendered) => rendered.map_err(|error| wrong("variables", error.to_string())),
        Err(error) => Err(wrong("content", format!("rendering it ended early: {error}"))),
    }
}
