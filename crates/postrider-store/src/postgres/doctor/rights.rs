//! Checks of rights: roles, logins, row-level security, grants, and what the public may do.

use sqlx::PgConnection;

use super::{Finding, listed};
use crate::{
    StoreError,
    postgres::{migrate, unprepared::unprepared},
};

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

pub(super) async fn roles(connection: &mut PgConnection) -> Result<Finding, StoreError> {
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

pub(super) async fn row_level_security(connection: &mut PgConnection) -> Result<Finding, StoreError> {
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

pub(super) async fn grants(connection: &mut PgConnection) -> Result<Finding, StoreError> {
    let excess = sqlx::query_file_scalar!("sql/postgres/excess_grants.sql")
        .fetch_all(unprepared(connection))
        .await
        .map_err(StoreError::on("checking the grants"))?;
    Ok(listed("grants", "only the owner may update, delete or truncate", &excess, "revoke it"))
}

pub(super) async fn definer_functions(connection: &mut PgConnection) -> Result<Finding, StoreError> {
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
pub(super) async fn signed_tenants(connection: &mut PgConnection) -> Result<Finding, StoreError> {
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
pub(super) async fn logins(connection: &mut PgConnection) -> Result<Finding, StoreError> {
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
pub(super) async fn public_rights(connection: &mut PgConnection) -> Result<Finding, StoreError> {
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
