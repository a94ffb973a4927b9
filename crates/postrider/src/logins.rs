//! Requirements of the logins of a process: one list for `serve`, which refuses other logins, and for `doctor`, which reports them.

use postrider_store::{
    PgConnection, Pool, StoreError,
    postgres::{
        context,
        doctor::{self, Finding},
        migrate, pool,
    },
};

use crate::{Role, installation::Installation};

/// A role of the database, what it is needed for, and which setting names its login.
pub(crate) type Needs = (&'static str, &'static str, &'static str);

pub(crate) const APP: Needs = ("postrider_app", "HTTP", "database.app_url");
pub(crate) const CAMPAIGNS: Needs = ("postrider_worker", "the campaign worker", "database.url");
pub(crate) const RESOLVER: Needs = ("postrider_worker", "the resolver", "database.url");
pub(crate) const DISPATCHER: Needs = ("postrider_worker", "the dispatcher", "database.url");
pub(crate) const SCHEDULER: Needs = ("postrider_worker", "the scheduler", "database.url");
pub(crate) const RELAY: Needs = ("postrider_worker", "the relay", "database.url");
/// An API whose login may not name a tenant itself reads the key that signs tenants as the login of the loops.
pub(crate) const SIGNING: Needs = (
    "postrider_worker",
    "the API with a login of postrider_app alone (it signs tenants with a key that only postrider_worker can read)",
    "database.url",
);

/// Refuses to serve where the promises would not hold.
pub(crate) async fn checked(pool: Pool, needs: Needs) -> Result<Pool, StoreError> {
    let mut transaction = pool::begin(&pool).await?;
    doctor::refuse_unsafe_server(&mut transaction).await?;
    require(&mut transaction, needs).await?;
    drop(transaction);
    Ok(pool)
}

/// Refuses a login that sees no schema of this version, that row-level security does not bind, or that lacks the role.
async fn require(
    connection: &mut PgConnection,
    (role, needed_for, setting): Needs,
) -> Result<(), StoreError> {
    migrate::verify(connection).await?;
    doctor::refuse_powerful_login(connection).await?;
    doctor::require_role(connection, role, needed_for, setting).await
}

/// The line of `doctor` about the logins with which a process of these roles would serve. `None` for a private cluster, which has its own.
pub async fn examine(roles: &[Role], installation: &Installation) -> Option<Finding> {
    const CHECK: &str = "serving logins";
    if installation.is_private() {
        return None;
    }
    let mut problems: Vec<String> = Vec::new();
    let signs = match app_login(installation).await {
        Ok(needs_signature) => needs_signature && roles.contains(&Role::Api),
        Err(error) => {
            problems.push(format!("{error:#}"));
            false
        }
    };
    let mut needs: Vec<Needs> = roles.iter().filter_map(|role| role.needs()).collect();
    if signs {
        needs.push(SIGNING);
    }
    let needs_key = !Role::need_key_for(roles).is_empty();
    if let Err(error) = worker_login(installation, &needs, needs_key).await {
        problems.push(format!("{error:#}"));
    }
    // One login may be wrong for both uses in the same way.
    problems.dedup();
    if problems.is_empty() {
        return Some(Finding::ok(
            CHECK,
            "row-level security binds them, and they have the roles that serving needs",
        ));
    }
    let parts = problems.iter().map(|problem| problem.split_once("; ").unwrap_or((problem, "")));
    let (found, advice): (Vec<&str>, Vec<&str>) = parts.unzip();
    Some(Finding::failure(CHECK, found.join("; "), advice.join("; ")))
}

/// Checks the login of HTTP requests. Returns whether it needs the server's signature to act for a tenant.
async fn app_login(installation: &Installation) -> anyhow::Result<bool> {
    let pool = installation.app_pool(1).await?;
    let mut transaction = pool::begin(&pool).await?;
    require(&mut transaction, APP).await?;
    Ok(context::needs_signature(&mut transaction).await?)
}

/// Checks the login of the loops, if one is needed; the process also verifies its master key with this login. The first problem is the one
/// that `serve` reports.
async fn worker_login(
    installation: &Installation,
    needs: &[Needs],
    verifies_key: bool,
) -> anyhow::Result<()> {
    if needs.is_empty() && !verifies_key {
        return Ok(());
    }
    let pool = installation.worker_pool(1).await?;
    let mut transaction = pool::begin(&pool).await?;
    doctor::refuse_powerful_login(&mut transaction).await?;
    for needs in needs {
        require(&mut transaction, *needs).await?;
    }
    Ok(())
}
