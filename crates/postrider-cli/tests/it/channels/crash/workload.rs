//! Chat under faults: vendors deliver messages, receivers store and execute them, and dispatchers send the replies.

use postrider_testkit::crash::{
    Audit, Count, Fault, Launch, Processes, Progress, SeededRandom, Workload, pause,
};

use super::{
    audit::{Report, audit},
    driver::Driver,
    facts,
    front::Front,
    plan::{KILL_DISPATCHER, KILL_RECEIVER, Plan},
};
use crate::{
    channels::bots::{Bots, VENDORS, control, outbox},
    sql::{execute, texts},
    world::Sim,
};

/// Short timeouts for calls and locks. Every reply is tried until it is refused.
const SETTINGS: &str = "poll_interval_seconds = 0.1
                        call_timeout_seconds = 2
                        lock_timeout_seconds = 9
                        base_retry_seconds = 2
                        retry_seconds_max = 4
                        max_attempts = 100
                        account_concurrency = 8
                        claim_batch_size = 10\n";

pub struct Chat<'a> {
    plan: &'a Plan,
    sim: Sim,
    bots: Bots,
    front: Front,
    receivers: Processes,
    dispatchers: Processes,
    driver: Driver,
    _config: tempfile::NamedTempFile,
}

impl<'a> Chat<'a> {
    pub async fn start(plan: &'a Plan) -> anyhow::Result<Self> {
        let mut arguments: Vec<String> =
            ["--stall-seconds", "3", "--latency-ms", "500", "--retry-after-seconds", "1"]
                .map(str::to_owned)
                .into();
        arguments.extend(plan.faults.sim_arguments());
        let sim = Sim::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
        let bots = Bots::new(&sim.http_url).await?;
        facts::record_claims(&bots.admin).await?;
        let front = Front::start().await?;
        bots.report_to(&sim, &front.http_url)?;
        let config = bots.world.config(&outbox(SETTINGS))?;
        let launch = |role| Launch::role(config.path().to_owned(), role);
        let receivers = Processes::start(launch("api"), plan.receivers).await?;
        let dispatchers = Processes::start(launch("dispatcher"), plan.dispatchers).await?;
        receivers.ready.iter().try_for_each(|receiver| front.add(&receiver.http_url))?;
        let paths = VENDORS.map(|vendor| (vendor, bots.path(vendor)));
        let driver = Driver::start(&front.http_url, paths, plan.clients, plan.messages);
        Ok(Self { plan, sim, bots, front, receivers, dispatchers, driver, _config: config })
    }

    /// How much has been taken, and how much has been asked of the vendors.
    fn done(&self) -> anyhow::Result<(usize, u64)> {
        Ok((self.driver.taken(), std::fs::metadata(&self.sim.receipts)?.len()))
    }

    /// Adds the processes that have started. At least one of each kind must be left.
    async fn complete_starts(&mut self) -> anyhow::Result<()> {
        for receiver in self.receivers.complete_starts(1).await? {
            self.front.add(&receiver)?;
        }
        self.dispatchers.complete_starts(1).await?;
        Ok(())
    }

    /// Shortens what takes a minute or more: the lease of an execution, the next attempt to enqueue, and the time that WhatsApp
    /// has for its status callback.
    async fn hurry(&self) -> anyhow::Result<()> {
        let sql = "update channels.channel_messages set leased_until = now()
                    where id in (select id from channels.channel_messages
                                  where leased_until > now() and updated_at < now() - interval '5 seconds'
                                    for update skip locked);
                   update channels.channel_outbox
                      set next_attempt_at = now(), in_doubt_since = in_doubt_since - interval '5 minutes'
                    where id in (select id from channels.channel_outbox
                                  where status = 'pending' and provider = 'whatsapp'
                                    and next_attempt_at > now() + interval '5 seconds'
                                    and (provider_message_id is not null or updated_at < now() - interval '15 seconds')
                                    for update skip locked)";
        Ok(execute(&self.bots.admin, sql).await?)
    }
}

impl Workload for Chat<'_> {
    type Report = Report;

    /// Waits until so many more messages were taken, and something more was sent.
    async fn advance(&mut self, _: &mut SeededRandom) -> anyhow::Result<()> {
        let messages = (self.plan.messages as usize * 2 / 3 / self.plan.faults.round()).max(1);
        let before = self.done()?;
        let mut progress = Progress::default();
        loop {
            let now = self.done()?;
            if now.0 >= before.0 + messages && now.1 > before.1 {
                return Ok(());
            }
            anyhow::ensure!(progress.goes_on(now), "nothing goes on: {:?}", self.driver.delivered());
            self.complete_starts().await?;
            self.hurry().await?;
            pause().await;
        }
    }

    async fn inject(&mut self, fault: Fault, random: &mut SeededRandom) -> anyhow::Result<bool> {
        match fault {
            KILL_RECEIVER => {
                let busy: Vec<String> = (self.receivers.ready.iter().map(|one| one.http_url.clone()))
                    .filter(|http_url| self.front.under_way(http_url) > 0)
                    .collect();
                let victim = self.receivers.kill_one(random, |one| busy.contains(&one.http_url))?;
                self.front.remove(&victim);
                Ok(busy.contains(&victim))
            }
            KILL_DISPATCHER => {
                let sql = "select distinct locked_by from channels.channel_outbox where status = 'sending'";
                let holders = texts(&self.bots.admin, sql).await?;
                let victim = self.dispatchers.kill_one(random, |one| holders.contains(&one.name))?;
                let held =
                    format!("select count(*) from channels.channel_outbox where locked_by = '{victim}'");
                Ok(self.bots.count(&held).await? > 0)
            }
            other => anyhow::bail!("chat has no {other}"),
        }
    }

    /// Ends the faults, and waits until everything has ended.
    async fn finish(&mut self) -> anyhow::Result<Audit<Report>> {
        control(&self.sim, "/faults", &serde_json::json!({}))?;
        self.driver.is_enough();
        let mut progress = Progress::default();
        loop {
            let open = "select (select count(*) from channels.channel_outbox where status in ('pending', 'sending'))
                             + (select count(*) from channels.channel_messages where leased_until is not null)";
            let now = (self.driver.taken(), self.bots.count(open).await?);
            if self.driver.is_done() && now.1 == 0 {
                break;
            }
            anyhow::ensure!(progress.goes_on(now), "it does not end: {now:?}");
            self.complete_starts().await?;
            self.hurry().await?;
            pause().await;
        }
        self.dispatchers.drain().await?;
        self.receivers.drain().await?;

        let delivered = self.driver.delivered();
        let (facts, provider_faults) = facts::gather(&self.bots, &self.sim, &delivered).await?;
        let report = audit(&facts);
        let (messages, kills) = (delivered.messages as usize, self.plan.faults.count(KILL_DISPATCHER));
        let counts = vec![
            Count::new("messages", messages, self.plan.messages as usize),
            Count::new("messages taken", delivered.taken.len(), messages),
            Count::new("deliveries", delivered.deliveries, messages),
            Count::new("deliveries without an answer", delivered.unanswered, 0),
            Count::new("requests", facts.receipts.len(), 0),
            Count::new("replies sent", report.sent, messages * 9 / 10),
            Count::new("replies claimed more than once", report.claimed_again, kills),
        ];
        Ok(Audit { report, counts, provider_faults })
    }
}
