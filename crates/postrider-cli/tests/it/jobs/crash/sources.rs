//! Sources of runs: functions of every kind, callers that invoke each twice at a time, and schedules that are late.

use std::collections::HashSet;

use futures::future::try_join_all;
use postrider_model::jobs::{Target, lock_key::Grain};
use postrider_store::jobs::runs::{Acquired, HINT_CHANNEL};
use postrider_testkit::crash::SeededRandom;
use serde_json::{Value, json};
use uuid::Uuid;

use super::facts::Scheduled;
use crate::{
    jobs::processes::{Schedule, TenantDatabase, soon},
    sql::execute,
};

/// So many retries that no run fails for good because processes die.
const OFTEN: u32 = 50;
const MINUTE: i64 = 60_000_000;

/// The functions that callers invoke.
const INVOKED: [&str; 4] = ["call", "call-briefly", "write", "answer"];
/// The functions of schedules, with their times: expression, minutes between firings, since how many minutes they are due.
const SCHEDULED: [(&str, &str, i64, i64); 4] = [
    ("tick", "*/5 * * * *", 5, 50),
    ("poll", "* * * * *", 1, 20),
    ("roll", "*/5 * * * *", 5, 50),
    ("after-tick", "*/5 * * * *", 5, 50),
];

#[derive(Default)]
pub struct Sources {
    /// The job runs that callers got in responses.
    pub acquired: HashSet<Uuid>,
    pub schedules: Vec<Scheduled>,
    invoked: u32,
}

/// Sets the functions.
pub async fn set_functions(database: &TenantDatabase, sim_url: &str) -> anyhow::Result<()> {
    let http = |name: &str| Target::Http(format!("{sim_url}/functions/{name}"));
    let (sql, noop) = (Target::Sql("work.effect".parse()?), Target::Builtin("noop".to_owned()));
    for (name, target, grain, retries) in [
        ("call", http("call"), Grain::Day, OFTEN),
        ("call-briefly", http("call-briefly"), Grain::Day, 1),
        ("write", sql.clone(), Grain::Day, OFTEN),
        ("answer", noop.clone(), Grain::Day, OFTEN),
        ("tick", noop.clone(), Grain::FiveMinutes, OFTEN),
        ("poll", http("poll"), Grain::FiveMinutes, OFTEN),
        ("roll", sql, Grain::FiveMinutes, OFTEN),
        ("after-tick", noop, Grain::FiveMinutes, OFTEN),
    ] {
        database.function(name, &target, grain, soon(retries)).await?;
    }
    Ok(())
}

impl Sources {
    /// Invokes so many functions and sets a schedule. Returns how many runs there are to be done.
    pub async fn add(
        &mut self,
        database: &TenantDatabase,
        random: &mut SeededRandom,
        invocations: u32,
    ) -> anyhow::Result<usize> {
        let mut callers = Vec::new();
        for _ in 0..invocations {
            self.invoked += 1;
            let (n, function) = (self.invoked, INVOKED[random.below(INVOKED.len())]);
            let input = match random.below(12) {
                0 if function == "write" => json!({ "n": n, "refuse": true }),
                _ => json!({ "n": n, "sleep": 0.3, "fail": 0.1 }),
            };
            // Two want the same at once; now and then a third insists on what was done before.
            callers.push(invoke(database, function, n, input.clone(), false));
            callers.push(invoke(database, function, n, input, false));
            if n > 40 && random.below(20) == 0 {
                callers.push(invoke(database, "answer", n - 40, json!({ "n": n }), true));
            }
        }
        let acquired = try_join_all(callers).await?;
        let new: HashSet<Uuid> = acquired.into_iter().flatten().collect();
        let added = new.len();
        self.acquired.extend(new);
        let firings = self.schedule(database).await?;
        execute(&database.admin, format!("notify {HINT_CHANNEL}")).await?;
        Ok(added + firings)
    }

    /// Sets the next schedule. It has been due for a while, as after an outage.
    async fn schedule(&mut self, database: &TenantDatabase) -> anyhow::Result<usize> {
        let (function, cron, step, since) = SCHEDULED[self.schedules.len() % SCHEDULED.len()];
        let first = format!(
            "select (extract(epoch from date_bin('{step} minutes', now() - interval '{since} minutes', '2000-01-01Z')) * 1000000)::bigint"
        );
        let first = database.count(first).await?;
        let depends_on: &[&str] = if function == "after-tick" { &["tick"] } else { &[] };
        let schedule = Schedule {
            function,
            cron,
            misfire: "all",
            input: &json!({ "sleep": 0.3, "fail": 0.1 }),
            depends_on,
            first: &format!("to_timestamp({})", first / 1_000_000),
        };
        let id = database.schedule(&schedule).await?;
        self.schedules.push(Scheduled { id, first, step: step * MINUTE });
        // A run for each grain.
        Ok(usize::try_from(since / 5)?)
    }
}

/// Invokes a function, and says which run was made of it.
async fn invoke(
    database: &TenantDatabase,
    function: &str,
    n: u32,
    input: Value,
    force: bool,
) -> anyhow::Result<Option<Uuid>> {
    match database.invoke(function, n, &input, force).await? {
        Acquired::Run(id) => Ok(Some(id.0)),
        Acquired::UnknownFunction => anyhow::bail!("there is no function {function}"),
        Acquired::Running(_) | Acquired::RetryPending(_) | Acquired::Completed(_) => Ok(None),
    }
}
