//! Pause is exact: after its answer nothing is reserved, whatever is under way ends and is recorded, and nothing is lost.

use std::collections::HashMap;

use postrider_model::{
    campaigns::PhaseTrigger,
    ids::{CampaignId, TenantId},
};
use postrider_store::{
    Pool,
    campaigns::{
        phases::{self, Control, Controlled, Reach, Standing},
        send_jobs,
    },
    postgres::pool,
};
use uuid::Uuid;

use crate::{
    campaigns::stage::Stage,
    sql::{execute, number, refusal, texts},
    world::{Server, Sim, World, eventually},
};

const ROUNDS: usize = 50;
const LEADS: usize = 8_000;
const WORKERS: usize = 3;

struct Place {
    stage: Stage,
    app: Pool,
    campaign: Uuid,
    run: Uuid,
}

impl Place {
    /// As the API does it.
    async fn control(&self, trigger: PhaseTrigger) -> anyhow::Result<Standing> {
        let control = Control {
            campaign: CampaignId(self.campaign),
            phase: "only",
            trigger,
            expected: None,
            expected_sequence: None,
            reach: Reach::Usual,
            reason: None,
            actor: "a test",
        };
        let controlled = phases::control(&self.app, TenantId(self.stage.tenant), control).await?;
        let Controlled::Changed(standing) = controlled else { anyhow::bail!("{trigger}: {controlled:?}") };
        if trigger == PhaseTrigger::Resume {
            let mut transaction = pool::begin(&self.app).await?;
            send_jobs::hint(&mut transaction).await?;
            pool::commit(transaction).await?;
        }
        Ok(standing)
    }

    async fn count(&self, what: &str) -> anyhow::Result<i64> {
        let sql =
            format!("select count(*) from execution.channel_outbox where run_id = '{}' and {what}", self.run);
        Ok(number(&self.stage.admin, sql).await?)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_answer_of_a_pause_nothing_is_reserved_and_resuming_loses_nothing() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&["--fault", "latency=0.5", "--latency-ms", "10"])?);
    let stage = Stage::with_sim(&world, &sim, LEADS).await?;
    let campaign = stage.campaign("news", &[("only", "email", Some("all"), "sim")]).await?;
    let settings = "[outbound]\nallow_private = true\n[campaigns]\npoll_interval_ms = 50\nwindow = 16\n";
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        workers.push(Server::start(&world, "campaigns", settings)?);
    }
    let run = stage
        .ask(&format!("select execution.deploy_campaign(tenancy.current_tenant_id(), '{campaign}', 'only', 'a test', null, 50)::text"))
        .await?
        .parse()?;
    let place = Place { app: world.pool("postrider_app").await?, stage, campaign, run };

    let (mut rounds, mut in_flight_seen) = (0, 0);
    while rounds < ROUNDS {
        // Some more has been sent since the last round, by whoever.
        let before = place.count("true").await?;
        eventually("it goes on", async || Ok(place.count("true").await? > before.min(LEADS as i64 - 1)))
            .await?;
        let paused = place.control(PhaseTrigger::Pause).await?;
        // From here on, nothing may be reserved.
        let reserved = place.count("true").await?;
        anyhow::ensure!(reserved < LEADS as i64, "everything was sent after {rounds} rounds");
        let moment = texts(&place.stage.admin, "select clock_timestamp()::text").await?.concat();
        in_flight_seen += paused.in_flight.unwrap_or_default();

        // Everybody has handed back what it held, and what was under way has its end.
        eventually("the workers let go", async || {
            let sql = format!(
                "select count(*) from execution.job_queue where run_id = '{run}' and status = 'locked'"
            );
            Ok(number(&place.stage.admin, sql).await? == 0)
        })
        .await?;
        assert_eq!(place.count("status = 'queued'").await?, 0, "what was under way was recorded");
        assert_eq!(place.count("true").await?, reserved, "round {rounds}: reserved after the answer");
        assert_eq!(place.count(&format!("created_at > '{moment}'")).await?, 0);
        let receipts = sim.receipts()?.len();
        assert_eq!(
            i64::try_from(receipts)?,
            reserved,
            "the provider has done what was reserved, and no more"
        );
        let shelved = format!(
            "select count(*) from execution.job_queue where run_id = '{run}' and status = 'queued' and run_after <> 'infinity'"
        );
        assert_eq!(number(&place.stage.admin, shelved).await?, 0, "no claim finds a job of it");
        place.control(PhaseTrigger::Resume).await?;
        rounds += 1;
    }
    assert!(in_flight_seen > 0, "no round met a call under way; the test proves nothing");

    // As long as it goes on it may take its time: other tests may need the cores.
    let is_done = async || anyhow::Ok(place.stage.run_status(run).await? == "completed");
    while !is_done().await? {
        let before = place.count("status = 'sent'").await?;
        eventually("it goes on to its end", async || {
            Ok(place.count("status = 'sent'").await? > before || is_done().await?)
        })
        .await?;
    }
    let mut by_key: HashMap<String, usize> = HashMap::new();
    for receipt in sim.receipts()? {
        *by_key.entry(receipt["key"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
    }
    assert_eq!(by_key.len(), LEADS);
    assert!(by_key.values().all(|count| *count == 1), "somebody was called twice");
    assert_eq!(place.count("status = 'sent'").await?, LEADS as i64);
    let burnt = format!("select count(*) from execution.job_queue where run_id = '{run}' and attempts > 1");
    assert_eq!(number(&place.stage.admin, burnt).await?, 0, "a pause burns no attempt");
    println!("{ROUNDS} pauses, {in_flight_seen} calls under way at their answers");
    Ok(())
}

/// Jobs are handed back because of a pause, and come again after it: to the same worker and under the same attempt, because a
/// pause burns none. A heartbeat that began before the pause, and waited, says that they are not held; that is about the time before.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_comes_again_during_a_heartbeat_is_not_taken_for_lost() -> anyhow::Result<()> {
    const JOBS: usize = 6;
    let (world, sim) = (World::new().await?, Sim::start(&["--fault", "latency=1", "--latency-ms", "200"])?);
    let stage = Stage::with_sim(&world, &sim, JOBS * 20).await?;
    let campaign = stage.campaign("news", &[("only", "email", Some("all"), "sim")]).await?;
    // A pool has four connections unless it is told otherwise, fewer than jobs: whoever asks last waits for the others.
    let settings = "[outbound]\nallow_private = true\n\
                    [campaigns]\npoll_interval_ms = 50\nwindow = 1\nheartbeat_interval_seconds = 1\n";
    let _worker = Server::start(&world, "campaigns", settings)?;
    let run = stage
        .ask(&format!("select execution.deploy_campaign(tenancy.current_tenant_id(), '{campaign}', 'only', 'a test', null, 20)::text"))
        .await?
        .parse()?;
    let place = Place { app: world.pool("postrider_app").await?, stage, campaign, run };
    let admin = &place.stage.admin;
    // False when it would have to wait for somebody whom we hold up.
    let control = async |trigger: &str| {
        let mut transaction = admin.begin().await?;
        let settings = format!(
            "set local app.current_tenant_id = '{}'; set local lock_timeout = '3s'",
            place.stage.tenant
        );
        execute(&mut *transaction, settings).await?;
        let sql = format!(
            "select outcome from execution.control_phase(tenancy.current_tenant_id(), '{campaign}', 'only', '{trigger}', null, 'a test')"
        );
        let answer = texts(&mut *transaction, sql).await;
        if answer.is_err() {
            assert_eq!(refusal(answer)?.code, "55P03");
            return anyhow::Ok(false);
        }
        anyhow::ensure!(answer?.concat() == "changed", "{trigger}");
        transaction.commit().await?;
        Ok(true)
    };
    let is_true =
        async |sql: String| anyhow::Ok(number(admin, format!("select ({sql})::int::bigint")).await? == 1);
    let waiting = |what: &str| {
        format!(
            "(select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%{what}%')"
        )
    };
    let jobs = |status: &str| {
        format!("(select count(*) from execution.job_queue where run_id = '{run}' and status = '{status}')")
    };
    let one = format!("(select max(id::text)::uuid from execution.job_queue where run_id = '{run}')");
    let lock = format!("select id::text from execution.job_queue where run_id = '{run}' and id");
    let due = format!(
        "select max(locked_at) < clock_timestamp() - interval '1.5 seconds' from execution.job_queue where run_id = '{run}'"
    );
    let all_are = async |status: &str| {
        eventually(status, async || is_true(format!("{} = {JOBS}", jobs(status))).await).await
    };

    let (last, reserved) = loop {
        all_are("locked").await?;
        // A pause, during which nobody can hand anything back: those that try have all connections, and the heartbeat waits for one.
        // The locks are taken in the order of a heartbeat, which would else hold what we wait for, and wait for us.
        let (mut last, mut others) = (admin.begin().await?, admin.begin().await?);
        texts(&mut *others, format!("{lock} <> {one} order by id for share")).await?;
        texts(&mut *last, format!("{lock} = {one} for share")).await?;
        anyhow::ensure!(control("pause").await?);
        let tried = format!("{} = 4 or {} = 1", waiting("release_job"), waiting("heartbeat_jobs"));
        eventually("they are about to be handed back", async || is_true(tried.clone()).await).await?;
        let is_early = is_true(format!("{} = 1", waiting("heartbeat_jobs"))).await?;
        if !is_early {
            eventually("a heartbeat is due", async || is_true(due.clone()).await).await?;
        }
        // Some are handed back. The heartbeat has found them gone, and waits for the last one.
        others.commit().await?;
        if !is_early {
            let waits = format!("{} = 1 and {} > 0", waiting("heartbeat_jobs"), jobs("queued"));
            eventually("the heartbeat asks", async || is_true(waits.clone()).await).await?;
            let reserved = place.count("true").await?;
            if control("resume").await? {
                break (last, reserved);
            }
        }
        // The heartbeat met them while they were handed back. The next one is a second away.
        last.commit().await?;
        all_are("queued").await?;
        anyhow::ensure!(control("resume").await?);
    };
    // A send job that reserves now was released and claimed again, and no heartbeat has locked it: a heartbeat would block it.
    eventually("some come again", async || Ok(place.count("true").await? > reserved)).await?;
    last.commit().await?;

    assert_eq!(place.stage.ended(run).await?, "completed");
    assert_eq!(sim.receipts()?.len(), JOBS * 20);
    Ok(())
}
