//! A tenant with functions, a runner that performs them, and callers that wait for the end, with the defaults of a server.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::Context;
use postrider_api::RunWaiters;
use postrider_engine::{
    Functions, Hints, Runner, RunnerParts, RunnerSettings, WakeupChannel,
    jobs::{Invoked, builtin},
};
use postrider_model::{
    ids::{JobRunId, TenantId},
    jobs::{
        JobRunStatus, RetryPolicy, Target,
        lock_key::{EntityHash, Grain},
    },
    seal::MasterKey,
};
use postrider_providers::{
    GuardedClient, Policy,
    function::{FunctionCall, HttpFunction, LIMITS},
};
use postrider_store::{
    Pool,
    jobs::{
        functions::{self, NewFunction},
        runs::{self, Acquired, Invocation},
    },
    postgres::pool,
    tenancy::tenants,
};
use secrecy::SecretString;
use serde_json::json;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{ACTOR, CONNECTIONS, PATIENCE, RUNNING, null};
use crate::place::Database;

/// The invoked function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    Rust,
    Http,
}

impl Subject {
    pub(super) const ALL: [Self; 2] = [Self::Rust, Self::Http];

    fn function(self) -> &'static str {
        match self {
            Self::Rust => "noop",
            Self::Http => "noop-http",
        }
    }

    /// Its index in [`Subject::ALL`].
    pub(super) fn at(self) -> usize {
        self as usize
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rust => "a Rust function",
            Self::Http => "an HTTP function",
        }
    }
}

/// The defaults of `jobs`, except that the only tenant may use the whole concurrency.
fn settings() -> RunnerSettings {
    RunnerSettings {
        concurrency: RUNNING,
        tenant_concurrency: RUNNING,
        lease: Duration::from_secs(30),
        poll_interval: Duration::from_millis(500),
        sql_concurrency: 4,
        sql_tenant_concurrency: 4,
        sql_schemas: Vec::new(),
    }
}

pub(super) struct Stage {
    pub(super) tenant: TenantId,
    app: Pool,
    worker: Pool,
    hints: Hints,
    run_waiters: RunWaiters,
    functions: Functions,
    client: GuardedClient,
    url: String,
    secret: SecretString,
    /// The number of the next invocation, so that all invocations have different entities.
    numbers: AtomicU64,
    shutdown: CancellationToken,
    tasks: TaskTracker,
}

impl Stage {
    pub(super) async fn set(database: &Database<'_>) -> anyhow::Result<Self> {
        let connections = pool::Settings {
            connections_max: CONNECTIONS,
            acquire_timeout: PATIENCE,
            ..pool::Settings::default()
        };
        let app = database.app_pool(connections).await?;
        let worker = pool::connect(&database.url("postrider_worker"), connections).await?;
        let (shutdown, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (url, answering) = null::listen(shutdown.clone()).await?;
        tasks.spawn(answering);

        let key = MasterKey::generate()?;
        let mut admin = database.admin().await?;
        let (tenant, _) = tenants::create(&mut admin, ACTOR, ACTOR).await?;
        drop(admin);
        let mut transaction = pool::begin_as(&app, tenant).await?;
        functions::put_builtin(&mut transaction, tenant, Subject::Rust.function(), Grain::FiveMinutes)
            .await?;
        let function = NewFunction {
            name: Subject::Http.function(),
            target: &Target::Http(url.clone()),
            grain: Grain::FiveMinutes,
            timeout_seconds: 60,
            retry: RetryPolicy::default(),
            secret: None,
        };
        let put = functions::put(&mut transaction, Some(&key), tenant, &function, ACTOR).await?;
        pool::commit(transaction).await?;

        // The same wiring as in a process with all roles.
        let [runs, cancels, ended] =
            [runs::HINT_CHANNEL, runs::CANCEL_CHANNEL, runs::ENDS_CHANNEL].map(WakeupChannel::new);
        for bell in [&runs, &cancels, &ended] {
            tasks.spawn(bell.listen(&database.url("postrider_worker"), &shutdown)?);
            tasks.spawn(bell.hints.clone().run(worker.clone(), shutdown.clone()));
        }
        let ends = RunWaiters::new(shutdown.clone());
        tasks.spawn(ends.clone().run(app.clone(), ended.wakeups()));
        let functions = builtin::standard(&worker, None);
        let client = GuardedClient::new(Policy { allow_private: true }, LIMITS)?;
        let parts = RunnerParts {
            pool: worker.clone(),
            sql_pool: worker.clone(),
            functions: functions.clone(),
            client: client.clone(),
            master_key: Some(key),
            ends: ended.hints.clone(),
        };
        tasks.spawn(Runner::new(parts, runs.wakeups(), cancels.wakeups(), settings()).run(shutdown.clone()));
        tasks.close();
        Ok(Self {
            tenant,
            app,
            worker,
            hints: runs.hints,
            run_waiters: ends,
            functions,
            client,
            url,
            secret: put.new_secret.context("the function has no secret")?,
            numbers: AtomicU64::new(0),
            shutdown,
            tasks,
        })
    }

    pub(super) async fn leave(&self) {
        self.shutdown.cancel();
        self.tasks.wait().await;
        self.app.close().await;
        self.worker.close().await;
    }

    /// A whole invocation like that of the API, until its result is read.
    pub(super) async fn invoke(&self, subject: Subject) -> anyhow::Result<()> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let input = json!({ "order": number });
        let entities = EntityHash::of(&input.to_string())?;
        let invocation = Invocation {
            function: subject.function(),
            input: Some(&input),
            entities: Some(&entities),
            force: false,
        };
        let mut transaction = pool::begin_as(&self.app, self.tenant).await?;
        let Acquired::Run(id) = runs::acquire(&mut transaction, self.tenant, invocation, ACTOR).await? else {
            anyhow::bail!("invocation {number} did not get its own run");
        };
        let waiter = self.run_waiters.wait_for(self.tenant, id).context("too many waiters")?;
        pool::commit(transaction).await?;
        self.hints.send();
        waiter.over_within(PATIENCE).await;
        let mut transaction = pool::begin_as(&self.app, self.tenant).await?;
        let run = runs::find(&mut transaction, self.tenant, id).await?.context("the run is gone")?;
        pool::commit(transaction).await?;
        anyhow::ensure!(run.status == JobRunStatus::Completed, "a run is {:?}", run.status);
        Ok(())
    }

    /// Calls the function directly.
    pub(super) async fn call(&self, subject: Subject) -> anyhow::Result<()> {
        let (job_id, function_name, lock_key) = (JobRunId::new(), subject.function(), "noop:bench");
        let (tenant, attempt, input) = (self.tenant, 1, &json!({ "order": 1 }));
        match subject {
            Subject::Rust => {
                let function = self.functions.get(function_name).context("no such function")?;
                let scheduled_for = None;
                let invoked =
                    Invoked { tenant, job_id, function_name, lock_key, attempt, input, scheduled_for };
                function.call(&invoked).await?;
            }
            Subject::Http => {
                let call =
                    FunctionCall { tenant_id: tenant, job_id, function_name, lock_key, attempt, input };
                HttpFunction::new(&self.client, &self.url, &self.secret)?.call(&call).await?;
            }
        }
        Ok(())
    }
}
