//! begin_outbox_items: one row per key, only for whoever holds the job, and never a second time.

use std::collections::BTreeMap;

use postrider_model::{
    Channel,
    ids::{JobId, OutboxId, TenantId},
};
use postrider_store::campaigns::outbox::{
    JobHold, Plan, PlannedItem, Reserved, Window, WindowAnswer, Writer,
};
use serde_json::json;
use uuid::Uuid;

use super::{Begun, Job, Stage, Tenant, Windows, claim, complete, finalize, reserve_all};
use crate::sql::{execute, number, refusal, someone_waits, texts};

/// Verdicts by item.
fn verdicts(begun: &[Begun]) -> BTreeMap<Uuid, &str> {
    begun.iter().filter_map(|item| Some((item.item_id?, item.verdict.as_str()))).collect()
}

async fn items(stage: &Stage) -> Result<i64, sqlx::Error> {
    number(&stage.admin, "select count(*) from execution.channel_outbox").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_is_a_row_that_says_who_reserved_what_under_which_attempt() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 3).await?;
    let windows = Windows::of(&job, 2, 2);
    let begun = windows.begin(&stage.worker, "w").await?;
    assert_eq!(
        verdicts(&begun),
        BTreeMap::from([(job.item_ids[1], "reserved"), (job.item_ids[2], "reserved")])
    );
    assert_eq!(items(&stage).await?, 2);
    for (at, id) in windows.ids.iter().enumerate() {
        let row = format!(
            "concat_ws(' ', tenant_id = '{}', workspace_id = '{}', run_id = '{}', job_id = '{}', recipient_id = '{}', channel, \
             provider, recipient = 'to ' || id, status, skipped, reserved_by, attempt, message_hash is not null, \
             finalized_at is null, in_doubt_since is null, provider_message_id is null, error is null)",
            stage.own.id,
            stage.own.workspace,
            job.run_id,
            job.job_id,
            job.item_ids[at + 1]
        );
        let expected = "t t t t t email sim t queued f w 1 t t t t t";
        assert_eq!(stage.look(&row, "channel_outbox", *id).await?, expected);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_of_a_job_that_is_not_held_is_lost_while_the_others_are_reserved() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.run(14, 2).await?;
    let mut jobs = claim(&stage.worker, "w", 7).await?;
    let good = jobs.remove(0);
    let last = jobs.remove(0);
    let set = async |job: &Job, values: &str| {
        execute(&stage.admin, format!("update execution.job_queue set {values} where id = '{}'", job.job_id))
            .await
    };
    set(&jobs[0], "locked_by = 'another'").await?;
    set(&jobs[1], "attempts = 2").await?;
    sqlx::query("select execution.release_job($1, $2, 'w', 1)")
        .bind(stage.own.id)
        .bind(jobs[2].job_id)
        .execute(&stage.worker)
        .await?;
    let ids = reserve_all(&stage.worker, "w", &jobs[3]).await?;
    finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent"), (ids[1], "sent")]).await?;
    assert_eq!(complete(&stage.worker, "w", &jobs[3]).await?, "completed");
    jobs[4].job_id = Uuid::now_v7();

    // A lost window first, one between and one last: what is reserved keeps its own job and key.
    let mut windows = Windows::of(&jobs[0], 1, 2).and(&good, 1, 2);
    for job in &jobs[1..] {
        windows = windows.and(job, 1, 1);
    }
    let windows = windows.and(&last, 2, 1);
    let begun = windows.begin(&stage.worker, "w").await?;

    let lost: Vec<Uuid> =
        begun.iter().filter(|item| item.verdict == "lost").map(|item| item.job_id).collect();
    assert_eq!(lost, jobs.iter().map(|job| job.job_id).collect::<Vec<_>>());
    assert!(begun.iter().all(|item| (item.verdict == "lost") == item.item_id.is_none()));
    let reserved: Vec<(Uuid, Option<Uuid>)> = begun
        .iter()
        .filter(|item| item.verdict == "reserved")
        .map(|item| (item.job_id, item.item_id))
        .collect();
    let expected = [(&good, 0), (&good, 1), (&last, 1)];
    assert_eq!(reserved, expected.map(|(job, at)| (job.job_id, Some(job.item_ids[at]))));
    let right = "select count(*) from execution.channel_outbox as item join execution.job_queue as job on job.id = item.job_id \
         join execution.campaign_runs as run on run.id = job.run_id \
         where item.recipient_id = any (job.item_ids) and item.tenant_id = job.tenant_id \
           and item.idempotency_key = execution.outbox_key(run.id, item.recipient_id, run.key_part, run.scheduled_for)";
    assert_eq!((number(&stage.admin, right).await?, items(&stage).await?), (5, 5));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_exists_is_not_reserved_again_and_its_state_is_told() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 5).await?;
    let windows = Windows::of(&job, 1, 4).verdict(3, "skipped", "why");
    windows.begin(&stage.worker, "w").await?;
    let settled = [(windows.ids[1], "sent"), (windows.ids[2], "failed")];
    finalize(&stage.worker, stage.own.id, "w", &settled).await?;

    let begun = Windows::of(&job, 1, 5).begin(&stage.worker, "w").await?;

    let expected = ["queued", "sent", "failed", "skipped", "reserved"];
    assert_eq!(verdicts(&begun), job.item_ids.iter().copied().zip(expected).collect());
    let old: Vec<Option<Uuid>> = windows.ids.iter().copied().map(Some).collect();
    assert!(begun.iter().filter(|item| item.verdict != "reserved").all(|item| old.contains(&item.outbox_id)));
    assert_eq!(items(&stage).await?, 5);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_gets_the_same_reservation() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 3).await?;
    let windows = Windows::of(&job, 1, 3);
    let mut first = windows.begin(&stage.worker, "w").await?;
    let mut second = windows.begin(&stage.worker, "w").await?;
    first.sort();
    second.sort();
    assert_eq!(first, second);
    assert!(second.iter().all(|item| item.verdict == "reserved"));
    assert_eq!(items(&stage).await?, 3);

    // But not what is in doubt, or has ended.
    finalize(&stage.worker, stage.own.id, "w", &[(windows.ids[0], "in_doubt"), (windows.ids[1], "sent")])
        .await?;
    let third = windows.begin(&stage.worker, "w").await?;
    assert_eq!(verdicts(&third), job.item_ids.iter().copied().zip(["queued", "sent", "reserved"]).collect());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_is_not_given_to_another_worker_or_attempt_under_the_same_ids() -> anyhow::Result<()> {
    for (change, worker, attempt) in
        [("locked_by = 'v'", "v", 1), ("attempts = 2", "w", 2), ("locked_by = 'v', attempts = 2", "v", 2)]
    {
        let stage = Stage::new().await?;
        let job = stage.job("w", 1).await?;
        let mut windows = Windows::of(&job, 1, 1);
        windows.begin(&stage.worker, "w").await?;
        execute(&stage.admin, format!("update execution.job_queue set {change}")).await?;
        windows.attempts = vec![attempt];
        let begun = windows.begin(&stage.worker, worker).await?;
        assert_eq!(verdicts(&begun), BTreeMap::from([(job.item_ids[0], "queued")]), "{change}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lead_that_was_suppressed_after_the_claim_is_skipped_without_a_call() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 3).await?;
    let suppress = format!(
        "select execution.suppress_lead(tenancy.current_tenant_id(), '{}', 'unsubscribed', 'ann')",
        job.item_ids[1]
    );
    assert!(stage.ask::<bool>(stage.own, &suppress).await?);
    assert!(stage.ask::<bool>(stage.own, suppress).await?, "twice is the same as once");

    let windows = Windows::of(&job, 1, 3);
    let begun = windows.begin(&stage.worker, "w").await?;

    let expected = ["reserved", "skipped", "reserved"];
    assert_eq!(verdicts(&begun), job.item_ids.iter().copied().zip(expected).collect());
    let row = "concat_ws(' ', status, skipped, finalized_at is not null, error)";
    let skipped = stage.look(row, "channel_outbox", windows.ids[1]).await?;
    assert_eq!(skipped, "skipped t t the lead is suppressed");
    // Suppressed after the reservation: the call may be under way, and nothing changes.
    let late = format!(
        "select execution.suppress_lead(tenancy.current_tenant_id(), '{}', 'unsubscribed', 'ann')",
        job.item_ids[0]
    );
    stage.ask::<bool>(stage.own, late).await?;
    let again = windows.begin(&stage.worker, "w").await?;
    assert_eq!(verdicts(&again), job.item_ids.iter().copied().zip(expected).collect());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lead_suppressed_by_one_tenant_is_not_skipped_for_another_that_has_the_same_id()
-> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = Tenant::create(&stage.admin, "other").await?;
    stage.run(2, 10).await?;
    let theirs = stage.phase(other, 0, &json!({})).await?;
    let copy = format!(
        "insert into execution.leads (id, tenant_id, workspace_id, identity, email)
         select id, '{id}', '{workspace}', identity, email from execution.leads;
         insert into execution.lead_list_members (tenant_id, list_id, lead_id)
         select '{id}', list.id, lead.id from execution.lead_lists as list, execution.leads as lead
          where list.tenant_id = '{id}' and lead.tenant_id = '{id}';
         update execution.leads set suppressed_at = now(), suppression_reason = 'x' where tenant_id = '{id}'",
        id = other.id,
        workspace = other.workspace
    );
    execute(&stage.admin, copy).await?;
    let campaign = stage.campaign(other, &json!([theirs])).await?;
    stage.deploy(other, campaign, 10).await?;
    let jobs = claim(&stage.worker, "w", 2).await?;
    assert_eq!(jobs.len(), 2);

    let begun = Windows::of(&jobs[0], 1, 2).and(&jobs[1], 1, 2).begin(&stage.worker, "w").await?;

    for item in begun {
        let job = jobs.iter().find(|job| job.job_id == item.job_id).unwrap();
        assert_eq!(item.verdict, if job.tenant_id == other.id { "skipped" } else { "reserved" });
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_with_a_verdict_is_final_at_once_and_other_verdicts_are_refused() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 3).await?;
    for verdict in ["sent", "called", "posted", "queued", "reserved", ""] {
        let windows = Windows::of(&job, 1, 3).verdict(1, verdict, "why");
        assert_eq!(refusal(windows.begin(&stage.worker, "w").await)?.code, "22023", "{verdict}");
    }
    assert_eq!(items(&stage).await?, 0);
    let windows =
        Windows::of(&job, 1, 3).verdict(0, "failed", "no address").verdict(2, "skipped", "no consent");
    let begun = windows.begin(&stage.worker, "w").await?;
    let expected = ["failed", "reserved", "skipped"];
    assert_eq!(verdicts(&begun), job.item_ids.iter().copied().zip(expected).collect());
    let row = "concat_ws(' ', status, skipped, finalized_at is not null, error)";
    assert_eq!(stage.look(row, "channel_outbox", windows.ids[0]).await?, "failed f t no address");
    assert_eq!(stage.look(row, "channel_outbox", windows.ids[2]).await?, "skipped t t no consent");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stretch_that_is_not_among_the_items_is_refused_and_nothing_is_reserved() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.run(6, 3).await?;
    let jobs = claim(&stage.worker, "w", 2).await?;
    for (first, count) in [(0, 1), (-1, 2), (0, 4), (1, 4), (3, 2), (4, 1), (100, 1), (i32::MAX, 1)] {
        for windows in [
            Windows::of(&jobs[0], first, count),
            Windows::of(&jobs[1], 1, 2).and(&jobs[0], first, count),
            Windows::of(&jobs[0], first, count).and(&jobs[1], 1, 2),
        ] {
            let refused = refusal(windows.begin(&stage.worker, "w").await)?;
            assert!(matches!(refused.code.as_str(), "22023" | "22003"), "{first} {count}: {refused:?}");
        }
    }
    let mut nowhere = Windows::of(&jobs[0], 1, 1).and(&jobs[1], 1, 2);
    nowhere.first[0] = None;
    assert_eq!(refusal(nowhere.begin(&stage.worker, "w").await)?.code, "22023");
    let mut short = Windows::of(&jobs[0], 1, 2);
    short.ids.truncate(1);
    assert_eq!(refusal(short.begin(&stage.worker, "w").await)?.code, "23502", "an item without an id");
    assert_eq!(items(&stage).await?, 0);
    assert_eq!(Windows::of(&jobs[0], 1, 0).begin(&stage.worker, "w").await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_settled_in_the_same_transaction_is_told_and_not_passed_over() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 2).await?;
    let old = Windows::of(&job, 1, 1);
    old.begin(&stage.worker, "w").await?;
    let again = stage.take_over(&job, "w").await?;

    // The answer to the old call and the new attempt's window arrive together.
    let mut transaction = stage.worker.begin().await?;
    assert_eq!(finalize(&mut *transaction, stage.own.id, "w", &[(old.ids[0], "sent")]).await?, old.ids);
    let begun = Windows::of(&again, 1, 2).begin(&mut *transaction, "w").await?;
    transaction.commit().await?;

    assert_eq!(verdicts(&begun), job.item_ids.iter().copied().zip(["sent", "reserved"]).collect());
    assert_eq!(begun.len(), 2);
    let statuses = "select status from execution.channel_outbox order by status";
    assert_eq!(texts(&stage.admin, statuses).await?, ["queued", "sent"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_is_durable_under_every_setting_of_the_login() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 1).await?;
    for (set, expected) in [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")] {
        let mut transaction = stage.worker.begin().await?;
        execute(&mut *transaction, format!("set local synchronous_commit = {set}")).await?;
        Windows::of(&job, 1, 1).begin(&mut *transaction, "w").await?;
        assert_eq!(texts(&mut *transaction, "show synchronous_commit").await?, [expected]);
        transaction.rollback().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_are_answered_in_the_order_in_which_they_were_asked_for() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.run(6, 2).await?;
    let jobs = claim(&stage.worker, "w", 10).await?;
    assert_eq!(jobs.len(), 3);
    let window = |job: &Job, attempt| {
        let hold = JobHold {
            job_id: JobId(job.job_id),
            tenant_id: TenantId(job.tenant_id),
            attempt,
            channel: Channel::Email,
        };
        let plan = |item: &Uuid| PlannedItem {
            item_id: *item,
            outbox_id: OutboxId::new(),
            recipient: None,
            plan: Plan::Call { message_hash: [7; 32], payload: "{}".to_owned() },
        };
        Window::new(hold, 0, job.item_ids.iter().map(plan).collect())
    };
    let mut writer = Writer::new(stage.world.pool("postrider_worker").await?);
    let mut order = [0, 1, 2];
    order.sort_by_key(|n| jobs[*n].job_id);
    order.rotate_left(1); // neither that of the jobs nor the other way round
    let lost = window(&jobs[order[1]], 9);
    let windows = [window(&jobs[order[0]], 1), lost, window(&jobs[order[2]], 1)];
    let asked: Vec<&Window> = windows.iter().collect();
    let answers = writer.settle_and_reserve("w", &[], &asked).await?;
    assert_eq!(answers.len(), 3);
    for (n, (window, answer)) in windows.iter().zip(answers).enumerate() {
        let reserved: Option<Vec<Uuid>> = match answer {
            WindowAnswer::Items(items) => Some(
                items
                    .iter()
                    .filter_map(|item| match item {
                        Reserved::Yours(reservation) => Some(reservation.outbox_id().0),
                        Reserved::Already(_) => None,
                    })
                    .collect(),
            ),
            _ => None,
        };
        let expected = (n != 1).then(|| window.items.iter().map(|item| item.outbox_id.0).collect::<Vec<_>>());
        assert_eq!(reserved, expected, "window {n}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_or_a_pause_that_is_under_way_is_waited_for_and_takes_no_job_away() -> anyhow::Result<()>
{
    let stage = Stage::new().await?;
    stage.run(6, 2).await?;
    let jobs = claim(&stage.worker, "w", 3).await?;
    let heartbeat = format!(
        "select * from execution.heartbeat_jobs(array['{tenant}', '{tenant}']::uuid[], 'w', array['{}', '{}']::uuid[],
                                                array[1, 1])",
        jobs[0].job_id,
        jobs[2].job_id,
        tenant = stage.own.id
    );
    let look = format!("select from execution.job_queue where id = '{}' for no key update", jobs[1].job_id);
    for (statement, first) in [(heartbeat, 1), (look, 2)] {
        let mut other = stage.admin.begin().await?;
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut *other).await?;
        let windows = Windows::of(&jobs[0], first, 1).and(&jobs[1], first, 1).and(&jobs[2], first, 1);
        let worker = stage.worker.clone();
        let begun = tokio::spawn(async move { windows.begin(&worker, "w").await });
        someone_waits(&stage.admin).await?;
        other.commit().await?;
        let verdicts: Vec<String> = begun.await??.into_iter().map(|item| item.verdict).collect();
        assert_eq!(verdicts, ["reserved"; 3]);
    }
    Ok(())
}
