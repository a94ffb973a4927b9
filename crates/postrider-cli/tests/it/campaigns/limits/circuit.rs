//! A provider that fails is left alone, by every process, until one call has found out that it answers again.

use serde_json::json;

use super::{
    account, deploy, jobs, make_due,
    provider::{Answer, Provider},
    worker,
};
use crate::{
    campaigns::stage::Stage,
    http,
    sql::{execute, texts},
    world::{World, eventually},
};

const EAGER: &str = "window = 4\ntries_max = 1";

#[tokio::test(flavor = "multi_thread")]
async fn a_circuit_opens_shows_itself_and_closes_after_one_call_that_is_answered() -> anyhow::Result<()> {
    let (world, provider) = (World::new().await?, Provider::start(Answer::DoesNotLetIn)?);
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", 200).await?;
    let mail = account(&world, &stage, "mail", &provider, &json!({})).await?;
    let workers = [worker(&world, EAGER)?, worker(&world, EAGER)?];
    let run = deploy(&stage, "mail", None, 20).await?;
    eventually("the whole run waits", || async {
        Ok(jobs(&stage, run, "status || ' ' || coalesce(waits_for, '') || ' ' || attempts").await?
            == "queued circuit 0")
    })
    .await?;
    let called = provider.calls().len();
    // One refusal of the account is enough.
    assert!(called >= 1, "void: it opened after {called} calls");
    assert!(called < 190, "{called} of 200 were called before it opened");
    let audit = format!(
        "select action || coalesce(' ' || (note like '%401%'), '') from tenancy.audit_log
          where subject = 'account:{mail}' and action like 'account.circuit%' order by id"
    );
    assert_eq!(texts(&stage.admin, audit.clone()).await?, ["account.circuit_opened true"]);
    // About half a minute after it opened.
    let state =
        "select (circuit_open_until - max(at) between interval '10 seconds' and interval '31 seconds')::text
                   from execution.account_states, tenancy.audit_log where action = 'account.circuit_opened'
                  group by circuit_open_until";
    assert_eq!(stage.ask(state).await?, "true");
    eventually("who opened it shows it at once, the others soon", || async {
        let metrics = workers.iter().map(|worker| http::get(&worker.http_url, "/metrics"));
        let metrics = metrics.collect::<Result<Vec<_>, _>>()?;
        Ok(metrics.iter().any(|metrics| metrics.body.contains("postrider_circuit_open{provider=\"sim\"} 1")))
    })
    .await?;

    // Its time is over: one call at a time finds out, whoever makes it.
    provider.set(Answer::Keeps);
    execute(&stage.admin, "update execution.account_states set circuit_open_until = now()").await?;
    make_due(&stage).await?;
    eventually("somebody finds out", || async { Ok(provider.calls().len() == called + 1) }).await?;
    eventually("the others have asked and wait", || async {
        Ok(jobs(&stage, run, "status").await?.contains("locked"))
    })
    .await?;
    assert_eq!(provider.calls().len(), called + 1, "one call at a time");
    provider.set(Answer::Accepts);
    assert_eq!(stage.ended(run).await?, "completed");
    assert_eq!(stage.items(run).await?, [("sent".to_owned(), 200)].into());
    let opened_and_closed = ["account.circuit_opened true", "account.circuit_closed"];
    assert_eq!(texts(&stage.admin, audit).await?, opened_and_closed);
    assert_eq!((provider.acted().len(), provider.acted().values().max()), (200, Some(&1)));
    drop(workers);
    Ok(())
}
