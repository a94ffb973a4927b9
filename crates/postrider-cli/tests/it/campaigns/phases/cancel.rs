//! Cancel is exact, as a pause is: after its answer nothing is reserved, calls in flight are recorded, and the certificate adds up.

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
    sql::{number, texts},
    world::{Server, Sim, World, eventually},
};

const ROUNDS: usize = 12;
const LEADS: usize = 4_000;
const WORKERS: usize = 3;

struct Place {
    stage: Stage,
    app: Pool,
    campaign: Uuid,
}

impl Place {
    /// As the API does it.
    async fn control(&self, trigger: PhaseTrigger, reach: Reach) -> anyhow::Result<Controlled> {
        let control = Control {
            campaign: CampaignId(self.campaign),
            phase: "only",
            trigger,
            expected: None,
            expected_sequence: None,
            reach,
            reason: None,
            actor: "a test",
        };
        let controlled = phases::control(&self.app, TenantId(self.stage.tenant), control).await?;
        let mut transaction = pool::begin(&self.app).await?;
        send_jobs::hint(&mut transaction).await?;
        pool::commit(transaction).await?;
        Ok(controlled)
    }

    async fn changed(&self, trigger: PhaseTrigger, reach: Reach) -> anyhow::Result<Standing> {
        match self.control(trigger, reach).await? {
            Controlled::Changed(standing) => Ok(standing),
            other => anyhow::bail!("{trigger}: {other:?}"),
        }
    }

    async fn count(&self, run: Uuid, filter: &str) -> anyhow::Result<i64> {
        let sql =
            format!("select count(*) from execution.channel_outbox where run_id = '{run}' and {filter}");
        Ok(number(&self.stage.admin, sql).await?)
    }
}

/// A round cancels the phase while three workers send, some of them from a pause, and continues it with the canceled items.
#[tokio::test(flavor = "multi_thread")]
async fn after_the_answer_of_a_cancel_nothing_is_reserved_and_the_certificate_adds_up() -> anyhow::Result<()>
{
    let (world, sim) = (World::new().await?, Sim::start(&["--fault", "latency=0.5", "--latency-ms", "10"])?);
    let stage = Stage::with_sim(&world, &sim, LEADS).await?;
    let campaign = stage.campaign("news", &[("only", "email", Some("all"), "sim")]).await?;
    let settings = "[outbound]\nallow_private = true\n[campaigns]\npoll_interval_ms = 50\nwindow = 16\n";
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        workers.push(Server::start(&world, "campaigns", settings)?);
    }
    let place = Place { app: world.pool("postrider_app").await?, stage, campaign };
    let admin = &place.stage.admin;
    let started = place.changed(PhaseTrigger::Start, Reach::Usual).await?;
    let mut run = started.run_id.map_or(Uuid::nil(), |run| run.0);
    let (mut in_flight_seen, mut receipts_before) = (0, 0);
    for round in 0..ROUNDS {
        eventually("the run sends", async || Ok(place.count(run, "true").await? > 0)).await?;
        if round % 3 == 2 {
            place.changed(PhaseTrigger::Pause, Reach::Usual).await?;
        }
        let canceled = place.changed(PhaseTrigger::Cancel, Reach::Usual).await?;
        // From here on, nothing may be reserved. Skipped items are none.
        let moment = texts(admin, "select clock_timestamp()::text").await?.concat();
        let reserved = place.count(run, "reserved_by is not null").await?;
        in_flight_seen += canceled.in_flight.unwrap_or_default();

        let ended = place.stage.ended(run).await?;
        assert_eq!(
            place.count(run, "reserved_by is not null").await?,
            reserved,
            "round {round}: reserved after the answer"
        );
        let late = format!("reserved_by is not null and created_at > '{moment}'");
        assert_eq!(place.count(run, &late).await?, 0);
        assert_eq!(place.count(run, "status = 'queued'").await?, 0, "calls in flight were recorded");
        let receipts = sim.receipts()?.len();
        assert_eq!(
            i64::try_from(receipts - receipts_before)?,
            reserved,
            "the provider acted on what was reserved"
        );
        receipts_before = receipts;
        let skipped = "status = 'skipped' and skipped and error = 'canceled' and reserved_by is null";
        let certificate = format!(
            "select concat_ws(' ', launched, intended = sent + skipped, missing + in_doubt + failed, skipped)
               from execution.verify_launch('{}', '{run}')",
            place.stage.tenant
        );
        let adds_up = format!("t t 0 {}", place.count(run, skipped).await?);
        assert_eq!(texts(admin, certificate).await?, [adds_up], "round {round}, {ended}");
        let phase = format!("select status from execution.campaign_phases where campaign_id = '{campaign}'");
        assert_eq!(texts(admin, phase).await?, ["failed"]);
        let burnt =
            format!("select count(*) from execution.job_queue where run_id = '{run}' and attempts > 1");
        assert_eq!(number(admin, burnt).await?, 0, "a cancel burns no attempt");
        match place.control(PhaseTrigger::Retry, Reach::WithCanceled).await? {
            Controlled::Changed(standing) => run = standing.run_id.map_or(Uuid::nil(), |run| run.0),
            other => anyhow::bail!("round {round}: everything was sent already: {other:?}"),
        }
    }
    assert!(in_flight_seen > 0, "no round met a call in flight; the test proves nothing");

    // The last retry goes on to its end; it may take its time.
    while place.stage.run_status(run).await? != "completed" {
        let before = place.count(run, "status = 'sent'").await?;
        eventually("it goes on to its end", async || {
            Ok(place.count(run, "status = 'sent'").await? > before
                || place.stage.run_status(run).await? == "completed")
        })
        .await?;
    }
    let mut by_recipient: HashMap<String, usize> = HashMap::new();
    for recipient in
        texts(admin, "select recipient from execution.channel_outbox where status = 'sent'").await?
    {
        *by_recipient.entry(recipient).or_default() += 1;
    }
    assert_eq!(by_recipient.len(), LEADS);
    assert!(by_recipient.values().all(|count| *count == 1), "somebody got it twice");
    assert_eq!(sim.receipts()?.len(), LEADS, "and the provider says the same");
    println!("{ROUNDS} cancels, {in_flight_seen} calls in flight at their answers");
    Ok(())
}
