//! Campaigns under faults: the workload deploys runs while faults are injected, and then brings every send job to its end.

use postrider_testkit::crash::{
    Audit, Count, Fault, Launch, Plan as Faults, Processes, Progress, SeededRandom, Workload, pause,
};

use super::{
    applications::{self, Applications},
    audit::{Report, audit},
    facts,
    plan::{FREEZE, KILL, Plan},
    setup::Setup,
};

pub struct Campaigns<'a> {
    plan: &'a Plan,
    pub setup: &'a mut Setup,
    launch: Launch,
    workers: Processes,
    applications: Applications,
    /// Number of faults that were injected.
    round: usize,
    /// Jobs that were taken from workers that were only frozen.
    taken_over: usize,
}

impl<'a> Campaigns<'a> {
    /// Deploys the first runs, and starts the workers.
    pub async fn start(plan: &'a Plan, setup: &'a mut Setup, launch: Launch) -> anyhow::Result<Self> {
        setup.keep_busy(plan.items / 10).await?;
        let workers = Processes::start(launch.clone(), plan.workers).await?;
        let applications = Applications::start(setup, plan.messages, plan.faults.seed).await?;
        Ok(Self { plan, setup, launch, workers, applications, round: 0, taken_over: 0 })
    }

    fn faults(&self) -> &'a Faults {
        &self.plan.faults
    }

    /// Continues the workers that were frozen for long enough. Their jobs were taken by the other workers.
    async fn thaw(&mut self, round: usize) -> anyhow::Result<()> {
        for name in self.workers.thaw(|one| one.until <= round)? {
            self.taken_over += self.setup.taken_from(&name).await?;
        }
        Ok(())
    }

    /// Waits until the provider has received so many more requests. The locks of silent workers are aged meanwhile.
    async fn until_received(&mut self, requests: usize) -> anyhow::Result<()> {
        let enough = self.setup.provider.received()? + requests;
        let mut progress = Progress::default();
        loop {
            let received = self.setup.provider.received()?;
            if received >= enough {
                return Ok(());
            }
            anyhow::ensure!(
                progress.goes_on(received),
                "nothing goes on: {} workers, {} items wait, {} jobs are restless",
                self.workers.ready.len(),
                self.setup.waiting().await?,
                self.setup.restless().await?
            );
            self.workers.complete_starts(1).await?;
            self.setup.age_locks_of(&self.workers.silent()).await?;
            pause().await;
        }
    }

    /// Waits until nothing is left.
    async fn settle(
        &mut self,
        what: &str,
        left: impl AsyncFn(&Setup) -> anyhow::Result<i64>,
    ) -> anyhow::Result<()> {
        let dead: Vec<String> = self.workers.dead.iter().cloned().collect();
        let mut progress = Progress::default();
        loop {
            let setup = &mut *self.setup;
            let now = (left(setup).await?, setup.waiting().await?, setup.provider.received()?);
            if now.0 == 0 {
                return Ok(());
            }
            anyhow::ensure!(progress.goes_on(now), "it never came true: {what}; {now:?} are left");
            setup.age_locks_of(&dead).await?;
            setup.age_forgotten_locks().await?;
            setup.make_due().await?;
            pause().await;
        }
    }
}

impl Workload for Campaigns<'_> {
    type Report = Report;

    async fn advance(&mut self, _: &mut SeededRandom) -> anyhow::Result<()> {
        self.round += 1;
        self.thaw(self.round).await?;
        self.setup.keep_busy(self.plan.items / 10).await?;
        self.applications.go_on(self.plan.messages / self.faults().round().max(1));
        // The faults are spread over most of the work; requests go on while one is injected.
        let requests = (self.plan.items * 3 / 5 / self.faults().round().max(1)).max(1);
        self.until_received(requests).await
    }

    async fn inject(&mut self, fault: Fault, random: &mut SeededRandom) -> anyhow::Result<bool> {
        // At least one worker must be left.
        self.workers.complete_starts(2).await?;
        let holders = self.setup.holders().await?;
        match fault {
            KILL => {
                let victim = self.workers.kill_one(random, |one| holders.contains(&one.name))?;
                Ok(self.setup.left_by(&victim).await? > 0)
            }
            FREEZE => {
                let until = self.round + 2 + random.below(4);
                let name = self.workers.freeze_one(random, |one| holders.contains(&one.name), until)?;
                Ok(holders.contains(&name))
            }
            Fault::CutConnection => self.setup.cut(random).await,
            Fault::CrashPostgres => {
                self.setup.crash().await?;
                Ok(true)
            }
            other => anyhow::bail!("campaigns have no {other}"),
        }
    }

    async fn finish(&mut self) -> anyhow::Result<Audit<Report>> {
        while self.setup.intended < self.plan.items {
            self.setup.deploy().await?;
        }
        self.thaw(usize::MAX).await?;
        self.setup.provider.end_faults()?;
        self.applications.finish().await?;
        self.settle("every message is in a run", applications::waiting).await?;
        self.settle("every job is at rest", async |setup| setup.restless().await).await?;
        if self.plan.settles {
            self.settle("every doubt is settled", async |setup| setup.open_doubts().await).await?;
        }
        let struck = self.workers.struck.clone();
        self.workers.drain().await?;

        // No answer is under way any more, so what is still in doubt stays in doubt.
        self.setup.make_the_next_attempt_the_last().await?;
        let launch = self.launch.clone();
        let last = tokio::task::spawn_blocking(move || launch.start()).await??;
        self.settle("every run has ended", async |setup| setup.open_runs().await).await?;
        tokio::task::spawn_blocking(move || last.drain()).await??;

        let (facts, provider_faults) = facts::gather(self.setup, struck).await?;
        let ended = facts.items.iter().filter(|item| item.status != "queued").count();
        let intended = self.setup.intended;
        let (messages, messages_ended) = applications::counts(&self.setup.admin).await?;
        let counts = vec![
            Count::new("items intended", intended, self.plan.items),
            Count::new("items ended", ended, intended / 2),
            Count::new("single messages", messages, self.plan.messages / 2),
            Count::new("single messages ended", messages_ended, self.plan.messages / 4),
            Count::new("jobs taken from frozen workers", self.taken_over, self.faults().count(FREEZE) / 2),
            Count::new("items settled late", facts::settled_late(self.setup).await?, 0),
            Count::new("requests", facts.receipts.len(), 0),
        ];
        Ok(Audit { report: audit(&facts), counts, provider_faults })
    }
}
