//! Functions in the database: all or nothing, in the tenant's context, and without a trace in the connection.

use serde_json::{Value, json};
use sqlx::Connection;

use super::super::{
    operators::{Operators, Run, soon},
    stage::ask,
};
use crate::{
    sql::execute,
    world::{Server, eventually},
};

/// The schema of an application. Every function leaves a line when what it did is committed.
const SHOP: &str = r"
    create schema shop;
    grant usage on schema shop to postrider_worker, postrider_app;
    create table shop.done (name text, tenant text, who text);
    grant select, insert on shop.done to postrider_worker;
    create function shop.note(p_name text) returns void language sql
        as $$ insert into shop.done values (p_name, current_setting('app.current_tenant_id'), current_user) $$;
    create function shop.count(p_input jsonb) returns jsonb language plpgsql
        as $$ begin perform shop.note('count'); return jsonb_build_object('counted', p_input -> 'n'); end $$;
    create function shop.nothing() returns void language plpgsql as $$ begin perform shop.note('nothing'); end $$;
    create function shop.raises(p_input jsonb) returns jsonb language plpgsql
        as $$ begin perform shop.note('raises'); raise exception 'it will not do' using errcode = p_input ->> 'code'; end $$;
    create function shop.divides(p_input jsonb) returns jsonb language plpgsql
        as $$ begin perform shop.note('divides'); return to_jsonb(1 / 0); end $$;
    create function shop.sleeps() returns jsonb language plpgsql
        as $$ begin perform shop.note('sleeps'); perform pg_sleep(600); return null; end $$;
    create function shop.large() returns jsonb language plpgsql
        as $$ begin perform shop.note('large'); return to_jsonb(repeat('x', 70000)); end $$;
    create function shop.waits(p_input jsonb) returns jsonb language plpgsql
        as $$ begin perform shop.note('waits'); perform pg_advisory_xact_lock((p_input ->> 'lock')::bigint); return p_input; end $$;
    create function shop.secret(p_input jsonb) returns jsonb language sql as $$ select p_input $$;
    revoke execute on function shop.secret(jsonb) from public;
    create function shop.many() returns setof integer language sql as $$ select 1 $$;
    create schema elsewhere;
    grant usage on schema elsewhere to postrider_worker;
    create function elsewhere.works() returns integer language sql as $$ select 1 $$;
";

async fn shop() -> anyhow::Result<Operators> {
    let operators = Operators::new().await?;
    execute(&operators.admin, SHOP).await?;
    Ok(operators)
}

impl Operators {
    /// How often a function has done what it does, as far as that was committed.
    async fn done(&self, name: &str) -> anyhow::Result<i64> {
        self.count(&format!("select count(*) from shop.done where name = '{name}'")).await
    }

    /// Sets up and invokes a function of the same name in the shop.
    fn shop(
        &self,
        server: &Server,
        name: &str,
        input: &Value,
        timeout_seconds: u32,
    ) -> anyhow::Result<uuid::Uuid> {
        let target = json!({ "sql": format!("shop.{name}") });
        self.put(
            server,
            name,
            &json!({ "target": target, "timeout_seconds": timeout_seconds, "retry": soon(1) }),
        )?;
        self.invoke(server, name, input)
    }

    async fn refused(&self, run: uuid::Uuid, says: &[&str]) -> anyhow::Result<Run> {
        let run = self.ends(run, "failed").await?;
        anyhow::ensure!(says.iter().all(|part| run.error().contains(part)), "{run:?}");
        anyhow::ensure!((run.claims, run.is_held) == (1, false), "it was tried again: {run:?}");
        anyhow::ensure!(self.letters(run.id).await? == ["EXECUTION_ERROR"], "{run:?}");
        Ok(run)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_effect_of_a_sql_function_and_its_completion_are_one_commit() -> anyhow::Result<()> {
    let operators = shop().await?;
    let server = operators.serve(
        "api,scheduler",
        "sql_schemas = ['shop', 'jobs', 'execution', 'pg_catalog', 'elsewhere_too']",
    )?;
    let run = operators.shop(&server, "count", &json!({ "n": 3 }), 60)?;
    let run = operators.ends(run, "completed").await?;
    assert_eq!((run.result, run.claims), (Some(json!({ "counted": 3 })), 1));
    let done = operators.text("select concat_ws(' ', tenant, who) from shop.done").await?;
    assert_eq!(done, format!("{} postrider_worker", operators.tenant));
    let run = operators.shop(&server, "nothing", &Value::Null, 60)?;
    assert_eq!(
        (operators.ends(run, "completed").await?.result, operators.done("nothing").await?),
        (Some(Value::Null), 1)
    );

    // A function that fails after a write leaves nothing of it.
    let passing = operators.shop(&server, "raises", &json!({ "code": "40001" }), 60)?;
    let run = operators.ends(passing, "failed").await?;
    assert_eq!((run.claims, run.error()), (2, "shop.raises: it will not do"));
    assert_eq!(operators.letters(run.id).await?, ["MAX_RETRIES_EXCEEDED"]);
    let lasting = operators.invoke(&server, "raises", &json!({ "code": "PR400" }))?;
    operators.refused(lasting, &["it will not do"]).await?;
    let run = operators.shop(&server, "divides", &Value::Null, 60)?;
    operators.refused(run, &["division by zero"]).await?;
    let run = operators.shop(&server, "large", &Value::Null, 60)?;
    operators.refused(run, &["more than 65536 bytes"]).await?;
    let run = operators.shop(&server, "sleeps", &Value::Null, 1)?;
    let run = operators.ends(run, "failed").await?;
    assert_eq!((run.claims, run.error()), (2, "shop.sleeps took longer than 1s and was stopped"));
    for name in ["raises", "divides", "large", "sleeps"] {
        assert_eq!((operators.done(name).await?, operators.is_free(name).await?), (0, true), "{name}");
    }

    // A target that cannot be run is refused when it is registered, and when it is run.
    for (target, says) in [
        ("jobs.prune_runs", "cannot be called by job runs"),
        ("execution.claim_queued_jobs", "cannot be called by job runs"),
        ("pg_catalog.pg_reload_conf", "cannot be called by job runs"),
        ("shop.secret", "grant execute on function shop.secret"),
        ("shop.absent", "there is no function shop.absent(jsonb)"),
        ("shop.many", "there is no function shop.many(jsonb)"),
        ("elsewhere.works", "jobs.sql_schemas names only shop, jobs, "),
    ] {
        let name = target.replace('.', "-");
        let put = operators.call(
            &server,
            "PUT",
            &format!("/functions/{name}"),
            &json!({ "target": { "sql": target } }),
        )?;
        assert!(put.problem(422)?.to_string().contains(says), "{}", put.text());
        operators.force_function(operators.tenant, &name, "sql", target, 1).await?;
        let run = operators.invoke(&server, &name, &Value::Null)?;
        operators.refused(run, &[says]).await?;
    }
    execute(&operators.admin, "revoke usage on schema shop from postrider_worker").await?;
    let run = operators.invoke(&server, "divides", &Value::Null)?;
    operators.refused(run, &["grant usage on schema shop to postrider_worker"]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_leaves_nothing_in_the_connection_for_the_next() -> anyhow::Result<()> {
    let operators = shop().await?;
    let role = format!("deputy_{}", uuid::Uuid::now_v7().simple());
    let functions = format!(
        "create role {role}; grant {role} to postrider_worker; grant usage on schema shop to {role};
         grant temporary on database {} to postrider_worker;
         create function shop.litters(p_input jsonb) returns jsonb language plpgsql as $$
         begin
             perform set_config('app.current_tenant_id', gen_random_uuid()::text, false);
             perform set_config('search_path', 'shop', false);
             perform set_config('statement_timeout', '1', false);
             perform pg_advisory_lock(4711);
             create temporary table litter (id integer);
             listen postrider_litter;
             execute 'set role {role}';
             if p_input ->> 'fails' is not null then raise exception 'after all'; end if;
             return null;
         end $$;
         create function shop.looks() returns jsonb language sql as $$
             select jsonb_build_object('tenant', current_setting('app.current_tenant_id'), 'path', current_setting('search_path'),
                                       'who', current_user, 'locks', (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()),
                                       'temporary', to_regclass('pg_temp.litter'), 'listens', (select count(*) from pg_listening_channels()))
         $$;",
        operators.world.database()
    );
    execute(&operators.admin, functions).await?;
    // One connection, which all of them use.
    let server = operators.serve("api,scheduler", "sql_concurrency = 1")?;
    operators.put(&server, "looks", &json!({ "target": { "sql": "shop.looks" } }))?;
    let clean = operators.invoke(&server, "looks", &Value::Null)?;
    let clean = operators.ends(clean, "completed").await?.result;
    assert_eq!(clean.as_ref().map(|clean| &clean["tenant"]), Some(&json!(operators.tenant)), "{clean:?}");
    for (n, (input, ends)) in
        [(Value::Null, "completed"), (json!({ "fails": true }), "failed")].into_iter().enumerate()
    {
        let litters = format!("litters-{n}");
        let target = json!({ "target": { "sql": "shop.litters" }, "retry": { "max_retries": 0 } });
        operators.put(&server, &litters, &target)?;
        let run = operators.invoke(&server, &litters, &input)?;
        let run = operators.ends(run, ends).await?;
        assert!(ends == "completed" || run.error().contains("after all"), "{run:?}");
        operators.put(&server, &format!("looks-{n}"), &json!({ "target": { "sql": "shop.looks" } }))?;
        let looks = operators.invoke(&server, &format!("looks-{n}"), &Value::Null)?;
        assert_eq!(operators.ends(looks, "completed").await?.result, clean, "after one that {ends}");
    }
    drop(server);
    execute(&operators.admin, format!("drop owned by {role}; drop role {role}")).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_sql_function_is_set_or_run_unless_its_schema_is_named() -> anyhow::Result<()> {
    let operators = shop().await?;
    let says = "jobs.sql_schemas names no schema; add `shop` to it";
    let server = operators.serve("api,scheduler", "sql_schemas = []")?;
    let target = json!({ "target": { "sql": "shop.count" } });
    let put = operators.call(&server, "PUT", "/functions/count", &target)?;
    assert!(put.problem(422)?.to_string().contains(says), "{}", put.text());
    let put = ["jobs", "function", "put", "count", "--tenant", "acme", "--sql", "shop.count"];
    let refused = operators.world.postrider(&put)?;
    assert!(refused.code == 1 && refused.stderr.contains(says), "{}", refused.stderr);
    // One that was set where it was allowed.
    operators.force_function(operators.tenant, "count", "sql", "shop.count", 1).await?;
    let run = operators.invoke(&server, "count", &json!({ "n": 1 }))?;
    operators.refused(run, &[says]).await?;
    assert_eq!(operators.done("count").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_sql_functions_of_one_tenant_do_not_keep_those_of_another_waiting() -> anyhow::Result<()> {
    for (sql_concurrency, share, begun) in [(4, 2, 2), (4, 4, 3), (2, 2, 1)] {
        let operators = shop().await?;
        let stuck = "create function shop.stuck() returns jsonb language plpgsql as
                         $$ begin perform pg_advisory_xact_lock(1); return null; end $$;";
        execute(&operators.admin, stuck).await?;
        let mut gate = sqlx::PgConnection::connect(&operators.world.admin_url()).await?;
        execute(&mut gate, "select pg_advisory_lock(1)").await?;
        let (slow, quick) = (operators.tenant, operators.another("quick").await?);
        operators.force_function(slow, "stuck", "sql", "shop.stuck", 0).await?;
        operators.force_function(quick, "count", "sql", "shop.count", 0).await?;
        execute(&operators.admin, "update jobs.functions set timeout_seconds = 900").await?;
        // More of them than there are places, and none of them ends.
        for about in 0..12 {
            operators.acquire(slow, "stuck", Some(&format!("{about:012x}"))).await?;
        }
        let settings = format!("sql_concurrency = {sql_concurrency}\nsql_tenant_concurrency = {share}");
        let _server = operators.serve("scheduler", &settings)?;
        let waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted
                          and database = (select oid from pg_database where datname = current_database())";
        eventually("the slow ones have their share", async || Ok(operators.count(waiting).await? == begun))
            .await?;
        let run = operators.acquire(quick, "count", None).await?;
        assert_eq!(operators.ends(run, "completed").await?.claims, 1, "{settings}");
        // The job runs of the slow tenant that do not fit here are left to other processes.
        let held = "select count(*) from jobs.job_runs where locked_by is not null";
        assert_eq!(operators.count(held).await?, begun, "{settings}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn long_sql_functions_leave_room_for_others_and_die_with_their_run() -> anyhow::Result<()> {
    let operators = shop().await?;
    // So many that every slot would be taken by those that wait for a connection.
    let settings = "concurrency = 6\ntenant_concurrency = 6\nsql_concurrency = 3\nsql_tenant_concurrency = 2\nlease_seconds = 1";
    let server = operators.serve("api,scheduler", settings)?;
    let mut gate = sqlx::PgConnection::connect(&operators.world.admin_url()).await?;
    execute(&mut gate, "select pg_advisory_lock(1), pg_advisory_lock(2)").await?;
    let waiting = |lock: i64| {
        format!(
            "select count(*) from pg_locks where locktype = 'advisory' and not granted and objid = {lock} and database = (select oid from pg_database where datname = current_database())"
        )
    };

    // Two that are cancelled: the server does not go on with them, and their connections are free.
    let mut cancelled = Vec::new();
    for name in ["x", "y"] {
        operators.put(
            &server,
            name,
            &json!({ "target": { "sql": "shop.waits" }, "timeout_seconds": 900 }),
        )?;
        cancelled.push(operators.invoke(&server, name, &json!({ "lock": 1 }))?);
    }
    eventually("both are at it", async || Ok(operators.count(&waiting(1)).await? == 2)).await?;
    for run in &cancelled {
        operators.call(&server, "POST", &format!("/job-runs/{run}/cancel"), &Value::Null)?.expect(200)?;
    }
    eventually("the server has given them up", async || Ok(operators.count(&waiting(1)).await? == 0)).await?;
    // One that is cancelled without a word: what it has done does not stay, because it may not end its run.
    operators.put(&server, "z", &json!({ "target": { "sql": "shop.waits" }, "timeout_seconds": 900 }))?;
    let late = operators.invoke(&server, "z", &json!({ "lock": 1 }))?;
    eventually("it is at it", async || Ok(operators.count(&waiting(1)).await? == 1)).await?;
    let unheard = format!("select jobs.cancel_run(tenancy.current_tenant_id(), '{late}', null, 'me')");
    assert_eq!(ask::<String>(&operators.app, operators.tenant, unheard).await?, "cancelled");
    execute(&mut gate, "select pg_advisory_unlock(1)").await?;
    eventually("it is through", async || Ok(operators.count(&waiting(1)).await? == 0)).await?;
    cancelled.push(late);

    let mut runs = Vec::new();
    for n in 0..12 {
        let name = format!("waits-{n}");
        operators.put(
            &server,
            &name,
            &json!({ "target": { "sql": "shop.waits" }, "timeout_seconds": 900 }),
        )?;
        runs.push(operators.invoke(&server, &name, &json!({ "lock": 2 }))?);
    }
    eventually("two are at it", async || Ok(operators.count(&waiting(2)).await? == 2)).await?;
    // The tenant's own other functions go on, and heartbeats are kept for longer than a lease.
    let held = "select min(heartbeat_at)::text from jobs.job_runs where locked_by is not null";
    let since = operators.text(held).await?;
    let noop = operators
        .call(&server, "POST", "/functions/noop/invoke", &json!({ "input": { "a": 1 } }))?
        .expect(200)?;
    assert_eq!(noop["result"], json!({ "a": 1 }));
    let beats = format!(
        "select count(*) from jobs.job_runs where heartbeat_at > '{since}'::timestamptz + interval '1500 milliseconds'"
    );
    eventually("they are kept", async || Ok(operators.count(&beats).await? == 2)).await?;

    execute(&mut gate, "select pg_advisory_unlock_all()").await?;
    for run in runs {
        let run = operators.ends(run, "completed").await?;
        assert_eq!((run.claims, run.retry_count), (1, 0), "{run:?}");
    }
    for run in cancelled {
        operators.ends(run, "cancelled").await?;
    }
    assert_eq!(operators.done("waits").await?, 12);
    Ok(())
}
