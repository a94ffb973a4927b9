//! The master key that the secrets of an installation are sealed under, and the change from one key to the next.
//!
//! A known value, sealed under the key, is in a table that only the owner reads. A process or command with another key finds this out at
//! its start, and not when it opens its first secret. (Decision 0023.)

use postrider_model::{
    ids::{ProviderAccountId, TenantId},
    seal::{MasterKey, Place, SealError},
};
use sqlx::PgConnection;

use crate::{StoreError, postgres::unprepared::unprepared};

/// How a key relates to the secrets of the installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// They are sealed under the current key.
    Current,
    /// They are sealed under the previous key: a rotation has not been run yet.
    Previous,
    /// No key is registered, and no value is sealed under another key.
    Unregistered,
}

/// Number of values that a rotation sealed anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Rotated {
    /// Secrets of provider accounts.
    pub accounts: usize,
    /// Secrets of executors.
    pub executors: usize,
    /// Secrets of functions.
    pub functions: usize,
}

/// Number of values per statement.
const AT_A_TIME: usize = 500;

/// Compares `key` with the installation's, and refuses another key. Writes nothing. The login must be a member of `postrider_worker`, or
/// the owner, to find secrets that were sealed before a key was registered.
pub async fn verify(connection: &mut PgConnection, key: &MasterKey) -> Result<Standing, StoreError> {
    let registered = sqlx::query_scalar!("select tenancy.master_key_check() as sealed_check")
        .fetch_one(unprepared(&mut *connection))
        .await
        .map_err(StoreError::on("reading the registered master key"))?;
    if let Some(sealed_check) = registered {
        return standing(key, &sealed_check);
    }
    if !may_register(connection).await? {
        return Ok(Standing::Unregistered);
    }
    // Sealed by a version that did not register its key.
    let sealed = sqlx::query!(
        r#"
        select key_id as "key_id!", number as "number!", tenant_id as "tenant_id!", id as "id!", sealed_secret as "sealed_secret!"
          from tenancy.sealed_keys()
        "#
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the sealed values"))?;
    let most = sealed.iter().map(|keys| keys.number).max().unwrap_or_default();
    let mut ours = sealed.iter().filter_map(|keys| Some((keys, key.that_sealed(&keys.sealed_secret)?)));
    match ours.find(|(keys, _)| keys.number == most) {
        Some((keys, ours)) => {
            let place = Place { tenant: TenantId(keys.tenant_id), account: ProviderAccountId(keys.id) };
            ours.open(place, &keys.sealed_secret).map_err(|_| other_key())?;
            Ok(if ours.id() == key.id() { Standing::Unregistered } else { Standing::Previous })
        }
        None if sealed.is_empty() => Ok(Standing::Unregistered),
        None => Err(other_key()),
    }
}

/// The same, and registers the key where none is. Commands do this in the transaction that seals something.
pub async fn ensure(connection: &mut PgConnection, key: &MasterKey) -> Result<Standing, StoreError> {
    let found = verify(connection, key).await?;
    if !may_register(connection).await? {
        return Ok(found);
    }
    let registering = match (found, key.previous()) {
        (Standing::Previous, Some(previous)) => previous,
        _ => key.current(),
    };
    let sealed_check = registering.seal_check().map_err(unfit)?;
    let registered =
        sqlx::query_scalar!(r#"select tenancy.register_master_key($1) as "sealed_check!""#, sealed_check)
            .fetch_one(unprepared(connection))
            .await
            .map_err(StoreError::on("registering the master key"))?;
    standing(key, &registered)
}

/// The one of the two keys under which this transaction must seal. A rotation waits for the transaction's end.
pub(crate) async fn sealing(connection: &mut PgConnection, key: &MasterKey) -> Result<MasterKey, StoreError> {
    let registered = sqlx::query_scalar!("select tenancy.sealing_key_check() as sealed_check")
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("reading the registered master key"))?;
    match registered {
        Some(sealed_check) => key.that_sealed(&sealed_check).ok_or_else(other_key),
        None => Ok(key.current()),
    }
}

/// Seals every secret of every tenant under the current key. The transaction does it as a whole or not at all; other transactions that
/// seal wait for it. `connection` is the administrative one, in a transaction.
pub async fn rotate(
    connection: &mut PgConnection,
    key: &MasterKey,
    actor: &str,
) -> Result<Rotated, StoreError> {
    let failed = StoreError::on("sealing the secrets under the new master key");
    // Registers the previous key where none is, so that there is a row to lock.
    ensure(connection, key).await?;
    let sealed_check = key.current().seal_check().map_err(unfit)?;
    sqlx::query!("select tenancy.replace_master_key($1, 'master_key.rotated', $2)", sealed_check, actor)
        .fetch_one(unprepared(&mut *connection))
        .await
        .map_err(&failed)?;
    let values = sqlx::query!(
        r#"
        select kind as "kind!", tenant_id as "tenant_id!", id as "id!", sealed_secret as "sealed_secret!"
          from tenancy.sealed_values()
        "#
    )
    .fetch_all(unprepared(&mut *connection))
    .await
    .map_err(&failed)?;

    let mut rotated = Rotated::default();
    let mut anew = Vec::new();
    let mut closed = Vec::new();
    for value in values {
        let place = Place { tenant: TenantId(value.tenant_id), account: ProviderAccountId(value.id) };
        if key.current().that_sealed(&value.sealed_secret).is_some() {
            continue;
        }
        match key.open(place, &value.sealed_secret) {
            Ok(plain) => {
                let sealed = key.current().seal(place, &plain).map_err(unfit)?;
                match value.kind.as_str() {
                    "account" => rotated.accounts += 1,
                    "executor" => rotated.executors += 1,
                    // An earlier secret of an account.
                    "version" => {}
                    _ => rotated.functions += 1,
                }
                anew.push((value.kind, value.tenant_id, value.id, value.sealed_secret, sealed));
            }
            Err(error) => closed.push(format!("{} {}: {error}", value.kind, value.id)),
        }
    }
    // A secret that opens under neither key is lost already. It does not keep the others under a key that must go.
    for problem in closed {
        tracing::warn!("left a secret as it is, because it does not open: {problem}");
    }
    for some in anew.chunks(AT_A_TIME) {
        let kinds: Vec<String> = some.iter().map(|value| value.0.clone()).collect();
        let tenants: Vec<uuid::Uuid> = some.iter().map(|value| value.1).collect();
        let ids: Vec<uuid::Uuid> = some.iter().map(|value| value.2).collect();
        let old: Vec<Vec<u8>> = some.iter().map(|value| value.3.clone()).collect();
        let new: Vec<Vec<u8>> = some.iter().map(|value| value.4.clone()).collect();
        sqlx::query!("select tenancy.reseal($1, $2, $3, $4, $5)", &kinds, &tenants, &ids, &old, &new)
            .fetch_one(unprepared(&mut *connection))
            .await
            .map_err(&failed)?;
    }
    Ok(rotated)
}

/// Registers the current key although the secrets are sealed under a key that is lost. Returns the number of secrets that do not open and
/// must be set again.
pub async fn replace_lost(
    connection: &mut PgConnection,
    key: &MasterKey,
    actor: &str,
) -> Result<i64, StoreError> {
    let failed = StoreError::on("registering the master key");
    let sealed_check = key.current().seal_check().map_err(unfit)?;
    sqlx::query!("select tenancy.replace_master_key($1, 'master_key.replaced', $2)", sealed_check, actor)
        .fetch_one(unprepared(&mut *connection))
        .await
        .map_err(&failed)?;
    sealed_under_others(connection, &key.current()).await
}

/// Number of secrets that are sealed under neither of the keys. For the administrative connection.
pub async fn sealed_under_others(connection: &mut PgConnection, key: &MasterKey) -> Result<i64, StoreError> {
    let ours: Vec<Vec<u8>> =
        [Some(key.current()), key.previous()].into_iter().flatten().map(|key| key.id().to_vec()).collect();
    sqlx::query_scalar!(
        r#"select coalesce(sum(number), 0)::bigint as "number!" from tenancy.sealed_keys() where key_id <> all ($1)"#,
        &ours,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the sealed values"))
}

/// Only a worker and the owner may: a login for requests could otherwise take the place of the key before it is registered.
async fn may_register(connection: &mut PgConnection) -> Result<bool, StoreError> {
    sqlx::query_scalar!(
        r#"select has_function_privilege('tenancy.register_master_key(bytea)', 'execute') as "may!""#
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the login's rights"))
}

fn standing(key: &MasterKey, sealed_check: &[u8]) -> Result<Standing, StoreError> {
    match key.open_check(sealed_check) {
        Ok(()) if key.current().open_check(sealed_check).is_ok() => Ok(Standing::Current),
        Ok(()) => Ok(Standing::Previous),
        Err(_) => Err(other_key()),
    }
}

fn other_key() -> StoreError {
    StoreError::Unfit(
        "the master key differs from the one that this installation was sealed with; set master_key (POSTRIDER_MASTER_KEY) \
         to that one, or, if it is lost, see `postrider master-key replace-lost --help`"
            .to_owned(),
    )
}

fn unfit(error: SealError) -> StoreError {
    StoreError::Unfit(error.to_string())
}
