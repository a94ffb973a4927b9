//! Checks of a database, with advice for each problem.
//!
//! Each check is one query and one sentence. A finding that makes serving unsafe is a failure; one that only an operator needs
//! to know is a warning.

mod rights;
mod server;

use postrider_model::seal::MasterKey;
use serde::Serialize;
use sqlx::PgConnection;

use crate::{
    StoreError,
    postgres::{contract, migrate},
    tenancy::{
        installation,
        master_key::{self, Standing},
    },
};

pub use self::{
    rights::{refuse_powerful_login, require_operator, require_role},
    server::refuse_unsafe_server,
};

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Worth knowing; serving is safe.
    Warning,
    /// Must be put right.
    Failure,
}

/// One finding.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// The name of the check.
    pub check: &'static str,
    /// How serious it is.
    pub severity: Severity,
    /// The finding in words.
    pub found: String,
    /// The advice.
    pub advice: Option<String>,
}

impl Finding {
    /// As it should be.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, severity: Severity::Ok, found: found.into(), advice: None }
    }

    /// Worth knowing.
    pub fn warning(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, severity: Severity::Warning, found: found.into(), advice: Some(advice.into()) }
    }

    /// Must be put right.
    pub fn failure(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, severity: Severity::Failure, found: found.into(), advice: Some(advice.into()) }
    }
}

impl Finding {
    /// Whether the schema is missing or is not Postrider's, so that the other checks cannot run.
    #[must_use]
    pub fn is_missing_schema(&self) -> bool {
        self.check == "schema" && self.severity == Severity::Failure
    }
}

/// Checks that the secrets are sealed under the master key. `key` is `None` where none is needed yet, and an error where it is
/// missing or cannot be read. `needs` names the parts that need it. `connection` is the administrative one.
pub async fn master_key(
    connection: &mut PgConnection,
    key: Option<Result<MasterKey, String>>,
    needs: &str,
) -> Result<Finding, StoreError> {
    const CHECK: &str = "master key";
    let key = match key {
        None => return Ok(Finding::ok(CHECK, "the key is created with the first secret")),
        Some(Err(problem)) => {
            let (found, advice) = problem.split_once("; ").unwrap_or((&problem, "set master_key"));
            return Ok(Finding::failure(CHECK, format!("{found} (needed by {needs})"), advice));
        }
        Some(Ok(key)) => key,
    };
    let standing = match master_key::verify(connection, &key).await {
        Ok(standing) => standing,
        Err(StoreError::Unfit(problem)) => {
            let (found, advice) = problem.split_once("; ").unwrap_or((&problem, "set master_key"));
            return Ok(Finding::failure(CHECK, found, advice));
        }
        Err(error) => return Err(error),
    };
    let closed = master_key::sealed_under_others(connection, &key).await?;
    Ok(match standing {
        _ if closed > 0 => Finding::failure(
            CHECK,
            format!("{closed} secrets are sealed under another key"),
            "`postrider accounts check` says which accounts; set their secrets again",
        ),
        Standing::Current => Finding::ok(CHECK, "every secret is sealed under this key"),
        Standing::Previous => Finding::warning(
            CHECK,
            "the secrets are sealed under master_key_previous",
            "run `postrider master-key rotate` once every process has both keys",
        ),
        Standing::Unregistered => Finding::ok(CHECK, "set; the first process registers it"),
    })
}

/// Runs all checks. `connection` is the administrative one.
pub async fn examine(connection: &mut PgConnection) -> Result<Vec<Finding>, StoreError> {
    let mut findings = vec![server::version(connection).await?];
    findings.extend(server::durability(connection).await?);
    findings.push(schema_version(connection).await?);
    if findings.last().is_some_and(|finding| finding.severity == Severity::Failure) {
        // Without the schema the other checks cannot run.
        findings.push(server::clock(connection).await?);
        return Ok(findings);
    }
    findings.push(restored_copy(connection).await?);
    findings.push(drift(connection).await?);
    findings.push(contracts(connection).await?);
    findings.push(rights::roles(connection).await?);
    findings.push(rights::row_level_security(connection).await?);
    findings.push(rights::grants(connection).await?);
    findings.push(rights::definer_functions(connection).await?);
    findings.push(rights::signed_tenants(connection).await?);
    findings.push(rights::logins(connection).await?);
    findings.push(rights::public_rights(connection).await?);
    findings.push(server::clock(connection).await?);
    findings.push(server::notification_queue(connection).await?);
    findings.push(server::oldest_transaction(connection).await?);
    findings.push(server::waiting_locks(connection).await?);
    Ok(findings)
}

async fn schema_version(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    match migrate::verify(connection).await {
        Ok(()) => Ok(Finding::ok("schema", format!("{} files are applied", migrate::files()))),
        Err(StoreError::Unfit(why)) => match why.split_once("; ") {
            Some((found, advice)) => Ok(Finding::failure("schema", found, advice)),
            None => Ok(Finding::failure("schema", why, "run `postrider migrate`")),
        },
        Err(error) => Err(error),
    }
}

/// The finding of `doctor` about a restored copy.
pub const RESTORED: &str = "restored copy: sending waits for adopt";
/// The advice of `doctor` about a restored copy.
pub const ADOPT: &str = "make sure that nothing sends from the original any more, then run `postrider adopt`";

/// A failure with the reason why the database is taken for a restored copy.
#[must_use]
pub fn restored(why: &str) -> Finding {
    Finding::failure("restored copy", format!("{RESTORED}: {why}"), ADOPT)
}

async fn restored_copy(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let observed = installation::observe(connection, &installation::Known::default()).await?;
    let Some(epoch) = &observed.epoch else {
        return Ok(Finding::ok("restored copy", "no sending process has started on this database yet"));
    };
    if let Some(why) = &observed.refusal {
        return Ok(restored(why));
    }
    if !observed.unconfirmed.is_empty() {
        return Ok(restored(&installation::unconfirmed(&observed.unconfirmed)));
    }
    Ok(Finding::ok(
        "restored copy",
        format!(
            "no: this is the database that was {} on {}, in cluster {}",
            epoch.cause, epoch.began_at, observed.system_identifier
        ),
    ))
}

async fn drift(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let failed = StoreError::on("comparing the catalogue");
    let now = migrate::catalogue(&mut *connection).await.map_err(&failed)?;
    let then = migrate::recorded_catalogue(connection).await.map_err(&failed)?;
    let added = now.iter().filter(|line| !then.contains(line)).map(|line| format!("now: {line}"));
    let gone = then.iter().filter(|line| !now.contains(line)).map(|line| format!("before: {line}"));
    let changes: Vec<String> = added.chain(gone).collect();
    if changes.is_empty() {
        return Ok(Finding::ok(
            "drift",
            format!("{} objects are as the last migration left them", now.len()),
        ));
    }
    let shown: Vec<&str> = changes.iter().take(4).map(String::as_str).collect();
    Ok(Finding::failure(
        "drift",
        format!("{} differences from what the last migration made: {}", changes.len(), shown.join(" | ")),
        "undo the change; if it is wanted, make it in sql/",
    ))
}

/// Checks that tables, columns, functions and words are those of the frozen contracts.
async fn contracts(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let violations =
        contract::violations(connection).await.map_err(StoreError::on("checking the contracts"))?;
    Ok(listed(
        "contracts",
        &format!("frozen version {} holds", postrider_model::contract::VERSION),
        &violations,
        "undo the change, for example drop an extra signature; docs/contract.md has the list and the rule for changing it",
    ))
}

fn listed(check: &'static str, fine: &str, wrong: &[String], advice: &str) -> Finding {
    if wrong.is_empty() {
        Finding::ok(check, fine)
    } else {
        Finding::failure(check, wrong.join("; "), advice)
    }
}
