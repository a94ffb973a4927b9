//! Every command as a new user would type it.

mod bad_input;
mod campaigns;
mod channels;
mod commands;
mod configuration;
mod doctor;
mod import;
mod in_doubt;
mod jobs;
mod phases;
mod scripts;
mod secrets;
mod stage;
mod terminals;
mod trace;

use std::collections::BTreeMap;

use anyhow::Context;
use serde_json::Value;
use sqlx::AssertSqlSafe;

use crate::world::{MASTER_KEY, Output, World, postrider, run_with_input};

impl World {
    /// A command that must succeed; what it wrote to stdout.
    fn stdout(&self, args: &[&str]) -> anyhow::Result<String> {
        Ok(succeeded(self.postrider(args)?)?.stdout)
    }

    /// The same, as JSON.
    fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        let output = self.stdout(&[args, &["--json"]].concat())?;
        serde_json::from_str(&output).with_context(|| format!("not JSON: {output}"))
    }

    /// A command with the master key, and something on its stdin.
    fn postrider_with_secret(&self, args: &[&str], input: &str) -> anyhow::Result<Output> {
        let mut command = postrider();
        command
            .env("POSTRIDER_MASTER_KEY", MASTER_KEY)
            .args(["--database-url", &self.admin_url()])
            .args(args);
        run_with_input(&mut command, input)
    }

    /// How many rows each of our tables has.
    async fn rows(&self) -> anyhow::Result<BTreeMap<String, i64>> {
        let admin = self.client("postgres").await?;
        let mut rows = BTreeMap::new();
        for table in self.tables(&admin).await? {
            let count = sqlx::query_scalar(AssertSqlSafe(format!("select count(*) from {table}")));
            rows.insert(table.clone(), count.fetch_one(&admin).await?);
        }
        Ok(rows)
    }

    /// All that our tables hold, as text.
    async fn dump(&self) -> anyhow::Result<String> {
        let admin = self.client("postgres").await?;
        let mut dump: Vec<String> = Vec::new();
        for table in self.tables(&admin).await? {
            let rows = sqlx::query_scalar(AssertSqlSafe(format!("select whole::text from {table} as whole")));
            dump.extend(rows.fetch_all(&admin).await?);
        }
        Ok(dump.join("\n"))
    }

    async fn tables(&self, admin: &sqlx::PgPool) -> anyhow::Result<Vec<String>> {
        Ok(sqlx::query_scalar(
            "select oid::regclass::text from pg_class
              where relkind = 'r' and relowner = 'postrider_owner'::regrole order by 1",
        )
        .fetch_all(admin)
        .await?)
    }

    /// A statement as superuser, which no policy and no right stops.
    async fn as_superuser(&self, sql: &str) -> anyhow::Result<()> {
        let admin = self.client("postgres").await?;
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&admin).await?;
        Ok(())
    }
}

fn succeeded(output: Output) -> anyhow::Result<Output> {
    anyhow::ensure!(output.code == 0, "exit {}: {}{}", output.code, output.stdout, output.stderr);
    Ok(output)
}

/// A refusal: one line on stderr that says this, nothing on stdout, and an exit code that scripts notice.
fn assert_refused(output: &Output, says: &str) {
    let Output { code, stdout, stderr } = output;
    assert_eq!((*code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "one line: {stderr}");
    assert!(stderr.contains(says), "`{says}` is not in: {stderr}");
}

/// The same, where the command line itself is at fault: clap adds how to use the command.
fn assert_misused(output: &Output, says: &str) {
    let Output { code, stdout, stderr } = output;
    assert_eq!((*code, stdout.as_str()), (2, ""), "{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.contains(says), "`{says}` is not in: {stderr}");
}

/// Output with what differs from run to run made the same, and columns that it stretched drawn together.
fn stable(output: &str) -> String {
    let lines = output.lines().map(|line| {
        let words: Vec<&str> = line.split_whitespace().map(stable_word).collect();
        words.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn stable_word(word: &str) -> &str {
    let digits = |text: &str, others: &str| {
        text.contains(|c: char| c.is_ascii_digit())
            && text.chars().all(|c| c.is_ascii_digit() || others.contains(c))
    };
    match word {
        _ if uuid::Uuid::parse_str(word).is_ok() => "[id]",
        _ if word.starts_with("pr_") => "[key]",
        _ if word.len() == 10 && digits(word, "-") => "[date]",
        _ if word.len() == 9 && digits(word, ":Z") => "[time]",
        _ => word,
    }
}
