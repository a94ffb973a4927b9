//! finalize_outbox_items: an answer to a call settles its row once, whoever holds the job by then.

use sqlx::PgConnection;
use uuid::Uuid;

use super::{NOTHING, Stage, Windows, finalize, reserve_all};
use crate::sql::{execute, number, refusal};

const ROW: &str = "concat_ws(' ', status, skipped, finalized_at is not null, in_doubt_since is not null, \
                   coalesce(provider_message_id, '-') = 'message ' || id, coalesce(error, '-'))";

#[tokio::test(flavor = "multi_thread")]
async fn each_answer_leads_to_its_status() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 5).await?;
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    let words = ["sent", "called", "posted", "failed", "in_doubt"];
    let settled: Vec<(Uuid, &str)> = ids.iter().copied().zip(words).collect();

    let mut changed = finalize(&stage.worker, stage.own.id, "w", &settled).await?;

    changed.sort_unstable();
    assert_eq!(changed, ids);
    for (id, row) in ids.iter().zip([
        "sent f t f t -",
        "called f t f t -",
        "posted f t f t -",
        "failed f t f t why",
        "queued f f t f why",
    ]) {
        assert_eq!(stage.look(ROW, "channel_outbox", *id).await?, row);
    }
    assert_eq!(stage.log_of(ids[4]).await?, ["item.in_doubt by w"]);
    for id in &ids[..4] {
        assert_eq!(stage.log_of(*id).await?, [""; 0], "what went as planned is its own record");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn words_that_do_not_end_an_item_are_refused_and_change_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 3).await?;
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    finalize(&stage.worker, stage.own.id, "w", &[(ids[1], "in_doubt")]).await?;
    for word in ["queued", "skipped", "reserved", "", "SENT", "sent "] {
        let refused = finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent"), (ids[1], word)]).await;
        assert_eq!(refusal(refused)?.code, "22023", "{word}");
    }
    for statuses in ["null", "array[null, null]::text[]", "array['sent']", "array['sent', null]", "'{}'"] {
        let sql = format!(
            "select execution.finalize_outbox_items(array['{tenant}', '{tenant}']::uuid[], 'w',
                                                     array['{}', '{}']::uuid[], {statuses}, null, null)",
            ids[0],
            ids[1],
            tenant = stage.own.id
        );
        assert_eq!(refusal(execute(&stage.worker, &sql).await)?.code, "22023", "{statuses}");
    }
    let settled =
        "select count(*) from execution.channel_outbox where status <> 'queued' or finalized_at is not null";
    assert_eq!(number(&stage.admin, settled).await?, 0);
    assert_eq!(stage.look("in_doubt_since is not null", "channel_outbox", ids[1]).await?, "true");
    assert_eq!(finalize(&stage.worker, stage.own.id, "w", &[]).await?, NOTHING);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_worker_that_reserved_an_item_settles_it() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 1).await?;
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    for word in ["sent", "failed", "in_doubt"] {
        assert_eq!(finalize(&stage.worker, stage.own.id, "v", &[(ids[0], word)]).await?, NOTHING);
        assert_eq!(finalize(&stage.worker, stage.own.id, "", &[(ids[0], word)]).await?, NOTHING);
    }
    assert_eq!(stage.look(ROW, "channel_outbox", ids[0]).await?, "queued f f f f -");
    assert_eq!(stage.log_of(ids[0]).await?, [""; 0]);
    assert_eq!(
        finalize(&stage.worker, stage.own.id, "w", &[(Uuid::now_v7(), "sent"), (ids[0], "sent")]).await?,
        ids
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_lost_its_lock_still_settles_its_own_row_and_ends_the_doubt() -> anyhow::Result<()> {
    for word in ["sent", "failed"] {
        let stage = Stage::new().await?;
        let job = stage.job("slow", 2).await?;
        let ids = reserve_all(&stage.worker, "slow", &job).await?;
        let heir = stage.take_over(&job, "heir").await?;
        assert_eq!(stage.look("in_doubt_since is not null", "channel_outbox", ids[0]).await?, "true");
        assert_eq!(
            finalize(&stage.worker, stage.own.id, "heir", &[(ids[0], word)]).await?,
            NOTHING,
            "it never called"
        );

        assert_eq!(finalize(&stage.worker, stage.own.id, "slow", &[(ids[0], word)]).await?, [ids[0]]);

        let row = stage.look(ROW, "channel_outbox", ids[0]).await?;
        assert_eq!(row, format!("{word} f t f t {}", if word == "sent" { "-" } else { "why" }));
        // And nothing else of what it once held.
        let windows = Windows::of(&job, 1, 2);
        assert_eq!(windows.begin(&stage.worker, "slow").await?[0].verdict, "lost");
        assert_eq!(stage.look("locked_by", "job_queue", job.job_id).await?, "heir");
        assert_eq!(heir.attempts, 2);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doubt_is_marked_once_and_ends_with_the_real_answer() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 1).await?;
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    assert_eq!(finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "in_doubt")]).await?, ids);
    let since = stage.look("in_doubt_since", "channel_outbox", ids[0]).await?;
    assert_eq!(finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "in_doubt")]).await?, NOTHING);
    assert_eq!(stage.look("in_doubt_since", "channel_outbox", ids[0]).await?, since);
    assert_eq!(stage.log_of(ids[0]).await?, ["item.in_doubt by w"]);

    assert_eq!(finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent")]).await?, ids);
    assert_eq!(stage.look(ROW, "channel_outbox", ids[0]).await?, "sent f t f t -");
    assert_eq!(finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "in_doubt")]).await?, NOTHING);
    assert_eq!(stage.look(ROW, "channel_outbox", ids[0]).await?, "sent f t f t -");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_settlement_changes_nothing_and_a_contradiction_is_written_down() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 3).await?;
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent"), (ids[1], "failed")]).await?;
    let before = stage.look(ROW, "channel_outbox", ids[0]).await?;

    assert_eq!(
        finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent"), (ids[1], "failed")]).await?,
        NOTHING
    );
    assert_eq!(stage.log_of(ids[0]).await?, [""; 0], "the same answer again says nothing new");

    let again = [(ids[0], "failed"), (ids[1], "sent"), (ids[2], "sent")];
    assert_eq!(finalize(&stage.worker, stage.own.id, "w", &again).await?, [ids[2]]);
    assert_eq!(stage.look(ROW, "channel_outbox", ids[0]).await?, before);
    for id in &ids[..2] {
        assert_eq!(stage.log_of(*id).await?, ["item.contradicted by w"]);
    }
    let note = format!(
        "select count(*) from execution.campaign_audit_log where note = 'the provider''s answer was: sent message {}'",
        ids[1]
    );
    assert_eq!(number(&stage.admin, note).await?, 1);
    // A result from another worker is not evidence.
    finalize(&stage.worker, stage.own.id, "v", &[(ids[2], "failed")]).await?;
    assert_eq!(stage.log_of(ids[2]).await?, [""; 0]);
    Ok(())
}

/// Updates of the outbox that this session has counted, and those of them that stayed on their page.
async fn updates(client: &mut PgConnection) -> Result<(i64, i64), sqlx::Error> {
    let counters = "select n_tup_upd, n_tup_hot_upd from pg_stat_xact_user_tables \
                     where relid = 'execution.channel_outbox'::regclass";
    sqlx::query_as(counters).fetch_one(client).await
}

#[tokio::test(flavor = "multi_thread")]
async fn settling_rewrites_rows_in_place() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    execute(&stage.admin, "alter table execution.channel_outbox set (autovacuum_enabled = off)").await?;
    let job = stage.job("w", 640).await?;
    let (mut updated, mut in_place) = (0, 0);
    // Window by window, as a worker does it.
    for window in 0..10 {
        let windows = Windows::of(&job, 64 * window + 1, 64);
        windows.begin(&stage.worker, "w").await?;
        let settled: Vec<(Uuid, &str)> = windows.ids.iter().map(|id| (*id, "sent")).collect();
        let mut transaction = stage.admin.begin().await?;
        let (updated_before, in_place_before) = updates(&mut transaction).await?;
        execute(&mut *transaction, "set local role postrider_worker").await?;
        finalize(&mut *transaction, stage.own.id, "w", &settled).await?;
        execute(&mut *transaction, "reset role").await?;
        let (updated_after, in_place_after) = updates(&mut transaction).await?;
        updated += updated_after - updated_before;
        in_place += in_place_after - in_place_before;
        transaction.commit().await?;
    }
    assert_eq!(updated, 640);
    assert!(in_place * 10 >= updated * 8, "only {in_place} of {updated} stayed on their page");
    Ok(())
}
