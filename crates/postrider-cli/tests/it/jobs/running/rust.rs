//! Functions that are Rust code, in a runner of this process.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use postrider_engine::{
    Functions, Hints, Runner, RunnerParts, RunnerSettings,
    jobs::{Function, FunctionError, Invoked},
};
use postrider_model::ids::TenantId;
use postrider_providers::{GuardedClient, Policy, function::LIMITS};
use postrider_store::jobs::runs::ENDS_CHANNEL;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::super::operators::Operators;

/// Does what its name says.
struct Does(&'static str);

#[async_trait]
impl Function for Does {
    #[expect(clippy::panic, reason = "that is what it is for")]
    async fn call(&self, invoked: &Invoked<'_>) -> Result<Value, FunctionError> {
        match self.0 {
            "panics" => panic!("out of paper"),
            "passing" => Err(FunctionError::passing("not yet")),
            "lasting" => Err(FunctionError::lasting("never")),
            "large" => Ok(json!("x".repeat(64 * 1024))),
            "endless" => std::future::pending().await,
            _ => Ok(json!({ "attempt": invoked.attempt, "input": invoked.input })),
        }
    }
}

/// Writes down for whom it was called.
#[derive(Clone, Default)]
struct Called(Arc<Mutex<Vec<TenantId>>>);

impl Called {
    fn all(&self) -> Vec<TenantId> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Function for Called {
    async fn call(&self, invoked: &Invoked<'_>) -> Result<Value, FunctionError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(invoked.tenant);
        Ok(Value::Null)
    }
}

/// A runner that looks often, and stops with its test.
struct Running {
    over: CancellationToken,
    runner: JoinHandle<()>,
    _hints: [watch::Sender<()>; 2],
}

impl Running {
    /// With capacity for so many, and for so many of one tenant.
    async fn start(
        operators: &Operators,
        functions: Functions,
        capacity: (usize, usize),
    ) -> anyhow::Result<Self> {
        let pool = operators.world.pool("postrider_worker").await?;
        let parts = RunnerParts {
            pool: pool.clone(),
            sql_pool: pool,
            functions,
            client: GuardedClient::new(Policy { allow_private: true }, LIMITS)?,
            master_key: None,
            ends: Hints::new(ENDS_CHANNEL),
        };
        let settings = RunnerSettings {
            concurrency: capacity.0,
            tenant_concurrency: capacity.1,
            lease: Duration::from_secs(30),
            poll_interval: Duration::from_millis(20),
            sql_concurrency: 1,
            sql_tenant_concurrency: 2,
            sql_schemas: Vec::new(),
        };
        let ((wake, wakeups), (cancel, cancels)) = (watch::channel(()), watch::channel(()));
        let over = CancellationToken::new();
        let runner = Runner::new(parts, wakeups, cancels, settings);
        Ok(Self { over: over.clone(), runner: tokio::spawn(runner.run(over)), _hints: [wake, cancel] })
    }

    async fn stop(self) -> anyhow::Result<()> {
        self.over.cancel();
        Ok(self.runner.await?)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_end_of_a_rust_function_ends_its_job_run_and_the_runner_goes_on() -> anyhow::Result<()> {
    let operators = Operators::new().await?;
    let names = ["works", "panics", "passing", "lasting", "large", "endless"];
    let known = names.iter().fold(Functions::default(), |known, name| known.with(name, Arc::new(Does(name))));
    let runner = Running::start(&operators, known, (8, 8)).await?;
    for name in names.into_iter().chain(["unknown"]) {
        operators.force_function(operators.tenant, name, "builtin", name, 1).await?;
    }
    crate::sql::execute(
        &operators.admin,
        "update jobs.functions set timeout_seconds = 1 where name = 'endless'",
    )
    .await?;
    let unknown = operators.acquire(operators.tenant, "unknown", None).await?;
    for (name, claims, says) in [
        ("panics", 2, "the function panicked"),
        ("passing", 2, "not yet"),
        ("lasting", 1, "never"),
        ("large", 1, "more than 65536 bytes"),
        ("endless", 2, "within 1s"),
    ] {
        let run = operators.acquire(operators.tenant, name, None).await?;
        let run = operators.ends(run, "failed").await?;
        assert!(run.error().contains(says), "{run:?}");
        assert_eq!((run.claims, run.retry_count, run.is_held), (claims, claims - 1, false), "{run:?}");
        let code = if claims == 1 { "EXECUTION_ERROR" } else { "MAX_RETRIES_EXCEEDED" };
        assert_eq!(
            (operators.letters(run.id).await?, operators.is_free(name).await?),
            (vec![code.to_owned()], true),
            "{name}"
        );
    }
    let run = operators.acquire(operators.tenant, "works", None).await?;
    let run = operators.ends(run, "completed").await?;
    assert_eq!(run.result, Some(json!({ "attempt": 1, "input": { "a": 1 } })));

    // A function that this runner does not know waits for a runner that does.
    let waits = operators.run(unknown).await?;
    assert_eq!((waits.status.as_str(), waits.claims, waits.is_held), ("running", 0, false), "{waits:?}");
    let other =
        Running::start(&operators, Functions::default().with("unknown", Arc::new(Does("works"))), (1, 1))
            .await?;
    assert_eq!(operators.ends(unknown, "completed").await?.claims, 1);
    other.stop().await?;
    runner.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_with_many_runs_does_not_delay_another() -> anyhow::Result<()> {
    const MANY: usize = 200;
    let operators = Operators::new().await?;
    let small = operators.another("small").await?;
    for tenant in [operators.tenant, small] {
        operators.force_function(tenant, "f", "builtin", "f", 0).await?;
    }
    // They have waited for longer than the one.
    let fill = format!(
        "insert into jobs.job_runs (tenant_id, function_name, lock_key, grain, grain_start, started_at)
         select '{}', 'f', gen_random_uuid()::text, 'day', now(), now() - interval '1 hour' from generate_series(1, {MANY})",
        operators.tenant
    );
    crate::sql::execute(&operators.admin, fill).await?;
    let one = operators.acquire(small, "f", None).await?;
    let called = Called::default();
    let runner =
        Running::start(&operators, Functions::default().with("f", Arc::new(called.clone())), (4, 4)).await?;
    operators.ends(one, "completed").await?;
    let place = called.all().iter().position(|tenant| tenant.0 == small);
    assert!(place.is_some_and(|place| place < 12), "it was called after {place:?} others");
    let left = format!(
        "select count(*) from jobs.job_runs where tenant_id = '{}' and status <> 'completed'",
        operators.tenant
    );
    crate::world::eventually("all are done", async || Ok(operators.count(&left).await? == 0)).await?;
    assert_eq!(called.all().len(), MANY + 1);
    runner.stop().await?;
    Ok(())
}

/// Never answers.
struct Stuck(Arc<AtomicUsize>);

#[async_trait]
impl Function for Stuck {
    async fn call(&self, _: &Invoked<'_>) -> Result<Value, FunctionError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_whose_functions_hang_leaves_room_for_another() -> anyhow::Result<()> {
    let operators = Operators::new().await?;
    let small = operators.another("small").await?;
    operators.force_function(operators.tenant, "stuck", "builtin", "stuck", 0).await?;
    operators.force_function(small, "f", "builtin", "f", 0).await?;
    for about in 0..5 {
        operators.acquire(operators.tenant, "stuck", Some(&format!("{about:012x}"))).await?;
    }
    let (stuck, called) = (Arc::new(AtomicUsize::new(0)), Called::default());
    let functions =
        Functions::default().with("stuck", Arc::new(Stuck(Arc::clone(&stuck)))).with("f", Arc::new(called));
    let runner = Running::start(&operators, functions, (4, 2)).await?;
    crate::world::eventually("some hang", async || Ok(stuck.load(Ordering::SeqCst) >= 2)).await?;
    let one = operators.acquire(small, "f", None).await?;
    operators.ends(one, "completed").await?;
    assert_eq!(stuck.load(Ordering::SeqCst), 2, "a tenant has its share, and no more");
    runner.runner.abort();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_registers_its_functions_while_it_runs_and_those_of_postrider_never() -> anyhow::Result<()> {
    let operators = Operators::new().await?;
    let names = "select name from jobs.provided_functions where expires_at > now() order by name";
    let functions = Functions::default()
        .with("noop", Arc::new(Does("works")))
        .with("close-month", Arc::new(Does("works")))
        .with("rebuild", Arc::new(Does("works")));
    let runner = Running::start(&operators, functions, (1, 1)).await?;
    crate::world::eventually("the functions are registered", async || {
        Ok(crate::sql::texts(&operators.admin, names).await? == ["close-month", "rebuild"])
    })
    .await?;
    // Two processes provide a function: it stays when one of them stops.
    let other =
        Running::start(&operators, Functions::default().with("rebuild", Arc::new(Does("works"))), (1, 1))
            .await?;
    crate::world::eventually("both processes are registered", async || {
        Ok(crate::sql::texts(&operators.admin, names).await? == ["close-month", "rebuild", "rebuild"])
    })
    .await?;
    runner.stop().await?;
    assert_eq!(crate::sql::texts(&operators.admin, names).await?, ["rebuild"]);
    other.stop().await
}
