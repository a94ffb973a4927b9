//! Behind PgBouncer in transaction mode: statements of one session reach many servers, and everything still holds.

use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
};

use anyhow::Context;

use crate::{
    campaigns::stage::Stage,
    events::relay::publish,
    world::{MASTER_KEY, Process, Sim, World, eventually, postrider},
};

const SECRET: &str = "whsec_YmVoaW5kIGEgcG9vbGVyIHRoaXMga2V5IHNpZ25zIGFsbA==";

/// A pooler with a socket of its own, in front of the test's database.
struct Pooler {
    _process: Process,
    home: tempfile::TempDir,
}

impl Pooler {
    fn start(world: &World) -> anyhow::Result<Self> {
        let home = tempfile::Builder::new().prefix("pgb-").tempdir_in("/tmp")?;
        let path = home.path().display();
        std::fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
        let users = ["postrider_worker", "postrider_app"].map(|user| format!("\"{user}\" \"\"\n")).concat();
        std::fs::write(home.path().join("users.txt"), users)?;
        // Two server connections for all clients, so that consecutive transactions really change places.
        let config = format!(
            "[databases]\n* = host={} port=5432\n[pgbouncer]\nlisten_addr =\nunix_socket_dir = {path}\nlisten_port = 6432\n\
             auth_type = trust\nauth_file = {path}/users.txt\npool_mode = transaction\ndefault_pool_size = 2\n\
             server_round_robin = 1\nlogfile =\npidfile = {path}/pid\n",
            world.socket_dir().display()
        );
        std::fs::write(home.path().join("pgbouncer.ini"), config)?;
        let process = Process::start(&mut command(&home)).context(
            "cannot start pgbouncer; `scripts/setup tests` installs it with the system's packages",
        )?;
        process.wait_for_line("process up")?;
        Ok(Self { _process: process, home })
    }

    fn url(&self, world: &World, user: &str) -> String {
        let socket = self.home.path().display().to_string().replace('/', "%2F");
        format!("postgres://{user}@{socket}:6432/{}", world.database())
    }
}

/// PgBouncer refuses to run as root, and the cluster's socket belongs to the user that the server runs as.
fn command(home: &tempfile::TempDir) -> Command {
    let program = if std::path::Path::new("/usr/sbin/pgbouncer").exists() {
        "/usr/sbin/pgbouncer"
    } else {
        "pgbouncer"
    };
    let ini = home.path().join("pgbouncer.ini");
    let root =
        Command::new("id").arg("-u").stderr(Stdio::null()).output().is_ok_and(|out| out.stdout == b"0\n");
    let mut command = if root {
        let mut command = Command::new("setpriv");
        let known = Command::new("id").arg("postgres").stdout(Stdio::null()).stderr(Stdio::null()).status();
        let user = if known.is_ok_and(|status| status.success()) { "postgres" } else { "nobody" };
        command.args(["--reuid", user, "--clear-groups", program]);
        command
    } else {
        Command::new(program)
    };
    command.arg(ini);
    command
}

/// A server that reaches its database through the pooler, and listens for hints beside it.
fn serve(world: &World, pooler: &Pooler, more: &str) -> anyhow::Result<(Process, tempfile::NamedTempFile)> {
    let config = tempfile::NamedTempFile::new()?;
    let text = format!(
        "master_key = '{MASTER_KEY}'\n[database]\nurl = '{}'\napp_url = '{}'\nlisten_url = '{}'\n[http]\nlisten = '127.0.0.1:0'\n\
         [log]\nformat = 'json'\n{more}",
        pooler.url(world, "postrider_worker"),
        pooler.url(world, "postrider_app"),
        world.url("postrider_worker"),
    );
    std::fs::write(config.path(), text)?;
    let server = Process::start(postrider().arg("--config").arg(config.path()).arg("serve"))?;
    server.wait_for_line("postrider is serving at ")?;
    Ok((server, config))
}

#[tokio::test(flavor = "multi_thread")]
async fn campaigns_work_behind_a_pooler_in_transaction_mode() -> anyhow::Result<()> {
    let (world, sim) =
        (World::new().await?, Sim::start(&["--fault", "busy=0.05", "--fault", "refuse=0.05"])?);
    let pooler = Pooler::start(&world)?;
    let stage = Stage::with_sim(&world, &sim, 1500).await?;
    let (server, _config) = serve(&world, &pooler, "[outbound]\nallow_private = true\n")?;

    let run = stage.deploy_one("pooled", "email").await?;
    assert_eq!(stage.ended(run).await?, "partial");
    let acted = sim.receipts()?.into_iter().filter(|receipt| receipt["acted"] == true);
    let keys: Vec<String> = acted.filter_map(|receipt| receipt["key"].as_str().map(str::to_owned)).collect();
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len(), "a key was called twice");
    let items = stage.items(run).await?;
    assert_eq!(items.get("sent"), Some(&keys.len()), "{items:?}");
    assert_eq!(items.values().sum::<usize>(), 1500, "{items:?}");
    let complaints: Vec<String> =
        server.lines().into_iter().filter(|line| line.contains("\"ERROR\"")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_relay_works_behind_a_pooler_in_transaction_mode() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&["--secret", SECRET, "--fault", "fail=0.1"])?);
    let pooler = Pooler::start(&world)?;
    let admin = world.client("postgres").await?;
    let (server, _config) = serve(&world, &pooler, &sim.sink("pooled", SECRET))?;
    // A client cannot ask a pooler for its mode, so the log states the assumption.
    server.wait_for_line("the database is reached through a pooler or proxy")?;

    let published = publish(&world.client("postrider_app").await?, "order.placed", 500).await?;
    eventually("every event is processed", async || {
        let waiting = sqlx::query_scalar::<_, i64>(
            "select count(*) from m10_recovery.outbox where processed_at is null",
        );
        Ok(waiting.fetch_one(&admin).await? == 0)
    })
    .await?;
    let accepted = sim.receipts()?.into_iter().filter(|receipt| receipt["acted"] == true);
    let arrived: BTreeSet<String> =
        accepted.filter_map(|r| r["webhook_id"].as_str().map(str::to_owned)).collect();
    assert_eq!(arrived, published);
    let complaints: Vec<String> =
        server.lines().into_iter().filter(|line| line.contains("\"ERROR\"")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    Ok(())
}
