//! How many connections a process opens, and where they do not fit.

use serde_json::Value;

use super::{
    SECRET,
    refusals::{Login, assert_refused},
};
use crate::{
    sql::{execute, number},
    world::{Output, Server, Sim, World, eventually, postrider, run},
};

/// The connections that all roles need by default, with a sink and without one.
const WITH_SINKS: i64 = 41;
const WITHOUT_SINKS: i64 = WITH_SINKS - 1;

/// Serves every role as this login, with these settings on top.
fn serve(world: &World, login: &str, more: &str) -> anyhow::Result<Output> {
    let mut command = postrider();
    command.env("POSTRIDER_DATABASE__URL", world.url(login)).env("POSTRIDER_LOG__FORMAT", "json");
    for (name, value) in more.split(' ').filter_map(|setting| setting.split_once('=')) {
        command.env(format!("POSTRIDER_{name}"), value);
    }
    run(command.args(["serve", "--listen", "127.0.0.1:0"]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_does_not_fit_the_server_is_refused() -> anyhow::Result<()> {
    let world = World::new().await?;
    let login = Login::create(&world, "in role postrider_app, postrider_worker").await?;
    let (admin, name, database) = (login.admin.clone(), login.name.clone(), world.database().to_owned());

    // The cluster of the tests allows 400.
    let refused = serve(&world, &name, "DATABASE__CONNECTIONS_MAX=100")?;
    assert_refused(&refused, "(max_connections = 400, of which 3 are reserved); raise max_connections to ");
    assert!(refused.stderr.contains("or lower database.connections_max"), "{}", refused.stderr);

    execute(&admin, format!("alter role {name} connection limit 20")).await?;
    assert_refused(&serve(&world, &name, "")?, &format!("the login `{name}` may have 20"));
    assert_refused(
        &serve(&world, &name, "")?,
        &format!("`alter role {name} connection limit {WITHOUT_SINKS}`"),
    );
    execute(&admin, format!("alter role {name} connection limit -1")).await?;

    execute(&admin, format!("alter database {database} connection limit 30")).await?;
    assert_refused(&serve(&world, &name, "")?, &format!("the database `{database}` allows 30"));
    login.drop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_counts_the_connections_of_each_role_and_says_what_does_not_fit() -> anyhow::Result<()> {
    let world = World::new().await?;
    let finding = |output: &Output| {
        let findings: Vec<Value> = serde_json::from_str(&output.stdout)?;
        anyhow::Ok(findings.into_iter().find(|finding| finding["check"] == "connections").unwrap())
    };
    let fits = finding(&world.doctor(&["--json"])?)?;
    let found = fits["found"].as_str().unwrap();
    for says in
        [format!("needs up to {WITHOUT_SINKS}: "), "campaigns 7".to_owned(), "scheduler 10".to_owned()]
    {
        assert!(found.contains(&says), "`{says}` is not in: {found}");
    }
    let mut large = postrider();
    large.env("POSTRIDER_DATABASE__CONNECTIONS_MAX", "100");
    let output = run(large.args(["--database-url", &world.admin_url(), "doctor", "--json"]))?;
    let refused = finding(&output)?;
    assert_eq!((output.code, refused["severity"].as_str()), (1, Some("failure")), "{refused}");
    assert!(refused["advice"].as_str().unwrap().contains("raise max_connections to "), "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_opens_no_more_connections_than_doctor_counts() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    let admin = world.client("postgres").await?;
    let all = "api,campaigns,resolver,dispatcher,relay,scheduler";
    let _server = Server::start(&world, all, &sim.sink("all", SECRET))?;
    let sessions = "select count(*) from pg_stat_activity \
                     where datname = current_database() and usename in ('postrider_app', 'postrider_worker')";
    // One of the listeners is for readers of event streams, and there are none.
    eventually("every listener listens", async || {
        let opened = number(&admin, sessions).await?;
        assert!(opened <= WITH_SINKS, "{opened} connections");
        Ok(number(&admin, format!("{sessions} and query ilike 'listen%'")).await? == 6)
    })
    .await?;
    for _ in 0..20 {
        super::publish(&world)?;
        let opened = number(&admin, sessions).await?;
        assert!(opened <= WITH_SINKS, "{opened} connections");
    }
    Ok(())
}
