//! The binary without a database URL: a private cluster that comes and goes with those who use it.

use std::{
    fs::Permissions,
    io::{Read, Write},
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

use crate::http::{connect, get, get_with_key};
use crate::sql::number;
use crate::world::{
    MASTER_KEY, Output, Process, Sim, World, eventually, postrider, run, run_with_input, watch,
};

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
        command.env_remove("POSTRIDER_WITNESS__DIR").arg("--data-dir").arg(self.data_dir()).args(args);
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
    let may_fill_the_disk = "select count(*) from unnest(array['lo_creat(integer)', 'lo_create(oid)', 'lo_from_bytea(oid, bytea)']) as function,
                                    unnest(array['postrider_app', 'postrider_worker', 'postrider_read', 'postrider_publish']) as role
                              where has_function_privilege(role, function, 'execute')";
    assert_eq!(number(&mut admin, may_fill_the_disk).await?, 0, "no role makes large objects");
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

#[test]
fn a_process_that_ends_leaves_the_run_file_to_those_that_still_serve() -> anyhow::Result<()> {
    let home = Home::new()?;
    let (mut first, one) = home.serve()?;
    let (mut second, two) = home.serve()?;
    assert_eq!(home.run_file()?, two, "the newest is named");
    stop(&mut second)?;
    assert_eq!(home.run_file()?, one, "the first still serves");

    // One that is killed cannot take its file back; the next one that ends does.
    let (mut third, three) = home.serve()?;
    assert_eq!(home.run_file()?, three);
    third.signal("KILL")?;
    third.wait()?;
    let (mut fourth, _) = home.serve()?;
    stop(&mut fourth)?;
    assert_eq!(home.run_file()?, one);
    assert_eq!(get(text(&one, "http_url")?, "/readyz")?.status, 200);
    stop(&mut first)?;
    assert!(!home.data_dir().join("run.json").exists());
    Ok(())
}

/// Commands that only read, with what they need.
const READING: &[&[&str]] = &[
    &["accounts", "check"],
    &["accounts", "list"],
    &["campaign", "export", "0190f3a2-7c1e-7f00-8000-0123456789ab"],
    &["campaign", "failures", "0190f3a2-7c1e-7f00-8000-0123456789ab"],
    &["campaign", "status"],
    &["campaign", "verify", "spring"],
    &["campaign", "watch", "spring"],
    &["channels", "dead"],
    &["channels", "links"],
    &["channels", "messages"],
    &["channels", "outbox"],
    &["channels", "show", "0190f3a2-7c1e-7f00-8000-0123456789ab"],
    &["channels", "executors"],
    &["doctor"],
    &["events", "list"],
    &["events", "stuck"],
    &["in-doubt", "list"],
    &["jobs", "alerts"],
    &["jobs", "cards"],
    &["jobs", "errors"],
    &["jobs", "function", "list"],
    &["jobs", "health"],
    &["jobs", "list"],
    &["jobs", "schedule", "list"],
    &["jobs", "schedule", "preview", "--cron", "@daily"],
    &["jobs", "schedule", "show", "0190f3a2-7c1e-7f00-8000-0123456789ab"],
    &["jobs", "show", "0190f3a2-7c1e-7f00-8000-0123456789ab"],
    &["keys", "list"],
    &["leads", "list"],
    &["leads", "show", "ada@example.org"],
    &["overview"],
    &["relay", "sinks"],
    &["tenants", "context", "acme"],
    &["tenants", "list"],
    &["trace", "spring"],
];

/// The commands that only read, by the program's own list.
fn commands_that_only_read() -> anyhow::Result<Vec<String>> {
    let source = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/cli/reading.rs"))?;
    let list =
        source.split("pub const COMMANDS: &[&str] = &[").nth(1).and_then(|rest| rest.split("];").next());
    let quoted = list.context("reading.rs has no list")?.split('"').skip(1).step_by(2);
    Ok(quoted.map(str::to_owned).collect())
}

#[test]
fn a_command_that_only_reads_makes_no_cluster() -> anyhow::Result<()> {
    let home = Home::new()?;
    let listed = commands_that_only_read()?;
    let is_of = |args: &[&str], path: &str| args.join(" ").starts_with(path);
    for path in &listed {
        assert!(READING.iter().any(|args| is_of(args, path)), "`{path}` is not tried here");
    }
    for args in READING {
        assert!(listed.iter().any(|path| is_of(args, path)), "{args:?} is no command that only reads");
    }
    for args in READING {
        if args.contains(&"preview") {
            // It needs no installation at all.
            home.run(args)?;
            assert!(!home.data_dir().exists(), "{args:?}");
            continue;
        }
        let refused = run(&mut home.command(args))?;
        assert_eq!((refused.code, refused.stdout.as_str()), (1, ""), "{args:?}: {}", refused.stderr);
        assert!(
            refused.stderr.contains(&format!("there is no installation in {}", home.data_dir().display()))
                && refused.stderr.contains("`postrider serve` makes one"),
            "{args:?}: {}",
            refused.stderr
        );
        assert!(!home.data_dir().exists(), "{args:?}");
    }
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
    home.run(&["tenants", "create", "acme"])?;
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

#[test]
fn the_master_key_of_the_data_directory_is_rotated_while_no_other_process_uses_it() -> anyhow::Result<()> {
    let home = Home::new()?;
    let add = [
        "accounts",
        "add",
        "mailer",
        "--provider",
        "resend",
        "--settings",
        r#"{"from": "news@example.com"}"#,
    ];
    let added = run_with_input(&mut home.command(&add), "secret")?;
    assert_eq!(added.code, 0, "{}", added.stderr);
    let file = home.data_dir().join("master.key");
    let first = std::fs::read_to_string(&file)?;

    let (mut server, _) = home.serve()?;
    let refused = run(&mut home.command(&["master-key", "rotate"]))?;
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("another process uses this data directory"), "{}", refused.stderr);
    assert_eq!(std::fs::read_to_string(&file)?, first);
    stop(&mut server)?;

    let rotated = home.run(&["master-key", "rotate"])?;
    assert!(rotated.stderr.contains("1 of accounts"), "{}", rotated.stderr);
    let second = std::fs::read_to_string(&file)?;
    assert_ne!(second, first);
    assert_eq!(home.mode("master.key")?, 0o600);
    assert!(!home.data_dir().join("master.key.next").exists());
    home.run(&["accounts", "check"])?;

    // A rotation that dies after its commit leaves the new key beside the old one, and the next process finds out.
    for (point, now_in_use) in [("master_key.resealed", false), ("master_key.rotated", true)] {
        let before = std::fs::read_to_string(&file)?;
        let died = run(home.command(&["master-key", "rotate"]).env("CRASH_AT", point))?;
        assert_eq!(died.code, -1, "{point}: {}", died.stderr);
        let next = std::fs::read_to_string(home.data_dir().join("master.key.next"))?;
        home.run(&["accounts", "check"])?;
        let (mut server, _) = home.serve()?;
        stop(&mut server)?;
        assert_eq!(std::fs::read_to_string(&file)?, if now_in_use { next } else { before }, "{point}");
        home.run(&["accounts", "check"])?;
    }
    home.run(&["doctor"])?;
    Ok(())
}

#[test]
fn a_process_that_may_open_no_more_files_does_not_take_its_postgres_for_dead() -> anyhow::Result<()> {
    let home = Home::new()?;
    let (mut server, run_file) = home.serve()?;
    let (postmaster, pid) = (home.postmaster(), server.child.id().to_string());
    // Fewer than are open already: nothing more can be opened.
    let limit = |files: &str| -> anyhow::Result<()> {
        let set = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={files}:")]).status()?;
        anyhow::ensure!(set.success(), "prlimit failed");
        Ok(())
    };
    limit("3")?;
    server.wait_for_line("cannot see whether the private Postgres runs; going on: ")?;
    limit("512")?;
    let url = run_file["http_url"].as_str().context("no URL")?;
    assert_eq!((get(url, "/healthz")?.status, get(url, "/readyz")?.status), (200, 200));
    assert_eq!(home.postmaster(), postmaster, "it is the same server");
    stop(&mut server)
}

#[test]
fn more_connections_than_open_files_leave_room_for_the_database() -> anyhow::Result<()> {
    const FILES: usize = 256;
    let home = Home::new()?;
    let mut limited = Command::new("sh");
    let serve = home.command(&["serve", "--listen", "127.0.0.1:0"]);
    limited.arg("-c").arg(format!("ulimit -n {FILES}; exec \"$0\" \"$@\""));
    limited.arg(serve.get_program()).args(serve.get_args()).current_dir("/");
    for (name, value) in serve.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let mut server = Process::start(&mut limited)?;
    server.wait_for_line("allows fewer HTTP connections than api.readers_max asks for")?;
    server.wait_for_line("postrider is serving at ")?;
    let run_file = home.run_file()?;
    let url = run_file["http_url"].as_str().context("no URL")?;
    let open = || -> anyhow::Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", server.child.id()))?.count())
    };
    let connections: Vec<_> = (0..FILES).map(|_| connect(url)).collect::<Result<_, _>>()?;
    // The first ones were accepted. Once no more are, there are still files to be opened.
    let (mut before, mut now) = (0, open()?);
    for (stream, address) in &connections {
        let mut stream = stream;
        write!(stream, "GET /readyz HTTP/1.1\r\nhost: {address}\r\n\r\n")?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        assert_eq!(String::from_utf8_lossy(&head), "HTTP/1.1 200");
        (before, now) = (now, open()?);
        assert!(now + 32 < FILES, "{now} of {FILES} files are open");
        if now == before && now >= FILES / 2 {
            break;
        }
    }
    assert!(now >= FILES / 2, "void: the connections were not accepted ({before}, {now})");
    drop(connections);
    assert_eq!(get(url, "/readyz")?.status, 200);
    stop(&mut server)
}

/// How often a message went out, by the provider's receipts; none twice.
fn received(sim: &Sim) -> anyhow::Result<usize> {
    let receipts = sim.receipts()?;
    let people: std::collections::BTreeSet<String> =
        receipts.iter().map(|receipt| receipt["to"].to_string()).collect();
    anyhow::ensure!(people.len() == receipts.len(), "a person was called twice");
    Ok(receipts.len())
}

/// Signals a server in the middle of a campaign. Its calls are answered once it has written this line.
async fn drains(
    signal: impl Fn(&Process, u32) -> anyhow::Result<()>,
    answered_after: &str,
) -> anyhow::Result<()> {
    const PEOPLE: usize = 60;
    const ANSWERED: usize = 10;
    const WINDOW: usize = 8;
    let sim = Sim::start(&[])?;
    sim.hold_after(ANSWERED)?;
    let home = Home::new()?;
    let file = |name: &str, text: String| -> anyhow::Result<String> {
        let path = home.outer.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.to_string_lossy().into_owned())
    };
    let settings = format!(r#"{{"url": "{}"}}"#, sim.http_url);
    let added = ["accounts", "add", "test", "--provider", "sim", "--no-secret", "--settings", &settings];
    let added = run(home.command(&added).env("POSTRIDER_OUTBOUND__ALLOW_PRIVATE", "true"))?;
    anyhow::ensure!(added.code == 0, "{}", added.stderr);
    let people: String = (0..PEOPLE).map(|n| format!("person{n}@example.org\n")).collect();
    home.run(&["campaign", "import", "--list", "all", &file("people.csv", format!("email\n{people}"))?])?;
    let campaign = "name = 'spring'\n[[phase]]\nphase = 'mail'\nchannel = 'email'\nlist = 'all'\nprovider_account = 'test'
                    content.subject = 'Hello'\ncontent.text = 'Spring is here.'";
    home.run(&["campaign", "create", &file("spring.toml", campaign.to_owned())?])?;
    home.run(&["campaign", "deploy", "spring"])?;
    let serve = || {
        let mut command = home.command(&["serve", "--listen", "127.0.0.1:0"]);
        command
            .env("POSTRIDER_OUTBOUND__ALLOW_PRIVATE", "true")
            .env("POSTRIDER_CAMPAIGNS__WINDOW", WINDOW.to_string())
            .process_group(0);
        command
    };
    let mut first = Process::start(&mut serve())?;
    first.wait_for_line("postrider is serving at ")?;
    let called = ANSWERED + WINDOW;
    eventually("calls are under way", async || Ok(received(&sim)? == called)).await?;
    signal(&first, home.postmaster().context("no Postgres")?)?;
    tokio::task::block_in_place(|| first.wait_for_line(answered_after))?;
    sim.release()?;
    let status = tokio::task::block_in_place(|| first.wait())?;
    anyhow::ensure!(status.success(), "{status}: {}", first.lines().join("\n"));
    assert_eq!(home.postmaster(), None, "it is down as well");
    assert_eq!(received(&sim)?, called, "a call began during the drain");

    // The resolver could settle a doubt from the receipts, so the log tells whether there ever was one.
    let second = Process::start(&mut serve())?;
    second.wait_for_line("postrider is serving at ")?;
    let url = home.run_file()?["database_url"].as_str().context("no URL")?.to_owned();
    let mut database = PgConnection::connect(&url).await?;
    let sent = "select count(*) from execution.channel_outbox where status = 'sent'";
    eventually("all are sent", async || {
        Ok(received(&sim)? == PEOPLE
            && number(&mut PgConnection::connect(&url).await?, sent).await? == PEOPLE as i64)
    })
    .await?;
    let doubted = "select count(*) from execution.campaign_audit_log where action = 'item.in_doubt'";
    assert_eq!(number(&mut database, doubted).await?, 0);
    assert_eq!(number(&mut database, "select max(attempts)::bigint from execution.job_queue").await?, 1);
    database.close().await?;
    let mut second = second;
    second.signal("TERM")?;
    anyhow::ensure!(tokio::task::block_in_place(|| second.wait())?.success());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_records_every_result_although_its_postgres_got_the_signal_too() -> anyhow::Result<()> {
    drains(
        |server, postmaster| {
            let both = [postmaster.to_string(), server.child.id().to_string()];
            anyhow::ensure!(Command::new("kill").arg("-TERM").args(both).status()?.success());
            Ok(())
        },
        "draining work in progress",
    )
    .await
}

/// The processes that this one started.
fn children(of: u32) -> anyhow::Result<Vec<u32>> {
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        if parent == Some(of) {
            children.push(pid);
        }
    }
    Ok(children)
}

// As systemd does with `KillMode=control-group`.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_records_every_result_although_every_process_of_its_control_group_got_the_signal()
-> anyhow::Result<()> {
    drains(
        |server, postmaster| {
            let mut all = children(postmaster)?;
            anyhow::ensure!(all.len() > 8, "void: these are not the sessions of a server: {all:?}");
            all.extend([postmaster, server.child.id()]);
            // A session may have ended meanwhile.
            Command::new("kill").arg("-TERM").args(all.iter().map(u32::to_string)).output()?;
            Ok(())
        },
        "started the private Postgres again",
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_from_the_terminal_reaches_the_server_and_not_its_postgres() -> anyhow::Result<()> {
    drains(
        |server, _| {
            let group = format!("-{}", server.child.id());
            anyhow::ensure!(Command::new("kill").args(["-INT", "--", &group]).status()?.success());
            Ok(())
        },
        "draining work in progress",
    )
    .await
}

#[tokio::test]
async fn with_a_database_url_nothing_is_ever_started_in_the_data_directory() -> anyhow::Result<()> {
    let world = World::new().await?;
    let home = Home::new()?;
    let url = world.admin_url();
    for args in [&["tenants", "create", "acme"][..], &["migrate"], &["events", "list"]] {
        home.run(&[&["--database-url", &url], args].concat())?;
    }
    let mut process = Process::start(
        home.command(&["serve", "--listen", "127.0.0.1:0"])
            .env("POSTRIDER_MASTER_KEY", MASTER_KEY)
            .env("POSTRIDER_DATABASE__URL", world.url("postrider_worker"))
            .env("POSTRIDER_DATABASE__APP_URL", world.url("postrider_app")),
    )?;
    process.wait_for_line("postrider is serving at ")?;
    let made: Vec<_> = std::fs::read_dir(home.data_dir())?.flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(made, ["witness"], "what a process knows is kept, and nothing is started");
    stop(&mut process)?;
    std::fs::remove_dir_all(home.data_dir())?;
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

#[test]
fn a_copied_data_directory_waits_for_adopt_and_the_original_goes_on() -> anyhow::Result<()> {
    const WAITS: &str = "restored copy: sending waits for adopt: the data directory is a copy";
    let (home, copy) = (Home::new()?, Home::new()?);
    let (mut process, _) = home.serve()?;
    stop(&mut process)?;
    let copied = Command::new("cp").arg("-a").arg(home.data_dir()).arg(copy.data_dir()).status()?;
    anyhow::ensure!(copied.success(), "cp failed");

    let (mut process, run) = copy.serve()?;
    process.wait_for_line(WAITS)?;
    // Reads go on.
    assert_eq!(get(text(&run, "http_url")?, "/readyz")?.status, 200);
    let doctor = run_in(&copy, &["doctor"])?;
    assert!(doctor.code == 1 && doctor.stdout.contains(WAITS), "{}", doctor.stdout);
    // The witness inside the copy cannot tell a copy from a move.
    let moved = run_in(&copy, &["adopt", "--moved", "--yes"])?;
    assert!(moved.code == 1 && moved.stderr.contains("adopt without it"), "{}", moved.stderr);
    let adopted = copy.run(&["adopt", "--yes", "--json"])?;
    assert!(adopted.stdout.contains(r#""adopted": true"#), "{}", adopted.stdout);
    process.wait_for_line("sending continues")?;
    stop(&mut process)?;
    let (mut process, _) = copy.serve()?;
    assert!(!process.lines().iter().any(|line| line.contains(WAITS)));
    stop(&mut process)?;

    let (mut process, _) = home.serve()?;
    assert!(!process.lines().iter().any(|line| line.contains(WAITS)));
    stop(&mut process)
}

fn run_in(home: &Home, args: &[&str]) -> anyhow::Result<Output> {
    run(&mut home.command(args))
}
