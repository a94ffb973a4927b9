//! Accounts of tenants at providers. Secrets are sealed before they reach the database and opened after they leave it.

use jiff::Timestamp;
use postrider_model::{
    Limits,
    ids::{ProviderAccountId, TenantId, WorkspaceId},
    seal::{MasterKey, Place, SealError},
};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use sqlx::{PgConnection, types::Json};

use crate::{StoreError, postgres::unprepared::unprepared, tenancy::master_key};

/// An account without its secret, fit to be shown.
#[derive(Debug, Clone, Serialize)]
pub struct ProviderAccount {
    /// Its id.
    pub id: ProviderAccountId,
    /// Its workspace.
    pub workspace_id: WorkspaceId,
    /// Its name in the tenant.
    pub name: String,
    /// The provider.
    pub provider: String,
    /// Settings that are not secret, such as addresses.
    pub settings: serde_json::Value,
    /// Its limits: see [`postrider_model::Limits`].
    pub limits: serde_json::Value,
    /// Its state.
    pub state: AccountState,
    /// Number of its settings: a change of the settings makes a new version.
    pub version: i32,
    /// Time since which no new run uses it.
    pub retired_at: Option<Timestamp>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change of its settings or its secret.
    pub updated_at: Timestamp,
}

/// The state of an account at this moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct AccountState {
    /// Calls of today, by the account's clock, where they are counted.
    pub used_today: i64,
    /// Time until which its provider asked to wait.
    pub waits_until: Option<Timestamp>,
    /// The provider's reason, in its words.
    pub waits_because: Option<String>,
    /// Whether its circuit is open, or half open: then one call at a time finds out whether the provider answers again.
    pub circuit: Circuit,
    /// Until when it is open.
    pub circuit_open_until: Option<Timestamp>,
    /// The reason why the circuit opened last.
    pub circuit_reason: Option<String>,
}

/// The state of a circuit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Circuit {
    /// Calls are made.
    #[default]
    Closed,
    /// No calls are made.
    Open,
    /// One call at a time is made.
    HalfOpen,
}

/// A new account.
#[derive(Debug)]
pub struct NewAccount<'a> {
    /// The tenant.
    pub tenant: TenantId,
    /// The workspace.
    pub workspace: WorkspaceId,
    /// Its name.
    pub name: &'a str,
    /// The provider.
    pub provider: &'a str,
    /// Settings that are not secret.
    pub settings: &'a serde_json::Value,
    /// The secret.
    pub secret: &'a SecretString,
}

/// Adds an account in the tenant of the transaction.
pub async fn create(
    connection: &mut PgConnection,
    key: &MasterKey,
    account: &NewAccount<'_>,
    actor: &str,
) -> Result<ProviderAccountId, StoreError> {
    let id = ProviderAccountId::new();
    let place = Place { tenant: account.tenant, account: id };
    let sealed = seal(connection, key, place, account.secret).await?;
    sqlx::query!(
        "select tenancy.create_provider_account($1, $2, $3, $4, $5, $6, $7, $8)",
        account.tenant.0,
        id.0,
        account.workspace.0,
        account.name,
        account.provider,
        account.settings,
        sealed,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(|error| match StoreError::constraint(&error) {
        Some("provider_accounts_one_per_name") => StoreError::Conflict {
            message: format!(
                "an account called `{}` exists already; `accounts rotate` sets a new secret",
                account.name
            ),
        },
        Some("provider_accounts_provider_is_given") => refused(format!(
            "`{}` is not the name of a provider; use lower case, like `twilio`",
            account.provider
        )),
        Some("provider_accounts_settings_are_an_object") => {
            refused("settings must be a JSON object".to_owned())
        }
        Some("provider_accounts_name_is_given") => {
            refused("an account needs a name of 1 to 255 bytes".to_owned())
        }
        _ => StoreError::on("adding the provider account")(error),
    })?;
    Ok(id)
}

/// The accounts of one tenant, by name.
pub async fn list(
    connection: &mut PgConnection,
    tenant: TenantId,
) -> Result<Vec<ProviderAccount>, StoreError> {
    select(connection, tenant, None, None, i64::MAX).await
}

/// Up to so many accounts of one tenant, by name, after this one.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    after: Option<(&str, ProviderAccountId)>,
    limit: i64,
) -> Result<Vec<ProviderAccount>, StoreError> {
    select(connection, tenant, None, after, limit).await
}

/// One account of a tenant.
pub async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: ProviderAccountId,
) -> Result<Option<ProviderAccount>, StoreError> {
    Ok(select(connection, tenant, Some(id), None, 1).await?.pop())
}

/// The accounts of a tenant that a text names: the one with this id, or those with this name, of which each workspace has one at
/// most.
pub async fn named(
    connection: &mut PgConnection,
    tenant: TenantId,
    wanted: &str,
) -> Result<Vec<ProviderAccountId>, StoreError> {
    let id = wanted.parse::<ProviderAccountId>().ok();
    let rows = sqlx::query_scalar!(
        r#"
        select id
          from tenancy.provider_accounts
         where tenant_id = $1
           and (name = $2 or id = $3)
        "#,
        tenant.0,
        wanted,
        id.map(|id| id.0),
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("finding the provider account"))?;
    let mut found: Vec<ProviderAccountId> = rows.into_iter().map(ProviderAccountId).collect();
    if id.is_some_and(|id| found.contains(&id)) {
        found.retain(|found| Some(*found) == id);
    }
    Ok(found)
}

async fn select(
    connection: &mut PgConnection,
    tenant: TenantId,
    only: Option<ProviderAccountId>,
    after: Option<(&str, ProviderAccountId)>,
    limit: i64,
) -> Result<Vec<ProviderAccount>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select account.id,
               account.workspace_id,
               account.name,
               account.provider,
               account.settings,
               account.limits,
               account.version,
               account.retired_at as "retired_at: jiff_sqlx::Timestamp",
               account.created_at as "created_at: jiff_sqlx::Timestamp",
               account.updated_at as "updated_at: jiff_sqlx::Timestamp",
               case
                   when state.day = (now() at time zone coalesce(account.limits #>> '{hours,time_zone}',
                                                                 account.limits ->> 'time_zone', 'UTC'))::date
                       then state.used_today
               end as used_today,
               nullif(greatest(state.wait_until, now()), now()) as "waits_until: jiff_sqlx::Timestamp",
               state.wait_reason as "wait_reason?",
               state.circuit_open_until as "circuit_open_until?: jiff_sqlx::Timestamp",
               state.circuit_open_until > now() as is_open,
               state.circuit_reason as "circuit_reason?"
          from tenancy.provider_accounts as account
               left join execution.account_states as state
                 on state.tenant_id = account.tenant_id and state.account_id = account.id
         where account.tenant_id = $1
           and ($2::uuid is null or account.id = $2)
           and ($3::text is null or (account.name, account.id) > ($3, $4))
         order by account.name, account.id
         limit $5
        "#,
        tenant.0,
        only.map(|id| id.0),
        after.map(|(name, _)| name),
        after.map(|(_, id)| id.0),
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the provider accounts"))?;
    Ok(rows
        .into_iter()
        .map(|row| ProviderAccount {
            id: ProviderAccountId(row.id),
            workspace_id: WorkspaceId(row.workspace_id),
            name: row.name,
            provider: row.provider,
            settings: row.settings,
            limits: row.limits,
            state: AccountState {
                used_today: row.used_today.unwrap_or_default(),
                waits_because: row.waits_until.as_ref().and(row.wait_reason),
                waits_until: row.waits_until.map(jiff_sqlx::Timestamp::to_jiff),
                circuit: match row.is_open {
                    None => Circuit::Closed,
                    Some(true) => Circuit::Open,
                    Some(false) => Circuit::HalfOpen,
                },
                circuit_open_until: row.circuit_open_until.map(jiff_sqlx::Timestamp::to_jiff),
                circuit_reason: row.circuit_reason,
            },
            version: row.version,
            retired_at: row.retired_at.map(jiff_sqlx::Timestamp::to_jiff),
            created_at: row.created_at.to_jiff(),
            updated_at: row.updated_at.to_jiff(),
        })
        .collect())
}

/// The secret of an account, for the loop that calls the provider. `None` when there is no such account.
pub async fn open_secret(
    connection: &mut PgConnection,
    key: &MasterKey,
    place: Place,
) -> Result<Option<SecretString>, StoreError> {
    let sealed = sqlx::query_scalar!(
        "select sealed_secret from tenancy.provider_accounts where tenant_id = $1 and id = $2",
        place.tenant.0,
        place.account.0,
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the provider account"))?;
    sealed.map(|sealed| open(key, place, &sealed)).transpose()
}

/// Opens a secret that was read already.
pub(crate) fn open(key: &MasterKey, place: Place, sealed: &[u8]) -> Result<SecretString, StoreError> {
    let plain = key.open(place, sealed).map_err(unfit)?;
    let text = str::from_utf8(&plain).map_err(|_| unfit(SealError::Damaged))?;
    Ok(text.into())
}

/// Sets a new secret. False when the tenant of the transaction has no such account.
pub async fn rotate(
    connection: &mut PgConnection,
    key: &MasterKey,
    place: Place,
    secret: &SecretString,
    actor: &str,
) -> Result<bool, StoreError> {
    let sealed = seal(connection, key, place, secret).await?;
    sqlx::query_scalar!(
        r#"select tenancy.rotate_provider_account($1, $2, $3, $4) as "known!""#,
        place.tenant.0,
        place.account.0,
        sealed,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("rotating the provider account's secret"))
}

/// Sets the limits of an account. False when the tenant of the transaction has no such account. Jobs that waited for the old limits
/// are due: wake the workers with [`crate::campaigns::send_jobs::hint`] after the commit.
pub async fn limit(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: ProviderAccountId,
    limits: &Limits,
    actor: &str,
) -> Result<bool, StoreError> {
    sqlx::query_scalar!(
        r#"select tenancy.limit_provider_account($1, $2, $3, $4) as "known!""#,
        tenant.0,
        id.0,
        Json(limits) as _,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("limiting the provider account"))
}

/// Gives an account a new version with these settings, and with a new secret if one is given: new reservations use it. Returns its number, or
/// that of the current version if nothing differs; `None` when the tenant of the transaction has no such account.
pub async fn update(
    connection: &mut PgConnection,
    key: &MasterKey,
    place: Place,
    settings: &serde_json::Value,
    secret: Option<&SecretString>,
    actor: &str,
) -> Result<Option<i32>, StoreError> {
    let sealed = match secret {
        Some(secret) => Some(seal(connection, key, place, secret).await?),
        None => None,
    };
    sqlx::query_scalar!(
        "select tenancy.update_provider_account($1, $2, $3, $4, $5) as version",
        place.tenant.0,
        place.account.0,
        settings,
        sealed,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(|error| match StoreError::constraint(&error) {
        Some("provider_accounts_settings_are_an_object") => {
            refused("settings must be a JSON object".to_owned())
        }
        _ => StoreError::on("updating the provider account")(error),
    })
}

/// Retires an account, or takes that back. No new campaign and no new run uses a retired account; runs under way finish. False when the tenant
/// of the transaction has no such account.
pub async fn retire(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: ProviderAccountId,
    is_retired: bool,
    actor: &str,
) -> Result<bool, StoreError> {
    sqlx::query_scalar!(
        r#"select tenancy.retire_provider_account($1, $2, $3, $4) as "known!""#,
        tenant.0,
        id.0,
        is_retired,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("retiring the provider account"))
}

/// Removes an account and its secret. False when the tenant of the transaction has no such account.
pub async fn remove(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: ProviderAccountId,
    actor: &str,
) -> Result<bool, StoreError> {
    sqlx::query_scalar!(r#"select tenancy.remove_provider_account($1, $2, $3) as "known!""#, tenant.0, id.0, actor)
        .fetch_one(unprepared(connection))
        .await
        .map_err(|error| match StoreError::constraint(&error) {
            Some("campaign_phases_use_an_account" | "campaign_phases_fail_over_to_an_account") => StoreError::Conflict {
                message: "a campaign uses this account, and its record is kept; `accounts retire` keeps new runs from it"
                    .to_owned(),
            },
            _ => StoreError::on("removing the provider account")(error),
        })
}

/// Seals a secret that this transaction is going to store, under the key that the installation uses now.
pub(crate) async fn seal(
    connection: &mut PgConnection,
    key: &MasterKey,
    place: Place,
    secret: &SecretString,
) -> Result<Vec<u8>, StoreError> {
    let key = master_key::sealing(connection, key).await?;
    key.seal(place, secret.expose_secret().as_bytes()).map_err(unfit)
}

fn unfit(error: SealError) -> StoreError {
    StoreError::Unfit(error.to_string())
}

fn refused(message: String) -> StoreError {
    StoreError::Refused { message, hint: None }
}
