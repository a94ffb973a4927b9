//! Rules for every object in our schemas, read from the catalogue, so that a new table or function that forgets a rule fails here. Each
//! rule is broken once, too, and both this test and `doctor` must notice.

mod attacks;
mod bodies;
mod context;
mod lint;
mod plans;
mod rights;
mod tenants;
pub mod visibility;

use postrider_store::postgres::doctor::{self, Finding, Severity};

use crate::{
    sql::{execute, texts},
    world::World,
};

/// Our schemas: all that are neither the server's nor `public`.
const OURS: &str = "select oid from pg_namespace where nspname !~ '^pg_' and nspname not in ('information_schema', 'public')";

/// Tables that hold tenants' rows.
const TENANT_TABLES: &str = "select class.oid from pg_class as class \
     where class.relnamespace in (ours) and class.relkind in ('r', 'p') \
       and (class.oid = 'tenancy.tenants'::regclass \
            or exists (select from pg_attribute where attrelid = class.oid and attname = 'tenant_id' and not attisdropped))";

/// A rule: what it says, and a query for everything that breaks it.
const RULES: &[(&str, &str)] = &[
    (
        "tenant tables have row-level security, enabled and forced",
        "select oid::regclass::text from pg_class where oid in (tenant_tables) and not (relrowsecurity and relforcerowsecurity)",
    ),
    (
        "tenant tables have a policy that asks for the tenant",
        "select class.oid::regclass::text from pg_class as class where oid in (tenant_tables) \
            and not exists (select from pg_policy \
                             where polrelid = class.oid and polpermissive and polcmd in ('r', '*') \
                               and pg_get_expr(polqual, polrelid) ~ '^\\((tenant_id|id) = \\( SELECT tenancy.current_tenant_id\\(\\) AS current_tenant_id\\)\\)$')",
    ),
    (
        "no other policy opens a tenant table to anyone but the owner",
        "select polrelid::regclass || ' ' || polname from pg_policy where polrelid in (tenant_tables) and polpermissive \
            and polroles <> array['postrider_owner'::regrole::oid] and polname <> 'tenant_sees_its_own'",
    ),
    (
        "nobody but the owner may write, empty or reference a table, a column or a sequence; only imports may add lines",
        "select object || ' ' || privilege_type || ' ' || coalesce(nullif(grantee, 0)::regrole::text, 'PUBLIC') \
           from (select oid::regclass::text as object, relowner, relacl as acl, relkind from pg_class where relnamespace in (ours) \
                 union all \
                 select class.oid::regclass || '.' || attname, relowner, attacl, relkind \
                   from pg_attribute join pg_class as class on class.oid = attrelid where relnamespace in (ours)) as object, \
                aclexplode(acl) \
          where grantee <> relowner and (privilege_type <> 'SELECT' or relkind = 'S') \
            and (object, privilege_type, grantee) <> ('execution.lead_intake', 'INSERT', 'postrider_app'::regrole)",
    ),
    (
        "functions that act as the owner pin their search_path",
        "select oid::regprocedure::text from pg_proc where pronamespace in (ours) and prosecdef \
            and not coalesce('search_path=pg_catalog, pg_temp' = any (proconfig), false)",
    ),
    (
        "no function is open to everybody",
        "select oid::regprocedure::text from pg_proc where pronamespace in (ours) and has_function_privilege('public', oid, 'execute')",
    ),
    (
        "foreign keys between tenant tables carry the tenant",
        "select conrelid::regclass || ' ' || conname from pg_constraint \
          where contype = 'f' and conrelid in (tenant_tables) and confrelid in (tenant_tables) \
            and confrelid <> 'tenancy.tenants'::regclass \
            and not exists (select from unnest(conkey, confkey) as pair (ours, theirs) \
                              join pg_attribute as here on here.attrelid = conrelid and here.attnum = pair.ours \
                              join pg_attribute as there on there.attrelid = confrelid and there.attnum = pair.theirs \
                             where here.attname = 'tenant_id' and there.attname = 'tenant_id')",
    ),
    (
        "everything belongs to postrider_owner",
        "select object from (select oid::regclass::text as object, relowner as owner from pg_class where relnamespace in (ours) \
                              union all select oid::regprocedure::text, proowner from pg_proc where pronamespace in (ours) \
                              union all select oid::regtype::text, typowner from pg_type where typnamespace in (ours) \
                              union all select oid::regnamespace::text, nspowner from pg_namespace where oid in (ours)) as object \
          where owner <> 'postrider_owner'::regrole",
    ),
    (
        "views ask with the rights of their reader, and none is materialised",
        "select oid::regclass::text from pg_class where relnamespace in (ours) \
            and (relkind = 'm' or relkind = 'v' and not coalesce('security_invoker=true' = any (reloptions), false))",
    ),
];

/// The query of a rule, with the names of sets put in.
fn query(rule: &str) -> String {
    rule.replace("tenant_tables", TENANT_TABLES).replace("(ours)", &format!("({OURS})"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_object_keeps_every_rule() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    for (rule, broken_by) in RULES {
        assert_eq!(texts(&admin, query(broken_by)).await?, [""; 0], "{rule}");
    }
    let findings = doctor::examine(&mut *admin.acquire().await?).await?;
    assert!(findings.iter().all(|finding| finding.severity != Severity::Failure), "{findings:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_look_at_all_tables_there_are() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    let tables = query("select oid::regclass::text from pg_class where oid in (tenant_tables) order by 1");
    assert_eq!(
        texts(&admin, tables).await?,
        [
            "channels.channel_executors",
            "channels.channel_links",
            "channels.channel_messages",
            "channels.channel_outbox",
            "events.outbox_deliveries",
            "execution.account_states",
            "execution.assets",
            "execution.campaign_audit_log",
            "execution.campaign_events",
            "execution.campaign_phases",
            "execution.campaign_runs",
            "execution.campaigns",
            "execution.channel_outbox",
            "execution.claim_order",
            "execution.doubts",
            "execution.erasures",
            "execution.job_queue",
            "execution.lead_list_members",
            "execution.lead_lists",
            "execution.leads",
            "execution.messages",
            "execution.provider_callbacks",
            "execution.run_archives",
            "execution.suppressed_addresses",
            "execution.suppression_keys",
            "jobs.alert_instances",
            "jobs.alert_notifications",
            "jobs.decision_cards",
            "jobs.functions",
            "jobs.job_runs",
            "jobs.schedule_firings",
            "jobs.schedules",
            "jobs.sync_errors",
            "m10_recovery.outbox",
            "tenancy.api_keys",
            "tenancy.audit_log",
            "tenancy.login_codes",
            "tenancy.provider_accounts",
            "tenancy.requests",
            "tenancy.sessions",
            "tenancy.tenants",
            "tenancy.workspaces",
        ]
    );
    Ok(())
}

/// How a rule is broken, the beginning of the rule, and the checks of `doctor` that say so.
const BREACHES: &[(&str, &str, &[&str])] = &[
    ("create table tenancy.t (id uuid, tenant_id uuid)", "tenant tables have row-level", &["drift", "row-level security"]),
    ("alter table m10_recovery.outbox disable row level security", "tenant tables have row-level", &["drift", "row-level security"]),
    ("alter table execution.channel_outbox disable row level security", "tenant tables have row-level", &["drift", "row-level security"]),
    ("alter table channels.channel_outbox disable row level security", "tenant tables have row-level", &["drift", "row-level security"]),
    ("alter table channels.channel_links no force row level security", "tenant tables have row-level", &["drift", "row-level security"]),
    ("drop policy tenant_sees_its_own on channels.channel_messages", "tenant tables have a policy", &["drift", "row-level security"]),
    ("create policy open on channels.channel_executors using (true)", "no other policy", &["drift", "row-level security"]),
    ("alter table jobs.job_runs disable row level security", "tenant tables have row-level", &["drift", "row-level security"]),
    ("drop policy tenant_sees_its_own on jobs.sync_errors", "tenant tables have a policy", &["drift", "row-level security"]),
    ("create policy open on jobs.functions using (true)", "no other policy", &["drift", "row-level security"]),
    ("alter table tenancy.api_keys no force row level security", "tenant tables have row-level", &["drift", "row-level security"]),
    ("alter table tenancy.tenants no force row level security", "tenant tables have row-level", &["drift", "row-level security"]),
    ("drop policy tenant_sees_its_own on tenancy.audit_log", "tenant tables have a policy", &["drift", "row-level security"]),
    (
        "drop policy tenant_sees_its_own on tenancy.workspaces;
         create policy tenant_sees_its_own on tenancy.workspaces to postrider_app using (tenant_id is not null)",
        "tenant tables have a policy",
        &["drift", "row-level security"],
    ),
    ("create policy open on tenancy.api_keys using (true)", "no other policy", &["drift", "row-level security"]),
    ("create policy open on tenancy.tenants for select to postrider_read using (true)", "no other policy", &["drift", "row-level security"]),
    (
        "create policy open on m10_recovery.outbox for insert to postrider_app with check (true)",
        "no other policy",
        &["drift", "row-level security"],
    ),
    (
        "create policy open on m10_recovery.outbox for update to postrider_app \
         using (tenant_id = tenancy.current_tenant_id()) with check (true)",
        "no other policy",
        &["drift", "row-level security"],
    ),
    ("grant insert on m10_recovery.outbox to postrider_app", "nobody but the owner may write", &["drift", "grants"]),
    ("grant update on tenancy.tenants to postrider_worker", "nobody but the owner may write", &["drift", "grants"]),
    ("grant delete on events.outbox_deliveries to postrider_worker", "nobody but the owner may write", &["drift", "grants"]),
    ("grant truncate on postrider.sources to postrider_read", "nobody but the owner may write", &["drift", "grants"]),
    ("grant update on tenancy.audit_log to public", "nobody but the owner may write", &["drift", "grants"]),
    ("grant update (retry_count) on m10_recovery.outbox to postrider_worker", "nobody but the owner may write", &["drift", "grants"]),
    ("grant insert (name) on tenancy.tenants to public", "nobody but the owner may write", &["drift", "grants"]),
    ("grant references on tenancy.tenants to postrider_app", "nobody but the owner may write", &["drift", "grants"]),
    ("grant insert on execution.channel_outbox to postrider_worker", "nobody but the owner may write", &["drift", "grants"]),
    ("grant update on execution.campaign_runs to postrider_worker", "nobody but the owner may write", &["drift", "grants"]),
    ("grant insert on execution.lead_intake to postrider_worker", "nobody but the owner may write", &["drift", "grants"]),
    ("grant delete on execution.lead_intake to postrider_app", "nobody but the owner may write", &["drift", "grants"]),
    ("grant insert on channels.channel_outbox to postrider_app", "nobody but the owner may write", &["drift", "grants"]),
    ("grant update (status) on channels.channel_messages to postrider_worker", "nobody but the owner may write", &["drift", "grants"]),
    ("grant insert on jobs.job_runs to postrider_app", "nobody but the owner may write", &["drift", "grants"]),
    ("grant update (next_fire_at) on jobs.schedules to postrider_worker", "nobody but the owner may write", &["drift", "grants"]),
    ("grant update on sequence m10_recovery.outbox_id_seq to postrider_app", "nobody but the owner may write", &["grants"]),
    ("alter function m10_recovery.publish_outbox reset all", "functions that act", &["drift", "definer functions"]),
    ("alter function channels.receive_message reset all", "functions that act", &["drift", "definer functions"]),
    ("grant execute on function channels.settle_replies to public", "no function is open", &["drift", "definer functions"]),
    ("alter function jobs.acquire_run reset all", "functions that act", &["drift", "definer functions"]),
    ("grant execute on function jobs.open_run to public", "no function is open", &["drift", "definer functions"]),
    ("alter function execution.begin_outbox_items reset all", "functions that act", &["drift", "definer functions"]),
    ("alter function tenancy.revoke_api_key set search_path = public", "functions that act", &["drift", "definer functions"]),
    (
        "alter function tenancy.revoke_api_key set search_path = pg_temp, pg_catalog",
        "functions that act",
        &["drift", "definer functions"],
    ),
    ("grant execute on function tenancy.create_tenant to public", "no function is open", &["drift", "definer functions"]),
    (
        "create function tenancy.f() returns int language sql security definer set search_path = pg_catalog, pg_temp as 'select 1'",
        "no function is open",
        &["drift", "definer functions"],
    ),
    (
        "alter table tenancy.workspaces add unique (id);
         create table tenancy.t (tenant_id uuid, workspace_id uuid references tenancy.workspaces (id));
         select tenancy.protect('tenancy.t')",
        "foreign keys between",
        &["drift"],
    ),
    ("alter table tenancy.audit_log owner to postgres", "everything belongs", &["drift"]),
    ("alter function m10_recovery.publish_outbox owner to postgres", "everything belongs", &["drift"]),
    ("create table m10_recovery.t (id int); alter table m10_recovery.t owner to postrider_app", "everything belongs", &["drift"]),
    ("alter view jobs.job_health set (security_invoker = false)", "views ask", &["drift"]),
    ("create view m10_recovery.v as table m10_recovery.outbox", "views ask", &["drift"]),
    ("create materialized view m10_recovery.v as table m10_recovery.outbox", "views ask", &["drift"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_broken_rule_is_noticed_here_and_by_doctor() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    for (rule, _) in RULES {
        assert!(BREACHES.iter().any(|(_, broken, _)| rule.starts_with(broken)), "never broken: {rule}");
    }
    for (breach, broken, checks) in BREACHES {
        let mut transaction = admin.begin().await?;
        execute(&mut *transaction, *breach).await?;

        let (rule, broken_by) = RULES.iter().find(|(rule, _)| rule.starts_with(broken)).unwrap();
        assert_ne!(
            texts(&mut *transaction, query(broken_by)).await?,
            [""; 0],
            "`{breach}` does not break: {rule}"
        );
        let findings = doctor::examine(&mut transaction).await?;
        let failed: Vec<&Finding> =
            findings.iter().filter(|finding| finding.severity == Severity::Failure).collect();
        for check in *checks {
            assert!(
                failed.iter().any(|finding| finding.check == *check),
                "`{breach}`: no {check} in {failed:#?}"
            );
        }
        assert!(failed.iter().all(|finding| finding.advice.is_some()), "{failed:#?}");
        transaction.rollback().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_notices_a_dropped_guard_a_changed_body_and_a_role_too_powerful() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    for (breach, check) in [
        ("drop trigger outbox_processed_is_final on m10_recovery.outbox", "drift"),
        ("alter table m10_recovery.outbox disable trigger outbox_nothing_accepted_is_lost", "drift"),
        ("drop index m10_recovery.outbox_ready_to_claim", "drift"),
        ("drop trigger outbox_claim_has_a_holder on m10_recovery.outbox", "drift"),
        ("alter table m10_recovery.outbox alter retry_count drop not null", "drift"),
        (
            "create or replace function tenancy.require_tenant(p_tenant_id uuid) returns void language sql stable \
             set search_path = pg_catalog, pg_temp as 'select null'",
            "drift",
        ),
        ("drop trigger channel_outbox_ends_are_final on execution.channel_outbox", "drift"),
        ("drop trigger campaign_runs_change_as_the_table_says on execution.campaign_runs", "drift"),
        ("alter table execution.job_queue disable trigger job_queue_is_never_removed_from", "drift"),
        ("alter table execution.channel_outbox drop constraint channel_outbox_one_row_per_key", "drift"),
        ("drop trigger channel_messages_change_as_they_may on channels.channel_messages", "drift"),
        ("drop trigger channel_messages_executed_have_a_reply on channels.channel_messages", "drift"),
        ("drop trigger channel_outbox_changes_as_it_may on channels.channel_outbox", "drift"),
        (
            "alter table channels.channel_outbox disable trigger channel_outbox_nothing_accepted_is_lost",
            "drift",
        ),
        ("alter table channels.channel_outbox drop constraint channel_outbox_one_reply_per_message", "drift"),
        ("drop index channels.channel_outbox_active", "drift"),
        ("alter function channels.claim_replies reset enable_incremental_sort", "drift"),
        ("grant select on channels.channel_executors to postrider_read", "drift"),
        ("drop index jobs.job_runs_once_per_grain", "drift"),
        ("drop index jobs.idx_job_runs_lock_active", "drift"),
        ("drop index jobs.unique_alert_instance", "drift"),
        ("drop trigger job_runs_change_as_they_may on jobs.job_runs", "drift"),
        ("alter table jobs.job_runs disable trigger job_runs_retries_are_true", "drift"),
        ("drop trigger sync_errors_open_ones_are_kept on jobs.sync_errors", "drift"),
        ("alter function jobs.claim_runs reset enable_seqscan", "drift"),
        ("grant select on jobs.functions to postrider_read", "drift"),
        ("alter role postrider_app superuser", "roles"),
        ("alter role postrider_worker bypassrls", "roles"),
        ("alter role postrider_owner login", "roles"),
        ("grant postrider_owner to postrider_read", "roles"),
        ("grant postrider_worker to postrider_app", "roles"),
        ("grant postrider_app to postrider_publish", "roles"),
        ("grant pg_read_all_data to postrider_read", "roles"),
        ("alter role postrider_publish createrole", "roles"),
        ("grant select on tenancy.tenants to postrider_publish", "drift"),
        ("grant execute on function tenancy.authenticate_api_key to postrider_publish", "drift"),
        ("grant select on tenancy.context_keys to postrider_worker", "signed tenants"),
        ("grant select (key) on tenancy.context_keys to public", "signed tenants"),
        ("grant execute on function tenancy.context_key to postrider_app", "signed tenants"),
        ("grant execute on function tenancy.rotate_context_key to postrider_worker", "signed tenants"),
        ("delete from tenancy.context_keys", "signed tenants"),
    ] {
        // Roles belong to the cluster: no other test sees what is never committed.
        let mut transaction = admin.begin().await?;
        execute(&mut *transaction, breach).await?;
        let findings = doctor::examine(&mut transaction).await?;
        let found = findings.iter().find(|finding| finding.check == check).unwrap();
        assert_eq!(found.severity, Severity::Failure, "`{breach}`: {found:?}");
        transaction.rollback().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_warns_of_logins_that_can_do_more_than_publish_and_of_what_everybody_may() -> anyhow::Result<()>
{
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let warned = async |change: &str, check: &str| -> anyhow::Result<Finding> {
        let mut transaction = admin.begin().await?;
        execute(&mut *transaction, change).await?;
        let findings = doctor::examine(&mut transaction).await?;
        transaction.rollback().await?;
        Ok(findings.into_iter().find(|finding| finding.check == check).unwrap())
    };
    let name = format!("shop_{}", uuid::Uuid::now_v7().simple());
    let both = format!("create role {name} login in role postrider_publish, postrider_app");
    let found = warned(&both, "logins").await?;
    assert_eq!(found.severity, Severity::Warning);
    assert!(
        found.found.contains(&format!("{name} is a member of postrider_publish and of postrider_app")),
        "{found:?}"
    );
    let begins = format!("create role {name} login; alter role {name} set app.current_tenant = 'x'");
    let found = warned(&begins, "logins").await?;
    assert!(
        found.found.contains(&format!("sessions of {name} begin with app.current_tenant=x")),
        "{found:?}"
    );
    // Logins of other tests may be found beside it: roles belong to the cluster.
    let found = warned(&format!("create role {name} login in role postrider_publish"), "logins").await?;
    assert!(!found.found.contains(&format!("{name} is a member")), "{found:?}");

    let found = warned("", "public rights").await?;
    assert_eq!(found.severity, Severity::Warning);
    assert!(found.found.contains("temporary tables") && found.found.contains("large objects"), "{found:?}");
    let advice = found.advice.unwrap();
    let statements: Vec<&str> = advice.split('`').skip(1).step_by(2).collect();
    let found = warned(&statements.join("; "), "public rights").await?;
    assert_eq!(found.severity, Severity::Ok, "{found:?}");
    Ok(())
}
