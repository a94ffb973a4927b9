//! The tormentor: kills while messages come in and replies go out, then lets everything finish and asks the auditor.
//!
//! Nothing is timed. A kill falls when so much has been taken and sent since the last one, so a slow machine takes longer and meets
//! the same.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use super::{
    audit::{Report, audit},
    crew::Crew,
    driver::Driver,
    facts,
    front::Front,
    plan::Plan,
};
use crate::{
    campaigns::crash::Dice,
    channels::bots::{Bots, VENDORS, control, outbox},
    sql::{execute, texts},
    world::{PATIENCE, Sim},
};

/// Calls are given up soon, and locks are too old soon after. Everything is tried until it is refused.
const SETTINGS: &str = "poll_interval_seconds = 0.1
                        call_timeout_seconds = 2
                        lock_timeout_seconds = 9
                        base_retry_seconds = 2
                        retry_seconds_max = 4
                        max_attempts = 100
                        account_concurrency = 8
                        claim_batch_size = 10\n";

/// What was done, and what came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    pub seed: u64,
    pub seconds: u64,
    pub receiver_kills: usize,
    /// Of those who were just being spoken to.
    pub receiver_kills_in_flight: usize,
    pub dispatcher_kills: usize,
    /// Of those who held replies.
    pub dispatcher_kills_in_flight: usize,
    pub messages: usize,
    pub taken: usize,
    pub deliveries: usize,
    pub unanswered: usize,
    pub requests: usize,
    pub faults: BTreeMap<String, usize>,
    pub report: Report,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, {} s", self.seed, self.seconds)?;
        writeln!(
            f,
            "{} kills of receivers ({} with messages in flight), {} of dispatchers ({} with replies in flight)",
            self.receiver_kills,
            self.receiver_kills_in_flight,
            self.dispatcher_kills,
            self.dispatcher_kills_in_flight
        )?;
        writeln!(
            f,
            "{} messages, {} taken, {} deliveries ({} unanswered); {} requests, faults {:?}",
            self.messages, self.taken, self.deliveries, self.unanswered, self.requests, self.faults
        )?;
        write!(f, "{}", self.report)
    }
}

impl Outcome {
    /// A run that was not as hard as its plan says nothing about the system.
    pub fn void(&self, plan: &Plan) -> Option<String> {
        let at_least = [
            ("kills of receivers", self.receiver_kills, plan.receiver_kills),
            ("those with messages in flight", self.receiver_kills_in_flight, plan.receiver_kills / 2),
            ("kills of dispatchers", self.dispatcher_kills, plan.dispatcher_kills),
            ("those with replies in flight", self.dispatcher_kills_in_flight, plan.dispatcher_kills / 2),
            ("messages", self.messages, plan.messages as usize),
            ("messages taken", self.taken, self.messages),
            ("replies sent", self.report.sent, self.messages * 9 / 10),
            ("replies claimed more than once", self.report.claimed_again, plan.dispatcher_kills),
        ];
        let strikes = plan
            .faults
            .iter()
            .map(|(name, _)| (*name, self.faults.get(*name).copied().unwrap_or_default(), plan.strikes_min));
        let too_few = at_least.into_iter().chain(strikes).find(|(_, count, least)| count < least);
        too_few.map(|(what, count, least)| format!("{what}: {count}, at least {least} are needed"))
    }
}

struct Rig {
    sim: Sim,
    bots: Bots,
    front: Front,
    receivers: Crew,
    dispatchers: Crew,
    driver: Driver,
}

/// The whole of it.
pub async fn run(plan: &Plan) -> anyhow::Result<Outcome> {
    let begun = Instant::now();
    let mut dice = Dice(plan.seed);
    let mut outcome = Outcome { seed: plan.seed, ..Outcome::default() };
    let sim = start_sim(plan)?;
    let bots = Bots::new(&sim.http_url).await?;
    facts::record_claims(&bots.admin).await?;
    let front = Front::start().await?;
    bots.report_to(&sim, &front.http_url)?;
    let config = bots.world.config(&outbox(SETTINGS))?;
    let receivers = Crew::new(config.path().to_owned(), "api", plan.receivers).await?;
    let dispatchers = Crew::new(config.path().to_owned(), "dispatcher", plan.dispatchers).await?;
    receivers.ready.iter().try_for_each(|receiver| front.add(&receiver.http_url))?;
    let paths = VENDORS.map(|vendor| (vendor, bots.path(vendor)));
    let driver = Driver::start(&front.http_url, paths, plan.clients, plan.messages);
    let mut rig = Rig { sim, bots, front, receivers, dispatchers, driver };

    let kills = plan.receiver_kills + plan.dispatcher_kills;
    loop {
        let mut left = (plan.receiver_kills, plan.dispatcher_kills);
        while left.0 + left.1 > 0 {
            rig.progress((plan.messages as usize * 2 / 3 / kills).max(1)).await?;
            if dice.below(left.0 + left.1) < left.0 {
                left.0 -= 1;
                rig.kill_a_receiver(&mut dice, &mut outcome)?;
            } else {
                left.1 -= 1;
                rig.kill_a_dispatcher(&mut dice, &mut outcome).await?;
            }
        }
        if begun.elapsed() >= plan.time {
            break;
        }
    }
    rig.finish().await?;
    let Rig { sim, bots, receivers, dispatchers, driver, .. } = rig;
    dispatchers.drain().await?;
    receivers.drain().await?;

    let delivered = driver.delivered();
    let (facts, faults) = facts::gather(&bots, &sim, &delivered).await?;
    outcome.report = audit(&facts);
    (outcome.messages, outcome.taken) = (delivered.messages as usize, delivered.taken.len());
    (outcome.deliveries, outcome.unanswered) = (delivered.deliveries, delivered.unanswered);
    (outcome.requests, outcome.faults) = (facts.receipts.len(), faults);
    outcome.seconds = begun.elapsed().as_secs();
    Ok(outcome)
}

fn start_sim(plan: &Plan) -> anyhow::Result<Sim> {
    let seed = plan.seed.to_string();
    let mut args: Vec<String> =
        ["--seed", &seed, "--stall-seconds", "3", "--latency-ms", "500", "--retry-after-seconds", "1"]
            .map(str::to_owned)
            .into();
    args.extend(plan.faults.iter().flat_map(|(name, rate)| ["--fault".to_owned(), format!("{name}={rate}")]));
    Sim::start(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

impl Rig {
    /// How much has been taken, and how much has been asked of the vendors.
    fn done(&self) -> anyhow::Result<(usize, u64)> {
        Ok((self.driver.taken(), std::fs::metadata(&self.sim.receipts)?.len()))
    }

    /// Waits until so many more messages were taken, and something more was sent.
    async fn progress(&mut self, messages: usize) -> anyhow::Result<()> {
        let before = self.done()?;
        let (mut seen, mut last) = (before, Instant::now());
        loop {
            let now = self.done()?;
            if now.0 >= before.0 + messages && now.1 > before.1 {
                return Ok(());
            }
            if now != seen {
                (seen, last) = (now, Instant::now());
            }
            anyhow::ensure!(last.elapsed() < PATIENCE, "nothing goes on: {:?}", self.driver.delivered());
            self.take_in_the_new().await?;
            self.hurry().await?;
            tokio::time::sleep(Duration::from_millis(20)).await; // between two looks, never instead of one
        }
    }

    /// Who has started is put to work. Somebody of each kind must be left.
    async fn take_in_the_new(&mut self) -> anyhow::Result<()> {
        for receiver in self.receivers.complete_starts(1).await? {
            self.front.add(&receiver)?;
        }
        self.dispatchers.complete_starts(1).await?;
        Ok(())
    }

    fn kill_a_receiver(&mut self, dice: &mut Dice, outcome: &mut Outcome) -> anyhow::Result<()> {
        let mut victim = self.receivers.pick(dice, |one| self.front.under_way(&one.http_url) > 0);
        let under_way = self.front.under_way(&victim.http_url);
        self.receivers.kill(&mut victim)?;
        outcome.receiver_kills += 1;
        outcome.receiver_kills_in_flight += usize::from(under_way > 0);
        self.front.remove(&victim.http_url);
        Ok(())
    }

    async fn kill_a_dispatcher(&mut self, dice: &mut Dice, outcome: &mut Outcome) -> anyhow::Result<()> {
        let sql = "select distinct locked_by from channels.channel_outbox where status = 'sending'";
        let holders = texts(&self.bots.admin, sql).await?;
        let mut victim =
            self.dispatchers.pick(dice, |one| one.name.as_ref().is_some_and(|name| holders.contains(name)));
        self.dispatchers.kill(&mut victim)?;
        let name = victim.name.unwrap_or_default();
        let held = format!("select count(*) from channels.channel_outbox where locked_by = '{name}'");
        outcome.dispatcher_kills += 1;
        outcome.dispatcher_kills_in_flight += usize::from(self.bots.count(&held).await? > 0);
        Ok(())
    }

    /// What takes a minute or more takes seconds: the time of an execution, another try to enqueue, and the time that WhatsApp is
    /// given to tell.
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

    /// Ends the faults, and waits until everything has ended, for as long as something changes.
    async fn finish(&mut self) -> anyhow::Result<()> {
        control(&self.sim, "/faults", &serde_json::json!({}))?;
        self.driver.is_enough();
        let (mut seen, mut last) = ((usize::MAX, i64::MAX), Instant::now());
        loop {
            let open = "select (select count(*) from channels.channel_outbox where status in ('pending', 'sending'))
                             + (select count(*) from channels.channel_messages where leased_until is not null)";
            let now = (self.driver.taken(), self.bots.count(open).await?);
            if self.driver.is_done() && now.1 == 0 {
                break;
            }
            if now != seen {
                (seen, last) = (now, Instant::now());
            }
            anyhow::ensure!(last.elapsed() < PATIENCE, "it does not end: {seen:?}");
            self.take_in_the_new().await?;
            self.hurry().await?;
            tokio::time::sleep(Duration::from_millis(50)).await; // between two looks, never instead of one
        }
        Ok(())
    }
}
