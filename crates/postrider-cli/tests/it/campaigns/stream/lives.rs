//! Long lives of streams: silence, shutdown, keys that end, a database that goes away.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use postrider_model::tenancy::Role;
use postrider_store::{postgres::pool, tenancy::keys};

use super::{Stage, client::Reading, sequence};
use crate::{
    api::session::{OWN_PAGE, sign_in},
    postgres::Postgres,
    world::{MASTER_KEY, Server, World, eventually, postrider, run},
};

#[tokio::test]
async fn a_silent_stream_is_kept_alive() -> anyhow::Result<()> {
    let stage = Stage::with("keep_alive_seconds = 1").await?;
    let mut reading = stage.read(None).await?;
    assert!(reading.next().await?.unwrap().retry.is_some());
    for _ in 0..2 {
        let comment = reading.next().await?.unwrap();
        assert!(comment.is_comment && comment.id.is_none() && comment.data.is_empty(), "{comment:?}");
    }
    stage.write(1).await?;
    assert_eq!(sequence(&reading.event().await?)?, 1);
    Ok(())
}

#[tokio::test]
async fn a_server_that_ends_says_goodbye_and_is_not_held_up() -> anyhow::Result<()> {
    const READERS: usize = 50;
    let mut stage = Stage::new().await?;
    let mut readings = Vec::new();
    for _ in 0..READERS {
        readings.push(stage.read(None).await?);
    }
    stage.write(1).await?;
    for reading in &mut readings {
        assert_eq!(sequence(&reading.event().await?)?, 1);
    }
    stage.api.server.process.signal("TERM")?;
    let mut waits = HashSet::new();
    for reading in &mut readings {
        let last = reading.rest().await?.pop().unwrap();
        assert_eq!((last.event.as_deref(), &last.id), (Some("bye"), &None), "{last:?}");
        assert_eq!(last.json()?["reason"], "shutdown");
        let wait = last.retry.unwrap();
        assert!((1000..=3000).contains(&wait), "{wait}");
        waits.insert(wait);
    }
    assert!(waits.len() > READERS / 2, "all of them would come back at once: {waits:?}");
    assert_eq!(stage.api.server.process.wait()?.code(), Some(0));
    let lines = stage.api.server.process.lines().join("\n");
    assert!(!lines.contains("closed connections whose requests were not over"), "{lines}");
    Ok(())
}

#[tokio::test]
async fn a_stream_ends_with_its_key() -> anyhow::Result<()> {
    let stage = Stage::with("keep_alive_seconds = 1").await?;
    let tenant = &stage.api.acme;
    let mut going_on = stage.read(None).await?;
    let mut revoked = Reading::open(stage.url(), &stage.path(), &tenant.operator, &[]).await?;
    let mut expired = Reading::open(stage.url(), &stage.path(), &tenant.admin, &[]).await?;
    let end = "update tenancy.api_keys set revoked_at = now() where role = 'operator';
               update tenancy.api_keys set expires_at = created_at + interval '1 microsecond' where role = 'admin'";
    crate::sql::execute(&stage.api.admin, end).await?;
    for reading in [&mut revoked, &mut expired] {
        let last = reading.rest().await?.pop().unwrap();
        assert_eq!((last.event.as_deref(), &last.json()?["reason"]), (Some("bye"), &"key".into()));
    }
    stage.write(1).await?;
    assert_eq!(sequence(&going_on.event().await?)?, 1);
    Ok(())
}

#[tokio::test]
async fn a_stream_ends_with_its_session_and_with_the_key_of_its_session() -> anyhow::Result<()> {
    let stage = Stage::with("keep_alive_seconds = 3600").await?;
    let tenant = &stage.api.acme;
    let revoke_session =
        |id: &str| stage.api.call("DELETE", &format!("/sessions/{id}")).key(&tenant.admin).send();
    let revoke_key = |id: &str| stage.api.call("DELETE", &format!("/keys/{id}")).key(&tenant.admin).send();
    for way in ["session", "key"] {
        let cookie = sign_in(&stage.api, &serde_json::json!({ "key": tenant.operator }))?;
        let headers = [("cookie", cookie.as_str()), OWN_PAGE];
        let mut reading = Reading::open(stage.url(), &stage.path(), "", &headers).await?;
        assert_eq!(reading.status, 200);
        let whoami = headers
            .iter()
            .fold(stage.api.call("GET", "/whoami"), |call, (name, value)| call.header(name, value));
        let me = whoami.send()?.expect(200)?;
        let revoked = match way {
            "session" => revoke_session(me["session"]["id"].as_str().unwrap())?,
            _ => revoke_key(me["key_id"].as_str().unwrap())?,
        };
        revoked.expect(204)?;
        let last = reading.rest().await?.pop().unwrap();
        assert_eq!((last.event.as_deref(), &last.json()?["reason"]), (Some("bye"), &"key".into()), "{way}");
    }
    // Another page of the browser opens no stream.
    let cookie = sign_in(&stage.api, &serde_json::json!({ "key": tenant.viewer }))?;
    let foreign = [("cookie", cookie.as_str()), ("sec-fetch-site", "cross-site")];
    assert_eq!(Reading::open(stage.url(), &stage.path(), "", &foreign).await?.status, 403);
    Ok(())
}

#[tokio::test]
async fn an_idle_stream_ends_within_five_seconds_of_the_revocation_of_its_key() -> anyhow::Result<()> {
    // The stream is silent: no event and no comment wakes its reader.
    let stage = Stage::with("keep_alive_seconds = 3600").await?;
    let mut took = Vec::new();
    // The intervals of the checks add up to less than five seconds, which the compiler checks. A machine that is busy with other things
    // may delay one answer of three, and not two.
    for _ in 0..3 {
        let mut transaction = pool::begin_as(&stage.api.admin, stage.api.acme.id).await?;
        let (id, key) =
            keys::create(&mut transaction, stage.api.acme.id, "short", Role::Viewer, None, "test").await?;
        pool::commit(transaction).await?;
        let mut reading = Reading::open(stage.url(), &stage.path(), key.expose(), &[]).await?;
        let revoke = stage.api.call("DELETE", &format!("/keys/{}", id.0)).key(&stage.api.acme.admin);
        revoke.send()?.expect(204)?;
        let revoked_at = Instant::now();
        let last = reading.rest().await?.pop().unwrap();
        assert_eq!((last.event.as_deref(), &last.json()?["reason"]), (Some("bye"), &"key".into()));
        took.push(revoked_at.elapsed());
    }
    took.sort_unstable();
    assert!(took[1] <= Duration::from_secs(5), "the streams of revoked keys ended after {took:?}");
    Ok(())
}

#[tokio::test]
async fn nothing_is_lost_while_the_database_is_away() -> anyhow::Result<()> {
    let mut postgres = Postgres::start().await?;
    let admin_url = postgres.url("postgres");
    let migrated = run(postrider().args(["--database-url", &admin_url, "migrate"]))?;
    assert_eq!(migrated.code, 0, "{}", migrated.stderr);
    let config = tempfile::NamedTempFile::new()?;
    let (worker, app_url) = (postgres.url("postrider_worker"), postgres.url("postrider_app"));
    std::fs::write(
        config.path(),
        format!(
            "master_key = '{MASTER_KEY}'\n[database]\nurl = '{worker}'\napp_url = '{app_url}'\n[http]\nlisten = '127.0.0.1:0'\n[log]\nformat = 'json'\n[api]\nkeep_alive_seconds = 1\n"
        ),
    )?;
    let server = Server::start_with(config, "api")?;
    let admin = postrider_store::postgres::pool::connect(&admin_url, Default::default()).await?;
    let acme = crate::api::tenant(&admin, "acme").await?;
    let app = sqlx::PgPool::connect(&admin_url).await?;
    let campaign = super::campaign(&app, &acme, "spring").await?;
    let path = super::path(campaign);
    let mut reading = Reading::open(&server.http_url, &path, &acme.viewer, &[]).await?;
    let mut newest = 0;
    for is_crash in [false, true] {
        super::write(&app, &acme, campaign, 3).await?;
        for _ in 0..3 {
            newest += 1;
            assert_eq!(sequence(&reading.event().await?)?, newest);
        }
        // Committed, and perhaps not seen by anybody yet.
        super::write(&app, &acme, campaign, 3).await?;
        if is_crash {
            postgres.crash()?;
        } else {
            postgres.stop()?;
        }
        eventually("the server is not ready", async || {
            Ok(crate::http::get(&server.http_url, "/readyz")?.status == 503)
        })
        .await?;
        postgres.start_again().await?;
        let app = sqlx::PgPool::connect(&admin_url).await?;
        super::write(&app, &acme, campaign, 3).await?;
        for _ in 0..6 {
            newest += 1;
            assert_eq!(sequence(&reading.event().await?)?, newest);
        }
    }
    let app = sqlx::PgPool::connect(&admin_url).await?;
    assert_eq!(super::history(&app, &acme, campaign).await?.len() as i64, newest);
    Ok(())
}

#[tokio::test]
async fn a_process_that_serves_no_api_has_no_streams() -> anyhow::Result<()> {
    let world = World::new().await?;
    let server = Server::start(&world, "resolver", "")?;
    let reading = Reading::open(&server.http_url, &super::path(uuid::Uuid::now_v7()), "pr_x", &[]).await?;
    assert_eq!(reading.status, 404);
    Ok(())
}
