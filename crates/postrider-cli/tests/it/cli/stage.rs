//! A tenant that is ready to send, and a worker that does what SQL tells it to.

use std::process::Command;

use anyhow::Context;
use serde_json::Value;
use uuid::Uuid;

use super::{stable, succeeded};
use crate::{
    campaigns::execution::calls::{Job, claim},
    sql,
    world::{Output, World, postrider, run_with_input},
};

/// A campaign of one e-mail to the list `customers`.
pub const SPRING: &str = r#"
name = "spring"

[[phase]]
phase = "mail"
channel = "email"
list = "customers"
provider_account = "mailer"
content.subject = "Hello {{ first_name }}"
content.text = "Spring is here."
"#;

pub struct Stage {
    pub world: World,
    pub tenant: Uuid,
    pub workspace: Uuid,
    pub admin: sqlx::PgPool,
}

impl Stage {
    /// Tenant `acme` with an account at the sim and a list of so many customers.
    pub async fn new(customers: usize) -> anyhow::Result<Self> {
        let world = World::new().await?;
        let admin = world.client("postgres").await?;
        let (tenant, workspace) = sql::tenant(&admin, "acme").await?;
        let stage = Self { world, tenant, workspace, admin };
        stage.add_account("mailer", "sim").await?;
        let emails: Vec<String> = (1..=customers).map(|n| format!("lead{n}@example.com")).collect();
        stage.add_list("customers", &emails).await?;
        Ok(stage)
    }

    /// An account whose secret nobody will open.
    pub async fn add_account(&self, name: &str, provider: &str) -> anyhow::Result<()> {
        self.as_tenant(
            sqlx::query(
                "select tenancy.create_provider_account($1, $2, $3, $4, $5, '{}', '\\x00', 'a test')",
            )
            .bind(self.tenant)
            .bind(Uuid::now_v7())
            .bind(self.workspace)
            .bind(name)
            .bind(provider),
        )
        .await
    }

    /// A list of people with these addresses.
    pub async fn add_list(&self, name: &str, emails: &[String]) -> anyhow::Result<()> {
        let list = Uuid::now_v7();
        sqlx::query(
            "insert into execution.lead_lists (id, tenant_id, workspace_id, name) values ($1, $2, $3, $4)",
        )
        .bind(list)
        .bind(self.tenant)
        .bind(self.workspace)
        .bind(name)
        .execute(&self.admin)
        .await?;
        let leads: Vec<Uuid> = emails.iter().map(|_| Uuid::now_v7()).collect();
        sqlx::query(
            "insert into execution.leads (id, tenant_id, workspace_id, identity, email, attributes)
             select id, $1, $2, id::text, email, '{\"first_name\": \"Ann\"}' from unnest($3::uuid[], $4::text[]) as lead (id, email)",
        )
        .bind(self.tenant)
        .bind(self.workspace)
        .bind(&leads)
        .bind(emails)
        .execute(&self.admin)
        .await?;
        sqlx::query(
            "insert into execution.lead_list_members (tenant_id, list_id, lead_id) select $1, $2, unnest($3::uuid[])",
        )
        .bind(self.tenant)
        .bind(list)
        .bind(&leads)
        .execute(&self.admin)
        .await?;
        Ok(())
    }

    async fn as_tenant(
        &self,
        query: sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments>,
    ) -> anyhow::Result<()> {
        let mut transaction = self.admin.begin().await?;
        sqlx::query("select set_config('app.current_tenant_id', $1, true)")
            .bind(self.tenant.to_string())
            .execute(&mut *transaction)
            .await?;
        query.execute(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// A command as somebody of tenant `acme` types it.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = postrider();
        command
            .env("USER", "ada")
            .env("POSTRIDER_JOBS__SQL_SCHEMAS", r#"["public"]"#)
            .args(["--database-url", &self.world.admin_url()])
            .args(args)
            .args(["--tenant", "acme"]);
        command
    }

    pub fn run(&self, args: &[&str]) -> anyhow::Result<Output> {
        run_with_input(&mut self.command(args), "")
    }

    /// A command that must succeed; what it wrote to stdout.
    pub fn stdout(&self, args: &[&str]) -> anyhow::Result<String> {
        Ok(succeeded(self.run(args)?)?.stdout)
    }

    /// The same, as JSON.
    pub fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.stdout(&[args, &["--json"]].concat())?)?)
    }

    /// `campaign create -` with this on its stdin.
    pub fn create(&self, file: &str) -> anyhow::Result<Output> {
        run_with_input(&mut self.command(&["campaign", "create", "-"]), file)
    }

    /// Campaign `spring`, deployed in jobs of this size; its run.
    pub async fn deploy_spring(&self, job_size: usize) -> anyhow::Result<Uuid> {
        succeeded(self.create(SPRING)?)?;
        let size = job_size.to_string();
        let run_id = self.stdout(&["campaign", "deploy", "spring", "--job-size", &size])?.trim().parse()?;
        self.put_jobs_in_order().await?;
        Ok(run_id)
    }

    /// Jobs of a run are ready at the same time, and their ids are random. From here on they are claimed in their order.
    pub async fn put_jobs_in_order(&self) -> anyhow::Result<()> {
        let sql = "update execution.job_queue set run_after = run_after - interval '1 hour' + position * interval '1 second'";
        Ok(sql::execute(&self.admin, sql).await?)
    }

    /// A worker of this name.
    pub async fn worker(&self, name: &'static str) -> anyhow::Result<Worker> {
        Ok(Worker { name, tenant: self.tenant, client: self.world.client("postrider_worker").await? })
    }
}

/// A worker that does what it is told, with the functions of the contract.
pub struct Worker {
    pub name: &'static str,
    tenant: Uuid,
    client: sqlx::PgPool,
}

impl Worker {
    /// Claims one job.
    pub async fn claim(&self) -> anyhow::Result<Job> {
        let jobs = claim(&self.client, self.name, 1).await?;
        jobs.into_iter().next().context("there is no job to claim")
    }

    /// Reserves the first items of a job; their ids.
    pub async fn reserve(&self, job: &Job, count: usize) -> anyhow::Result<Vec<Uuid>> {
        let ids: Vec<Uuid> = (0..count).map(|_| Uuid::now_v7()).collect();
        let recipients: Vec<String> = (1..=count).map(|n| format!("lead{n}@example.com")).collect();
        let nothing: Vec<Option<String>> = vec![None; count];
        let hashes: Vec<Option<Vec<u8>>> = vec![Some(vec![1]); count];
        let reserved: Vec<String> = sqlx::query_scalar(
            "select verdict from execution.begin_outbox_items($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        )
        .bind([job.tenant_id])
        .bind(self.name)
        .bind([job.job_id])
        .bind([job.attempts])
        .bind([1])
        .bind([i32::try_from(count)?])
        .bind(&ids)
        .bind(&recipients)
        .bind(&hashes)
        .bind(&nothing)
        .bind(&nothing)
        .fetch_all(&self.client)
        .await?;
        anyhow::ensure!(reserved.iter().all(|verdict| verdict == "reserved"), "{reserved:?}");
        Ok(ids)
    }

    /// Settles items: what they have become, and the message id or the error.
    pub async fn settle(&self, items: &[(Uuid, &str, &str)]) -> anyhow::Result<()> {
        let ids: Vec<Uuid> = items.iter().map(|(id, _, _)| *id).collect();
        let statuses: Vec<&str> = items.iter().map(|(_, status, _)| *status).collect();
        let is_well = |status: &str| ["sent", "called", "posted"].contains(&status);
        let messages: Vec<Option<&str>> =
            items.iter().map(|(_, status, more)| is_well(status).then_some(*more)).collect();
        let errors: Vec<Option<&str>> =
            items.iter().map(|(_, status, more)| (!is_well(status)).then_some(*more)).collect();
        sqlx::query("select execution.finalize_outbox_items($1, $2, $3, $4, $5, $6)")
            .bind(vec![self.tenant; items.len()])
            .bind(self.name)
            .bind(&ids)
            .bind(&statuses)
            .bind(&messages)
            .bind(&errors)
            .execute(&self.client)
            .await?;
        Ok(())
    }

    /// Ends the attempt; what the job has become. An unfinished send job is due again at once.
    pub async fn complete(&self, job: &Job) -> anyhow::Result<String> {
        Ok(sqlx::query_scalar("select execution.complete_job($1, $2, $3, $4, interval '0')")
            .bind(job.tenant_id)
            .bind(job.job_id)
            .bind(self.name)
            .bind(job.attempts)
            .fetch_one(&self.client)
            .await?)
    }

    /// Hands a job and its whole run back for a while, because of a limit of the account.
    pub async fn put_off(&self, job: &Job, why: &str, seconds: f64) -> anyhow::Result<()> {
        sqlx::query("select execution.put_off_job($1, $2, $3, $4, make_interval(secs => $5), $6, $6, true)")
            .bind(job.tenant_id)
            .bind(job.job_id)
            .bind(self.name)
            .bind(job.attempts)
            .bind(seconds)
            .bind(why)
            .execute(&self.client)
            .await?;
        Ok(())
    }

    /// Does a whole job, and everything in it becomes this.
    pub async fn finish_one(&self, status: &str, more: &str) -> anyhow::Result<String> {
        let job = self.claim().await?;
        let items = self.reserve(&job, job.item_ids.len()).await?;
        self.settle(&items.into_iter().map(|id| (id, status, more)).collect::<Vec<_>>()).await?;
        self.complete(&job).await
    }

    /// Tries a job until it is dead.
    pub async fn wear_out(&self) -> anyhow::Result<()> {
        while self.complete(&self.claim().await?).await? != "dead" {}
        Ok(())
    }
}

/// Output with ids, keys and times made the same, wherever in a line they stand.
pub fn redacted(output: &str) -> String {
    let is_key = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_id = |text: &str| Uuid::parse_str(text).is_ok();
    let is_database =
        |text: &str| text.strip_prefix("test_").is_some_and(|rest| rest.len() == 32 && is_key(rest));
    let is_cluster = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_time = |text: &str| {
        text.split(':').count() == 3
            && text.bytes().all(|byte| byte.is_ascii_digit() || b":Z".contains(&byte))
    };
    let instead_of = |rest: &str| {
        let begins = |length: usize, is_it: &dyn Fn(&str) -> bool| rest.get(..length).is_some_and(is_it);
        match () {
            () if begins(64, &is_key) => Some((64, "[key]")),
            () if begins(36, &is_id) => Some((36, "[id]")),
            () if begins(37, &is_database) => Some((37, "[database]")),
            () if begins(19, &is_cluster) => Some((19, "[cluster]")),
            () if begins(9, &is_time) => Some((9, "[time]")),
            () => None,
        }
    };
    let mut text = String::new();
    let mut rest = output;
    while let Some(c) = rest.chars().next() {
        let taken = match instead_of(rest) {
            Some((length, instead)) => {
                text.push_str(instead);
                length
            }
            None => {
                text.push(c);
                c.len_utf8()
            }
        };
        rest = rest.get(taken..).unwrap_or_default();
    }
    stable(&text)
}
