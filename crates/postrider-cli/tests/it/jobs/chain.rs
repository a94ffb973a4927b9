//! Functions that wait for each other, from the clock to the receivers.

use anyhow::Context;
use postrider_model::{
    ids::{TenantId, WorkspaceId},
    seal::MasterKey,
};
use postrider_store::{postgres::pool, tenancy::accounts};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    endpoint::{Does, Endpoint, JSON},
    operators::{Operators, soon},
};
use crate::{
    http::send,
    sql::{execute, texts},
    world::{MASTER_KEY, Server, Sim, eventually},
};

impl Operators {
    /// A schedule that fires when a test says so.
    fn schedule(
        &self,
        server: &Server,
        function: &str,
        after: &[&str],
        input: &Value,
    ) -> anyhow::Result<Uuid> {
        let schedule =
            json!({ "function_name": function, "cron": "0 0 1 1 *", "depends_on": after, "input": input });
        let made = self.call(server, "POST", "/schedules", &schedule)?.expect(201)?;
        Ok(made["id"].as_str().with_context(|| made.to_string())?.parse()?)
    }

    /// The time of all schedules has come, at the same moment.
    async fn it_is_time(&self) -> anyhow::Result<()> {
        Ok(execute(&self.admin, "update jobs.schedules set next_fire_at = now()").await?)
    }

    /// The result of the only firing of a schedule, as the tenant reads it.
    fn firing(&self, server: &Server, schedule: Uuid) -> anyhow::Result<Value> {
        let page =
            self.call(server, "GET", &format!("/schedules/{schedule}/firings"), &Value::Null)?.expect(200)?;
        let firings = page["items"].as_array().with_context(|| page.to_string())?;
        anyhow::ensure!(firings.len() < 2, "{page}");
        Ok(firings.first().cloned().unwrap_or_default())
    }

    /// Waits until the only firing of a schedule has this outcome.
    async fn fires(&self, server: &Server, schedule: Uuid, outcome: &str) -> anyhow::Result<Value> {
        let is = async || Ok(self.firing(server, schedule)?["outcome"] == outcome);
        eventually(&format!("it is {outcome}"), is).await?;
        self.firing(server, schedule)
    }

    /// An account at the sim.
    async fn account(
        &self,
        name: &str,
        provider: &str,
        settings: &Value,
        secret: &str,
    ) -> anyhow::Result<()> {
        let pool = self.world.pool("postrider_app").await?;
        let (tenant, workspace) = (TenantId(self.tenant), WorkspaceId(self.workspace));
        let secret = secret.to_owned().into();
        let account = accounts::NewAccount { tenant, workspace, name, provider, settings, secret: &secret };
        let mut transaction = pool::begin_as(&pool, tenant).await?;
        accounts::create(&mut transaction, &MASTER_KEY.parse::<MasterKey>()?, &account, "a test").await?;
        Ok(pool::commit(transaction).await?)
    }
}

fn run_of(firing: &Value) -> anyhow::Result<Uuid> {
    Ok(firing["job_run_id"].as_str().with_context(|| firing.to_string())?.parse()?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_firing_after_a_failed_function_waits_with_a_reason_and_goes_on_after_the_retry()
-> anyhow::Result<()> {
    let (operators, endpoint) = (Operators::new().await?, Endpoint::start()?);
    let server = operators.serve("api,scheduler", "")?;
    for (name, status) in [("a", 200), ("b", 422), ("c", 200)] {
        let url = endpoint.at(name, Does::Answers(status, JSON, r#"{"error": "no paper"}"#.to_owned()));
        operators.put(&server, name, &json!({ "target": { "http": url }, "retry": soon(1) }))?;
    }
    // Set up backwards, so that nothing but the dependencies makes the order.
    let c = operators.schedule(&server, "c", &["b"], &json!({ "step": 3 }))?;
    let b = operators.schedule(&server, "b", &["a"], &Value::Null)?;
    let a = operators.schedule(&server, "a", &[], &Value::Null)?;
    operators.it_is_time().await?;
    operators.ends(run_of(&operators.fires(&server, a, "started").await?)?, "completed").await?;
    let failed = run_of(&operators.fires(&server, b, "started").await?)?;
    operators.ends(failed, "failed").await?;
    let waits = operators.fires(&server, c, "waiting").await?;
    assert_eq!(waits["reason"], format!("waits for b: it failed (run {failed})"), "{waits}");
    assert!(waits["job_run_id"].is_null() && endpoint.asked("c").is_empty());

    // Mended, and tried again by a person: what waited goes on by itself, and no other way is taken.
    endpoint.at("b", Does::Answers(200, JSON, "{}".to_owned()));
    operators.call(&server, "POST", &format!("/job-runs/{failed}/retry"), &Value::Null)?.expect(200)?;
    let run = operators.ends(run_of(&operators.fires(&server, c, "started").await?)?, "completed").await?;
    assert_eq!((run.function_name.as_str(), run.claims), ("c", 1));
    let b_run = operators.ends(failed, "completed").await?;
    assert_eq!(
        (b_run.retry_count, operators.letters(failed).await?),
        (1, vec!["EXECUTION_ERROR resolved".to_owned()])
    );
    let asked = ["a", "b", "c"].map(|name| endpoint.asked(name).len());
    assert_eq!((asked, endpoint.asked("c")[0].data("input")), ([1, 2, 1], &json!({ "step": 3 })));
    assert_eq!(operators.count("select count(*) from jobs.job_runs").await?, 3);
    Ok(())
}

/// The built-in chain of a tenant with somebody to tell, by webhook and by mail.
struct Watch {
    operators: Operators,
    sim: Sim,
    server: Server,
}

const SECRET: &str = "whsec_c29tZWJvZHkgd2F0Y2hlcyB0aGUgam9icyBieSB3ZWJob29r";
const CHAIN: [&str; 3] = ["detect-alerts", "generate-decision-cards", "process-alert-notifications"];

impl Watch {
    async fn start() -> anyhow::Result<Self> {
        let (operators, sim) = (Operators::new().await?, Sim::start(&["--secret", SECRET])?);
        let server = operators.serve("api,scheduler", "")?;
        let webhook = json!({ "url": format!("{}/hooks/ops", sim.http_url) });
        operators.account("ops-webhook", "webhook", &webhook, SECRET).await?;
        operators.account("ops-mail", "sim", &json!({ "url": sim.http_url }), "").await?;
        Ok(Self { operators, sim, server })
    }

    fn input(step: &str) -> Value {
        match step {
            "detect-alerts" => json!({ "failed_max": 0, "retry_rate_max": 1.0 }),
            "process-alert-notifications" => {
                json!({ "notify": [{ "account": "ops-webhook" }, { "account": "ops-mail", "to": "ops@example.com" }] })
            }
            _ => Value::Null,
        }
    }

    /// Runs the chain once more, by hand, and gives what the last step has done.
    fn again(&self) -> anyhow::Result<Value> {
        let mut last = Value::Null;
        for step in CHAIN {
            let body = json!({ "input": Self::input(step), "force": true });
            let answer =
                self.operators.call(&self.server, "POST", &format!("/functions/{step}/invoke"), &body)?;
            last = answer.expect(200)?["result"].clone();
        }
        Ok(last)
    }

    /// A run that is failed for good, since nobody can run its function.
    async fn fail(&self) -> anyhow::Result<Uuid> {
        self.operators
            .force_function(self.operators.tenant, "broken", "sql", "pg_catalog.nothing", 0)
            .await?;
        let run = self.operators.acquire(self.operators.tenant, "broken", None).await?;
        self.operators.ends(run, "failed").await?;
        Ok(run)
    }

    /// How often each of them was really told, by their own receipts: by webhook, and by mail.
    fn told(&self) -> anyhow::Result<(usize, usize)> {
        let receipts = self.sim.receipts()?;
        let acted = |provider: &str| {
            receipts
                .iter()
                .filter(|receipt| receipt["provider"] == provider && receipt["acted"] == true)
                .count()
        };
        Ok((acted("webhook"), acted("sim")))
    }

    async fn alerts(&self) -> anyhow::Result<Vec<String>> {
        let sql = "select concat_ws(' ', alert_config_id, alert.status, card.status) from jobs.alert_instances as alert
                     left join jobs.decision_cards as card on card.alert_instance_id = alert.id order by alert.id";
        Ok(texts(&self.operators.admin, sql).await?)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_is_told_of_an_alert_once_and_once_that_it_is_over() -> anyhow::Result<()> {
    let watch = Watch::start().await?;
    let Watch { operators, server, .. } = &watch;
    let failed = watch.fail().await?;

    // First by the clock: each step after the one before.
    let mut schedules = Vec::new();
    for (place, step) in CHAIN.into_iter().enumerate().rev() {
        let after: Vec<&str> = CHAIN[..place].last().copied().into_iter().collect();
        schedules.push(operators.schedule(server, step, &after, &Watch::input(step))?);
    }
    operators.it_is_time().await?;
    for schedule in schedules.iter().rev() {
        operators.ends(run_of(&operators.fires(server, *schedule, "started").await?)?, "completed").await?;
    }
    assert_eq!(watch.alerts().await?, ["failed-jobs active OPEN"]);
    assert_eq!(watch.told()?, (1, 1));
    let receipts = watch.sim.receipts()?;
    let mail = receipts.iter().find(|receipt| receipt["provider"] == "sim").context("no mail")?;
    assert_eq!(mail["to"], "ops@example.com", "{mail}");

    // As often as it runs, there is nothing new to tell.
    for _ in 0..3 {
        let told = watch.again()?;
        assert_eq!((&told["planned"], &told["sent"]), (&json!(0), &json!(0)), "{told}");
    }
    assert_eq!((watch.alerts().await?, watch.told()?), (vec!["failed-jobs active OPEN".to_owned()], (1, 1)));

    // An operator cancels the failed job run: the alert resolves itself with its card, and its recipients get one notification of that, too.
    operators.call(server, "POST", &format!("/job-runs/{failed}/cancel"), &Value::Null)?.expect(200)?;
    for sent in [2, 0] {
        assert_eq!(watch.again()?["sent"], sent);
        assert_eq!(
            (watch.alerts().await?, watch.told()?),
            (vec!["failed-jobs resolved RESOLVED".to_owned()], (2, 2))
        );
    }
    let settled = texts(
        &operators.admin,
        "select distinct concat_ws(' ', status, attempts) from jobs.alert_notifications",
    )
    .await?;
    assert_eq!(settled, ["sent 1"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_without_an_answer_is_in_doubt_and_not_repeated() -> anyhow::Result<()> {
    let watch = Watch::start().await?;
    let operators = &watch.operators;
    watch.fail().await?;
    let rules = json!([{ "provider": "webhook", "fault": "reset", "times": 1 },
                       { "provider": "sim", "fault": "reset", "times": 1 }]);
    let answer = send(&watch.sim.http_url, "PUT", "/faults/rules", &[], &rules.to_string())?;
    anyhow::ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let told = watch.again()?;
    assert_eq!((&told["in_doubt"], &told["sent"]), (&json!(2), &json!(0)), "{told}");
    assert_eq!(
        (watch.again()?["in_doubt"].clone(), watch.told()?),
        (json!(0), (1, 1)),
        "nothing is called again yet"
    );
    let doubtful = "select count(*) from jobs.alert_notifications where status = 'queued' and in_doubt_since is not null";
    assert_eq!(operators.count(doubtful).await?, 2);

    // After the quiet time: one is sent again under its key, which the receiver knows; the other is asked for.
    let age = "update jobs.alert_notifications
                  set called_at = called_at - interval '11 minutes', first_called_at = first_called_at - interval '11 minutes'";
    execute(&operators.admin, age).await?;
    assert_eq!(watch.again()?["sent"], 2);
    assert_eq!((operators.count(doubtful).await?, watch.told()?), (0, (1, 1)));
    Ok(())
}
