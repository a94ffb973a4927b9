//! Processes and databases that go away while a function runs.

use serde_json::{Value, json};
use sqlx::Connection;

use super::super::{
    endpoint::{Does, Endpoint},
    operators::{Operators, jobs, soon},
    stage::{acquire, acting_for},
};
use crate::{
    postgres::Postgres,
    sql::execute,
    world::{MASTER_KEY, Server, eventually, postrider, run},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_asked_to_stop_finishes_what_it_runs() -> anyhow::Result<()> {
    let (operators, endpoint) = (Operators::new().await?, Endpoint::start()?);
    let mut server = operators.serve("api,scheduler", "")?;
    let url = endpoint.at("held", Does::Holds);
    operators.put(&server, "held", &json!({ "target": { "http": url } }))?;
    operators.put(&server, "later", &json!({ "target": { "http": url }, "retry": soon(1) }))?;
    let held = operators.invoke(&server, "held", &Value::Null)?;
    endpoint.wait_for("held")?;
    server.process.signal("TERM")?;
    server.process.wait_for_line("the runner finishes its attempts")?;
    // New job runs are left to other processes.
    let later = operators.acquire(operators.tenant, "later", None).await?;
    endpoint.release("held");
    assert_eq!(server.process.wait()?.code(), Some(0));
    let held = operators.run(held).await?;
    assert_eq!(
        (held.status.as_str(), held.claims, held.retry_count, held.is_held),
        ("completed", 1, 0, false)
    );
    assert_eq!(held.result, Some(json!({ "late": true })));
    assert_eq!(operators.run(later).await?.claims, 0);

    // The next process finds nothing to recover. It may not call addresses of this machine, and says so.
    let server =
        Server::start(&operators.world, "scheduler", "[jobs]\npoll_interval_ms = 25\nlease_seconds = 1\n")?;
    let later = operators.ends(later, "failed").await?;
    assert_eq!((later.claims, operators.letters(later.id).await?), (1, vec!["EXECUTION_ERROR".to_owned()]));
    assert!(later.error().contains("outbound.allow_private"), "{later:?}");
    assert_eq!(endpoint.asked("held").len(), 1);
    assert_eq!(operators.run(held.id).await?, held);
    assert!(!server.process.lines().iter().any(|line| line.contains("was recovered from a dead process")));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_dies_inside_a_sql_function_has_done_nothing_and_it_is_retried() -> anyhow::Result<()>
{
    let operators = Operators::new().await?;
    let functions = "
        create schema shop;
        grant usage on schema shop to postrider_worker, postrider_app;
        create table shop.done (attempt integer generated always as identity, backend integer);
        grant insert on shop.done to postrider_worker;
        create function shop.waits() returns jsonb language plpgsql as $$
        begin
            insert into shop.done (backend) values (pg_backend_pid());
            perform pg_advisory_xact_lock(1);
            return to_jsonb('done'::text);
        end $$;";
    execute(&operators.admin, functions).await?;
    let mut gate = sqlx::PgConnection::connect(&operators.world.admin_url()).await?;
    execute(&mut gate, "select pg_advisory_lock(1)").await?;
    let mut server = operators.serve("api,scheduler", "lease_seconds = 1")?;
    operators.put(&server, "waits", &json!({ "target": { "sql": "shop.waits" }, "retry": soon(2) }))?;
    let run = operators.invoke(&server, "waits", &Value::Null)?;
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'";
    eventually("it is at it", async || Ok(operators.count(waiting).await? == 1)).await?;
    server.process.signal("KILL")?;
    server.process.wait()?;
    // Whether or not the server has noticed: what the dead one's function does now goes nowhere.
    execute(&mut gate, "select pg_advisory_unlock_all()").await?;
    let next = operators.serve("scheduler", "lease_seconds = 1")?;
    let run = operators.ends(run, "completed").await?;
    assert_eq!((run.claims, run.retry_count, run.result), (2, 1, Some(json!("done"))));
    assert_eq!(
        operators.count("select count(*) from shop.done").await?,
        1,
        "once, by the attempt that completed it"
    );
    next.process.wait_for_line("a run was recovered from a dead process")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_outlives_a_restart_of_the_database() -> anyhow::Result<()> {
    let (mut postgres, endpoint) = (Postgres::start().await?, Endpoint::start()?);
    let admin_url = postgres.url("postgres");
    let command = |args: &[&str]| run(postrider().args(["--database-url", &admin_url]).args(args));
    let migrated = command(&["migrate"])?;
    anyhow::ensure!(migrated.code == 0, "{}", migrated.stderr);
    let made: Value = serde_json::from_str(&command(&["tenants", "create", "acme", "--json"])?.stdout)?;
    let (key, tenant) = (made["admin_key"].as_str().unwrap(), made["tenant_id"].as_str().unwrap().parse()?);
    let config = tempfile::NamedTempFile::new()?;
    let (worker, app) = (postgres.url("postrider_worker"), postgres.url("postrider_app"));
    let settings = format!(
        "master_key = '{MASTER_KEY}'\n[database]\nurl = '{worker}'\napp_url = '{app}'\n[http]\nlisten = '127.0.0.1:0'\n[log]\nformat = 'json'\n{}",
        jobs("")
    );
    std::fs::write(config.path(), settings)?;
    let server = Server::start_with(config, "api,scheduler")?;
    let url = endpoint.at("held", Does::Holds);
    let put = crate::api::client::Call::new(&server.http_url, "PUT", "/api/v2/functions/held").key(key);
    put.json(&json!({ "target": { "http": url } })).send()?.expect(201)?;
    // The cluster has a key of its own, so the administrator names the tenant.
    let client = sqlx::PgPool::connect(&admin_url).await?;
    let mut transaction = acting_for(&client, tenant).await?;
    let (_, id) = acquire(&mut *transaction, "held", None, false).await?;
    transaction.commit().await?;
    client.close().await;
    endpoint.wait_for("held")?;

    postgres.stop()?;
    endpoint.release("held");
    server.process.wait_for_line("job run results are not recorded yet")?;
    postgres.start_again().await?;
    let admin = sqlx::PgPool::connect(&admin_url).await?;
    let state = "select concat_ws(' ', status, claims, retry_count, result) from jobs.job_runs where id = $1";
    let state = async || -> anyhow::Result<String> {
        Ok(sqlx::query_scalar(state).bind(id).fetch_one(&admin).await?)
    };
    eventually("its end is recorded", async || Ok(state().await?.starts_with("completed"))).await?;
    assert_eq!(state().await?, r#"completed 1 0 {"late": true}"#);
    assert_eq!(endpoint.asked("held").len(), 1);
    Ok(())
}
