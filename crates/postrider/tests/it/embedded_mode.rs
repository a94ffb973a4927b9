//! The binary without a database URL: a private cluster that comes and goes with those who use it.

use std::{
    fs::Permissions,
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::PathBuf,
    process::Command,
};

use anyhow::Context;
use serde_json::Value;
use sqlx::{Connection, PgConnection};

use crate::http::{get, get_with_key};
use crate::world::{Output, Process, World, postrider, run, run_with_input, watch};

const NOBODY: u32 = 65534;

/// A data directory that is gone with its test, and with it whatever runs there.
struct Home {
    outer: tempfile::TempDir,
    /// A copy of the binary that this user may run, and who that is.
    another: Option<(PathBuf, u32)>,
}

impl Home {
    fn new() -> anyhow::Result<Self> {
        let outer =
            tempfile::Builder::new().prefix("pr-").permissions(Permissions::from_mode(0o755)).tempdir()?;
        watch(&outer.path().join("data"), std::process::id())?;
        Ok(Self { outer, another: None })
    }

    /// For an ordinary user. Root becomes one, and everybody else is.
    fn of_an_ordinary_user() -> anyhow::Result<Self> {
        let mut home = Self::new()?;
        if std::fs::metadata("/proc/self")?.uid() == 0 {
            let copy = home.outer.path().join("postrider");
            std::fs::copy(env!("CARGO_BIN_EXE_postrider"), &copy)?;
            std::fs::create_dir(home.data_dir())?;
            chown(home.data_dir(), Some(NOBODY), Some(NOBODY))?;
            home.another = Some((copy, NOBODY));
        }
        Ok(home)
    }

    fn data_dir(&self) -> PathBuf {
        self.outer.path().join("data")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = postrider();
        if let Some((program, user)) = &self.another {
            command = Command::new(program);
            command
                .env_clear()
                .env("PATH", "/usr/bin:/bin")
                .env("HOME", "/nonexistent")
                .current_dir("/")
                .uid(*user)
                .gid(*user);
        }
        command.arg("--data-dir").arg(self.data_dir()).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> anyhow::Result<Output> {
        let output = run(&mut self.command(args))?;
        anyhow::ensure!(output.code == 0, "{args:?}: {}", output.stderr);
        Ok(output)
    }

    fn serve(&self) -> anyhow::Result<(Process, Value)> {
        let process = Process::start(&mut self.command(&["serve", "--listen", "127.0.0.1:0"]))?;
        process.wait_for_line("postrider is serving at ")?;
        Ok((process, self.run_file()?))
    }

    fn run_file(&self) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&std::fs::read_to_string(self.data_dir().join("run.json"))?)?)
    }

    /// The server's main process, while it runs.
    fn postmaster(&self) -> Option<u32> {
        let pid = std::fs::read_to_string(self.data_dir().join("pg/postmaster.pid"))
            .ok()?
            .lines()
            .next()?
            .parse()
            .ok()?;
        is_alive(pid).then_some(pid)
    }

    fn mode(&self, file: &str) -> anyhow::Result<u32> {
        Ok(std::fs::metadata(self.data_dir().join(file))?.mode() & 0o7777)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let Some(pid) = self.postmaster() else { return };
        let socket_dir = std::fs::read_link(self.data_dir().join("socket"));
        let _ = Command::new("kill").args(["-QUIT", &pid.to_string()]).status();
        while self.postmaster().is_some() {
            std::thread::yield_now();
        }
        let _ = socket_dir.map(std::fs::remove_dir_all);
    }
}

/// Whether a process runs. One that has ended and that nobody has asked about yet does not.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

fn text<'a>(run: &'a Value, field: &str) -> anyhow::Result<&'a str> {
    run[field].as_str().with_context(|| format!("no {field} in {run}"))
}

fn stop(process: &mut Process) -> anyhow::Result<()> {
    process.signal("TERM")?;
    let code = process.wait()?.code();
    anyhow::ensure!(code == Some(0), "exit {code:?}: {}", process.lines().join("\n"));
    Ok(())
}

async fn says_how_to_reach_it_and_leaves_nothing_running(home: Home) -> anyhow::Result<()> {
    let (mut process, run) = home.serve()?;
    assert_eq!(home.mode("run.json")?, 0o600);
    let fields: Vec<&str> = run.as_object().context("not an object")?.keys().map(String::as_str).collect();
    assert_eq!(fields, ["admin_key", "database_url", "http_url", "pid", "tenant_id", "workspace_id"]);
    assert_eq!(run["pid"], process.child.id());

    let database_url = text(&run, "database_url")?;
    let mut admin = PgConnection::connect(database_url).await?;
    let (name, workspace): (String, String) = sqlx::query_as(
        "select tenant.name, workspace.id::text from tenancy.tenants as tenant
           join tenancy.workspaces as workspace on workspace.tenant_id = tenant.id where tenant.id = $1::uuid",
    )
    .bind(text(&run, "tenant_id")?)
    .fetch_one(&mut admin)
    .await?;
    assert_eq!((name.as_str(), workspace.as_str()), ("default", text(&run, "workspace_id")?));
    let psql = Command::new("psql")
        .args(["-X", "-A", "-t", "-d", database_url, "-c", "show fsync; show listen_addresses"])
        .output()?;
    assert_eq!(String::from_utf8(psql.stdout)?, "on\n\n", "durable, and not on the network");
    let who = get_with_key(text(&run, "http_url")?, "/api/v2/whoami", text(&run, "admin_key")?)?.json()?;
    assert_eq!((&who["tenant_id"], &who["role"]), (&run["tenant_id"], &"admin".into()));
    admin.close().await?;

    let socket_dir = std::fs::read_link(home.data_dir().join("socket"))?;
    let postmaster = home.postmaster().context("no server runs")?;
    assert_ne!(std::fs::metadata(format!("/proc/{postmaster}"))?.uid(), 0);
    stop(&mut process)?;
    assert!(!home.data_dir().join("run.json").exists() && !socket_dir.exists());
    assert_eq!(home.postmaster(), None);
    assert!(!is_alive(postmaster));
    Ok(())
}

#[tokio::test]
async fn a_private_server_says_how_to_reach_it_and_leaves_nothing_running() -> anyhow::Result<()> {
    says_how_to_reach_it_and_leaves_nothing_running(Home::new()?).await
}

#[tokio::test]
async fn a_private_server_of_an_ordinary_user_says_how_to_reach_it_and_leaves_nothing_running()
-> anyhow::Result<()> {
    says_how_to_reach_it_and_leaves_nothing_running(Home::of_an_ordinary_user()?).await
}

fn a_kill_leaves_the_cluster_to_the_next_command(home: &Home) -> anyhow::Result<()> {
    let (mut process, run) = home.serve()?;
    let postmaster = home.postmaster().context("no server runs")?;
    process.signal("KILL")?;
    process.wait()?;
    assert_eq!(home.postmaster(), Some(postmaster));

    let listed = home.run(&["--log", "info", "tenants", "list", "--json"])?;
    assert!(
        listed.stderr.contains("adopted the private Postgres")
            && listed.stderr.contains("stopped the private Postgres"),
        "{}",
        listed.stderr
    );
    assert_eq!(serde_json::from_str::<Value>(&listed.stdout)?[0]["id"], run["tenant_id"]);
    assert_eq!(home.postmaster(), None);

    // The next server tells its own address in place of the dead one's.
    let (mut next, run) = home.serve()?;
    assert_eq!(run["pid"], next.child.id());
    stop(&mut next)
}

#[test]
fn a_killed_server_leaves_its_cluster_and_the_next_command_adopts_and_stops_it() -> anyhow::Result<()> {
    a_kill_leaves_the_cluster_to_the_next_command(&Home::new()?)
}

#[test]
fn a_killed_server_of_an_ordinary_user_leaves_its_cluster_to_the_next_command() -> anyhow::Result<()> {
    a_kill_leaves_the_cluster_to_the_next_command(&Home::of_an_ordinary_user()?)
}

#[test]
fn two_servers_on_one_data_directory_share_the_cluster_and_the_last_one_stops_it() -> anyhow::Result<()> {
    let home = Home::new()?;
    let (mut first, one) = home.serve()?;
    let postmaster = home.postmaster();
    let (mut second, two) = home.serve()?;
    assert_eq!(home.postmaster(), postmaster);
    assert_eq!((&one["database_url"], &one["admin_key"]), (&two["database_url"], &two["admin_key"]));
    assert_ne!(one["http_url"], two["http_url"]);

    stop(&mut first)?;
    assert_eq!(home.postmaster(), postmaster);
    assert_eq!(get(text(&two, "http_url")?, "/readyz")?.status, 200);
    assert_eq!(home.run_file()?, two, "who leaves takes only its own file");
    // A command in between does not stop it either.
    home.run(&["doctor"])?;
    assert_eq!(get(text(&two, "http_url")?, "/readyz")?.status, 200);
    stop(&mut second)?;
    assert_eq!(home.postmaster(), None);
    assert!(!home.data_dir().join("run.json").exists());
    Ok(())
}

#[tokio::test]
async fn a_restart_keeps_tenants_events_and_the_admin_key() -> anyhow::Result<()> {
    let home = Home::new()?;
    home.run(&["tenants", "create", "acme"])?;
    // In a private installation commands are about tenant `default` unless they say otherwise.
    home.run(&["keys", "create", "ci"])?;
    let (mut process, before) = home.serve()?;
    assert_eq!(home.mode("admin.key")?, 0o600);
    home.run(&["events", "publish", "order.placed", "--aggregate-type", "order", "--aggregate-id", "42"])?;
    stop(&mut process)?;

    let (mut process, after) = home.serve()?;
    for same in ["admin_key", "tenant_id", "workspace_id"] {
        assert_eq!(before[same], after[same]);
    }
    assert_eq!(
        get_with_key(text(&after, "http_url")?, "/api/v2/whoami", text(&after, "admin_key")?)?.status,
        200
    );
    let tenants: Value = serde_json::from_str(&home.run(&["tenants", "list", "--json"])?.stdout)?;
    let names: Vec<&str> =
        tenants.as_array().unwrap().iter().filter_map(|tenant| tenant["name"].as_str()).collect();
    assert_eq!(names, ["default", "acme"]);
    let keys: Value = serde_json::from_str(&home.run(&["keys", "list", "--json"])?.stdout)?;
    let names: Vec<&str> = keys.as_array().unwrap().iter().filter_map(|key| key["name"].as_str()).collect();
    assert_eq!(names, ["embedded", "ci"], "a start makes no second key");
    let events: Value =
        serde_json::from_str(&home.run(&["events", "list", "--state", "pending", "--json"])?.stdout)?;
    assert_eq!(events.as_array().map(Vec::len), Some(1), "no sink is configured, so it waits");
    stop(&mut process)
}

#[test]
fn the_master_key_is_private_made_once_and_refused_when_others_can_read_it() -> anyhow::Result<()> {
    const SETTINGS: &str = r#"{"from": "news@example.com"}"#;
    let home = Home::new()?;
    home.run(&["tenants", "list"])?;
    assert!(!home.data_dir().join("master.key").exists(), "it is made when it is needed");
    // Several at once, of which one makes the key and the others must use it.
    let adding: Vec<_> = (0..4)
        .map(|n| {
            let mut command = home.command(&[
                "accounts",
                "add",
                &format!("mailer{n}"),
                "--provider",
                "resend",
                "--settings",
                SETTINGS,
            ]);
            std::thread::spawn(move || run_with_input(&mut command, "secret"))
        })
        .collect();
    for added in adding {
        let added = added.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        assert_eq!(added.code, 0, "{}", added.stderr);
    }
    assert_eq!(home.mode("master.key")?, 0o600);
    let checked = home.run(&["accounts", "check"])?;
    assert_eq!(checked.stderr, "4 secrets open under this master key\n");

    let file = home.data_dir().join("master.key");
    std::fs::set_permissions(&file, Permissions::from_mode(0o640))?;
    let refused = run(&mut home.command(&["accounts", "check"]))?;
    assert_eq!((refused.code, refused.stdout.as_str()), (1, ""));
    assert_eq!(
        refused.stderr,
        format!("error: {} can be read by others (mode 640); run `chmod 600` on it\n", file.display())
    );
    assert_eq!(home.postmaster(), None, "a refusal stops the cluster, too");
    let left: Vec<_> = std::fs::read_dir(home.data_dir())?.flatten().map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("new-")), "{left:?}");
    Ok(())
}

#[tokio::test]
async fn with_a_database_url_nothing_is_ever_started_in_the_data_directory() -> anyhow::Result<()> {
    let world = World::new().await?;
    let home = Home::new()?;
    let url = world.admin_url();
    for args in [&["tenants", "create", "acme"][..], &["doctor"], &["migrate"], &["events", "list"]] {
        home.run(&[&["--database-url", &url], args].concat())?;
    }
    let mut process = Process::start(
        home.command(&["serve", "--listen", "127.0.0.1:0"])
            .env("POSTRIDER_DATABASE__URL", world.url("postrider_worker"))
            .env("POSTRIDER_DATABASE__APP_URL", world.url("postrider_app")),
    )?;
    process.wait_for_line("postrider is serving at ")?;
    assert!(!home.data_dir().exists());
    stop(&mut process)?;
    // Nor when the database cannot be reached, nor when it comes from elsewhere than a flag.
    assert_eq!(
        run(&mut home.command(&["--database-url", "postgres://u@127.0.0.1:1/d", "tenants", "list"]))?.code,
        1
    );
    let output = run(home.command(&["tenants", "list"]).env("POSTRIDER_DATABASE__ADMIN_URL", &url))?;
    assert!(output.code == 0 && output.stdout.contains("acme"), "{}", output.stderr);
    assert!(!home.data_dir().exists());
    Ok(())
}

#[test]
fn input_that_is_wrong_is_refused_before_a_cluster_is_made() -> anyhow::Result<()> {
    let home = Home::new()?;
    for args in [
        &["events", "publish", "", "--aggregate-type", "order", "--aggregate-id", "1"][..],
        &["events", "publish", "a", "--aggregate-type", "order", "--aggregate-id", "1", "--payload", "{"],
        &["events", "close", "1", "--note", ""],
        &["accounts", "add", "sms", "--provider", "twilio"],
        &["accounts", "add", "sms", "--provider", "twilio", "--settings", "{"],
    ] {
        assert_eq!(run(&mut home.command(args))?.code, 1, "{args:?}");
        assert!(!home.data_dir().exists(), "{args:?}");
    }
    Ok(())
}

#[test]
fn a_server_whose_private_cluster_is_killed_says_so_and_the_next_one_goes_on() -> anyhow::Result<()> {
    let home = Home::new()?;
    home.run(&["tenants", "create", "acme"])?;
    let (mut process, _) = home.serve()?;
    let postmaster = home.postmaster().context("no postmaster")?;
    anyhow::ensure!(Command::new("kill").args(["-KILL", &postmaster.to_string()]).status()?.success());

    process.wait_for_line("the private Postgres (pid")?;
    assert_eq!(process.wait()?.code(), Some(1));
    assert!(!home.data_dir().join("run.json").exists());
    assert!(home.run(&["tenants", "list"])?.stdout.contains("acme"));
    assert_eq!(home.postmaster(), None);
    Ok(())
}
