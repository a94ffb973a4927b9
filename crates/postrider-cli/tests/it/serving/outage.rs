//! The database goes away under a running server, and comes back.

use crate::http::{get, get_with_key, request};
use crate::postgres::Postgres;
use crate::world::{MASTER_KEY, Server, Sim, eventually, postrider, run};

const SECRET: &str = "whsec_dGhlIGRhdGFiYXNlIGdvZXMgYW5kIGNvbWVzIGJhY2sgYWdhaW4=";

#[tokio::test]
async fn a_server_survives_a_restart_of_its_database() -> anyhow::Result<()> {
    let mut postgres = Postgres::start().await?;
    let admin_url = postgres.url("postgres");
    let migrated = run(postrider().args(["--database-url", &admin_url, "migrate"]))?;
    assert_eq!(migrated.code, 0, "{}", migrated.stderr);
    let made = super::json(&admin_url, &["tenants", "create", "acme"])?;
    let key = made["admin_key"].as_str().unwrap();
    let sim = Sim::start(&["--secret", SECRET])?;
    let config = tempfile::NamedTempFile::new()?;
    let (worker, app) = (postgres.url("postrider_worker"), postgres.url("postrider_app"));
    std::fs::write(
        config.path(),
        format!(
            "master_key = '{MASTER_KEY}'\n[database]\nurl = '{worker}'\napp_url = '{app}'\n[http]\nlisten = '127.0.0.1:0'\n[log]\nformat = 'json'\n{}",
            sim.sink("shop", SECRET)
        ),
    )?;
    let mut server = Server::start_with(config, "api,relay")?;
    let url = server.http_url.clone();
    assert_eq!(get_with_key(&url, "/api/v2/whoami", key)?.status, 200);

    postgres.stop()?;
    eventually("the server is not ready", async || Ok(get(&url, "/readyz")?.status == 503)).await?;
    assert!(get(&url, "/readyz")?.body.contains("not ready: the database "));
    assert_eq!(get(&url, "/healthz")?.status, 200);
    // The caller learns that it is not their fault; the log has the reason under the request's id.
    let headers = [("x-request-id", "during-the-outage"), ("authorization", &*format!("Bearer {key}"))];
    let failed = request(&url, "GET", "/api/v2/whoami", &headers)?;
    assert_eq!(failed.status, 503);
    assert!(
        !failed.body.contains(&postgres.url("postrider_app"))
            && failed.body.contains("its log has the reason"),
        "{}",
        failed.body
    );
    let line: serde_json::Value = serde_json::from_str(&server.process.wait_for_line("during-the-outage")?)?;
    assert_eq!(
        (&line["level"], &line["span"]["correlation_id"]),
        (&"ERROR".into(), &"during-the-outage".into())
    );

    postgres.start_again().await?;
    eventually("the server is ready again", async || Ok(get(&url, "/readyz")?.status == 200)).await?;
    assert_eq!(get_with_key(&url, "/api/v2/whoami", key)?.status, 200);
    let args = ["events", "publish", "order.placed", "--aggregate-type", "order", "--aggregate-id", "42"];
    assert_eq!(run(postrider().args(["--database-url", &admin_url]).args(args))?.code, 0);
    let admin = sqlx::PgPool::connect(&admin_url).await?;
    eventually("the relay works again", async || {
        Ok(sqlx::query_scalar("select processed_at is not null from m10_recovery.outbox")
            .fetch_one(&admin)
            .await?)
    })
    .await?;
    assert_eq!(sim.receipts()?.len(), 1);
    server.process.signal("TERM")?;
    assert_eq!(server.process.wait()?.code(), Some(0));
    Ok(())
}
