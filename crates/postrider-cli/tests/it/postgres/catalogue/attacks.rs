//! Attacks of a tenant's client over the connections that it has. Numbers are those of the list of attacks.

use sqlx::PgPool;
use uuid::Uuid;

use super::visibility::{ROLES, Tenant, tenant_tables};
use crate::{
    sql::{acting_as, execute, number, refusal, texts},
    world::{World, signature},
};

/// Runs an attack in the tenant's context, and rolls back what it did.
async fn attempt(client: &PgPool, tenant: Uuid, attack: &str) -> anyhow::Result<crate::sql::Refusal> {
    let mut transaction = client.begin().await?;
    execute(&mut *transaction, acting_as(tenant)).await?;
    refusal(execute(&mut *transaction, attack).await).map_err(|error| error.context(attack.to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_table_refuses_every_way_to_write_to_it_or_around_its_guards() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let own = Tenant::create(&admin, "own").await?.id;
    let ours = "select oid::regclass::text from pg_class where relkind in ('r', 'p') \
                   and relnamespace::regnamespace::text in ('postrider', 'tenancy', 'events', 'm10_recovery', 'execution', 'channels', 'jobs')";
    for role in ROLES {
        let client = world.client(role).await?;
        for table in texts(&admin, ours).await? {
            for attack in [
                format!("truncate {table}"),                                // 7
                format!("delete from {table}"),                             // 8
                format!("alter table {table} disable trigger all"),         // 9
                format!("alter table {table} disable row level security"),  // 10
                format!("alter table {table} no force row level security"), // 10
                format!("create policy mine on {table} using (true)"),
                format!("insert into {table} default values"), // 19
                format!("insert into {table} overriding system value select * from {table}"), // 19
                format!("merge into {table} using (select 1) as x on true when matched then delete"), // 42
                format!("lock table {table} in exclusive mode"), // 28
                format!("lock table {table} in access exclusive mode"), // 28
                format!("grant all on {table} to {role}; delete from {table}"),
                format!(
                    "create trigger mine before insert on {table} for each row execute function tenancy.refuse_change('x')"
                ),
                format!("create index on {table} ((1))"),
                format!("alter table {table} owner to {role}"),
                format!("drop table {table}"),
                format!("copy {table} from program 'true'"), // 26
                format!("create publication leak for table {table}"), // 47
            ] {
                let refused = attempt(&client, own, &attack).await?;
                // Imports may add lines, but not empty ones.
                let may = (role, attack.as_str())
                    == ("postrider_app", "insert into execution.lead_intake default values");
                // A column that the server computes is refused before anybody asks who writes it.
                let is_computed = attack.ends_with("select * from jobs.job_runs");
                assert_eq!(
                    refused.code,
                    if may {
                        "23502"
                    } else if is_computed {
                        "428C9"
                    } else {
                        "42501"
                    },
                    "{role}: {attack}: {refused:?}"
                );
            }
        }
        for (table, column) in tenant_tables(&admin).await? {
            for attack in [
                format!("set local row_security = off; select {column} from {table}"), // 6
                format!("update {table} set {column} = {column}"),                     // 18
                format!("update {table} set {column} = gen_random_uuid()"),            // 18
                format!("select {column} from {table} for update"),
                format!("insert into {table} ({column}) values ('{own}') on conflict do nothing"), // 20, 41
            ] {
                let refused = attempt(&client, own, &attack).await?;
                assert_eq!(refused.code, "42501", "{role}: {attack}: {refused:?}");
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_role_can_make_itself_more_than_it_is() -> anyhow::Result<()> {
    let world = World::new().await?;
    let own = Tenant::create(&world.client("postgres").await?, "own").await?.id;
    for role in ROLES {
        let client = world.client(role).await?;
        let mut attacks: Vec<String> = [
            "set local session_replication_role = replica", // 11
            "set role postrider_owner",                     // 12
            "set role postgres",                            // 12
            "set session authorization postrider_owner",    // 13
            "create function public.f() returns int language sql as 'select 1'", // 14
            "create function tenancy.f() returns int language sql as 'select 1'", // 14
            "create function m10_recovery.publish_outbox(text) returns int language sql as 'select 1'",
            "create or replace function tenancy.current_tenant_id() returns uuid language sql as 'select null::uuid'",
            "create table public.t ()",
            "create schema mine",
            "create table m10_recovery.t ()",
            "create table execution.t ()",
            "create function execution.claim_queued_jobs(text) returns int language sql as 'select 1'",
            "create table channels.t ()",
            "create function channels.claim_replies(text) returns int language sql as 'select 1'",
            "create table jobs.t ()",
            "create function jobs.claim_runs(text) returns int language sql as 'select 1'",
            "select pg_read_file('/etc/passwd')", // 25
            "select lo_import('/etc/passwd')",    // 27
            "create extension dblink",            // 36
            "create role mine",
            "grant postrider_owner to current_user",
            "alter role current_user bypassrls",
            "select tenancy.protect('tenancy.tenants')",
            "select tenancy.refuse_change()",
            "select nextval('m10_recovery.outbox_id_seq')",           // 39
            "select last_value from m10_recovery.outbox_id_seq",      // 39
            "select setval('tenancy.audit_log_id_seq', 1)",           // 39
            "select nextval('execution.campaign_audit_log_id_seq')",  // 39
            "select tenancy.create_tenant(gen_random_uuid(), gen_random_uuid(), 'mine', 'me')",
        ]
        .map(str::to_owned)
        .into();
        attacks.extend(ROLES.iter().filter(|other| **other != role).map(|other| format!("set role {other}")));
        for attack in attacks {
            let refused = attempt(&client, own, &attack).await?;
            // A trigger function says itself that it is none to be called.
            let code = if attack.contains("refuse_change") && refused.code == "0A000" {
                "42501"
            } else {
                &refused.code
            };
            assert_eq!(code, "42501", "{role}: {attack}: {refused:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_role_ends_or_sees_the_sessions_of_another_one() -> anyhow::Result<()> {
    let world = World::new().await?;
    for victim in [&ROLES[..], &["postgres"]].concat() {
        let session = world.client(victim).await?;
        let mut session = session.acquire().await?;
        let pid = number(&mut *session, "select pg_backend_pid()::bigint").await?;
        for role in ROLES.into_iter().filter(|role| *role != victim) {
            let client = world.client(role).await?;
            for function in ["pg_terminate_backend", "pg_cancel_backend"] {
                let refused = refusal(execute(&client, format!("select {function}({pid}::int)")).await)?;
                assert_eq!(refused.code, "42501", "{role} against {victim}: {refused:?}");
            }
            let shown = format!("select query from pg_stat_activity where pid = {pid}");
            assert_eq!(
                texts(&client, shown).await?,
                ["<insufficient privilege>"],
                "{role} looks at {victim}"
            );
        }
        assert_eq!(number(&mut *session, "select pg_backend_pid()::bigint").await?, pid);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hashes_and_sealed_secrets_are_not_read_by_those_who_serve() -> anyhow::Result<()> {
    let world = World::new().await?;
    let own = Tenant::create(&world.client("postgres").await?, "own").await?.id;
    for (role, table, secret) in [
        ("postrider_app", "tenancy.api_keys", "key_hash"),
        ("postrider_worker", "tenancy.api_keys", "key_hash"),
        ("postrider_read", "tenancy.api_keys", "key_hash"),
        ("postrider_app", "tenancy.sessions", "token_hash"),
        ("postrider_worker", "tenancy.sessions", "token_hash"),
        ("postrider_read", "tenancy.sessions", "token_hash"),
        ("postrider_app", "tenancy.login_codes", "code_hash"),
        ("postrider_worker", "tenancy.login_codes", "code_hash"),
        ("postrider_read", "tenancy.login_codes", "code_hash"),
        ("postrider_app", "tenancy.provider_accounts", "sealed_secret"),
        ("postrider_read", "tenancy.provider_accounts", "sealed_secret"),
        ("postrider_app", "channels.channel_executors", "sealed_secret"),
        ("postrider_worker", "channels.channel_executors", "sealed_secret"),
        ("postrider_read", "channels.channel_executors", "sealed_secret"),
        ("postrider_app", "jobs.functions", "sealed_secret"),
        ("postrider_worker", "jobs.functions", "sealed_secret"),
        ("postrider_read", "jobs.functions", "sealed_secret"),
    ] {
        let client = world.client(role).await?;
        for attack in [
            format!("select {secret} from {table}"),
            format!("select * from {table}"),
            format!("select whole from {table} as whole"),
            format!("select to_jsonb(whole) from {table} as whole"),
            format!("select count(*) from {table} where {secret} is not null"),
            format!("select tenant_id from {table} order by {secret}"),
            format!("copy {table} to stdout"),
        ] {
            assert_eq!(attempt(&client, own, &attack).await?.code, "42501", "{role}: {attack}");
        }
        let statistics = format!("select count(*) from pg_stats where attname = '{secret}'"); // 22
        assert_eq!(number(&client, statistics).await?, 0, "{role}");
    }
    Ok(())
}

/// 37 and 40: each id argument of each function, with another tenant's id and with one that does not exist.
#[tokio::test(flavor = "multi_thread")]
async fn functions_answer_for_another_tenants_ids_as_for_ids_that_do_not_exist() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);
    let (own, other) = (Tenant::create(&admin, "own").await?, Tenant::create(&admin, "other").await?);
    let nobody = Tenant::unknown(own.id);
    let tables = tenant_tables(&admin).await?;
    let everything: Vec<String> =
        tables.iter().map(|(table, _)| format!("select to_jsonb(t) as x from {table} as t")).collect();
    let everything =
        format!("select jsonb_agg(x order by x)::text from ({}) as rows", everything.join(" union all "));
    let before = texts(&admin, &everything).await?;

    let calls = |target: &Tenant| {
        // The own tenant, because another one is refused: see below.
        let own = own.id;
        let Tenant { workspace, lead, campaign, run, item, account, message, reply, .. } = target;
        let Tenant { function, job, letter, schedule, card, .. } = target;
        [
            format!("select tenancy.revoke_api_key('{own}', '{}', 'me')::text", target.key),
            format!("select tenancy.rotate_provider_account('{own}', '{account}', 'mine', 'me')::text"),
            format!("select tenancy.remove_provider_account('{own}', '{account}', 'me')::text"),
            format!(
                "select tenancy.create_provider_account('{own}', gen_random_uuid(), '{workspace}', 'n', 'smtp', '{{}}', 'x', 'me')::text"
            ),
            format!("select events.retry_outbox_event('{own}', {}, 'me')", target.event),
            format!("select events.close_outbox_event('{own}', {}, 'me', 'why')", target.event),
            format!("select execution.suppress_lead('{own}', '{lead}', 'why', 'me')::text"),
            format!(
                "select execution.create_asset('{own}', gen_random_uuid(), '{workspace}', 'n', 'email', '{{}}', 'me')::text"
            ),
            format!(
                "select execution.import_leads('{own}', gen_random_uuid(), '{workspace}', 'n', gen_random_uuid())::text"
            ),
            format!(
                "select execution.create_campaign('{own}', gen_random_uuid(), '{workspace}', 'n', true, '[{{}}]', 'me')::text"
            ),
            format!("select execution.deploy_campaign('{own}', '{campaign}')::text"),
            format!(
                "select execution.deploy_campaign('{own}', '{campaign}', 'first', 'me', gen_random_uuid(), 1)::text"
            ),
            format!("select execution.resolve_in_doubt('{own}', '{item}', 'sent', null, 'how', 'me')"),
            format!("select execution.resolve_in_doubt('{own}', '{item}', 'failed', null, 'how', 'me')"),
            format!(
                "select coalesce(status, left(refusal, 16))
                   from execution.resolve_many_in_doubt('{own}', array['{item}']::uuid[], 'sent', array[null]::text[], 'how', 'me')"
            ),
            format!("select execution.verify_launch('{own}', '{run}')::text"),
            format!(
                "select coalesce(max(run_id::text), 'none') from execution.run_progress('{own}', array['{run}']::uuid[])"
            ),
            format!(
                "select verdict from channels.receive_message('{own}', '{account}', gen_random_uuid(), gen_random_uuid(), 'theirs', 'ann',
                                                              'room', null, 'hi', gen_random_uuid(), '1 minute', 5)"
            ),
            format!("select channels.recent_messages('{own}', '{account}', 'ann')::text"),
            format!("select channels.finish_message('{own}', '{message}', 1, gen_random_uuid(), '{{}}', 5)::text"),
            format!("select channels.deny_message('{own}', '{message}', 1, 'why')::text"),
            format!("select channels.fail_message('{own}', '{message}', 1, null, 'why')::text"),
            format!("select channels.fail_message('{own}', '{message}', 1, '{{}}', 'why')::text"),
            format!("select channels.retry_message('{own}', '{message}', 'me')::text"),
            format!(
                "select channels.record_delivery('{own}', '{account}', '{reply}', 'mine', 'read', true, null, null)::text"
            ),
            format!(
                "select channels.link_sender('{own}', gen_random_uuid(), '{account}', 'ann', 'me', 'admin', 'me')::text"
            ),
            format!("select channels.unlink_sender('{own}', '{}', 'me')::text", target.link),
            format!(
                "select channels.put_executor('{own}', gen_random_uuid(), '{account}', 'echo', null, 1, null, 'viewer', '{{}}', 'me')::text"
            ),
            format!("select channels.remove_executor('{own}', '{}', 'me')::text", target.executor),
            // The executor that the tenant has for all accounts, whether or not the account is its own.
            format!("select count(*)::text || min(id::text) from channels.executor_of('{own}', '{account}')"),
            format!(
                "select count(*)::text from channels.requeue_replies('{own}', '{reply}', null, null, null, null, null, 10, 'me')"
            ),
            format!(
                "select count(*)::text from channels.requeue_replies('{own}', null, '{account}', null, null, null, null, 10, 'me')"
            ),
            format!("select jobs.remove_function('{own}', '{function}', 'me')::text"),
            format!("select outcome from jobs.acquire_run('{own}', gen_random_uuid(), '{function}', null, null, true, 'me')"),
            format!("select count(*)::text from jobs.retry_run('{own}', '{job}', 'me')"),
            format!("select coalesce(jobs.cancel_run('{own}', '{job}', null, 'me'), 'none')"),
            format!("select jobs.resolve_sync_error('{own}', '{letter}', 'how', 'me')::text"),
            format!("select jobs.switch_schedule('{own}', '{schedule}', false, null, 'me')::text"),
            format!("select jobs.remove_schedule('{own}', '{schedule}', 'me')::text"),
            format!("select coalesce(jobs.why_waiting('{own}', '{schedule}', now()), 'none')"),
            format!(
                "select jobs.put_schedule('{own}', gen_random_uuid(), '{function}', '0 0 * * *', 'UTC', null, null, null, null, '{{}}', 'once',
                                          true, now(), 'me')::text"
            ),
            format!("select jobs.resolve_alert('{own}', '{function}', null)::text"),
            format!("select count(*)::text from jobs.decide_card('{own}', '{card}', 'DISMISSED', null, 'me')"),
        ]
    };
    let answer = async |call: &str| -> anyhow::Result<String> {
        let mut transaction = app.begin().await?;
        execute(&mut *transaction, acting_as(own.id)).await?;
        match texts(&mut *transaction, call).await {
            Ok(answer) => {
                transaction.commit().await?;
                Ok(answer.join(""))
            }
            refused => {
                transaction.rollback().await?;
                let refused = refusal(refused)?;
                // The id that was asked for may be named, and nothing else.
                let own = own.id.to_string();
                let asked =
                    call.split('\'').skip(1).step_by(2).find(|quoted| **quoted != own).unwrap_or("none");
                Ok(format!("{} {}", refused.code, refused.message.replace(asked, "X")))
            }
        }
    };
    let mut answers = Vec::new();
    for (theirs, missing) in calls(&other).iter().zip(calls(&nobody).iter()) {
        let said = answer(theirs).await?;
        assert_eq!(said, answer(missing).await?, "{theirs}");
        answers.push(said);
        // Without a tenant there is nothing to act on, whether it exists or not.
        for call in [theirs, missing] {
            let without = texts(&app, call).await;
            assert!(
                matches!(&without, Ok(said) if *said == ["unknown"])
                    || matches!(refusal(without)?.code.as_str(), "42501" | "P0002"),
                "{call}"
            );
        }
    }
    for answer in &mut answers {
        if answer.starts_with("23503") || answer.starts_with("P0002") {
            answer.truncate(5);
        }
        *answer = answer.replace(&own.executor.to_string(), " of ours");
    }
    assert_eq!(
        answers,
        [
            "false",
            "false",
            "false",
            "23503",
            "unknown",
            "unknown",
            "false",
            "23503",
            "23503",
            "23503",
            "P0002",
            "P0002",
            "P0002",
            "P0002",
            "there is no item",
            "P0002",
            "none",
            "P0002",
            "0",
            "false",
            "false",
            "false",
            "false",
            "false",
            "false",
            "23503",
            "false",
            "23503",
            "false",
            "1 of ours",
            "0",
            "0",
            "false",
            "unknown_function",
            "0",
            "none",
            "false",
            "false",
            "false",
            "none",
            "23503",
            "false",
            "0",
        ]
    );
    assert_eq!(texts(&admin, &everything).await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_role_can_call_a_function_that_it_was_not_given() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let mut tried = 0;
    for role in ROLES {
        let client = world.client(role).await?;
        let foreign = format!(
            "select format('select %I.%I(%s)', pronamespace::regnamespace, proname, \
                           (select string_agg('null::' || format_type(type, null), ', ' order by at) \
                              from unnest(proargtypes) with ordinality as argument (type, at))) \
               from pg_proc \
              where pronamespace::regnamespace::text in ('postrider', 'tenancy', 'events', 'm10_recovery', 'execution', 'channels', 'jobs') \
                and prorettype <> 'trigger'::regtype and not has_function_privilege('{role}', oid, 'execute')"
        );
        for call in texts(&admin, foreign).await? {
            let refused =
                refusal(execute(&client, &call).await).map_err(|error| error.context(call.clone()))?;
            assert_eq!(refused.code, "42501", "{role}: {call}");
            assert!(refused.message.starts_with("permission denied for function"), "{role}: {refused:?}");
            tried += 1;
        }
    }
    assert!(tried > 60, "only {tried} calls were tried");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_adds_lines_and_reads_none() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let own = Tenant::create(&admin, "own").await?.id;
    let app = world.client("postrider_app").await?;
    let line = "insert into execution.lead_intake (intake, line, lead_id, identity, attributes) \
                values (gen_random_uuid(), 1, gen_random_uuid(), 'ann', '{}')";
    execute(&app, line).await?;
    let mut client = app.acquire().await?;
    let mut copy = client
        .copy_in_raw("copy execution.lead_intake (intake, line, lead_id, identity, attributes) from stdin")
        .await?;
    copy.send(format!("{}\t1\t{}\tbob\t{{}}\n", Uuid::now_v7(), Uuid::now_v7()).into_bytes()).await?;
    assert_eq!(copy.finish().await?, 1);
    for attack in [
        "select intake from execution.lead_intake".to_owned(),
        "select count(*) from execution.lead_intake".to_owned(),
        "select 1 from execution.lead_intake".to_owned(),
        "table execution.lead_intake".to_owned(),
        "copy execution.lead_intake to stdout".to_owned(),
        format!("{line} returning intake"),
        format!("{line} returning xmin"),
        "insert into execution.lead_intake select * from execution.lead_intake".to_owned(),
        "update execution.lead_intake set line = 2".to_owned(),
        "delete from execution.lead_intake".to_owned(),
        "truncate execution.lead_intake".to_owned(),
    ] {
        let refused = attempt(&app, own, &attack).await?;
        assert_eq!(refused.code, "42501", "{attack}: {refused:?}");
    }
    execute(&admin, "analyze execution.lead_intake").await?;
    let statistics = "select count(*) from pg_stats where tablename = 'lead_intake'"; // 22
    assert_eq!(number(&app, statistics).await?, 0);
    for role in ["postrider_worker", "postrider_read"] {
        let client = world.client(role).await?;
        for attack in [line, "select 1 from execution.lead_intake"] {
            assert_eq!(attempt(&client, own, attack).await?.code, "42501", "{role}: {attack}");
        }
    }
    Ok(())
}

/// 15, 16 and 38: names that a definer function uses, made in the caller's own temporary schema.
#[tokio::test(flavor = "multi_thread")]
async fn objects_in_the_callers_temporary_schema_do_not_come_between_a_function_and_its_tables()
-> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let (own, other) = (Tenant::create(&admin, "own").await?, Tenant::create(&admin, "other").await?);
    for role in ["postrider_app", "postrider_worker"] {
        let pool = world.client(role).await?;
        let mut client = pool.acquire().await?;
        let shadows = format!(
            "create temp table outbox (like m10_recovery.outbox);
             create temp table audit_log (like tenancy.audit_log);
             create temp table pg_proc (proname name);
             create function pg_temp.now() returns timestamptz language sql as 'select timestamptz ''2001-01-01''';
             create function pg_temp.btrim(text) returns text language sql as 'select ''x''';
             create function pg_temp.octet_length(text) returns int language sql as 'select 1';
             create function pg_temp.current_setting(text, boolean) returns text language sql as 'select ''{other}''';
             create function pg_temp.current_tenant_id() returns uuid language sql as 'select ''{other}''::uuid';
             create function pg_temp.pg_has_role(name, text, text) returns boolean language sql as 'select true';
             set search_path = pg_temp, m10_recovery, tenancy, pg_catalog;
             set app.current_tenant_id = '{own}';
             set app.tenant_signature = '{signature}'",
            other = other.id,
            own = own.id,
            signature = signature(own.id),
        );
        execute(&mut *client, shadows).await?;

        let id = number(&mut *client, "select m10_recovery.publish_outbox('a', '1', 'e', '{}')").await?;
        refusal(execute(&mut *client, "select m10_recovery.publish_outbox('  ', '1', 'e', '{}')").await)?;
        if role == "postrider_app" {
            let close =
                format!("select events.close_outbox_event('{}', {}, 'me', 'why')", own.id, other.event);
            assert_eq!(texts(&mut *client, close).await?, ["unknown"]);
            let close =
                format!("select events.close_outbox_event('{}', {}, 'me', 'why')", other.id, other.event);
            assert_eq!(refusal(texts(&mut *client, close).await)?.code, "42501");
            let close = format!("select events.close_outbox_event('{}', {id}, 'me', 'why')", own.id);
            assert_eq!(texts(&mut *client, close).await?, ["done"]);
        }

        let real = format!(
            "select count(*) from m10_recovery.outbox where id = {id} and tenant_id = '{}' and created_at > '2002-01-01'",
            own.id
        );
        assert_eq!(number(&admin, real).await?, 1, "{role}");
        let shadowed =
            "select (select count(*) from pg_temp.outbox) + (select count(*) from pg_temp.audit_log)";
        assert_eq!(number(&mut *client, shadowed).await?, 0, "{role}");
    }
    Ok(())
}

/// 16, 23 and 43: a function that a client brings along, an error on purpose and EXPLAIN see the client's own rows.
#[tokio::test(flavor = "multi_thread")]
async fn leaky_functions_errors_and_row_counts_tell_nothing_of_other_tenants() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let (own, other) = (Tenant::create(&admin, "own").await?, Tenant::create(&admin, "other").await?);
    let pool = world.client("postrider_app").await?;
    let mut client = pool.acquire().await?;
    execute(
        &mut *client,
        format!(
            "set app.current_tenant_id = '{}';
             set app.tenant_signature = '{}';
             create temp table leaked (seen uuid);
             create function pg_temp.leak(uuid) returns boolean language plpgsql cost 0.0000001 as
             $$ begin insert into leaked values ($1); return true; end $$",
            own.id,
            signature(own.id)
        ),
    )
    .await?;

    execute(&mut *client, "select id from m10_recovery.outbox where pg_temp.leak(tenant_id)").await?;
    let leaked = texts(&mut *client, "select distinct seen::text from leaked").await?;
    assert_eq!(leaked, [own.id.to_string()]);

    let oracle = format!(
        "select 1 / (case when tenant_id = '{}' then 0 else 1 end) from m10_recovery.outbox",
        other.id
    );
    execute(&mut *client, oracle).await?;

    let explain = "explain (analyze, costs off, timing off, summary off) select id from m10_recovery.outbox";
    let plan = texts(&mut *client, explain).await?.join("\n");
    assert!(plan.contains("rows=1 "), "{plan}");
    Ok(())
}
