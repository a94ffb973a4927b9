//! `postrider jobs`: functions, their runs, schedules, and what people must look at.

mod alerts;
mod functions;
mod misuse;
mod runs;
mod schedules;

use serde_json::Value;

use super::{
    stage::{Stage, redacted},
    succeeded,
};
use crate::{sql, world::Output};

impl Stage {
    /// A function in the database that does this.
    async fn sql_function(&self, name: &str, body: &str) -> anyhow::Result<()> {
        let create = format!(
            "create or replace function public.{name}(p_input jsonb) returns jsonb language plpgsql as $$ begin {body} end $$"
        );
        Ok(sql::execute(&self.admin, create).await?)
    }

    /// `jobs …`, as somebody of tenant `acme` types it.
    fn jobs(&self, args: &[&str]) -> anyhow::Result<Output> {
        self.run(&[&["jobs"][..], args].concat())
    }

    /// The same, where it must succeed: what it said, with ids and times made the same.
    fn told(&self, args: &[&str]) -> anyhow::Result<String> {
        let Output { stdout, stderr, .. } = succeeded(self.jobs(args)?)?;
        Ok(redacted(&format!("{stdout}{stderr}")))
    }

    fn jobs_json(&self, args: &[&str]) -> anyhow::Result<Value> {
        self.json(&[&["jobs"][..], args].concat())
    }

    /// A function that does nothing, once a day. No test sees two of its grains: one that begins shortly before midnight waits for the
    /// next day.
    async fn put_daily(&self) -> anyhow::Result<()> {
        crate::world::eventually("the day is long enough", async || {
            let ends = "select count(*) from (select now() at time zone 'UTC' as at) as now where at::time > '23:58:30'";
            Ok(sql::number(&self.admin, ends).await? == 0)
        })
        .await?;
        succeeded(self.jobs(&["function", "put", "daily", "--builtin", "noop", "--grain", "day"])?).map(drop)
    }

    /// A statement in the tenant's context.
    pub(super) async fn as_acme(&self, statement: &str) -> anyhow::Result<()> {
        let context = format!("select set_config('app.current_tenant_id', '{}', true)", self.tenant);
        Ok(sql::execute(&self.admin, format!("begin; {context}; {statement}; commit")).await?)
    }
}

/// The output about a job run, without its grain and its duration.
fn timeless(told: &str, run: &Value) -> String {
    let start = id(&run["grain_start"]);
    let told = told.replace(&start[..10], "[grain]");
    let words: Vec<&str> = told.split(' ').collect();
    let units = ["ms", "ms,", "s", "s,"];
    let is_span = |n: usize| {
        words[n].parse::<f64>().is_ok() && words.get(n + 1).is_some_and(|unit| units.contains(unit))
    };
    let kept = (0..words.len()).map(|n| match n {
        _ if is_span(n) => "[n]".to_owned(),
        1.. if is_span(n - 1) => words[n].replace("ms", "s"),
        _ => words[n].to_owned(),
    });
    kept.collect::<Vec<_>>().join(" ")
}

/// A table whose rows come in no order that could be relied on.
fn in_order(table: &str) -> String {
    let mut lines: Vec<&str> = table.lines().collect();
    lines[1..].sort_unstable();
    lines.join("\n")
}

fn id(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
