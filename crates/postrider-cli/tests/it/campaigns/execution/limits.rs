//! Call tokens, circuits, waiting jobs and moves, in raw SQL.

use serde_json::{Value, json};
use sqlx::Row;
use uuid::Uuid;

use super::{Job, Stage, Tenant, claim, finalize, reserve_all, row};
use crate::sql::{execute, number, refusal, texts};

/// The answer of take_call_tokens: number of tokens, time to wait, reason.
type Answer = (i32, f64, Option<String>);

async fn take(stage: &Stage, job: &Job, wanted: i32, more: &str) -> Result<Answer, sqlx::Error> {
    let sql = format!(
        "select granted, wait_seconds, why from execution.take_call_tokens('{}', 'w', '{}', {}, {wanted}{more})",
        job.tenant_id, job.job_id, job.attempts
    );
    let row = row(&stage.worker, sql).await?;
    Ok((row.get(0), row.get(1), row.get(2)))
}

/// A job of the worker `w`, whose account has these limits.
async fn limited(stage: &Stage, limits: &Value) -> anyhow::Result<Job> {
    let job = stage.job("w", 5).await?;
    set(stage, limits).await?;
    Ok(job)
}

async fn set(stage: &Stage, limits: &Value) -> anyhow::Result<()> {
    execute(&stage.admin, format!("update tenancy.provider_accounts set limits = '{limits}'")).await?;
    Ok(())
}

/// Moves the bucket's clock, so that time need not pass.
async fn pass(stage: &Stage, time: &str) -> anyhow::Result<()> {
    let sql = format!(
        "update execution.account_states set refilled_at = refilled_at - interval '{time}', wait_until = wait_until - interval '{time}',
                circuit_open_until = circuit_open_until - interval '{time}', probe_until = probe_until - interval '{time}'"
    );
    execute(&stage.admin, sql).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_holds_a_fifth_of_a_second_and_is_given_out_up_to_a_second_ahead() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = limited(&stage, &json!({ "rate_per_second": 50 })).await?;
    let (granted, wait, why) = take(&stage, &job, 10, "").await?;
    assert_eq!((granted, wait, why), (10, 0.0, None), "the bucket is full at first");
    // Everything else comes at its time: the wait is that of the last one, less what has passed on a busy machine.
    let (granted, wait, _) = take(&stage, &job, 7, "").await?;
    assert!(granted == 7 && wait <= 0.14, "{granted} after {wait}");
    let (granted, wait, why) = take(&stage, &job, 1000, "").await?;
    assert!((42..=60).contains(&granted) && (0.9..=1.0).contains(&wait), "{granted} after {wait}");
    assert_eq!(why.as_deref(), Some("rate"));
    let (granted, wait, _) = take(&stage, &job, 1000, "").await?;
    // No caller waits longer than a second for call tokens that were granted in advance.
    assert!(granted <= 50 && wait <= 1.0, "{granted} after {wait}");
    // A long pause does not fill it any further.
    pass(&stage, "1 hour").await?;
    assert_eq!(take(&stage, &job, 10, "").await?, (10, 0.0, None));
    assert!(take(&stage, &job, 50, "").await?.1 > 0.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rates_below_one_and_bursts_and_what_the_provider_allows() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = limited(&stage, &json!({ "rate_per_second": 0.1 })).await?;
    assert_eq!(take(&stage, &job, 5, "").await?, (1, 0.0, None));
    let (granted, wait, _) = take(&stage, &job, 5, "").await?;
    assert!(granted == 0 && (8.0..=9.0).contains(&wait), "{granted} after {wait}");
    pass(&stage, "10 seconds").await?;
    assert_eq!(take(&stage, &job, 5, "").await?, (1, 0.0, None));

    set(&stage, &json!({ "rate_per_second": 10, "burst": 100 })).await?;
    pass(&stage, "1 hour").await?;
    assert_eq!(take(&stage, &job, 100, "").await?, (100, 0.0, None));
    // The provider's limit applies where the account sets none.
    set(&stage, &json!({})).await?;
    assert_eq!(take(&stage, &job, 1000, "").await?, (1000, 0.0, None));
    let (granted, wait, _) = take(&stage, &job, 1000, ", p_rate => 1").await?;
    assert!(granted == 1 && wait > 0.0, "{granted} after {wait}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_days_turns_end_with_the_day_of_the_account() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = limited(&stage, &json!({ "daily": 12, "time_zone": "Pacific/Auckland" })).await?;
    assert_eq!(take(&stage, &job, 7, "").await?, (7, 0.0, None));
    assert_eq!(take(&stage, &job, 7, "").await?, (5, 0.0, None));
    let (granted, wait, why) = take(&stage, &job, 1, "").await?;
    assert_eq!((granted, why.as_deref()), (0, Some("daily")));
    let midnight = "select extract(epoch from ((now() at time zone 'Pacific/Auckland')::date + 1)::timestamp
                           at time zone 'Pacific/Auckland' - now())::bigint";
    assert!((wait - number(&stage.admin, midnight).await? as f64).abs() < 5.0, "{wait}");
    // An item that is reserved already is not held up, and is counted.
    assert_eq!(take(&stage, &job, 1, ", p_again => true").await?, (1, 0.0, None));
    assert_eq!(number(&stage.admin, "select used_today from execution.account_states").await?, 13);
    execute(&stage.admin, "update execution.account_states set day = day - 1").await?;
    assert_eq!(take(&stage, &job, 20, "").await?, (12, 0.0, None));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_are_for_the_holder_of_a_job_alone() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 5).await?;
    for (worker, attempt, failover) in [("v", 1, false), ("w", 2, false), ("w", 1, true)] {
        let at = format!("'{}', '{worker}', '{}', {attempt}, {failover}", job.tenant_id, job.job_id);
        for call in [
            format!(
                "take_call_tokens('{}', '{worker}', '{}', {attempt}, 1, {failover})",
                job.tenant_id, job.job_id
            ),
            format!("hold_account({at}, 10, 'x')"),
            format!("open_circuit({at}, 'x')"),
            format!("close_circuit({at})"),
        ] {
            let refused = execute(&stage.worker, format!("select * from execution.{call}")).await;
            assert_eq!(refusal(refused)?.code, "PR001", "{call}");
        }
    }
    assert_eq!(number(&stage.admin, "select count(*) from execution.account_states").await?, 0);
    let none =
        format!("select * from execution.take_call_tokens('{}', 'w', '{}', 1, 0)", job.tenant_id, job.job_id);
    assert_eq!(refusal(execute(&stage.worker, none).await)?.code, "22023");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_lasts_as_long_as_requested_and_an_hour_at_most() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 5).await?;
    let hold = |seconds: i32| {
        format!(
            "select execution.hold_account('{}', 'w', '{}', 1, false, {seconds}, 'busy')",
            job.tenant_id, job.job_id
        )
    };
    execute(&stage.worker, hold(100)).await?;
    // A shorter one does not end it.
    execute(&stage.worker, hold(10)).await?;
    let (granted, wait, why) = take(&stage, &job, 5, "").await?;
    assert_eq!((granted, why.as_deref()), (0, Some("retry_after")));
    assert!((90.0..=100.0).contains(&wait), "{wait}");
    execute(&stage.worker, hold(1_000_000)).await?;
    assert!(take(&stage, &job, 5, "").await?.1 <= 86_400.0);
    pass(&stage, "1 day").await?;
    assert_eq!(take(&stage, &job, 5, "").await?, (5, 0.0, None));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_circuit_is_open_twice_as_long_each_time_and_one_call_at_a_time_finds_out() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 5).await?;
    let other = stage.job("w", 5).await?;
    let open = format!(
        "select round(execution.open_circuit('{}', 'w', '{}', 1, false, 'away'))::bigint",
        job.tenant_id, job.job_id
    );
    for seconds in [30, 60, 120, 240, 480, 600, 600] {
        assert_eq!(number(&stage.worker, open.clone()).await?, seconds);
        assert_eq!(number(&stage.worker, open.clone()).await?, seconds, "one that is open stays as it is");
        let (granted, _, why) = take(&stage, &job, 5, "").await?;
        assert_eq!((granted, why.as_deref()), (0, Some("circuit")));
        pass(&stage, "10 minutes").await?;
    }
    // Half open: whoever asks first may try once, and again for as long as nobody knows.
    assert_eq!(take(&stage, &job, 5, "").await?, (1, 0.0, None));
    assert_eq!(take(&stage, &other, 5, "").await?.0, 0);
    assert_eq!(take(&stage, &job, 5, "").await?, (1, 0.0, None));
    // It was never heard of again.
    pass(&stage, "3 minutes").await?;
    assert_eq!(take(&stage, &other, 5, "").await?, (1, 0.0, None));
    assert_eq!(take(&stage, &job, 5, "").await?.0, 0);

    let close =
        format!("select execution.close_circuit('{}', 'w', '{}', 1, false)", other.tenant_id, other.job_id);
    execute(&stage.worker, close.clone()).await?;
    execute(&stage.worker, close).await?;
    assert_eq!(take(&stage, &job, 5, "").await?, (5, 0.0, None));
    assert_eq!(number(&stage.worker, open).await?, 30, "it begins again");
    let log = "select action || ' ' || count(*) from tenancy.audit_log where action like 'account.circuit%' group by action order by 1";
    assert_eq!(texts(&stage.admin, log).await?, ["account.circuit_closed 1", "account.circuit_opened 8"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_put_off_burns_no_attempt_and_takes_its_run_along() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let run = stage.run(30, 5).await?;
    let elsewhere = stage.run(5, 5).await?;
    let job = claim(&stage.worker, "w", 1).await?.remove(0);
    assert_eq!(job.run_id, run);
    let put_off = |whole: bool| {
        format!(
            "select execution.put_off_job('{}', '{}', 'w', {}, '1 hour', 'daily', 'enough', {whole})::bigint",
            job.tenant_id, job.job_id, job.attempts
        )
    };
    assert_eq!(number(&stage.worker, put_off(true)).await?, 6);
    let jobs = "select status || ' ' || attempts || ' ' || coalesce(waits_for, '-') || ' ' || (run_after > now() + interval '59 minutes') || ' ' || count(*)
                  from execution.job_queue group by run_id, status, attempts, waits_for, run_after > now() + interval '59 minutes' order by count(*)";
    assert_eq!(texts(&stage.admin, jobs).await?, ["queued 0 - false 1", "queued 0 daily true 6"]);
    let log = format!(
        "select note from execution.campaign_audit_log where run_id = '{run}' and action = 'job.put_off'"
    );
    let notes = texts(&stage.admin, log).await?;
    assert!(
        notes.len() == 1 && notes[0].ends_with("Z: enough; with 5 more send jobs of the run"),
        "{notes:?}"
    );
    assert_eq!(
        refusal(execute(&stage.worker, put_off(true)).await)?.code,
        "PR001",
        "it is not held any more"
    );
    // Nothing of it is claimed, and a claim forgets why something waited.
    let claimed = claim(&stage.worker, "w", 10).await?;
    assert_eq!(claimed.iter().map(|job| job.run_id).collect::<Vec<_>>(), [elsewhere]);
    execute(&stage.admin, "update execution.job_queue set run_after = now()").await?;
    assert_eq!(claim(&stage.worker, "w", 10).await?.len(), 6);
    let waits = "select count(*) from execution.job_queue where waits_for is not null";
    assert_eq!(number(&stage.admin, waits).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn new_limits_wake_the_send_jobs_of_their_account_only() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = Tenant::create(&stage.admin, "other").await?;
    stage.run(1, 1).await?;
    stage.run_of(other, 1, 1, &json!({})).await?;
    for job in claim(&stage.worker, "w", 10).await? {
        let sql = format!(
            "select execution.put_off_job('{}', '{}', 'w', 1, '1 hour', 'daily', 'x', true)",
            job.tenant_id, job.job_id
        );
        execute(&stage.worker, sql).await?;
    }
    let account =
        format!("select id::text from tenancy.provider_accounts where tenant_id = '{}'", stage.own.id);
    let account = texts(&stage.admin, account).await?.remove(0);
    let limit_as = |tenant: uuid::Uuid, limits: Value| {
        format!("select tenancy.limit_provider_account('{tenant}', '{account}', '{limits}', 'a test')")
    };
    let limit = |limits: Value| limit_as(stage.own.id, limits);
    assert!(!stage.ask::<bool>(other, limit_as(other.id, json!({}))).await?, "another tenant's account");
    assert_eq!(refusal(stage.ask::<bool>(other, limit(json!({}))).await)?.code, "42501");
    assert!(stage.ask::<bool>(stage.own, limit(json!({ "daily": 5 }))).await?);
    let claimed = claim(&stage.worker, "w", 10).await?;
    assert_eq!(claimed.iter().map(|job| job.tenant_id).collect::<Vec<_>>(), [stage.own.id]);
    let refused = refusal(stage.ask::<bool>(stage.own, limit(json!({ "time_zone": "Moon/Base" }))).await)?;
    assert!(refused.message.contains("no time zone `Moon/Base`"), "{refused:?}");
    let refused = refusal(stage.ask::<bool>(stage.own, limit(json!([]))).await)?;
    assert_eq!(refused.code, "23514");
    let audit = "select note from tenancy.audit_log where action = 'account.limited'";
    assert_eq!(texts(&stage.admin, audit).await?, [r#"{"daily": 5}"#]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_are_excepted_are_left_alone_and_there_is_one_way_to_claim() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (left_alone, taken) = (stage.run(3, 1).await?, stage.run(3, 1).await?);
    let tenant = stage.own.id;
    let sql = format!(
        "select claimed.run_id::text
           from execution.tenants_with_due_jobs(10, '{{}}', array['{tenant}'::uuid], array['{left_alone}'::uuid]) as due,
                execution.claim_queued_jobs(due.tenant_id, 'w', due.jobs, array['{left_alone}'::uuid]) as claimed"
    );
    assert_eq!(texts(&stage.worker, &sql).await?, vec![taken.to_string(); 3]);
    assert_eq!(texts(&stage.worker, &sql).await?, [""; 0]);
    for (arguments, jobs) in [("'w', 1, '{}'", 1), ("'w', 1", 1), ("'w'", 1)] {
        let sql = format!("select run_id::text from execution.claim_queued_jobs('{tenant}', {arguments})");
        assert_eq!(texts(&stage.worker, sql).await?.len(), jobs, "{arguments}");
    }
    let signatures = "select count(*) from pg_proc where proname = 'claim_queued_jobs'";
    assert_eq!(number(&stage.admin, signatures).await?, 1);
    Ok(())
}

/// A job with another account to fail over to, all of whose items are reserved by `w`.
async fn reserved(stage: &Stage, items: usize) -> anyhow::Result<(Job, Vec<Uuid>, Uuid)> {
    let other = Uuid::now_v7();
    let account = format!(
        "insert into tenancy.provider_accounts (id, tenant_id, workspace_id, name, provider, sealed_secret)
         values ('{other}', '{}', '{}', 'other', 'sim', 'sealed')",
        stage.own.id, stage.own.workspace
    );
    execute(&stage.admin, account).await?;
    stage.run_of(stage.own, items, 10_000, &json!({ "failover_account": "other" })).await?;
    let job = claim(&stage.worker, "w", 1).await?.remove(0);
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    Ok((job, ids, other))
}

async fn move_over(stage: &Stage, worker: &str, ids: &[Uuid]) -> Result<usize, sqlx::Error> {
    let tenants = vec![stage.own.id; ids.len()];
    let moved = sqlx::query("select * from execution.move_outbox_items($1, $2, $3)");
    let moved = moved.bind(tenants).bind(worker).bind(ids);
    moved.fetch_all(&stage.worker).await.map(|rows| rows.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_moves_once_and_only_while_nothing_was_sent() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (_, ids, other) = reserved(&stage, 4).await?;
    let [sent, in_doubt, moving, free] = ids[..] else { anyhow::bail!("not four: {ids:?}") };
    finalize(&stage.worker, stage.own.id, "w", &[(sent, "sent"), (in_doubt, "in_doubt")]).await?;
    assert_eq!(move_over(&stage, "v", &ids).await?, 0, "another worker's");
    assert_eq!(move_over(&stage, "w", &[sent, in_doubt, moving]).await?, 1);
    assert_eq!(move_over(&stage, "w", &[sent, in_doubt, moving]).await?, 0, "it has moved");
    let rows = format!("select id::text from execution.channel_outbox where moved_to_account_id = '{other}'");
    assert_eq!(texts(&stage.admin, rows).await?, [moving.to_string()]);
    // Not even the owner moves what has ended, what is in doubt, or what has moved.
    for (id, to) in [
        (sent, "gen_random_uuid()"),
        (in_doubt, "gen_random_uuid()"),
        (moving, "gen_random_uuid()"),
        (moving, "null"),
    ] {
        let sql = format!("update execution.channel_outbox set moved_to_account_id = {to} where id = '{id}'");
        assert_eq!(refusal(execute(&stage.admin, sql).await)?.code, "23514");
    }
    assert_eq!(move_over(&stage, "w", &[free]).await?, 1);
    assert_eq!(stage.log_of(free).await?, ["item.moved by w"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_another_account_moves_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 2).await?;
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    assert_eq!((ids.len(), move_over(&stage, "w", &ids).await?), (2, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_about_a_second_account_names_the_phase() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for (name, expected) in [
        ("nobody", "phase `first`: there is no provider account `nobody` to fail over to"),
        ("mail", "phase `first` fails over to the account that it uses anyway"),
    ] {
        let phase = stage.phase(stage.own, 1, &json!({ "failover_account": name })).await?;
        let refused = refusal(stage.campaign(stage.own, &json!([phase])).await)?;
        assert_eq!(refused.message, expected);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_word_of_the_database_is_one_of_ours() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.run(1, 1).await?;
    for why in postrider_model::Why::ALL {
        execute(&stage.admin, format!("update execution.job_queue set waits_for = '{}'", why.as_str()))
            .await?;
    }
    let refused = execute(&stage.admin, "update execution.job_queue set waits_for = 'weather'").await;
    assert_eq!(refusal(refused)?.code, "23514");
    Ok(())
}
