//! Runs a part of a test in a process of its own: this program again, with the part in the environment.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, ensure};
use postrider_store::postgres::embedded::{Cluster, EmbeddedError, Options, Stopped};
use rustix::process::geteuid;

use crate::place::Place;

#[test]
#[ignore = "a part of the other tests"]
fn play() -> anyhow::Result<()> {
    let data_dir = PathBuf::from(std::env::var_os("HELPER_DATA").context("not started by a test")?);
    let settings = std::env::var("HELPER_SETTINGS").unwrap_or_default();
    let pair = |text: &str| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let settings = settings.split(';').filter_map(pair).collect();
    let options = Options { data_dir: data_dir.clone(), bin_dir: None, settings };
    let fail = || Cluster::start_or_adopt(&options).err().context("it started");
    match std::env::var("HELPER_ROLE")?.as_str() {
        "use" => {
            let cluster = Cluster::start_or_adopt(&options)?;
            println!("\nusing {} {}", cluster.started_here(), cluster.postmaster_pid());
            std::io::stdin().read_to_end(&mut Vec::new())?;
            println!("\nstopped {:?}", cluster.stop()?);
        }
        "fail" => println!("\n{}", fail()?),
        "full-before" => {
            let error = fail()?;
            ensure!(matches!(error, EmbeddedError::DiskFull { .. }), "{error}");
            ensure!(error.to_string().contains("100 MB needed"), "{error}");
            ensure!(!data_dir.exists(), "something was made");
        }
        "full-meanwhile" => {
            let error = fail()?;
            ensure!(matches!(error, EmbeddedError::DiskFull { .. }), "{error}");
            ensure!(error.to_string().contains("No space left"), "{error}");
            ensure!(!data_dir.exists(), "something is left");
        }
        "full-later" => {
            Cluster::start_or_adopt(&options)?.stop()?;
            let filler = data_dir.with_file_name("filler");
            let mut fill = Command::new("head");
            fill.args(["-c", "400M", "/dev/zero"]).stdout(fs::File::create(&filler)?).stderr(Stdio::null());
            ensure!(!fill.status()?.success(), "the disk is not full");
            drop(fill); // and with it the open file
            let error = fail()?;
            ensure!(matches!(error, EmbeddedError::DiskFull { .. }), "{error}");
            ensure!(error.to_string().contains("32 MB needed"), "{error}");
            ensure!(!data_dir.join("pg/postmaster.pid").exists(), "a server runs");
            fs::remove_file(filler)?;
            ensure!(Cluster::start_or_adopt(&options)?.stop()? == Stopped::ShutDown);
        }
        "read-only" => {
            let error = fail()?;
            ensure!(matches!(error, EmbeddedError::DataDir { .. }), "{error}");
            ensure!(error.to_string().contains("read-only"), "{error}");
        }
        role => anyhow::bail!("no role {role}"),
    }
    println!("\nhelper is done");
    Ok(())
}

/// This test program, run again.
pub struct Helper {
    pub child: Child,
    pub output: BufReader<ChildStdout>,
}

impl Helper {
    pub fn spawn(role: &str, data: &Path) -> anyhow::Result<Self> {
        let mut child = helper_command(role, data)?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("stdout")?);
        Ok(Self { child, output })
    }

    /// The rest of the first line that begins with this word.
    pub fn line(&mut self, word: &str) -> anyhow::Result<String> {
        for line in self.output.by_ref().lines() {
            if let Some(rest) = line?.strip_prefix(word) {
                return Ok(rest.trim().to_owned());
            }
        }
        anyhow::bail!("the helper said nothing of `{word}`")
    }

    /// Whether it started the server, and the server's process.
    pub fn uses(&mut self) -> anyhow::Result<(bool, u32)> {
        let line = self.line("using")?;
        let (started, pid) = line.split_once(' ').context("two words")?;
        Ok((started.parse()?, pid.parse()?))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.child.stdin.take()); // it stops its cluster and ends
        let _ = self.child.wait();
    }
}

pub fn helper_command(role: &str, data: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "helper::play", "--ignored", "--nocapture"]).stdin(Stdio::null());
    command.env("HELPER_ROLE", role).env("HELPER_DATA", data);
    Ok(command)
}

/// Runs the helper where a small disk is mounted. Where the system allows no mounts, says so; the tests with
/// pretended programs and the unit tests hold the same sentences there.
pub fn on_a_disk_of_its_own(mount_options: &str, role: &str) -> anyhow::Result<()> {
    let namespace: &[&str] = if geteuid().is_root() {
        &["--mount"]
    } else {
        &["--mount", "--user", "--map-current-user", "--keep-caps"]
    };
    let place = Place::new()?;
    let mount = format!("mount -t tmpfs -o {mount_options} tmpfs {}", place.root().display());
    let probe = Command::new("unshare").args(namespace).args(["sh", "-c", &mount]).output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        eprintln!("this system allows no mounts: `{role}` is only tested with pretended programs");
        return Ok(());
    }
    let helper = helper_command(role, &place.data())?;
    let mut command = Command::new("unshare");
    command.args(namespace).args(["sh", "-c", &format!("{mount} && exec \"$@\""), "sh"]);
    command.arg(helper.get_program()).args(helper.get_args());
    command.envs(helper.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(said.contains("helper is done"), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
