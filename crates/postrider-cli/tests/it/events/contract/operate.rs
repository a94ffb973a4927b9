//! Functions around the contract: retry and close by a person, partial deliveries, the backlog.

use sqlx::{AssertSqlSafe, PgPool};
use uuid::Uuid;

use super::{claim, complete, insert, publish};
use crate::{
    sql::{acting_as, execute, number, refusal, tenant, texts},
    world::World,
};

/// Calls a function for a tenant, as the API does.
async fn call_as(app: &PgPool, tenant: Uuid, call: &str) -> Result<String, sqlx::Error> {
    let mut transaction = app.begin().await?;
    execute(&mut *transaction, acting_as(tenant)).await?;
    let answer =
        sqlx::query_scalar(AssertSqlSafe(format!("select {call}"))).fetch_one(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(answer)
}

/// The audit log of an event.
async fn audit(admin: &PgPool, id: i64) -> Result<Vec<String>, sqlx::Error> {
    let entries = format!(
        "select concat_ws('|', tenant_id, actor, action, note) from tenancy.audit_log where subject = 'event:{id}' order by id"
    );
    texts(admin, entries).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_makes_a_waiting_event_ready_now_and_its_history_stays() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (app, worker) = (world.client("postrider_app").await?, world.client("postrider_worker").await?);
    let admin = world.client("postgres").await?;
    let (own, _) = tenant(&admin, "own").await?;
    let values = format!("7, now() + interval '17 minutes', 'sink down', '{own}'");
    let id = insert(&admin, "retry_count, process_after, last_error, tenant_id", &values).await?;
    assert_eq!(claim(&worker, "p", 1).await?, [0; 0]);

    assert_eq!(
        call_as(&app, own, &format!("events.retry_outbox_event('{own}', {id}, 'Ada')")).await?,
        "done"
    );

    let again: (i64, i32) =
        sqlx::query_as("select id, retry_count from m10_recovery.claim_outbox_events('p')")
            .fetch_one(&worker)
            .await?;
    assert_eq!(again, (id, 7));
    assert_eq!(audit(&admin, id).await?, [format!("{own}|Ada|event.retried")]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_leaves_processed_and_held_events_alone_and_takes_stale_ones() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (app, admin) = (world.client("postrider_app").await?, world.client("postgres").await?);
    let (own, _) = tenant(&admin, "own").await?;
    for (columns, values, answer) in [
        ("processed_at", "now()", "processed"),
        ("claimed_at, claimed_by", "now(), 'p'", "claimed"),
        ("claimed_at, claimed_by", "now() - interval '6 minutes', 'p'", "done"),
        ("process_after", "null", "done"),
    ] {
        let id = insert(&admin, &format!("tenant_id, {columns}"), &format!("'{own}', {values}")).await?;
        let said = call_as(&app, own, &format!("events.retry_outbox_event('{own}', {id}, 'Ada')")).await?;
        assert_eq!(said, answer, "{columns} {values}");
        assert_eq!(audit(&admin, id).await?.len(), usize::from(answer == "done"), "{columns} {values}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_closes_an_event_with_a_note_and_its_processor_loses_the_claim() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (app, worker) = (world.client("postrider_app").await?, world.client("postrider_worker").await?);
    let admin = world.client("postgres").await?;
    let (own, _) = tenant(&admin, "own").await?;
    let id = insert(&admin, "tenant_id", &format!("'{own}'")).await?;
    claim(&worker, "p", 1).await?;

    let close = format!("events.close_outbox_event('{own}', {id}, 'Ada', 'the customer is gone')");
    assert_eq!(call_as(&app, own, &close).await?, "done");

    let written = texts(
        &admin,
        "select concat_ws('|', processed_at is not null, claimed_at, claimed_by, last_error) from m10_recovery.outbox",
    );
    assert_eq!(written.await?, ["t|closed by Ada: the customer is gone"]);
    assert_eq!(refusal(complete(&worker, id, "p", None).await)?.code, "PR001");
    assert_eq!(audit(&admin, id).await?, [format!("{own}|Ada|event.closed|the customer is gone")]);
    assert_eq!(call_as(&app, own, &close).await?, "processed");
    assert_eq!(audit(&admin, id).await?.len(), 1, "a second close does nothing");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_needs_a_note_and_a_name() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (app, admin) = (world.client("postrider_app").await?, world.client("postgres").await?);
    let (own, _) = tenant(&admin, "own").await?;
    let id = insert(&admin, "tenant_id", &format!("'{own}'")).await?;
    for note in ["null", "''", "'  '"] {
        let refused = refusal(
            call_as(&app, own, &format!("events.close_outbox_event('{own}', {id}, 'Ada', {note})")).await,
        )?;
        assert_eq!(refused.message, "closing an event needs a note that says why");
    }
    for actor in ["null", "''"] {
        refusal(
            call_as(&app, own, &format!("events.close_outbox_event('{own}', {id}, {actor}, 'why')")).await,
        )?;
        refusal(call_as(&app, own, &format!("events.retry_outbox_event('{own}', {id}, {actor})")).await)?;
    }
    let untouched =
        "select count(*) from m10_recovery.outbox where processed_at is null and process_after is null";
    assert_eq!(number(&admin, untouched).await?, 1);
    assert_eq!(audit(&admin, id).await?, [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenants_event_is_as_unknown_as_one_that_does_not_exist() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (app, admin) = (world.client("postrider_app").await?, world.client("postgres").await?);
    let ((own, _), (other, _)) = (tenant(&admin, "own").await?, tenant(&admin, "other").await?);
    let theirs = insert(&admin, "tenant_id", &format!("'{other}'")).await?;
    let nobodys = insert(&admin, "tenant_id", "tenancy.system_tenant_id()").await?;

    for id in [theirs, nobodys, 999] {
        for call in [
            format!("events.retry_outbox_event('{own}', {id}, 'Ada')"),
            format!("events.close_outbox_event('{own}', {id}, 'Ada', 'why')"),
        ] {
            assert_eq!(call_as(&app, own, &call).await?, "unknown", "{call}");
            let without_tenant = refusal(texts(&app, format!("select {call}")).await)?;
            assert_eq!(without_tenant.code, "42501", "{call}");
        }
        // The argument is no way into another tenant.
        for tenant in [format!("'{other}'"), "tenancy.system_tenant_id()".to_owned()] {
            let retry = format!("events.retry_outbox_event({tenant}, {id}, 'Ada')");
            assert_eq!(refusal(call_as(&app, own, &retry).await)?.code, "42501", "{retry}");
        }
    }
    let touched =
        "select count(*) from m10_recovery.outbox where num_nonnulls(processed_at, process_after) > 0";
    assert_eq!(number(&admin, touched).await?, 0);
    assert_eq!([audit(&admin, theirs).await?, audit(&admin, nobodys).await?].concat(), [""; 0]);

    // A member of the owner role, acting for nobody in particular, may close any.
    let close =
        format!("select events.close_outbox_event(tenancy.system_tenant_id(), {nobodys}, 'root', 'why')");
    assert_eq!(texts(&admin, close).await?, ["done"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_are_recorded_for_the_holder_of_the_claim_alone() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    let id = publish(&worker, "42").await?;
    claim(&worker, "holder", 1).await?;
    let noted =
        "select string_agg(sink, ',' order by sink) from events.outbox_deliveries having count(*) > 0";
    let note = |who: &str| {
        format!(
            "select events.note_deliveries('{who}', array_fill(tenancy.system_tenant_id(), array[3]), '{{{id},{id},{id}}}', '{{a,b,a}}')"
        )
    };

    execute(&worker, note("stranger")).await?;
    assert_eq!(texts(&admin, noted).await?, [""; 0]);
    execute(&worker, note("holder")).await?;
    execute(&worker, note("holder")).await?;
    assert_eq!(texts(&admin, noted).await?, ["a,b"]);

    complete(&worker, id, "holder", Some("c failed")).await?;
    execute(&worker, note("holder").replace("{a,b,a}", "{x,y,z}")).await?;
    assert_eq!(texts(&admin, noted).await?, ["a,b"], "a processor that released the event records nothing");
    execute(&admin, "update m10_recovery.outbox set process_after = now()").await?;
    assert_eq!(claim(&worker, "next", 1).await?, [id]);

    complete(&worker, id, "next", None).await?;
    execute(&worker, note("next").replace("{a,b,a}", "{x,y,z}")).await?;
    assert_eq!(texts(&admin, noted).await?, ["a,b"], "a processed event takes no notes");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_backlog_counts_what_waits_what_is_stuck_and_the_oldest_ready_one() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    let backlog = |stuck_after: i32| {
        format!(
            "select concat_ws('|', pending, stuck, oldest_ready_seconds) from events.outbox_backlog({stuck_after})"
        )
    };
    let mut transaction = admin.begin().await?;
    assert_eq!(texts(&mut *transaction, backlog(3)).await?, ["0|0|0"]);
    for (columns, values) in [
        ("process_after", "now() - interval '90 seconds'"),
        ("process_after", "now() + interval '1 day'"),
        ("retry_count, process_after", "3, now() + interval '1 minute'"),
        ("retry_count, process_after", "4, now() + interval '1 minute'"),
        ("retry_count, process_after", "9, now() - interval '1 second'"),
        (
            "retry_count, claimed_at, claimed_by, process_after",
            "12, now(), 'p', now() - interval '5 seconds'",
        ),
        ("retry_count, process_after, processed_at", "12, now() - interval '1 hour', now()"),
    ] {
        insert(&mut *transaction, columns, values).await?;
    }
    execute(&mut *transaction, "set local role postrider_worker").await?;

    assert_eq!(texts(&mut *transaction, backlog(3)).await?, ["6|3|90"]);
    assert_eq!(texts(&mut *transaction, backlog(0)).await?, ["6|4|90"]);
    assert_eq!(texts(&mut *transaction, backlog(-1)).await?, ["6|4|90"], "what never failed is not stuck");
    assert_eq!(texts(&mut *transaction, backlog(12)).await?, ["6|0|90"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn asking_for_another_tenants_event_does_not_hold_it_up() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);
    let (owner, _) = tenant(&admin, "owner").await?;
    let (other, _) = tenant(&admin, "other").await?;
    let mut publishing = app.begin().await?;
    execute(&mut *publishing, acting_as(owner)).await?;
    let id = publish(&mut *publishing, "42").await?;
    publishing.commit().await?;

    for call in ["close_outbox_event($2, $1, 'other', 'mine')", "retry_outbox_event($2, $1, 'other')"] {
        let mut asking = app.begin().await?;
        execute(&mut *asking, acting_as(other)).await?;
        let sql = format!("select events.{call}");
        let answer: String =
            sqlx::query_scalar(AssertSqlSafe(sql)).bind(id).bind(other).fetch_one(&mut *asking).await?;
        assert_eq!(answer, "unknown");
        // Its transaction is still open, and the event can be claimed all the same.
        let mut claiming = admin.begin().await?;
        assert_eq!(claim(&mut *claiming, "p", 10).await?, [id], "{call}");
        // Waited for: a dropped transaction ends some time later, and would hide the event from the next round.
        claiming.rollback().await?;
        asking.rollback().await?;
    }
    Ok(())
}
