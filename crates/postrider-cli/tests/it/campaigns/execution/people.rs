//! Erasure in raw SQL: what goes, what stays, and that the guards let nothing else change.

use std::process::Command;

use serde_json::json;
use uuid::Uuid;

use super::{Stage, Tenant, Windows, claim, complete, finalize, reserve_all, row};
use crate::{
    api::conversations::Conversation,
    sql::{execute, number, refusal, texts},
    world::{run, server_programs},
};

const MAIL: &str = "Unique.Person-7319@erasure.example";
const PHONE: &str = "+4915799731911";
const NAME: &str = "Quirinius Zandvoort";

/// A person on a new list of this name, alone.
async fn person(stage: &Stage, tenant: Tenant, list: &str) -> anyhow::Result<Uuid> {
    let (lead, list_id) = (Uuid::now_v7(), Uuid::now_v7());
    let Tenant { id, workspace } = tenant;
    let sql = format!(
        "insert into execution.lead_lists (id, tenant_id, workspace_id, name) values ('{list_id}', '{id}', '{workspace}', '{list}');
         insert into execution.leads (id, tenant_id, workspace_id, identity, external_id, email, phone, attributes)
         values ('{lead}', '{id}', '{workspace}', 'id:crm-{list}', 'crm-{list}', '{MAIL}', '{PHONE}', '{{\"first_name\": \"{NAME}\"}}');
         insert into execution.lead_list_members (tenant_id, list_id, lead_id) values ('{id}', '{list_id}', '{lead}')"
    );
    execute(&stage.admin, sql).await?;
    Ok(lead)
}

/// A run over this list, deployed.
async fn deploy(stage: &Stage, list: &str) -> anyhow::Result<Uuid> {
    let phase = json!([{
        "id": Uuid::now_v7(), "phase": "first", "channel": "email", "list": list, "provider_account": "mail",
        "asset_id": stage.asset(stage.own, "email").await?,
    }]);
    let campaign = stage.campaign(stage.own, &phase).await?;
    Ok(stage.deploy(stage.own, campaign, 500).await?)
}

async fn begin(stage: &Stage, lead: Uuid) -> Result<bool, sqlx::Error> {
    stage
        .ask(stage.own, format!("select execution.begin_erasure(tenancy.current_tenant_id(), '{lead}')"))
        .await
}

/// The second step: whether it is erased, items, messages, and what is open.
async fn erase(stage: &Stage, lead: Uuid) -> Result<String, sqlx::Error> {
    let sql = format!(
        "select concat_ws(' ', erased_at is not null, items, messages, open_items, open_messages)
           from execution.erase_lead(tenancy.current_tenant_id(), '{lead}', 'me')"
    );
    stage.ask(stage.own, sql).await
}

async fn import(stage: &Stage, list: &str) -> anyhow::Result<String> {
    let intake = Uuid::now_v7();
    let sql = format!(
        "insert into execution.lead_intake (intake, line, lead_id, identity, email, attributes)
         values ('{intake}', 1, gen_random_uuid(), 'email:' || lower('{MAIL}'), lower('{MAIL}'), '{{}}')"
    );
    execute(&stage.admin, sql).await?;
    let sql = format!(
        "select concat_ws(' ', added, updated) from execution.import_leads(tenancy.current_tenant_id(), '{intake}', '{}', '{list}', gen_random_uuid())",
        stage.own.workspace
    );
    Ok(stage.ask(stage.own, sql).await?)
}

/// Everything that the database has, as text.
async fn dump(stage: &Stage) -> anyhow::Result<String> {
    let (programs, ..) = server_programs().await?;
    let dumped = run(Command::new(programs.join("pg_dump")).args(["--dbname", &stage.world.admin_url()]))?;
    anyhow::ensure!(dumped.code == 0, "pg_dump: {}", dumped.stderr);
    Ok(dumped.stdout)
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_erasure_a_dump_has_nothing_of_the_person_and_the_certificate_adds_up() -> anyhow::Result<()>
{
    let stage = Stage::new().await?;
    let lead = person(&stage, stage.own, "all").await?;
    let run = deploy(&stage, "all").await?;
    let account: Uuid =
        sqlx::query_scalar("select id from tenancy.provider_accounts").fetch_one(&stage.admin).await?;
    let job = claim(&stage.worker, "w", 1).await?.remove(0);
    let mut windows = Windows::of(&job, 1, 1);
    windows.begin(&stage.worker, "w").await?;
    let item = windows.ids.remove(0);
    // Texts that providers, resolvers and operators write about a person.
    let sql = format!(
        "select execution.finalize_outbox_items(array['{}'::uuid], 'w', array['{item}'::uuid], array['in_doubt'], array[null], array['no answer for {MAIL}'])",
        stage.own.id
    );
    sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&stage.worker).await?;
    execute(
        &stage.admin,
        format!("update execution.channel_outbox set in_doubt_since = now() - interval '1 hour' where id = '{item}'"),
    )
    .await?;
    let resolve = format!(
        "select execution.resolve_in_doubt(tenancy.current_tenant_id(), '{item}', 'failed', null, '{NAME} ({MAIL}) is not in their log', 'me')"
    );
    stage.ask::<String>(stage.own, resolve).await?;
    complete(&stage.worker, "w", &job).await?;
    execute(
        &stage.admin,
        format!(
            "insert into execution.provider_callbacks (tenant_id, account_id, idempotency_key, message_id, status, proves_action)
             select tenant_id, '{account}', idempotency_key, 'theirs', 'done', true from execution.channel_outbox;
             insert into execution.deliveries (tenant_id, outbox_id, run_id, status, message_id, detail, reported_at)
             select tenant_id, id, run_id, 'bounced', 'theirs', '550 no {MAIL}', now() from execution.channel_outbox;
             insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
             values ('{}', 'me', 'lead.suppressed', 'lead:{lead}', '{NAME} called'), ('{}', 'me', 'other', 'other', 'wrote to {PHONE}')",
            stage.own.id, stage.own.id
        ),
    )
    .await?;
    let pool = stage.world.pool("postgres").await?;
    let workspace = postrider_model::ids::WorkspaceId(stage.own.workspace);
    let tenant = postrider_model::ids::TenantId(stage.own.id);
    let chat = Conversation::new(&pool, tenant, workspace, "chat", "sim").await?;
    let sender = PHONE.trim_start_matches('+');
    chat.link(sender, "user-7", postrider_model::tenancy::Role::Operator).await?;
    chat.die("their-id", sender, &format!("{sender} is not reachable")).await?;
    let certificate = "select concat_ws('/', intended, sent, failed, skipped, in_doubt, missing, launched) from execution.verify_launch";
    let certificate = format!("{certificate}('{}', '{run}')", stage.own.id);
    let before = texts(&stage.admin, &certificate).await?;
    let keys = "select idempotency_key from execution.channel_outbox";
    let key = texts(&stage.admin, keys).await?;
    let all = dump(&stage).await?.to_lowercase();
    for word in [MAIL, PHONE, sender, NAME] {
        assert!(all.contains(&word.to_lowercase()), "{word} was never there");
    }

    assert!(begin(&stage, lead).await?);
    assert_eq!(erase(&stage, lead).await?, "t 1 1 0 0");
    let all = dump(&stage).await?.to_lowercase();
    for word in [MAIL, PHONE, sender, NAME, "crm-all", "user-7"] {
        let word = word.to_lowercase();
        assert!(!all.contains(&word), "{word}: {:?}", all.lines().find(|line| line.contains(&word)));
    }
    assert_eq!(texts(&stage.admin, &certificate).await?, before);
    assert_eq!(texts(&stage.admin, keys).await?, key, "keys stay");
    assert_eq!(erase(&stage, lead).await?, "t 1 1 0 0", "twice is once");
    let audit = "select action || ' ' || coalesce(note, '-') from tenancy.audit_log where subject like 'lead:%' order by id";
    assert_eq!(texts(&stage.admin, audit).await?, ["lead.suppressed erased", "lead.erased -"]);

    // The person was not suppressed, and comes back as another lead.
    assert_eq!(import(&stage, "new").await?, "1 0");
    let back = "select concat_ws(' ', id <> '{lead}', suppressed_at is null) from execution.leads where erased_at is null";
    assert_eq!(texts(&stage.admin, back.replace("{lead}", &lead.to_string())).await?, ["t t"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suppressed_person_stays_suppressed_when_imported_again() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = Tenant::create(&stage.admin, "other").await?;
    let lead = person(&stage, stage.own, "all").await?;
    // Another lead of the same person, which the suppression of the first one protects.
    let twin = person(&stage, stage.own, "twin").await?;
    person(&stage, other, "all").await?;
    let suppress = format!(
        "select execution.suppress_lead(tenancy.current_tenant_id(), '{lead}', '{NAME} unsubscribed', 'me')"
    );
    assert!(stage.ask::<bool>(stage.own, suppress).await?);
    begin(&stage, lead).await?;
    assert_eq!(erase(&stage, lead).await?, "t 0 0 0 0");
    let twins = "select suppression_reason from execution.leads where external_id = 'crm-twin'";
    assert_eq!(texts(&stage.admin, twins).await?, ["suppressed before erasure"]);
    begin(&stage, twin).await?;
    erase(&stage, twin).await?;

    assert_eq!(import(&stage, "again").await?, "1 0");
    let found = "select suppression_reason from execution.leads where erased_at is null and tenant_id = (select id from tenancy.tenants where name = 'own')";
    assert_eq!(texts(&stage.admin, found).await?, ["suppressed before erasure"]);
    // Hashes of one tenant mean nothing to another.
    assert_eq!(
        number(
            &stage.admin,
            format!(
                "select count(*) from execution.leads where tenant_id = '{}' and suppressed_at is not null",
                other.id
            )
        )
        .await?,
        0
    );
    for role in ["postrider_app", "postrider_worker", "postrider_read"] {
        let client = stage.world.client(role).await?;
        for table in ["suppression_keys", "suppressed_addresses"] {
            let sql = format!("select count(*) from execution.{table}");
            assert_eq!(refusal(number(&client, sql).await)?.code, "42501", "{role} {table}");
        }
    }

    // An end of the suppression is for good: the next import does not bring it back.
    let suppressed =
        "select id::text from execution.leads where erased_at is null and suppressed_at is not null";
    let again = texts(&stage.admin, suppressed).await?.remove(0);
    let unsuppress = |lead: &str, note: &str| {
        format!(
            "select concat_ws(' ', is_known, also_suppressed) from execution.unsuppress_lead(tenancy.current_tenant_id(), '{lead}', '{note}', 'me')"
        )
    };
    assert_eq!(refusal(stage.ask::<String>(stage.own, unsuppress(&again, " ")).await)?.code, "22023");
    assert_eq!(stage.ask::<String>(stage.own, unsuppress(&again, "signed up again")).await?, "t {}");
    assert_eq!(import(&stage, "again").await?, "0 1");
    assert!(texts(&stage.admin, suppressed).await?.is_empty());
    assert_eq!(
        refusal(stage.ask::<String>(stage.own, unsuppress(&lead.to_string(), "why not")).await)?.code,
        "22023"
    );
    assert_eq!(stage.ask::<String>(other, unsuppress(&again, "theirs")).await?, "f {}");
    let noted =
        texts(&stage.admin, "select note from tenancy.audit_log where action = 'lead.unsuppressed'").await?;
    assert_eq!(noted, ["signed up again"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_in_flight_or_in_doubt_is_suppressed_and_not_yet_erased() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let lead = person(&stage, stage.own, "all").await?;
    deploy(&stage, "all").await?;
    let job = claim(&stage.worker, "w", 1).await?.remove(0);
    let item = reserve_all(&stage.worker, "w", &job).await?.remove(0);
    let early = refusal(erase(&stage, lead).await)?;
    assert_eq!(
        (early.code.as_str(), early.message.as_str()),
        ("22023", "begin_erasure must be committed before erase_lead")
    );
    begin(&stage, lead).await?;
    assert_eq!(erase(&stage, lead).await?, "f 0 0 1 0");
    assert_eq!(stage.look("suppression_reason", "leads", lead).await?, "erased");
    let unsuppress = format!(
        "select is_known from execution.unsuppress_lead(tenancy.current_tenant_id(), '{lead}', 'why', 'me')"
    );
    assert_eq!(refusal(stage.ask::<bool>(stage.own, unsuppress).await)?.code, "22023");
    finalize(&stage.worker, stage.own.id, "w", &[(item, "in_doubt")]).await?;
    assert_eq!(erase(&stage, lead).await?, "f 0 0 1 0");
    finalize(&stage.worker, stage.own.id, "w", &[(item, "sent")]).await?;
    let resolve = format!(
        "select execution.resolve_in_doubt(tenancy.current_tenant_id(), '{item}', 'sent', 'm', 'their log', 'me')"
    );
    if stage.look("status", "channel_outbox", item).await? == "queued" {
        stage.ask::<String>(stage.own, resolve).await?;
    }
    assert_eq!(erase(&stage, lead).await?, "t 1 0 0 0");
    assert_eq!(stage.look("recipient", "channel_outbox", item).await?, "null");
    assert_eq!(stage.look("status", "channel_outbox", item).await?, "sent");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_read_the_lead_before_stores_no_address_after() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let lead = person(&stage, stage.own, "all").await?;
    let run = deploy(&stage, "all").await?;
    let job = claim(&stage.worker, "w", 1).await?.remove(0);
    begin(&stage, lead).await?;
    assert_eq!(erase(&stage, lead).await?, "t 0 0 0 0");
    // The worker still has the address, and a reason with it.
    let begun = Windows::of(&job, 1, 1)
        .verdict(0, "failed", "no template for Quirinius")
        .begin(&stage.worker, "w")
        .await?;
    assert_eq!(begun[0].verdict, "skipped");
    let stored = "select concat_ws('/', status, recipient, error) from execution.channel_outbox";
    assert_eq!(texts(&stage.admin, stored).await?, ["skipped/erased"]);
    complete(&stage.worker, "w", &job).await?;
    let launched = format!("select launched::text from execution.verify_launch('{}', '{run}')", stage.own.id);
    assert_eq!(texts(&stage.admin, launched).await?, ["true"]);
    // The next run does not have the lead at all.
    assert_eq!(number(&stage.admin, "select count(*) from execution.lead_list_members").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erasure_waits_for_a_reservation_that_did_not_see_it() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let lead = person(&stage, stage.own, "all").await?;
    deploy(&stage, "all").await?;
    let job = claim(&stage.worker, "w", 1).await?.remove(0);
    let mut reserving = stage.worker.begin().await?;
    reserve_all(&mut *reserving, "w", &job).await?;
    begin(&stage, lead).await?;
    let erasing = {
        let mut transaction = stage.acting_for(stage.own).await?;
        tokio::spawn(async move {
            let sql = format!(
                "select open_items from execution.erase_lead(tenancy.current_tenant_id(), '{lead}', 'me')"
            );
            let open: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&mut *transaction).await?;
            transaction.commit().await?;
            anyhow::Ok(open)
        })
    };
    crate::sql::someone_waits(&stage.admin).await?;
    reserving.commit().await?;
    assert_eq!(erasing.await??, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guards_let_an_erasure_empty_its_columns_and_refuse_every_other_change() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let lead = person(&stage, stage.own, "all").await?;
    deploy(&stage, "all").await?;
    let job = claim(&stage.worker, "w", 1).await?.remove(0);
    let item = reserve_all(&stage.worker, "w", &job).await?.remove(0);
    finalize(&stage.worker, stage.own.id, "w", &[(item, "failed")]).await?;
    complete(&stage.worker, "w", &job).await?;
    let empty = [
        "update execution.channel_outbox set recipient = null, error = 'erased', message_hash = null",
        "update execution.campaign_audit_log set note = 'erased'",
        "update execution.job_queue set last_error = 'erased'",
    ];
    for attempt in empty {
        assert_eq!(refusal(execute(&stage.admin, attempt).await)?.code, "23514", "{attempt}");
    }
    let erase_raw = format!(
        "update execution.leads set erasing_since = now(), suppressed_at = now(), suppression_reason = 'erased', identity = 'erased:{lead}', erased_at = now(), external_id = null, email = null, phone = null, attributes = '{{}}'"
    );
    assert_eq!(refusal(execute(&stage.admin, erase_raw).await)?.code, "23514", "an erasure without a record");
    // Within the transaction that records an erasure, and only there, they may be emptied and nothing more.
    let record = format!(
        "insert into execution.erasures (tenant_id, lead_id, actor, items, messages) values ('{}', '{lead}', 'me', 0, 0)",
        stage.own.id
    );
    let mut recording = stage.admin.begin().await?;
    execute(&mut *recording, &record).await?;
    for attempt in [
        "update execution.channel_outbox set recipient = 'other@example.org'",
        "update execution.channel_outbox set error = 'a better story'",
        "update execution.channel_outbox set recipient = null, status = 'sent'",
        "update execution.channel_outbox set recipient = null, idempotency_key = 'x'",
        "update execution.channel_outbox set provider_message_id = null",
        "update execution.campaign_audit_log set note = 'nothing'",
        "update execution.campaign_audit_log set note = null, actor = 'someone'",
        "update execution.job_queue set last_error = null, outcome = 'completed'",
        "update tenancy.audit_log set note = null, actor = 'someone'",
        "update execution.erasures set actor = 'someone'",
        "delete from execution.channel_outbox",
        "delete from execution.job_queue",
        "delete from execution.campaign_audit_log",
        "delete from execution.erasures",
    ] {
        execute(&mut *recording, "savepoint tried").await?;
        let refused =
            refusal(execute(&mut *recording, attempt).await).map_err(|error| error.context(attempt))?;
        assert_eq!(refused.code, "23514", "{attempt}: {refused:?}");
        execute(&mut *recording, "rollback to savepoint tried").await?;
    }
    for attempt in empty {
        execute(&mut *recording, attempt).await?;
    }
    recording.rollback().await?;
    begin(&stage, lead).await?;
    erase(&stage, lead).await?;
    for attempt in empty {
        assert_eq!(refusal(execute(&stage.admin, attempt).await)?.code, "23514", "later: {attempt}");
    }
    for attempt in [
        "update execution.leads set email = 'back@example.org'",
        "update execution.leads set suppressed_at = null, suppression_reason = null",
        "truncate execution.erasures",
    ] {
        assert_eq!(refusal(execute(&stage.admin, attempt).await)?.code, "23514", "{attempt}");
    }
    // Another tenant sees no such lead.
    let other = Tenant::create(&stage.admin, "other").await?;
    let theirs = format!("select execution.begin_erasure(tenancy.current_tenant_id(), '{lead}')");
    assert!(!stage.ask::<bool>(other, theirs).await?);
    assert_eq!(
        refusal(
            row(&stage.app, format!("select execution.begin_erasure('{}', '{lead}')", stage.own.id))
                .await
                .map(|_| ())
        )?
        .code,
        "42501"
    );
    Ok(())
}
