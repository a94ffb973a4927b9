//! Checks of a database, with advice for each problem.
//!
//! Each check is one query and one sentence. A finding that makes serving unsafe is a failure; one that only an operator needs
//! to know is a warning.

use jiff::Timestamp;
use postrider_model::seal::MasterKey;
use serde::Serialize;
use sqlx::PgConnection;

use crate::{
    StoreError,
    postgres::{contract, migrate, pool::SERVER_MAJOR_MIN, unprepared::unprepared},
    tenancy::{
        installation,
        master_key::{self, Standing},
    },
};

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
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
    /// The result.
    pub verdict: Verdict,
    /// The finding in words.
    pub found: String,
    /// The advice.
    pub advice: Option<String>,
}

impl Finding {
    /// As it should be.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), advice: None }
    }

    /// Worth knowing.
    pub fn warning(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warning, found: found.into(), advice: Some(advice.into()) }
    }

    /// Must be put right.
    pub fn failure(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Failure, found: found.into(), advice: Some(advice.into()) }
    }
}

impl Finding {
    /// Whether the schema is missing or is not Postrider's, so that the other checks cannot run.
    #[must_use]
    pub fn is_missing_schema(&self) -> bool {
        self.check == "schema" && self.verdict == Verdict::Failure
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
    let mut findings = vec![version(connection).await?];
    findings.extend(durability(connection).await?);
    findings.push(schema_version(connection).await?);
    if findings.last().is_some_and(|finding| finding.verdict == Verdict::Failure) {
        // Without the schema the other checks cannot run.
        findings.push(clock(connection).await?);
        return Ok(findings);
    }
    findings.push(restored_copy(connection).await?);
    findings.push(drift(connection).await?);
    findings.push(contracts(connection).await?);
    findings.push(roles(connection).await?);
    findings.push(row_level_security(connection).await?);
    findings.push(grants(connection).await?);
    findings.push(definer_functions(connection).await?);
    findings.push(signed_tenants(connection).await?);
    findings.push(logins(connection).await?);
    findings.push(public_rights(connection).await?);
    findings.push(clock(connection).await?);
    findings.push(notification_queue(connection).await?);
    findings.push(oldest_transaction(connection).await?);
    findings.push(waiting_locks(connection).await?);
    Ok(findings)
}

/// Minor releases from which on statistics no longer leak rows that row-level security hides (CVE-2025-8713).
const PATCHED: &[(i32, i32)] = &[(15, 14), (16, 10), (17, 6)];

async fn version(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let number = sqlx::query_scalar!(r#"select current_setting('server_version_num')::int as "number!""#)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("reading the version"))?;
    let (major, minor) = (number / 10_000, number % 10_000);
    let found = format!("PostgreSQL {major}.{minor}");
    if major < SERVER_MAJOR_MIN {
        return Ok(Finding::failure("version", found, format!("upgrade to {SERVER_MAJOR_MIN} or newer")));
    }
    match PATCHED.iter().find(|(patched, needed)| major == *patched && minor < *needed) {
        Some((_, needed)) => Ok(Finding::warning(
            "version",
            found,
            format!(
                "update to {major}.{needed}: before it, planner statistics can show rows of other tenants"
            ),
        )),
        None => Ok(Finding::ok("version", found)),
    }
}

/// Settings without which an acknowledged commit can be lost.
const DURABLE: &[(&str, &str)] = &[("fsync", "on"), ("full_page_writes", "on")];

async fn durability(connection: &mut PgConnection) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    for (setting, needed) in DURABLE {
        let value = setting_of(connection, setting).await?;
        findings.push(if value == *needed {
            Finding::ok("durability", format!("{setting} = {value}"))
        } else {
            Finding::failure(
                "durability",
                format!("{setting} = {value}"),
                format!("set {setting} = {needed} in postgresql.conf and restart: without it a crash loses what was acknowledged"),
            )
        });
    }
    let commit = setting_of(connection, "synchronous_commit").await?;
    findings.push(if commit == "off" {
        Finding::failure(
            "durability",
            "synchronous_commit = off",
            "set synchronous_commit = on: without it the last commits before a crash are lost",
        )
    } else {
        Finding::ok("durability", format!("synchronous_commit = {commit}"))
    });
    Ok(findings)
}

/// Refuses a server that may lose an acknowledged commit. Every `serve` begins with this.
pub async fn refuse_unsafe_server(connection: &mut PgConnection) -> Result<(), StoreError> {
    for finding in durability(connection).await? {
        if finding.verdict == Verdict::Failure {
            let advice = finding.advice.unwrap_or_default();
            return Err(StoreError::Unfit(format!("the database runs with {}; {advice}", finding.found)));
        }
    }
    Ok(())
}

/// Refuses a login that row-level security does not bind.
pub async fn refuse_powerful_login(connection: &mut PgConnection) -> Result<(), StoreError> {
    let login = sqlx::query!(
        r#"
        select current_user::text as "name!",
               rolsuper as "superuser!",
               rolbypassrls as "bypasses!",
               pg_has_role(current_user, 'postrider_owner', 'member') as "owner!"
          from pg_roles
         where rolname = current_user
        "#
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the login's rights"))?;
    let why = match login {
        _ if login.superuser => "a superuser",
        _ if login.bypasses => "allowed to bypass row-level security",
        _ if login.owner => "a member of postrider_owner",
        _ => return Ok(()),
    };
    Err(StoreError::Unfit(format!(
        "serving as `{}` is refused: it is {why}, and row-level security would not hold one tenant's rows from another; \
         create a login for serving (`create role postrider_server login password '…' in role postrider_app, \
         postrider_worker`) and put it into database.url; keep this one as database.admin_url",
        login.name
    )))
}

/// Refuses a login that sees only one tenant's rows where an operator needs to see all.
pub async fn require_operator(connection: &mut PgConnection) -> Result<(), StoreError> {
    let login = sqlx::query!(
        r#"
        select current_user::text as "name!",
               pg_has_role(current_user, 'postrider_owner', 'member') as "operator!"
        "#
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the login's rights"))?;
    if login.operator {
        return Ok(());
    }
    Err(StoreError::Unfit(format!(
        "`{}` sees one tenant's rows at a time and cannot do this; set database.admin_url to the login that migrated",
        login.name
    )))
}

/// Refuses a login that lacks what a part of the server needs.
pub async fn require_role(
    connection: &mut PgConnection,
    role: &str,
    needed_for: &str,
    setting: &str,
) -> Result<(), StoreError> {
    let login = sqlx::query!(
        r#"select current_user::text as "name!", pg_has_role(current_user, $1::text::name, 'usage') as "has!""#,
        role,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the login's rights"))?;
    if login.has {
        return Ok(());
    }
    Err(StoreError::Unfit(format!(
        "`{name}` is not a member of {role}, which {needed_for} needs; `grant {role} to {name}`, or set {setting} to a \
         login that is",
        name = login.name
    )))
}

async fn setting_of(connection: &mut PgConnection, name: &str) -> Result<String, StoreError> {
    sqlx::query_scalar!(r#"select current_setting($1) as "value!""#, name)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("reading a setting"))
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

async fn roles(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let failed = StoreError::on("checking the roles");
    let mut wrong = sqlx::query_scalar!(
        r#"
        select format('%s is missing', wanted.name) as "wrong!"
          from unnest(array['postrider_owner', 'postrider_app', 'postrider_worker', 'postrider_read', 'postrider_publish'])
               as wanted (name)
         where not exists (select from pg_roles where rolname = wanted.name)
        "#
    )
    .fetch_all(unprepared(&mut *connection))
    .await
    .map_err(&failed)?;
    wrong.extend(migrate::powerful_roles(connection).await.map_err(&failed)?);
    Ok(listed(
        "roles",
        "five roles, none more powerful than it should be",
        &wrong,
        "take the extra right away with `alter role` or `revoke`",
    ))
}

async fn row_level_security(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let open = sqlx::query_file_scalar!("sql/postgres/tables_without_row_level_security.sql")
        .fetch_all(unprepared(connection))
        .await
        .map_err(StoreError::on("checking row-level security"))?;
    Ok(listed(
        "row-level security",
        "enabled, forced and with a policy on every tenant table",
        &open,
        "run `select tenancy.protect('schema.table')` as postrider_owner",
    ))
}

async fn grants(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let excess = sqlx::query_file_scalar!("sql/postgres/excess_grants.sql")
        .fetch_all(unprepared(connection))
        .await
        .map_err(StoreError::on("checking the grants"))?;
    Ok(listed("grants", "only the owner may update, delete or truncate", &excess, "revoke it"))
}

async fn definer_functions(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let loose = sqlx::query_file_scalar!("sql/postgres/loose_definer_functions.sql")
        .fetch_all(unprepared(connection))
        .await
        .map_err(StoreError::on("checking the functions"))?;
    Ok(listed(
        "definer functions",
        "each pins its search_path and is closed to PUBLIC",
        &loose,
        "`alter function … set search_path = pg_catalog, pg_temp` and `revoke all on function … from public`",
    ))
}

/// Checks that the server can sign tenants, and that no other login can.
async fn signed_tenants(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let failed = StoreError::on("checking the key that signs tenants");
    let leaks = sqlx::query_file_scalar!("sql/postgres/context_leaks.sql")
        .fetch_all(unprepared(&mut *connection))
        .await
        .map_err(&failed)?;
    if !leaks.is_empty() {
        return Ok(Finding::failure(
            "signed tenants",
            leaks.join("; "),
            "revoke it, then run `postrider tenants rotate-context-key` twice and restart the API processes after each",
        ));
    }
    let keys = sqlx::query_scalar!(r#"select count(*) as "keys!" from tenancy.context_keys"#)
        .fetch_one(unprepared(connection))
        .await
        .map_err(&failed)?;
    Ok(match keys {
        0 => Finding::failure(
            "signed tenants",
            "there is no key to sign with",
            "run `postrider tenants rotate-context-key` and restart the API processes",
        ),
        1 => Finding::ok("signed tenants", "one key is valid, and only workers read it"),
        keys => Finding::ok("signed tenants", format!("{keys} keys are valid, and only workers read them")),
    })
}

/// Checks the logins that have a role of Postrider.
async fn logins(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let failed = StoreError::on("checking the logins");
    let risky = sqlx::query_file_scalar!("sql/postgres/risky_logins.sql")
        .fetch_all(unprepared(&mut *connection))
        .await
        .map_err(&failed)?;
    if !risky.is_empty() {
        return Ok(Finding::warning(
            "logins",
            risky.join("; "),
            "give an application a login with postrider_publish alone, and take settings of tenants away with `alter role … reset`",
        ));
    }
    let members = sqlx::query_scalar!(
        r#"
        select format('%s: %s', role.rolname, string_agg(login.rolname, ', ' order by login.rolname)) as "members!"
          from pg_roles as role
               join pg_roles as login on pg_has_role(login.oid, role.oid, 'usage')
         where role.rolname in ('postrider_owner', 'postrider_app', 'postrider_worker', 'postrider_read', 'postrider_publish')
           and login.oid <> role.oid
           and login.rolcanlogin
           and not login.rolsuper
         group by role.rolname
         order by role.rolname
        "#
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(&failed)?;
    Ok(Finding::ok(
        "logins",
        if members.is_empty() { "no login was given a role".to_owned() } else { members.join("; ") },
    ))
}

/// Checks the rights that every login has in this database.
async fn public_rights(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let rights = sqlx::query_file!("sql/postgres/public_rights.sql")
        .fetch_all(unprepared(connection))
        .await
        .map_err(StoreError::on("checking the rights of PUBLIC"))?;
    let [may, advice]: [Vec<String>; 2] = [
        rights.iter().map(|right| right.may.clone()).collect(),
        rights.iter().map(|right| format!("`{}`", right.advice)).collect(),
    ];
    Ok(if rights.is_empty() {
        Finding::ok(
            "public rights",
            "no login may create temporary tables, schemas or large objects without a grant",
        )
    } else {
        Finding::warning(
            "public rights",
            format!("every login may {}", may.join(", ")),
            format!("unless another application here needs it: {}", advice.join("; ")),
        )
    })
}

fn listed(check: &'static str, fine: &str, wrong: &[String], advice: &str) -> Finding {
    if wrong.is_empty() {
        Finding::ok(check, fine)
    } else {
        Finding::failure(check, wrong.join("; "), advice)
    }
}

async fn clock(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let before = Timestamp::now();
    let server = sqlx::query_scalar!(r#"select clock_timestamp() as "at!: jiff_sqlx::Timestamp""#)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("reading the server's clock"))?
        .to_jiff();
    let after = Timestamp::now();
    // The server read its clock between the two readings of ours; a time outside of them is a real difference.
    let off = if server < before { before.duration_since(server) } else { server.duration_since(after) };
    let seconds = off.as_secs_f64().max(0.0);
    let found = format!("differs from this machine's by {seconds:.3} s at least");
    Ok(if seconds > 2.0 {
        Finding::warning(
            "clock",
            found,
            "synchronise both with NTP: signatures and expiries are judged by this machine's clock",
        )
    } else {
        Finding::ok("clock", found)
    })
}

async fn notification_queue(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let usage = sqlx::query_scalar!(r#"select pg_notification_queue_usage() as "usage!""#)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("reading the notification queue"))?;
    let found = format!("{:.1} % full", usage * 100.0);
    Ok(if usage > 0.25 {
        Finding::warning(
            "notification queue",
            found,
            "a listening session sits in a transaction; end it before the queue fills and commits fail",
        )
    } else {
        Finding::ok("notification queue", found)
    })
}

async fn oldest_transaction(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let oldest = sqlx::query!(
        r#"
        select pid as "pid!",
               coalesce(usename::text, '?') as "login!",
               coalesce(state, '?') as "state!",
               extract(epoch from clock_timestamp() - xact_start)::double precision as "seconds!"
          from pg_stat_activity
         where xact_start is not null
           and pid <> pg_backend_pid()
           and backend_type = 'client backend'
         order by xact_start
         limit 1
        "#
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the activity"))?;
    Ok(match oldest {
        Some(open) if open.seconds > 30.0 => Finding::warning(
            "oldest transaction",
            format!(
                "pid {} ({}, {}) has one open for {:.0} s",
                open.pid, open.login, open.state, open.seconds
            ),
            format!(
                "dead rows cannot be cleaned up meanwhile and claims slow down; end it with `select pg_terminate_backend({})`",
                open.pid
            ),
        ),
        Some(open) => Finding::ok("oldest transaction", format!("{:.1} s", open.seconds.max(0.0))),
        None => Finding::ok("oldest transaction", "none is open"),
    })
}

async fn waiting_locks(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let waiting = sqlx::query!(
        r#"
        select pid as "pid!",
               pg_blocking_pids(pid) as "blockers!",
               extract(epoch from clock_timestamp() - waitstart)::double precision as "seconds!"
          from pg_locks
         where not granted
           and waitstart is not null
         order by waitstart
         limit 1
        "#
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the locks"))?;
    Ok(match waiting {
        Some(lock) if lock.seconds > 5.0 => Finding::warning(
            "oldest lock wait",
            format!("pid {} has waited {:.0} s for {:?}", lock.pid, lock.seconds, lock.blockers),
            "look at the blocking session in pg_stat_activity; end it if it is forgotten",
        ),
        Some(lock) => Finding::ok("oldest lock wait", format!("{:.1} s", lock.seconds.max(0.0))),
        None => Finding::ok("oldest lock wait", "no session waits"),
    })
}
