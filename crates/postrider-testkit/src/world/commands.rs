//! Commands of the binary against a world, and all that its tables hold.

use std::collections::BTreeMap;

use anyhow::Context;
use serde_json::Value;
use sqlx::AssertSqlSafe;

use super::{MASTER_KEY, Output, World, postrider, run, run_with_input};

impl World {
    /// A command that must succeed; what it wrote to stdout.
    pub fn stdout(&self, args: &[&str]) -> anyhow::Result<String> {
        Ok(succeeded(self.postrider(args)?)?.stdout)
    }

    /// The same, as JSON.
    pub fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        let output = self.stdout(&[args, &["--json"]].concat())?;
        serde_json::from_str(&output).with_context(|| format!("not JSON: {output}"))
    }

    /// A command with the master key, and something on its stdin.
    pub fn postrider_with_secret(&self, args: &[&str], input: &str) -> anyhow::Result<Output> {
        let mut command = postrider();
        command
            .env("POSTRIDER_MASTER_KEY", MASTER_KEY)
            .args(["--database-url", &self.admin_url()])
            .args(args);
        run_with_input(&mut command, input)
    }

    /// `postrider doctor` as on a machine that serves: with the master key and the logins of an administrator and of a server.
    pub fn doctor(&self, args: &[&str]) -> anyhow::Result<Output> {
        self.doctor_as(&self.url("postrider_worker"), &self.url("postrider_app"), args)
    }

    /// The same with these URLs for the loops and for HTTP requests.
    pub fn doctor_as(&self, url: &str, app_url: &str, args: &[&str]) -> anyhow::Result<Output> {
        let mut command = postrider();
        command
            .env("POSTRIDER_MASTER_KEY", MASTER_KEY)
            .env("POSTRIDER_DATABASE__ADMIN_URL", self.admin_url())
            .env("POSTRIDER_DATABASE__URL", url)
            .env("POSTRIDER_DATABASE__APP_URL", app_url)
            .arg("doctor")
            .args(args);
        run(&mut command)
    }

    /// How many rows each of our tables has.
    pub async fn rows(&self) -> anyhow::Result<BTreeMap<String, i64>> {
        let admin = self.client("postgres").await?;
        let mut rows = BTreeMap::new();
        for table in self.tables(&admin).await? {
            let count = sqlx::query_scalar(AssertSqlSafe(format!("select count(*) from {table}")));
            rows.insert(table.clone(), count.fetch_one(&admin).await?);
        }
        Ok(rows)
    }

    /// All that our tables hold, as text.
    pub async fn dump(&self) -> anyhow::Result<String> {
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
    pub async fn as_superuser(&self, sql: &str) -> anyhow::Result<()> {
        let admin = self.client("postgres").await?;
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&admin).await?;
        Ok(())
    }
}

/// The output of a command that must succeed.
pub fn succeeded(output: Output) -> anyhow::Result<Output> {
    anyhow::ensure!(output.code == 0, "exit {}: {}{}", output.code, output.stdout, output.stderr);
    Ok(output)
}
