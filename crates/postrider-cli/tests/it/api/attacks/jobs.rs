//! Functions, schedules, runs, letters and alerts of a tenant, for `table.rs`.

use serde_json::{Value, json};

use super::{
    super::{
        Stage, Tenant,
        jobs::{claim_all_of, end},
        material::id,
    },
    Things,
};
use crate::sql::execute;

/// Two of everything.
pub struct Jobs {
    /// Nothing needs it.
    pub function: String,
    /// There is none of this name.
    pub new_function: String,
    /// It waits for a runner.
    pub run: String,
    /// It failed for good.
    pub failed_run: String,
    /// The letter of another run that did.
    pub sync_error: String,
    pub schedule: String,
    pub card: String,
}

/// A function that does nothing.
pub fn noop() -> Value {
    json!({ "target": { "builtin": "noop" } })
}

/// A schedule of the first function.
pub fn schedule(things: &Things) -> Value {
    hourly(things.mark)
}

fn hourly(mark: &str) -> Value {
    json!({ "function_name": format!("{mark}-needed"), "cron": "0 * * * *" })
}

impl Jobs {
    pub async fn make(stage: &Stage, tenant: &Tenant, mark: &str) -> anyhow::Result<Self> {
        let name = |which: &str| format!("{mark}-{which}");
        for which in ["needed", "failing", "spare"] {
            let path = format!("/functions/{}", name(which));
            stage.call("PUT", &path).key(&tenant.admin).json(&noop()).send()?.expect(201)?;
        }
        let invoke = |which: &str, entity: i32| {
            let path = format!("/functions/{}/invoke?wait=0", name(which));
            let made =
                stage.post(&tenant.operator, &path, &json!({ "entities": { "n": entity } }))?.expect(202)?;
            anyhow::Ok(made["job_id"].as_str().unwrap_or_default().to_owned())
        };
        let (failed_run, _) = (invoke("failing", 1)?, invoke("failing", 2)?);
        // Only those: another tenant's must stay as they are.
        let held = claim_all_of(stage, tenant.id.0).await?;
        end(stage, &held, &Err((name("error"), false))).await?;
        let run = invoke("needed", 1)?;
        let mut schedules = Vec::new();
        for _ in 0..2 {
            schedules.push(id(&stage.post(&tenant.operator, "/schedules", &hourly(mark))?.expect(201)?)?);
        }
        let made = format!(
            "select set_config('app.current_tenant_id', '{tenant}', false);
             select jobs.raise_alert(tenancy.current_tenant_id(), '{mark}-rule', 'a', '{mark}-title'), jobs.raise_alert(tenancy.current_tenant_id(), '{mark}-rule', 'b', '{mark}-title');
             select jobs.generate_decision_cards(tenancy.current_tenant_id());
             insert into jobs.schedule_firings (tenant_id, schedule_id, fire_at, outcome, reason, decided_at)
             select '{tenant}', '{schedule}', now() - n * interval '1 hour', 'skipped', '{mark}-reason', now()
               from generate_series(1, 2) as n;",
            tenant = tenant.id.0,
            schedule = schedules[0],
        );
        execute(&stage.admin, made).await?;
        let letters = stage.get(&tenant.viewer, "/sync-errors")?.expect(200)?;
        let of_the_other = |letter: &&Value| letter["source_entity_id"] != failed_run;
        let letter = letters["items"].as_array().into_iter().flatten().find(of_the_other);
        let cards = stage.get(&tenant.viewer, "/decision-cards")?.expect(200)?;
        Ok(Self {
            function: name("spare"),
            new_function: name("new"),
            run,
            failed_run: failed_run.clone(),
            sync_error: id(letter.unwrap_or(&Value::Null))?,
            schedule: schedules.remove(0),
            card: id(&cards["items"][0])?,
        })
    }

    pub fn ids(&self) -> [&String; 5] {
        [&self.run, &self.failed_run, &self.sync_error, &self.schedule, &self.card]
    }
}
