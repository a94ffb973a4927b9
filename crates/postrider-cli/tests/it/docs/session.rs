//! A shell that runs the code blocks of one page in order, as a reader who types them does.
//!
//! The shell has a home, a working directory and ports of its own: a path under `/tmp`, `/etc`, `/var` or `/usr/local` in a block becomes one in the
//! scratch directory, and each fixed port on loopback becomes a free one. The working directory looks like a clone whose binary is already
//! built, so `cargo` does nothing there. On a page that names `db.example.com`, this host is a new PostgreSQL server with the database `shop`, whose
//! owner is `admin` with the password `secret`; the superuser `postgres` has the password `super`. A command that fails ends the page, unless the page
//! says that it is refused.
//! All processes of the page carry a marker in their environment, by which they are ended whatever happens to the test.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, TcpListener},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use sqlx::Connection;

use super::{
    blocks::{Block, Usage},
    root,
};
use crate::{
    postgres::Postgres,
    world::{PATIENCE, postrider},
};

/// Maximum time for a page. Only a page that fails takes so long.
const PAGE_PATIENCE: Duration = Duration::from_secs(300);

/// The host that pages call their database server, and the port that stands for its own.
const DATABASE_HOST: &str = "db.example.com";
const DATABASE_PORT: u16 = 5432;

/// Name of the environment variable that marks the processes of a page.
const MARKER: &str = "DOCS_SESSION";

/// Prepares the shell. `$1` is the scratch directory.
const PRELUDE: &str = r#"
set -eEm -o pipefail
scratch=$1
trap 'code=$?; echo "$code ${BASH_SOURCE[0]##*/}:$LINENO: $BASH_COMMAND" > "$scratch/failed"' ERR
cd "$scratch/clone"
"#;

/// Scratch directory and processes of one page.
struct Session {
    marker: String,
    scratch: PathBuf,
    ports: Ports,
    /// The server that plays `db.example.com`.
    database: Option<Postgres>,
}

/// Runs the blocks of a page. Functions run once per hour of UTC, so a page that failed while an hour ended is run again.
pub fn run(page: &str, blocks: &[Block]) -> anyhow::Result<()> {
    let hour = || jiff::Timestamp::now().as_second() / 3600;
    let started = hour();
    match run_once(page, blocks) {
        Err(_) if hour() != started => run_once(page, blocks),
        ended => ended,
    }
}

fn run_once(page: &str, blocks: &[Block]) -> anyhow::Result<()> {
    let mut session = Session::new()?;
    if blocks.iter().any(|block| block.text.contains(DATABASE_HOST)) {
        session.start_database()?;
    }
    let script = session.script(page, blocks)?;
    let mut shell = session.start(&script)?;
    let status = session.wait_for(&mut shell);
    let failed = fs::read_to_string(session.scratch.join("failed")).unwrap_or_default();
    let status = status.with_context(|| session.said(blocks))?;
    ensure!(status.success(), "{page}: {status} {failed}\n{}", session.said(blocks));
    session.wait_for_quiet().with_context(|| page.to_owned())?;
    for (block, after) in blocks.iter().zip(blocks.iter().skip(1).map(Some).chain([None])) {
        let output = fs::read_to_string(session.file(block, "out")).unwrap_or_default();
        let below = after.filter(|after| after.usage == Usage::Output).map(|after| &*after.text);
        compare(&expected(block, below), &output)
            .with_context(|| format!("{page}: the block of line {}", block.line))?;
    }
    Ok(())
}

impl Session {
    fn new() -> anyhow::Result<Self> {
        let marker = uuid::Uuid::now_v7().simple().to_string();
        let scratch = std::env::temp_dir().join(format!("prdocs-{marker}"));
        for folder in [
            "clone/target/debug",
            "bin",
            "home",
            "blocks",
            "tmp",
            "etc/bash_completion.d",
            "etc/systemd/system",
            "var/backups",
            "var/lib",
            "usr/local/bin",
            "usr/local/share/man/man1",
        ] {
            fs::create_dir_all(scratch.join(folder))?;
        }
        // The servers of embedded mode run as another user where the tests run as root.
        fs::set_permissions(&scratch, fs::Permissions::from_mode(0o755))?;
        let session = Self { marker, scratch, ports: Ports::default(), database: None };
        session.start_watchdog()?;
        let clone = session.scratch.join("clone");
        for folder in ["docs", "packaging"] {
            if let Ok(folder) = fs::canonicalize(root().join(folder)) {
                symlink(&folder, clone.join(folder.file_name().unwrap_or_default()))?;
            }
        }
        symlink(postrider().get_program(), clone.join("target/debug/postrider"))?;
        symlink("debug", clone.join("target/release"))?;
        // The lowest layer of settings, so that a page without a data directory does not use this machine's.
        let data_dir = session.scratch.join("data");
        fs::write(clone.join("postrider.toml"), format!("data_dir = '{}'\n", data_dir.display()))?;
        let cargo = session.scratch.join("bin/cargo");
        fs::write(
            &cargo,
            "#!/bin/sh\n[ \"$*\" = 'build -p postrider-cli' ] || [ \"$*\" = 'build --release -p postrider-cli' ]\n",
        )?;
        fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755))?;
        Ok(session)
    }

    fn start_database(&mut self) -> anyhow::Result<()> {
        let port = self.ports.free(DATABASE_PORT)?;
        let start = async {
            let database = Postgres::start_listening(port).await?;
            let mut connection = sqlx::PgConnection::connect(&database.url("postgres")).await?;
            for statement in [
                "alter role postgres password 'super'",
                "create role admin login createrole createdb password 'secret'",
                "create database shop owner admin",
            ] {
                sqlx::raw_sql(statement).execute(&mut connection).await?;
            }
            anyhow::Ok(database)
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        self.database = Some(runtime.block_on(start)?);
        Ok(())
    }

    /// Ends the page's processes and removes its files when this process is gone before it could do so.
    fn start_watchdog(&self) -> anyhow::Result<()> {
        let script = r#"
            while kill -0 "$1" 2>/dev/null; do [ -d "$2" ] || exit 0; sleep 0.3; done
            for process in /proc/[0-9]*; do
                if grep -qz "^$3$" "$process/environ" 2>/dev/null; then kill -KILL "${process#/proc/}" 2>/dev/null; fi
            done
            rm -rf "$2"
        "#;
        let mut watchdog = Command::new("setsid");
        watchdog.args(["sh", "-c", script, "watchdog", &std::process::id().to_string()]);
        watchdog.arg(&self.scratch).arg(format!("{MARKER}={}", self.marker));
        watchdog.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        watchdog.spawn().context("failed to start the watchdog")?;
        Ok(())
    }

    /// Writes each block to a file and returns the script that runs them. A line has the same number there as in the page.
    fn script(&mut self, page: &str, blocks: &[Block]) -> anyhow::Result<String> {
        let mut script = PRELUDE.to_owned();
        for block in blocks {
            let database = format!("127.0.0.1:{DATABASE_PORT}");
            let text = block.text.replace(DATABASE_HOST, &database);
            let text = move_paths(&self.ports.substitute(&text)?, &self.scratch);
            let place = format!("{}:{}", page.rsplit('/').next().unwrap_or(page), block.line);
            let file = self.scratch.join("blocks").join(&place);
            let (out, err) = (self.file(block, "out"), self.file(block, "err"));
            script += &format!("exec >'{}' 2>'{}'\n", out.display(), err.display());
            let above = "\n".repeat(block.line);
            match &block.usage {
                Usage::Shell => {
                    fs::write(&file, above + &assert_refusals(&text))?;
                    script += &format!(". '{}'\n", file.display());
                }
                Usage::Sql => {
                    let above = "\n".repeat(block.line - 1);
                    let psql =
                        r#"psql -X -v ON_ERROR_STOP=1 "${DB:?is set by no block above this SQL}" <<'SQL'"#;
                    fs::write(&file, format!("{above}{psql}\n{text}SQL\n"))?;
                    script += &format!(". '{}'\n", file.display());
                }
                Usage::Configuration => {
                    fs::write(&file, text)?;
                    script += &format!(
                        "env -u POSTRIDER_CONFIG postrider --config '{}' --print-config\n",
                        file.display()
                    );
                }
                Usage::File(name) => {
                    fs::write(&file, text)?;
                    script += &format!("cp --remove-destination '{}' '{name}'\n", file.display());
                }
                Usage::Json | Usage::Rust | Usage::Output | Usage::Shown => {}
            }
        }
        Ok(script)
    }

    fn file(&self, block: &Block, extension: &str) -> PathBuf {
        self.scratch.join("blocks").join(format!("{}.{extension}", block.line))
    }

    fn start(&self, script: &str) -> anyhow::Result<Child> {
        let file = self.scratch.join("page.sh");
        fs::write(&file, script)?;
        let program = PathBuf::from(postrider().get_program());
        let built = program.parent().context("the binary is in no directory")?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = [self.scratch.join("bin"), self.scratch.join("usr/local/bin"), built.to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&path));
        let path = std::env::join_paths(path.chain([PathBuf::from("/usr/sbin")]))?;
        let mut shell = Command::new("bash");
        shell.args(["--norc", "--noprofile"]).arg(&file).arg(&self.scratch);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["POSTRIDER_", "PG", "CARGO", "NEXTEST"].iter().any(|prefix| name.starts_with(prefix)) {
                shell.env_remove(name);
            }
        }
        shell
            .env("PATH", path)
            .env("HOME", self.scratch.join("home"))
            .env("TMPDIR", self.scratch.join("tmp"));
        shell.env(MARKER, &self.marker);
        let shell = shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        shell.context("failed to start bash")
    }

    fn wait_for(&self, shell: &mut Child) -> anyhow::Result<std::process::ExitStatus> {
        let deadline = Instant::now() + PAGE_PATIENCE;
        loop {
            if let Some(status) = shell.try_wait()? {
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "the page did not end within {PAGE_PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(20)); // between two checks of the child
        }
    }

    /// Waits until no process of the page is left: servers and private clusters end when they are told to.
    fn wait_for_quiet(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = processes_with(&self.marker);
            if left.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the page left processes running: {left:?}");
            std::thread::sleep(Duration::from_millis(20)); // between two checks of the processes
        }
    }

    /// The last lines of output of the blocks that ran.
    fn said(&self, blocks: &[Block]) -> String {
        let mut said = String::new();
        for block in blocks {
            for stream in ["out", "err"] {
                let text = fs::read_to_string(self.file(block, stream)).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                if !lines.is_empty() {
                    let from = lines.len().saturating_sub(30);
                    said += &format!("--- line {}, {stream}:\n{}\n", block.line, lines[from..].join("\n"));
                }
            }
        }
        said
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for (pid, _) in processes_with(&self.marker) {
            let _ = Command::new("kill").args(["-KILL", &pid]).stderr(Stdio::null()).status();
        }
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// Ids and command lines of the running processes that carry a marker.
fn processes_with(marker: &str) -> Vec<(String, String)> {
    let marked = format!("{MARKER}={marker}");
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let carries = |process: &Path| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == marked.as_bytes())
    };
    processes
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|process| carries(process))
        .map(|process| {
            let line = fs::read(process.join("cmdline")).unwrap_or_default();
            let pid = process.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (pid, String::from_utf8_lossy(&line).replace('\0', " "))
        })
        .collect()
}

/// Replaces each fixed port on loopback, the same port by the same one throughout a page.
#[derive(Default)]
struct Ports {
    /// The free port for each written one, and the lock file that keeps other pages from choosing it.
    chosen: BTreeMap<u16, (u16, Option<fs::File>)>,
}

impl Ports {
    fn substitute(&mut self, text: &str) -> anyhow::Result<String> {
        let mut substituted = text.to_owned();
        for before in ["127.0.0.1:", "\"port\": "] {
            substituted = self.substitute_after(before, &substituted)?;
        }
        Ok(substituted)
    }

    fn substitute_after(&mut self, before: &str, text: &str) -> anyhow::Result<String> {
        let mut pieces = text.split(before);
        let mut substituted = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let digits = piece.len() - piece.trim_start_matches(|char: char| char.is_ascii_digit()).len();
            substituted += before;
            match piece[..digits].parse() {
                Ok(0) | Err(_) => substituted += piece,
                Ok(written) => substituted += &format!("{}{}", self.free(written)?, &piece[digits..]),
            }
        }
        Ok(substituted)
    }

    /// A port outside the range from which the system gives ports to clients.
    fn free(&mut self, written: u16) -> anyhow::Result<u16> {
        if let Some((port, _)) = self.chosen.get(&written) {
            return Ok(*port);
        }
        let user = fs::metadata("/proc/self")?.uid();
        let locks = std::env::temp_dir().join(format!("postrider-docs-ports-{user}"));
        fs::create_dir_all(&locks)?;
        let seed = uuid::Uuid::new_v4().as_u128();
        for step in 0..8_000 {
            let port = 20_000 + u16::try_from((seed % 8_000 + step) % 8_000)?;
            let lock = fs::File::create(locks.join(port.to_string()))?;
            if lock.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                self.chosen.insert(written, (port, Some(lock)));
                return Ok(port);
            }
        }
        bail!("no free port for {written}")
    }
}

/// Moves the paths that a page writes to into the scratch directory.
fn move_paths(text: &str, scratch: &Path) -> String {
    const MOVED: [&str; 4] = ["/tmp/", "/etc/", "/var/", "/usr/local/"];
    let mut moved = String::new();
    let mut rest = text;
    while let Some(at) = MOVED.iter().filter_map(|path| rest.find(path)).min() {
        moved += &rest[..at];
        // It may be a part of a longer path or of an address, such as `$HOME/tmp/` or `https://example.com/etc/`.
        if !moved.ends_with(|char: char| char.is_alphanumeric() || "}._-/".contains(char)) {
            moved += &scratch.display().to_string();
        }
        moved += "/";
        rest = &rest[at + 1..];
    }
    moved + rest
}

/// Turns a command that the page says is refused into one that must fail.
fn assert_refusals(text: &str) -> String {
    let line = |line: &str| match line.split_once("# refused") {
        Some((command, _)) if !command.trim().is_empty() => format!(
            "refusal=0; {} || refusal=$?; [ $refusal -ge 1 -a $refusal -le 100 ]\n",
            command.trim_end()
        ),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// The lines of output that a page shows for a block: in its comments, and in the block below it.
fn expected<'a>(block: &'a Block, below: Option<&'a str>) -> Vec<&'a str> {
    let shows = |line: &&str| ["{", "[", "…"].iter().any(|begin| line.starts_with(begin));
    let comments = block.text.lines().filter_map(|line| line.trim().strip_prefix("# ")).filter(shows);
    let comments = comments.filter(|_| block.usage == Usage::Shell);
    comments.chain(below.unwrap_or_default().lines().filter(|line| !line.trim().is_empty())).collect()
}

/// Checks that the output has each of these lines, in this order.
fn compare(expected: &[&str], output: &str) -> anyhow::Result<()> {
    let mut lines = output.lines();
    for wanted in expected {
        ensure!(
            lines.any(|line| matches(wanted, line)),
            "the output has no line\n  {wanted}\nin its place:\n{output}"
        );
    }
    Ok(())
}

/// Whether a line is as shown. `…` stands for any text, and any amount of space for any other.
fn matches(shown: &str, line: &str) -> bool {
    let spaced = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (shown, line) = (spaced(shown), spaced(line));
    let mut parts = shown.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn run_text(page: &str) -> anyhow::Result<()> {
    run("page.md", &super::blocks::blocks(page)?)
}

#[test]
fn a_page_fails_at_its_first_failing_command_and_says_where() {
    let error = |page: &str| format!("{:#}", run_text(page).unwrap_err());
    assert!(error("text\n```sh\ntrue\nls /nowhere | cat\n```\n").contains("page.md:2:4: "));
    assert!(error("```sh\ntrue   # refused: it cannot be\necho more\n```\n").contains("page.md:1:2: "));
    assert!(error("```sh\necho one\n# {\"two\": …}\n```\n").contains("the output has no line"));
    assert!(error("```sh\necho one\n```\n```text output\ntwo\n```\n").contains("the output has no line"));
    assert!(error("```toml\nbogus = 1\n```\n").contains("bogus"));
    assert!(error("```sql\nselect 1;\n```\n").contains("is set by no block above"));
}

#[test]
fn blocks_of_a_page_share_a_shell_and_its_jobs_end_with_it() -> anyhow::Result<()> {
    run_text(
        "```sh\ncargo build -p postrider-cli && export PATH=$PWD/target/debug:$PATH\nA=1; sleep 1000 &\nfalse  # refused: as it says\n```\n\
         ```toml file=a.toml\ndata_dir = \"/tmp/data\"\n```\n\
         ```sh\necho $A: 127.0.0.1:8080 /tmp/x; postrider --config a.toml --print-config\n```\n\
         ```text output\n1: 127.0.0.1:2… /…/tmp/x\ndata_dir = \"…/tmp/data\"\n```\n\
         ```sh\nkill %1\n```\n",
    )
}

#[test]
fn only_whole_paths_are_moved() {
    let moved = |text: &str| move_paths(text, Path::new("/var/tmp/scratch"));
    assert_eq!(
        moved("a=/tmp/x '/etc/y' /tmp/z"),
        "a=/var/tmp/scratch/tmp/x '/var/tmp/scratch/etc/y' /var/tmp/scratch/tmp/z"
    );
    assert_eq!(moved("$HOME/tmp/x https://example.com/etc/y"), "$HOME/tmp/x https://example.com/etc/y");
}

#[test]
fn an_ellipsis_stands_for_any_text() {
    assert!(matches("a … c", "a b c"));
    assert!(matches("{…\"b\":1…", "{\"a\":2,\"b\":1,\"c\":3}"));
    assert!(matches("a    b", "a b"));
    assert!(!matches("a … c", "a b d"));
    assert!(!matches("a", "a b"));
}
