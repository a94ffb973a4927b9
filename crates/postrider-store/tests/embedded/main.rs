//! The private cluster, with real server programs. Everything here holds for root and for ordinary users.

mod helper;
mod place;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::Context;
use postrider_store::postgres::embedded::{Cluster, EmbeddedError, Options, SUPERUSER, Stopped};
use rustix::process::{Signal, geteuid};

use helper::{Helper, helper_command, on_a_disk_of_its_own};
use place::{Place, ask, is_alive, kill, mode, run, wait_until};

#[test]
fn a_fresh_start_answers_and_its_stop_leaves_nothing() -> anyhow::Result<()> {
    let place = Place::new()?;
    let cluster = place.start()?;
    let (pid, socket_dir) = (cluster.postmaster_pid(), cluster.socket_dir().to_owned());
    let url = cluster.url(SUPERUSER, "postgres");

    assert!(cluster.started_here());
    assert_eq!(ask(&url, "select current_user::text || current_database()")?, "postgrespostgres");
    let settings = "select concat_ws(',', current_setting('listen_addresses'), current_setting('fsync'), \
                    current_setting('data_checksums'), current_setting('server_encoding'))";
    assert_eq!(ask(&url, settings)?, ",on,on,UTF8");
    let psql = Command::new("psql").args([&url, "-Atc", "select 'libpq'"]).output()?;
    assert_eq!(String::from_utf8(psql.stdout)?.trim(), "libpq", "{}", String::from_utf8_lossy(&psql.stderr));

    assert_eq!(mode(&socket_dir)?, 0o700);
    assert_eq!(mode(&place.data().join("pg"))?, 0o700);
    assert_eq!(mode(&place.data())?, if geteuid().is_root() { 0o711 } else { 0o700 });

    assert_eq!(cluster.stop()?, Stopped::ShutDown);
    assert!(!is_alive(pid));
    assert!(!socket_dir.exists());
    assert_eq!(place.names()?, ["lock", "pg", "postgres.log", "users"].map(str::to_owned).into());
    Ok(())
}

#[test]
fn settings_reach_the_server_and_cannot_make_it_unsafe() -> anyhow::Result<()> {
    let place = Place::new()?;
    let wanted = [("cluster_name", "it's $HOME"), ("fsync", "off"), ("listen_addresses", "*")];
    let settings = wanted.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let cluster = Cluster::start_or_adopt(&Options { settings, ..place.options() })?;
    let told = "select concat_ws(',', current_setting('cluster_name'), current_setting('fsync'), \
                current_setting('listen_addresses'))";
    assert_eq!(ask(&cluster.url(SUPERUSER, "postgres"), told)?, "it's $HOME,on,");
    cluster.stop()?;
    Ok(())
}

/// The process group and the session as `/proc` tells them: `0` for one of outside this container.
fn group_and_session(process: &Path) -> anyhow::Result<(String, String)> {
    let stat = fs::read_to_string(process.join("stat"))?;
    let after_name = stat.rsplit_once(") ").context("stat")?.1;
    let ids: Vec<&str> = after_name.split(' ').collect(); // state, parent, group, session
    Ok((ids[2].to_owned(), ids[3].to_owned()))
}

#[test]
fn the_server_is_detached_from_our_terminal_our_locks_and_our_rights() -> anyhow::Result<()> {
    let place = Place::new()?;
    let cluster = place.start()?;
    let process = PathBuf::from(format!("/proc/{}", cluster.postmaster_pid()));

    let (theirs, ours) = (group_and_session(&process)?, group_and_session(Path::new("/proc/self"))?);
    assert_ne!(theirs.0, ours.0, "our Ctrl-C reaches it");
    assert_ne!(theirs.1, ours.1, "our hang-up reaches it");

    let status = fs::read_to_string(process.join("status"))?;
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    assert!(!of("Uid:").starts_with("0\t"), "it is root");
    assert!(!geteuid().is_root() || of("Groups:").is_empty(), "it has groups of root: {}", of("Groups:"));

    for fd in fs::read_dir(process.join("fd"))? {
        let target = match fs::read_link(fd?.path()) {
            // A running server closes files as it goes; what it closed it does not hold.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            target => target?,
        };
        assert!(!target.ends_with("lock") && !target.ends_with("users"), "inherited {}", target.display());
    }
    cluster.stop()?;
    Ok(())
}

#[test]
fn a_running_cluster_is_adopted_and_the_last_one_out_stops_it() -> anyhow::Result<()> {
    let place = Place::new()?;
    let first = place.start()?;
    let second = place.start()?;
    let pid = first.postmaster_pid();
    assert!(!second.started_here());
    assert_eq!(second.postmaster_pid(), pid);
    assert_eq!(second.url("u", "d"), first.url("u", "d"));

    assert_eq!(first.stop()?, Stopped::LeftRunning);
    assert_eq!(ask(&second.url(SUPERUSER, "postgres"), "select 'up'")?, "up");
    assert_eq!(second.stop()?, Stopped::ShutDown);
    assert!(!is_alive(pid));
    Ok(())
}

#[test]
fn a_cluster_left_by_a_dropped_handle_is_adopted() -> anyhow::Result<()> {
    let place = Place::new()?;
    let dropped = place.start()?;
    let pid = dropped.postmaster_pid();
    drop(dropped);

    let adopted = place.start()?;
    assert!(!adopted.started_here());
    assert_eq!(adopted.postmaster_pid(), pid);
    assert_eq!(ask(&adopted.url(SUPERUSER, "postgres"), "select 'up'")?, "up");
    assert_eq!(adopted.stop()?, Stopped::ShutDown);
    Ok(())
}

#[test]
fn a_cluster_left_by_a_killed_process_is_adopted() -> anyhow::Result<()> {
    let place = Place::new()?;
    let mut killed = Helper::spawn("use", &place.data())?;
    let (_, pid) = killed.uses()?;
    killed.child.kill()?;
    killed.child.wait()?;
    // Ends only when nobody holds the other end: the server must not.
    killed.output.read_to_string(&mut String::new())?;

    let adopted = place.start()?;
    assert!(!adopted.started_here());
    assert_eq!(adopted.postmaster_pid(), pid);
    assert_eq!(adopted.stop()?, Stopped::ShutDown);
    Ok(())
}

#[test]
fn processes_that_start_and_stop_at_once_share_one_server() -> anyhow::Result<()> {
    let place = Place::new()?;
    let mut helpers = Vec::new();
    for _ in 0..4 {
        helpers.push(Helper::spawn("use", &place.data())?);
    }
    let uses = helpers.iter_mut().map(Helper::uses).collect::<anyhow::Result<Vec<_>>>()?;
    let pids: BTreeSet<u32> = uses.iter().map(|(_, pid)| *pid).collect();
    assert_eq!(uses.iter().filter(|(started, _)| *started).count(), 1, "{uses:?}");
    assert_eq!(pids.len(), 1, "{uses:?}");

    for helper in &mut helpers {
        drop(helper.child.stdin.take());
    }
    let ends = helpers.iter_mut().map(|helper| helper.line("stopped")).collect::<anyhow::Result<Vec<_>>>()?;
    assert_eq!(ends.iter().filter(|end| *end == "ShutDown").count(), 1, "{ends:?}");
    assert!(pids.into_iter().all(|pid| !is_alive(pid)));
    Ok(())
}

#[test]
fn a_stale_pid_file_does_not_hinder() -> anyhow::Result<()> {
    let place = Place::new()?;
    place.start()?.stop()?;
    let mut gone = Command::new("true").spawn()?;
    gone.wait()?;
    for content in [place.pid_file_naming(gone.id()), String::new(), "garbage\n".to_owned()] {
        place.write_as_server(&place.pid_file(), &content)?;
        let cluster = place.start().with_context(|| format!("after {content:?}"))?;
        assert!(cluster.started_here());
        assert_eq!(cluster.stop()?, Stopped::ShutDown);
    }
    Ok(())
}

#[test]
fn a_pid_file_that_names_a_live_stranger_does_not_hinder_nor_harm_it() -> anyhow::Result<()> {
    let place = Place::new()?;
    place.start()?.stop()?;
    // Of the server's user: the server itself overlooks processes of others.
    let owner = fs::metadata(place.data().join("pg"))?;
    let mut sleep = Command::new("sleep");
    sleep.arg("600");
    if geteuid().is_root() {
        sleep.uid(owner.uid()).gid(owner.gid());
    }
    let mut stranger = sleep.spawn()?;
    place.write_as_server(&place.pid_file(), &place.pid_file_naming(stranger.id()))?;

    let started = place.start();
    let unharmed = stranger.try_wait()?.is_none();
    stranger.kill()?;
    stranger.wait()?;
    assert!(unharmed);
    assert_eq!(started?.stop()?, Stopped::ShutDown);
    Ok(())
}

#[test]
fn a_pid_file_that_names_another_cluster_does_not_hinder_nor_harm_it() -> anyhow::Result<()> {
    let (place, other) = (Place::new()?, Place::new()?);
    place.start()?.stop()?;
    let stranger = other.start()?;
    place.write_as_server(&place.pid_file(), &place.pid_file_naming(stranger.postmaster_pid()))?;

    let cluster = place.start()?;
    assert!(cluster.started_here());
    assert_ne!(cluster.postmaster_pid(), stranger.postmaster_pid());
    assert_eq!(ask(&stranger.url(SUPERUSER, "postgres"), "select 'unharmed'")?, "unharmed");
    cluster.stop()?;
    stranger.stop()?;
    Ok(())
}

#[test]
fn committed_rows_survive_a_killed_server() -> anyhow::Result<()> {
    let place = Place::new()?;
    let cluster = place.start()?;
    let url = cluster.url(SUPERUSER, "postgres");
    run(&url, "create table kept (what text); insert into kept values ('committed')")?;
    let (pid, old_socket_dir) = (cluster.postmaster_pid(), cluster.socket_dir().to_owned());
    kill(pid, Signal::KILL)?;

    let again = place.start()?;
    assert!(again.started_here());
    assert!(!old_socket_dir.exists(), "the killed server's socket is left");
    assert_eq!(ask(&again.url(SUPERUSER, "postgres"), "select what from kept")?, "committed");
    // The old handle is still a user, and its stop is not the last.
    assert_eq!(cluster.stop()?, Stopped::LeftRunning);
    assert_eq!(again.stop()?, Stopped::ShutDown);
    Ok(())
}

// A busy process does not notice that its server is gone, and keeps the next one from starting.
#[test]
fn a_busy_orphan_of_a_killed_server_is_ended() -> anyhow::Result<()> {
    let place = Place::new()?;
    let cluster = place.start()?;
    let url = cluster.url(SUPERUSER, "postgres");
    let busy = thread::spawn({
        let url = url.clone();
        move || run(&url, "do $$ begin loop end loop; end $$")
    });
    let find = "select coalesce(max(pid), 0)::text from pg_stat_activity where state = 'active' and query like 'do %'";
    wait_until("the orphan is busy", || ask(&url, find).is_ok_and(|pid| pid != "0"));
    let orphan: u32 = ask(&url, find)?.parse()?;
    kill(cluster.postmaster_pid(), Signal::KILL)?;
    drop(cluster);

    let again = place.start()?;
    assert!(!is_alive(orphan));
    assert!(busy.join().unwrap().is_err());
    assert_eq!(again.stop()?, Stopped::ShutDown);
    Ok(())
}

#[test]
fn a_server_that_lost_its_socket_is_started_anew() -> anyhow::Result<()> {
    let place = Place::new()?;
    let cluster = place.start()?;
    let pid = cluster.postmaster_pid();
    fs::remove_dir_all(cluster.socket_dir())?;
    drop(cluster);

    let again = place.start()?;
    assert!(again.started_here() && !is_alive(pid));
    assert_eq!(ask(&again.url(SUPERUSER, "postgres"), "select 'up'")?, "up");
    again.stop()?;
    Ok(())
}

#[test]
fn a_long_and_odd_data_directory_works() -> anyhow::Result<()> {
    let mut place = Place::new()?;
    place.data = place.root().join("x".repeat(200)).join("it's a \"$HOME\" `dir`, ö");
    let cluster = place.start()?;
    assert_eq!(ask(&cluster.url(SUPERUSER, "postgres"), "select 'up'")?, "up");
    assert_eq!(place.start()?.stop()?, Stopped::LeftRunning);
    assert_eq!(cluster.stop()?, Stopped::ShutDown);
    Ok(())
}

#[test]
fn the_leftovers_of_an_interrupted_initdb_do_not_hinder() -> anyhow::Result<()> {
    let place = Place::new()?;
    let leftover = place.data().join("pg.new-abc123");
    fs::create_dir_all(leftover.join("base"))?;
    fs::write(leftover.join("PG_VERSION"), "15\n")?;
    let cluster = place.start()?;
    assert!(!leftover.exists());
    assert_eq!(cluster.stop()?, Stopped::ShutDown);
    Ok(())
}

#[test]
fn missing_programs_are_named_with_the_command_that_installs_them() -> anyhow::Result<()> {
    let place = Place::new()?;
    let empty = place.root().join("empty");
    fs::create_dir(&empty)?;
    let error = place.fail(&Options { bin_dir: Some(empty), ..place.options() })?;
    assert!(matches!(&error, EmbeddedError::MissingBinaries { .. }), "{error}");
    assert!(error.to_string().contains("install"), "{error}");
    assert!(!place.data().exists());
    Ok(())
}

#[test]
fn a_server_that_is_too_old_is_refused() -> anyhow::Result<()> {
    let place = Place::new()?;
    let bin_dir = Some(place.programs("echo 'postgres (PostgreSQL) 13.4 (Debian 13.4-1)'")?);
    let error = place.fail(&Options { bin_dir, ..place.options() })?;
    assert!(matches!(&error, EmbeddedError::TooOld { found, .. } if found == "13.4"), "{error}");
    assert!(!place.data().exists());
    Ok(())
}

#[test]
fn data_of_a_version_that_cannot_be_run_is_left_alone() -> anyhow::Result<()> {
    for (version, said) in [("99\n", "PostgreSQL 99"), ("13\n", "needs 15"), ("what\n", "damaged")] {
        let place = Place::new()?;
        let pgdata = place.data().join("pg");
        fs::create_dir_all(&pgdata)?;
        fs::write(pgdata.join("PG_VERSION"), version)?;
        if geteuid().is_root() {
            std::os::unix::fs::chown(&pgdata, Some(65534), Some(65534))?;
        }
        let error = place.fail(&place.options())?;
        let is_expected =
            matches!(error, EmbeddedError::MajorNotInstalled { .. } | EmbeddedError::DataDir { .. });
        assert!(is_expected && error.to_string().contains(said), "{error}");
        assert_eq!(fs::read_dir(&pgdata)?.count(), 1);
    }
    Ok(())
}

#[test]
fn files_where_the_data_should_be_are_refused_and_left_alone() -> anyhow::Result<()> {
    let place = Place::new()?;
    fs::write(place.data(), "a file")?;
    let below = Options { data_dir: place.data().join("below"), ..Options::default() };
    for options in [place.options(), below] {
        let error = place.fail(&options)?;
        assert!(matches!(&error, EmbeddedError::DataDir { .. }), "{error}");
        assert!(error.to_string().contains("a file"), "{error}");
    }
    assert_eq!(fs::read_to_string(place.data())?, "a file");
    Ok(())
}

#[test]
fn data_of_another_user_is_refused() -> anyhow::Result<()> {
    let place = Place::new()?;
    fs::create_dir(place.data())?;
    symlink("/usr", place.data().join("pg"))?; // root's: neither we nor root's server may have it
    let error = place.fail(&place.options())?;
    let is_expected = matches!(error, EmbeddedError::OtherOwner { .. } | EmbeddedError::DataDir { .. });
    assert!(is_expected && error.to_string().contains("root"), "{error}");
    Ok(())
}

#[test]
fn a_private_parent_directory_only_hinders_root_and_is_named() -> anyhow::Result<()> {
    let place = Place::new()?;
    fs::set_permissions(place.root(), Permissions::from_mode(0o700))?;
    if geteuid().is_root() {
        let error = place.fail(&place.options())?;
        assert!(
            matches!(&error, EmbeddedError::Untraversable { parent, .. } if parent == place.root()),
            "{error}"
        );
        assert!(!place.data().exists());
    } else {
        assert_eq!(place.start()?.stop()?, Stopped::ShutDown);
    }
    Ok(())
}

#[test]
fn a_directory_that_cannot_be_written_is_refused() -> anyhow::Result<()> {
    let place = Place::new()?;
    // Root may write anywhere but here.
    let parent = if geteuid().is_root() { PathBuf::from("/sys/kernel") } else { place.root().join("locked") };
    if !geteuid().is_root() {
        fs::create_dir(&parent)?;
        fs::set_permissions(&parent, Permissions::from_mode(0o500))?;
    }
    for data_dir in [parent.join("data"), parent.join("deeper/data"), parent] {
        let error = place.fail(&Options { data_dir, ..Options::default() })?;
        assert!(matches!(&error, EmbeddedError::DataDir { .. }), "{error}");
    }
    Ok(())
}

#[test]
fn a_failed_initdb_leaves_nothing_and_a_full_disk_is_recognised() -> anyhow::Result<()> {
    let initdb_says = |what: &str| {
        format!(
            "case $0 in\n*postgres) echo 'postgres (PostgreSQL) 15.1' ;;\n\
             *initdb) touch $2/half; echo '{what}' >&2; exit 1 ;;\nesac"
        )
    };
    let place = Place::new()?;
    let bin_dir = Some(place.programs(&initdb_says("initdb: error: no luck"))?);
    let error = place.fail(&Options { bin_dir, ..place.options() })?;
    assert!(matches!(&error, EmbeddedError::Initdb { detail, .. } if detail == "no luck"), "{error}");
    assert!(!place.data().exists());

    fs::create_dir(place.data())?;
    let full = "FATAL:  could not extend file \"base/1\": No space left on device";
    let bin_dir = Some(place.programs(&initdb_says(full))?);
    let error = place.fail(&Options { bin_dir, ..place.options() })?;
    assert!(matches!(&error, EmbeddedError::DiskFull { .. }), "{error}");
    assert_eq!(place.names()?, ["lock", "users"].map(str::to_owned).into());
    Ok(())
}

#[test]
fn a_setting_the_server_refuses_is_told_and_leaves_no_process_and_no_socket() -> anyhow::Result<()> {
    let place = Place::new()?;
    let settings = vec![("no_such_setting".to_owned(), "1".to_owned())];
    let error = place.fail(&Options { settings, ..place.options() })?;
    assert!(
        matches!(&error, EmbeddedError::Start { detail, .. } if detail.contains("no_such_setting")),
        "{error}"
    );
    assert!(!place.data().join("socket").is_symlink());
    assert!(!place.pid_file().exists());
    assert_eq!(place.start()?.stop()?, Stopped::ShutDown);
    Ok(())
}

#[test]
fn a_server_that_does_not_come_up_in_time_is_stopped_again() -> anyhow::Result<()> {
    let place = Place::new()?;
    place.start()?.stop()?;
    // Recovery that waits for an archive that does not answer.
    let signal_file = place.data().join("pg/recovery.signal");
    place.write_as_server(&signal_file, "")?;
    let mut command = helper_command("fail", &place.data())?;
    command.env("PGCTLTIMEOUT", "2").env("HELPER_SETTINGS", "restore_command=exec sleep 600;hot_standby=off");
    let said = String::from_utf8(command.output()?.stdout)?;
    assert!(said.contains("not ready within 2 s"), "{said}");
    assert!(!place.pid_file().exists());
    assert!(!place.data().join("socket").is_symlink());

    fs::remove_file(signal_file)?;
    assert_eq!(place.start()?.stop()?, Stopped::ShutDown);
    Ok(())
}

#[test]
fn a_full_disk_is_told_before_anything_is_made() -> anyhow::Result<()> {
    on_a_disk_of_its_own("size=20M,mode=1777", "full-before")
}

#[test]
fn a_disk_that_is_full_before_a_start_is_told_and_the_data_survives() -> anyhow::Result<()> {
    on_a_disk_of_its_own("size=200M,mode=1777", "full-later")
}

// Space is left, but no more files can be made: only the server notices.
#[test]
fn a_disk_that_fills_up_during_initdb_is_told_and_nothing_is_left() -> anyhow::Result<()> {
    on_a_disk_of_its_own("size=300M,nr_inodes=400,mode=1777", "full-meanwhile")
}

#[test]
fn a_read_only_file_system_is_told() -> anyhow::Result<()> {
    on_a_disk_of_its_own("ro,size=200M,mode=1777", "read-only")
}
