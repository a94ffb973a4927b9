//! The one tenant function, and what each role sees of each tenant table through it.

use sqlx::PgPool;
use uuid::Uuid;

use super::query;
use crate::{
    sql::{acting_as, execute, refusal, tenant, texts},
    world::{World, signature},
};

pub const ROLES: [&str; 3] = ["postrider_app", "postrider_worker", "postrider_read"];

/// A tenant, and one row of it in every tenant table.
pub struct Tenant {
    pub id: Uuid,
    pub workspace: Uuid,
    pub key: Uuid,
    pub account: Uuid,
    pub event: i64,
    pub lead: Uuid,
    pub campaign: Uuid,
    pub run: Uuid,
    pub item: Uuid,
    /// Rows of chat: a message that is being executed, and a reply that is dead.
    pub message: Uuid,
    pub reply: Uuid,
    pub link: Uuid,
    pub executor: Uuid,
    /// Rows of jobs: a function, which an alert is named after too, a job run of it that failed for good and its dead letter, a schedule
    /// whose firing waits, and a card.
    pub function: String,
    pub job: Uuid,
    pub letter: Uuid,
    pub schedule: Uuid,
    pub card: Uuid,
}

impl Tenant {
    /// A tenant of whose rows none exists.
    pub fn unknown(id: Uuid) -> Self {
        let [workspace, key, account, lead, campaign, run, item] = std::array::from_fn(|_| Uuid::now_v7());
        let [message, reply, link, executor] = std::array::from_fn(|_| Uuid::now_v7());
        let [job, letter, schedule, card] = std::array::from_fn(|_| Uuid::now_v7());
        Self {
            id,
            workspace,
            key,
            account,
            event: 999,
            lead,
            campaign,
            run,
            item,
            message,
            reply,
            link,
            executor,
            function: "f-of-nobody".to_owned(),
            job,
            letter,
            schedule,
            card,
        }
    }

    pub async fn create(admin: &PgPool, name: &str) -> anyhow::Result<Self> {
        let (id, workspace) = tenant(admin, name).await?;
        let (key, account) = (Uuid::now_v7(), Uuid::now_v7());
        let rows = format!(
            "insert into tenancy.api_keys (id, tenant_id, name, role, hint, key_hash)
             values ('{key}', '{id}', '{name}', 'admin', 'pr_abc', sha256('{name}'));
             insert into tenancy.sessions (id, tenant_id, key_id, token_hash, idle_for, expires_at)
             values (gen_random_uuid(), '{id}', '{key}', sha256('{name}'), '1 hour', now() + interval '1 day');
             insert into tenancy.login_codes (tenant_id, code_hash, key_id, expires_at)
             values ('{id}', sha256('{name}'), '{key}', now() + interval '1 minute');
             insert into tenancy.provider_accounts (id, tenant_id, workspace_id, name, provider, sealed_secret)
             values ('{account}', '{id}', '{workspace}', '{name}', 'smtp', 'sealed');
             insert into tenancy.requests (tenant_id, idempotency_key, fingerprint, status) values ('{id}', 'key', sha256(''), 201)"
        );
        execute(admin, rows).await?;
        let event: i64 = sqlx::query_scalar(
            "insert into m10_recovery.outbox (aggregate_type, aggregate_id, event_type, payload, tenant_id)
             values ('a', '1', 'e', '{}', $1) returning id",
        )
        .bind(id)
        .fetch_one(admin)
        .await?;
        execute(admin, format!("insert into events.outbox_deliveries values ('{id}', {event}, 'sink')"))
            .await?;
        let [lead, campaign, run, item, list, asset] = std::array::from_fn(|_| Uuid::now_v7());
        let phase = format!(
            r#"[{{"id": "{list}", "phase": "first", "channel": "email", "asset_id": "{asset}", "list": "all", "provider_account": "{name}"}}]"#
        );
        let rows = format!(
            "begin;
             set local app.current_tenant_id = '{id}';
             insert into execution.leads (id, tenant_id, workspace_id, identity, email) values ('{lead}', '{id}', '{workspace}', 'ann', 'a@b.c');
             insert into execution.lead_lists (id, tenant_id, workspace_id, name) values ('{list}', '{id}', '{workspace}', 'all');
             insert into execution.lead_list_members (tenant_id, list_id, lead_id) values ('{id}', '{list}', '{lead}');
             select execution.create_asset(tenancy.current_tenant_id(), '{asset}', '{workspace}', 'letter', 'email', '{{}}', 'a test');
             select execution.create_campaign(tenancy.current_tenant_id(), '{campaign}', '{workspace}', 'spring', true, '{phase}', 'a test');
             select execution.deploy_campaign(tenancy.current_tenant_id(), '{campaign}', 'first', 'a test', '{run}');
             insert into execution.channel_outbox (id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id,
                                                   idempotency_key, in_doubt_since)
             select '{item}', tenant_id, workspace_id, run_id, id, 'email', 'smtp', '{lead}', 'key', now() - interval '1 day'
               from execution.job_queue where run_id = '{run}';
             insert into execution.doubts (outbox_id, tenant_id, account_id, provider, campaign_id, in_doubt_since)
             values ('{item}', '{id}', '{account}', 'smtp', '{campaign}', now());
             insert into execution.provider_callbacks (tenant_id, account_id, idempotency_key, message_id, status, proves_action)
             values ('{id}', '{account}', 'key', 'theirs', 'done', true);
             insert into execution.account_states (tenant_id, account_id) values ('{id}', '{account}');
             insert into execution.messages (id, tenant_id, workspace_id, key, key_hash, channel, provider_account_id, provider, recipient,
                                             content, actor)
             values (gen_random_uuid(), '{id}', '{workspace}', 'key', sha256('{name}'), 'email', '{account}', 'smtp', 'a@b.c', '{{}}', 'a test');
             insert into execution.erasures (tenant_id, lead_id, actor, items, messages) values ('{id}', '{lead}', 'a test', 0, 0);
             insert into execution.suppression_keys (tenant_id, inner_pad, outer_pad)
             select '{id}', fresh.inner_pad, fresh.outer_pad from tenancy.new_hmac_key() as fresh;
             insert into execution.suppressed_addresses (tenant_id, workspace_id, hash, suppressed_at)
             values ('{id}', '{workspace}', sha256('{name}'), now());
             -- The run has not ended, so its guard would refuse this.
             set local session_replication_role = replica;
             insert into execution.run_archives (tenant_id, run_id, jobs_completed, jobs_dead, sent, called, posted, failed, skipped, missing)
             values ('{id}', '{run}', 1, 0, 1, 0, 0, 0, 0, 0);
             commit"
        );
        execute(admin, rows).await?;
        let [message, reply, link, executor] = Self::chat(admin, id, account).await?;
        let function = format!("f-of-{name}");
        let [job, letter, schedule, card] = Self::jobs(admin, id, &function).await?;
        Ok(Self {
            id,
            workspace,
            key,
            account,
            event,
            lead,
            campaign,
            run,
            item,
            message,
            reply,
            link,
            executor,
            function,
            job,
            letter,
            schedule,
            card,
        })
    }

    /// A row in each table of chat.
    async fn chat(admin: &PgPool, id: Uuid, account: Uuid) -> anyhow::Result<[Uuid; 4]> {
        let [message, reply, link, executor, answered] = std::array::from_fn(|_| Uuid::now_v7());
        let rows = format!(
            "insert into channels.channel_links (id, tenant_id, account_id, sender_id, user_id, role)
             values ('{link}', '{id}', '{account}', 'ann', 'Ann', 'admin');
             insert into channels.channel_executors (id, tenant_id, kind, timeout_seconds, sealed_secret, required_role)
             values ('{executor}', '{id}', 'echo', 30, 'sealed', 'viewer');
             insert into channels.channel_messages
                    (id, tenant_id, account_id, provider, provider_message_id, sender_id, recipient_id, text, correlation_id,
                     executions, leased_until)
             values ('{message}', '{id}', '{account}', 'smtp', 'theirs', 'ann', 'room', 'hi', gen_random_uuid(), 1, 'infinity'),
                    ('{answered}', '{id}', '{account}', 'smtp', 'answered', 'ann', 'room', 'hi', gen_random_uuid(), 1, null);
             insert into channels.channel_outbox
                    (id, tenant_id, channel_message_id, account_id, provider, recipient_id, payload, status, correlation_id)
             values ('{reply}', '{id}', '{answered}', '{account}', 'smtp', 'room', '{{}}', 'dead', gen_random_uuid());
             update channels.channel_messages set status = 'executed' where id = '{answered}'"
        );
        execute(admin, rows).await?;
        Ok([message, reply, link, executor])
    }

    /// A row in each table of jobs.
    async fn jobs(admin: &PgPool, id: Uuid, function: &str) -> anyhow::Result<[Uuid; 4]> {
        let [job, letter, schedule, card, alert] = std::array::from_fn(|_| Uuid::now_v7());
        let rows = format!(
            "insert into jobs.functions (id, tenant_id, name, kind, target, sealed_secret)
             values (gen_random_uuid(), '{id}', '{function}', 'http', 'https://example.com', 'sealed');
             insert into jobs.job_runs (id, tenant_id, function_name, lock_key, grain, grain_start, status, completed_at)
             values ('{job}', '{id}', '{function}', 'key', 'day', now(), 'failed', now());
             insert into jobs.sync_errors (id, tenant_id, error_type, error_code, error_message, source_entity_type, source_entity_id)
             values ('{letter}', '{id}', 'job_failure', 'EXECUTION_ERROR', 'why', 'job_run', '{job}');
             insert into jobs.schedules (id, tenant_id, function_name, cron, timezone, depends_on, next_fire_at)
             values ('{schedule}', '{id}', '{function}', '0 0 * * *', 'UTC', '{{{function}}}', now());
             insert into jobs.schedule_firings (tenant_id, schedule_id, fire_at, outcome) values ('{id}', '{schedule}', now(), 'waiting');
             insert into jobs.alert_instances (id, tenant_id, alert_config_id, title) values ('{alert}', '{id}', '{function}', 't');
             insert into jobs.decision_cards (id, tenant_id, alert_instance_id, metric_code, period_start, title, recommendation)
             values ('{card}', '{id}', '{alert}', 'm', now(), 't', 'r');
             insert into jobs.alert_notifications (tenant_id, alert_instance_id, account_id, recipient, about, subject, body)
             values ('{id}', '{alert}', gen_random_uuid(), 'ann', 'raised', 's', 'b')"
        );
        execute(admin, rows).await?;
        Ok([job, letter, schedule, card])
    }
}

/// Each tenant table with the column that says whose a row is.
pub async fn tenant_tables(admin: &PgPool) -> anyhow::Result<Vec<(String, &'static str)>> {
    let names =
        texts(admin, query("select oid::regclass::text from pg_class where oid in (tenant_tables)")).await?;
    Ok(names
        .into_iter()
        .map(|name| if name == "tenancy.tenants" { (name, "id") } else { (name, "tenant_id") })
        .collect())
}

/// Two tenants with rows everywhere, and an event of the system tenant.
async fn two_tenants(admin: &PgPool) -> anyhow::Result<[Tenant; 2]> {
    let tenants = [Tenant::create(admin, "one").await?, Tenant::create(admin, "two").await?];
    execute(admin, "select m10_recovery.publish_outbox('a', '1', 'e', '{}')").await?;
    for (table, column) in tenant_tables(admin).await? {
        for tenant in &tenants {
            let rows =
                texts(admin, format!("select {column}::text from {table} where {column} = '{}'", tenant.id))
                    .await?;
            anyhow::ensure!(
                !rows.is_empty(),
                "{table} is a tenant table: `Tenant::create` must put a row into it"
            );
        }
    }
    Ok(tenants)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_sees_the_rows_of_the_tenant_in_its_context_and_no_others() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let [one, two] = two_tenants(&admin).await?;
    let set = |name: &str, value: &str| format!("set local {name} = '{value}';");
    let (one_id, two_id) = (one.id.to_string(), two.id.to_string());
    let stranger = Uuid::now_v7();
    let by_id = |id: &str| set("app.current_tenant_id", id);
    let by_alias = |id: &str| set("app.current_tenant", id);
    let contexts: [(String, Option<&str>); 10] = [
        (String::new(), None),
        (by_id(&one_id), Some(&one_id)),
        (by_id(&two_id), Some(&two_id)),
        (by_alias(&one_id), Some(&one_id)),
        (by_id(&one_id) + &by_alias(&one_id), Some(&one_id)),
        (by_id(&one_id) + &by_alias(&two_id), None),
        (by_id("") + &by_alias(&two_id), Some(&two_id)),
        (by_id(&two_id) + &by_alias(""), Some(&two_id)),
        (by_id("") + &by_alias(""), None),
        (by_id(&stranger.to_string()), None),
    ];

    for role in ROLES {
        let client = world.client(role).await?;
        for (table, column) in tenant_tables(&admin).await? {
            let readable = format!("select has_any_column_privilege('{role}', '{table}', 'select')::text");
            let readable = texts(&admin, readable).await? == ["true"];
            let rows = format!("select distinct {column}::text from {table}");
            for (context, visible) in &contexts {
                let mut transaction = client.begin().await?;
                execute(&mut *transaction, context).await?;
                // The server's signature covers the one tenant that the settings name.
                let signed = visible.map_or(stranger, |visible| visible.parse().unwrap());
                let sign = format!("set local app.tenant_signature = '{}'", signature(signed));
                execute(&mut *transaction, sign).await?;
                let seen = texts(&mut *transaction, &rows).await;
                if readable {
                    assert_eq!(seen?, Vec::from_iter(*visible), "{role} reads {table} after `{context}`");
                } else {
                    assert_eq!(refusal(seen)?.code, "42501", "{role} reads {table}");
                }
                transaction.rollback().await?;
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_tenant_unless_one_is_named_and_both_names_agree() -> anyhow::Result<()> {
    let client = World::new().await?.client("postrider_app").await?;
    let (one, two) = ("00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002");
    for (id, alias, expected) in
        [("", "", ""), (one, "", one), ("", two, two), (one, one, one), (one, two, ""), (two, one, "")]
    {
        let mut transaction = client.begin().await?;
        let unset = "select coalesce(tenancy.current_tenant_id()::text, '')";
        assert_eq!(texts(&mut *transaction, unset).await?, [""], "nothing is left of the transaction before");
        sqlx::query("select set_config('app.current_tenant_id', $1, true), set_config('app.current_tenant', $2, true)")
            .bind(id)
            .bind(alias)
            .execute(&mut *transaction)
            .await?;
        if !expected.is_empty() {
            let sign = format!("set local app.tenant_signature = '{}'", signature(expected.parse()?));
            execute(&mut *transaction, sign).await?;
        }
        assert_eq!(texts(&mut *transaction, unset).await?, [expected], "{id:?} {alias:?}");
        let required = texts(&mut *transaction, "select tenancy.required_tenant_id()::text").await;
        if expected.is_empty() {
            let refused = refusal(required)?;
            assert_eq!(
                (refused.code.as_str(), refused.message.as_str()),
                ("42501", "no tenant is set for this transaction")
            );
            assert!(refused.hint.starts_with("Begin with: set local app.current_tenant_id"), "{refused:?}");
        } else {
            assert_eq!(required?, [expected]);
        }
    }

    let mut transaction = client.begin().await?;
    execute(&mut *transaction, "set local app.current_tenant_id = 'not a uuid'").await?;
    let refused = refusal(texts(&mut *transaction, "select id::text from tenancy.tenants").await)?;
    assert_eq!(refused.code, "22P02");
    Ok(())
}

/// A plan that is kept must not keep the tenant (the class of CVE-2023-2455 and CVE-2024-10976).
#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_statement_follows_the_tenant_of_each_transaction() -> anyhow::Result<()> {
    let world = World::new().await?;
    let [one, two] = two_tenants(&world.client("postgres").await?).await?;
    let app = world.client("postrider_app").await?;
    let mut client = app.acquire().await?;
    execute(&mut *client, "prepare look as select id::text from m10_recovery.outbox where aggregate_type <> 'campaign' order by id").await?;
    for mode in ["auto", "force_generic_plan", "force_custom_plan"] {
        execute(&mut *client, format!("set plan_cache_mode = {mode}")).await?;
        for _ in 0..4 {
            for tenant in [&one, &two] {
                execute(&mut *client, format!("begin; {}", acting_as(tenant.id))).await?;
                let seen = sqlx::raw_sql("execute look").fetch_all(&mut *client).await?;
                let seen: Vec<String> = seen.iter().map(|row| sqlx::Row::get(row, 0)).collect();
                assert_eq!(seen, [tenant.event.to_string()], "{mode}");
                execute(&mut *client, "commit").await?;
            }
            assert_eq!(sqlx::raw_sql("execute look").fetch_all(&mut *client).await?.len(), 0, "{mode}");
        }
    }
    Ok(())
}
