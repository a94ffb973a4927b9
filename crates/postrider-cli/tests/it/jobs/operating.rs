//! Those who live say so, those who died are noticed, and people retry, cancel and resolve.

use uuid::Uuid;

use super::stage::{Capacity, Claimed, End, NOTHING, Stage, acting_for, claim, ends};
use crate::{
    sql::{acting_as, execute, number, refusal, tenant, texts},
    world::PATIENCE,
};

/// Runs in every state: waiting, held, waiting for a retry, failed for good, completed, cancelled.
async fn one_of_each(stage: &Stage) -> anyhow::Result<[Uuid; 6]> {
    for name in ["held", "again", "dead", "done", "given-up"] {
        stage.function(stage.own, name).await?;
    }
    let held = stage.held(stage.own, "held").await?.id;
    let again = stage.ended(stage.own, "again", End::Failed).await?;
    let dead = stage.ended(stage.own, "dead", End::Refused).await?;
    let done = stage.ended(stage.own, "done", End::Done).await?;
    let given_up = stage.run(stage.own, "given-up").await?;
    cancel(stage, given_up).await?;
    let waiting = stage.run(stage.own, "f").await?;
    Ok([waiting, held, again, dead, done, given_up])
}

async fn cancel(stage: &Stage, id: Uuid) -> Result<Option<String>, sqlx::Error> {
    stage
        .ask(stage.own, format!("select jobs.cancel_run(tenancy.current_tenant_id(), '{id}', ' why ', 'me')"))
        .await
}

async fn retry(stage: &Stage, tenant: Uuid, id: Uuid) -> Result<Option<(String, Uuid)>, sqlx::Error> {
    let mut transaction = acting_for(&stage.app, tenant).await?;
    let answer =
        sqlx::query_as("select outcome, run_id from jobs.retry_run(tenancy.current_tenant_id(), $1, 'me')")
            .bind(id)
            .fetch_optional(&mut *transaction)
            .await?;
    transaction.commit().await.map(|()| answer)
}

async fn heartbeat(stage: &Stage, worker: &str, runs: &[&Claimed]) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar("select id from jobs.heartbeat_runs($1, $2, $3, $4) order by 1")
        .bind(runs.iter().map(|run| run.tenant_id).collect::<Vec<_>>())
        .bind(runs.iter().map(|run| run.id).collect::<Vec<_>>())
        .bind(runs.iter().map(|run| run.claims).collect::<Vec<_>>())
        .bind(worker)
        .fetch_all(&stage.worker)
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_names_what_is_still_held_and_nothing_else() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for name in ["g", "h"] {
        stage.function(stage.own, name).await?;
    }
    let (first, second, third) = (
        stage.held(stage.own, "f").await?,
        stage.held(stage.own, "g").await?,
        stage.held(stage.own, "h").await?,
    );
    execute(&stage.admin, "update jobs.job_runs set heartbeat_at = now() - interval '1 hour'").await?;
    assert_eq!(heartbeat(&stage, "w", &[&second, &first]).await?, [first.id, second.id]);
    let age = "heartbeat_at > now() - interval '1 minute'";
    assert_eq!(stage.look_at_run(age, first.id).await?, "true");
    assert_eq!(stage.look_at_run(age, third.id).await?, "false");
    ends(&stage.worker, "w", &[(&first, End::Done)]).await?;
    cancel(&stage, second.id).await?;
    let stale = Claimed { claims: 0, ..third.clone() };
    let unknown = Claimed { id: Uuid::now_v7(), ..third.clone() };
    assert_eq!(heartbeat(&stage, "w", &[&first, &second, &stale, &unknown]).await?, NOTHING);
    assert_eq!(heartbeat(&stage, "v", &[&third]).await?, NOTHING);
    assert_eq!(heartbeat(&stage, "w", &[&first, &third]).await?, [third.id]);
    // It waits for nobody: a run that somebody has locked is held all the same.
    let mut locking = stage.admin.begin().await?;
    execute(&mut *locking, format!("select from jobs.job_runs where id = '{}' for update", third.id)).await?;
    let beaten = tokio::time::timeout(PATIENCE, heartbeat(&stage, "w", &[&third])).await?;
    assert_eq!(beaten?, [third.id]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_process_died_counts_as_a_failed_attempt_once() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for name in ["g", "last"] {
        stage.function_with(stage.own, name, "max_retries", if name == "last" { "0" } else { "3" }).await?;
    }
    let [dead, live, last] = [
        stage.held(stage.own, "f").await?.id,
        stage.held(stage.own, "g").await?.id,
        stage.held(stage.own, "last").await?.id,
    ];
    let recover = "select concat_ws(' ', function_name, worker, retry_at is not null) from jobs.tenants_with_stale_runs('1 minute') as stale
                    cross join lateral jobs.recover_runs(stale.tenant_id, '1 minute') order by 1";
    assert_eq!(texts(&stage.worker, recover).await?, [""; 0]);
    execute(
        &stage.admin,
        format!("update jobs.job_runs set heartbeat_at = now() - interval '61 seconds' where id in ('{dead}', '{last}')"),
    )
    .await?;
    assert_eq!(texts(&stage.worker, recover).await?, ["f w t", "last w f"]);
    assert_eq!(texts(&stage.worker, recover).await?, [""; 0]);
    let row = "concat_ws(' ', status, retry_count, retry_at - completed_at, error_message)";
    assert_eq!(stage.look_at_run(row, dead).await?, "failed 0 00:00:01 the process that ran it went away");
    assert_eq!(stage.look_at_run(row, live).await?, "running 0");
    let code = "select concat_ws(' ', source_entity_id, error_code) from jobs.sync_errors";
    assert_eq!(texts(&stage.admin, code).await?, [format!("{last} MAX_RETRIES_EXCEEDED")]);
    execute(&stage.admin, "update jobs.job_runs set retry_at = now() where retry_at is not null").await?;
    let again = claim(&stage.worker, "v", &Capacity::of(10)).await?;
    assert_eq!(
        again.iter().map(|run| (run.id, run.retry_count, run.claims)).collect::<Vec<_>>(),
        [(dead, 1, 2)]
    );

    // No more than were asked for, and none that somebody is ending at this moment.
    execute(
        &stage.admin,
        "update jobs.job_runs set heartbeat_at = now() - interval '1 hour' where locked_by is not null",
    )
    .await?;
    let mut ending = stage.worker.begin().await?;
    assert_eq!(ends(&mut *ending, "v", &[(&again[0], End::Done)]).await?, ["completed"]);
    assert_eq!(texts(&stage.worker, recover).await?, ["g w t"]);
    ending.commit().await?;
    assert_eq!(texts(&stage.worker, recover).await?, [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_failed_run_is_retried_by_hand() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.another("other").await?;
    let all @ [waiting, held, again, dead, done, given_up] = one_of_each(&stage).await?;
    for (id, word) in [(waiting, "running"), (held, "running"), (done, "completed"), (given_up, "cancelled")]
    {
        let before = stage.everything().await?;
        assert_eq!(retry(&stage, stage.own, id).await?, Some((word.to_owned(), id)));
        assert_eq!(stage.everything().await?, before, "{word}");
    }
    let before = stage.everything().await?;
    assert_eq!(retry(&stage, stage.own, Uuid::now_v7()).await?, None);
    for id in all {
        assert_eq!(retry(&stage, other, id).await?, None);
    }
    assert_eq!(stage.everything().await?, before);
    for id in [again, dead] {
        assert_eq!(retry(&stage, stage.own, id).await?, Some(("retried".to_owned(), id)));
        let row = "concat_ws(' ', status, retry_count, retry_at, completed_at, locked_by, started_at > now() - interval '1 minute')";
        assert_eq!(stage.look_at_run(row, id).await?, "running 1 t");
        assert_eq!(retry(&stage, stage.own, id).await?, Some(("running".to_owned(), id)));
        let key = stage.look_at_run("lock_key", id).await?;
        assert_eq!(stage.log_of(format!("job_run:{id}")).await?, [format!("run.retried by me {key}")]);
    }
    assert_eq!(claim(&stage.worker, "w", &Capacity::of(10)).await?.len(), 3, "at once");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_key_is_taken_is_not_retried_and_the_other_one_is_named() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let dead = stage.ended(stage.own, "f", End::Refused).await?;
    let other = stage.run(stage.own, "f").await?;
    let taken = async || -> anyhow::Result<()> {
        let before = stage.everything().await?;
        assert_eq!(retry(&stage, stage.own, dead).await?, Some(("taken".to_owned(), other)));
        assert_eq!(stage.everything().await?, before);
        Ok(())
    };
    taken().await?;
    let held = claim(&stage.worker, "w", &Capacity::of(1)).await?.remove(0);
    taken().await?;
    ends(&stage.worker, "w", &[(&held, End::Failed)]).await?;
    taken().await?;
    execute(&stage.admin, "update jobs.job_runs set retry_at = now() where retry_at is not null").await?;
    let held = claim(&stage.worker, "w", &Capacity::of(1)).await?.remove(0);
    ends(&stage.worker, "w", &[(&held, End::Done)]).await?;
    taken().await?;
    // A forced run is named while it is active, and is itself retried although one has completed.
    let (_, forced) = stage.acquire(stage.own, "f", true).await?;
    assert_eq!(retry(&stage, stage.own, dead).await?, Some(("taken".to_owned(), forced.unwrap())));
    let held = claim(&stage.worker, "w", &Capacity::of(1)).await?.remove(0);
    ends(&stage.worker, "w", &[(&held, End::Refused)]).await?;
    taken().await?;
    assert_eq!(
        retry(&stage, stage.own, forced.unwrap()).await?,
        Some(("retried".to_owned(), forced.unwrap()))
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_run_that_is_not_completed_can_be_cancelled_for_ever() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.another("other").await?;
    let all @ [waiting, held, again, dead, done, given_up] = one_of_each(&stage).await?;
    let before = stage.everything().await?;
    for id in all {
        let foreign = format!("select jobs.cancel_run(tenancy.current_tenant_id(), '{id}', null, 'me')");
        assert_eq!(stage.ask::<Option<String>>(other, foreign).await?, None);
    }
    assert_eq!(cancel(&stage, Uuid::now_v7()).await?, None);
    assert_eq!(cancel(&stage, done).await?.as_deref(), Some("completed"));
    assert_eq!(cancel(&stage, given_up).await?.as_deref(), Some("cancelled"));
    assert_eq!(stage.everything().await?, before);
    let row =
        "concat_ws(' ', status, completed_at <= now(), retry_at, locked_by, heartbeat_at, error_message)";
    for (id, why) in [
        (waiting, "cancelled by me: why"),
        (held, "cancelled by me: why"),
        (again, "it failed"),
        (dead, "it never will"),
    ] {
        assert_eq!(cancel(&stage, id).await?.as_deref(), Some("cancelled"));
        assert_eq!(stage.look_at_run(row, id).await?, format!("cancelled t {why}"));
        assert_eq!(stage.log_of(format!("job_run:{id}")).await?, ["run.cancelled by me why"]);
    }
    let letter = "select concat_ws(' ', is_resolved, resolved_by, resolution_note) from jobs.sync_errors";
    assert_eq!(texts(&stage.admin, letter).await?, ["t me the run was cancelled: why"]);
    assert_eq!(claim(&stage.worker, "w", &Capacity::of(10)).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_is_resolved_once_with_a_note_by_its_own_tenant() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.another("other").await?;
    let run = stage.ended(stage.own, "f", End::Refused).await?;
    let letter: Uuid = sqlx::query_scalar("select id from jobs.sync_errors").fetch_one(&stage.admin).await?;
    let resolve = |note: &str| {
        format!("select jobs.resolve_sync_error(tenancy.current_tenant_id(), '{letter}', '{note}', 'me')")
    };
    let before = stage.everything().await?;
    assert_eq!(refusal(stage.ask::<bool>(stage.own, resolve(" ")).await)?.code, "22023");
    assert!(!stage.ask::<bool>(other, resolve("mine")).await?);
    assert_eq!(stage.everything().await?, before);
    for note in ["first", "second"] {
        assert!(stage.ask::<bool>(stage.own, resolve(note)).await?);
        let row = "concat_ws(' ', is_resolved, resolved_by, resolution_note)";
        assert_eq!(stage.look(row, "sync_errors", letter).await?, "t me first");
    }
    assert_eq!(stage.log_of(format!("sync_error:{letter}")).await?, ["sync_error.resolved by me first"]);
    // A person had resolved it, and it failed again: that is a new letter, and there is one open letter at a time.
    for _ in 0..2 {
        retry(&stage, stage.own, run).await?;
        let held = claim(&stage.worker, "w", &Capacity::of(1)).await?.remove(0);
        ends(&stage.worker, "w", &[(&held, End::Refused)]).await?;
        let open = "select count(*) from jobs.sync_errors where not is_resolved";
        assert_eq!(number(&stage.admin, open).await?, 1);
    }
    assert_eq!(number(&stage.admin, "select count(*) from jobs.sync_errors").await?, 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn which_runs_have_ended_is_told_and_nothing_more_of_them() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let all @ [.., dead, done, given_up] = one_of_each(&stage).await?;
    let other = tenant(&stage.admin, "stranger").await?.0;
    let mut expected = vec![dead, done, given_up];
    expected.sort_unstable();
    // The tenant itself and the server, which waits for runs of all tenants; not another tenant, and nobody without a context.
    for (context, expected) in [
        (acting_as(stage.own), expected.clone()),
        (acting_as(Uuid::nil()), expected),
        (acting_as(other), vec![]),
        (String::new(), vec![]),
    ] {
        let mut transaction = stage.app.begin().await?;
        execute(&mut *transaction, &context).await?;
        let mut ended: Vec<Uuid> = sqlx::query_scalar("select id from jobs.which_ended($1, $2)")
            .bind(vec![stage.own; all.len() + 1])
            .bind(all.iter().copied().chain([Uuid::now_v7()]).collect::<Vec<_>>())
            .fetch_all(&mut *transaction)
            .await?;
        ended.sort_unstable();
        assert_eq!(ended, expected, "{context}");
    }
    Ok(())
}
