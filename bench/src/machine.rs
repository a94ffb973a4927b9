//! Facts about the machine. The figures depend on it; the ratios mostly do not.

use std::{
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;

use crate::place::Place;

const SYNCS: usize = 200;

pub(crate) async fn facts(place: &Place) -> anyhow::Result<Vec<String>> {
    let database = place.fresh("bench_facts").await?;
    let mut admin = database.admin().await?;
    let version: String =
        sqlx::query_scalar("select current_setting('server_version')").fetch_one(&mut admin).await?;
    let settings: String = sqlx::query_scalar(
        "select string_agg(name || ' = ' || current_setting(name), ', ' order by name)
           from unnest(array['fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers', 'max_wal_size']) as name",
    )
    .fetch_one(&mut admin)
    .await?;
    drop(admin);
    database.remove().await?;
    let dir = place.dir().to_owned();
    let sync = tokio::task::spawn_blocking(move || fdatasync(&dir)).await??;
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    Ok(vec![
        format!("{cores} cores, load {} before the first measurement", load()),
        format!("PostgreSQL {version}: {settings}"),
        format!("fdatasync of 8 kB: {} µs", sync.as_micros()),
    ])
}

/// The median time of a small durable write beside the cluster's data.
fn fdatasync(dir: &Path) -> std::io::Result<Duration> {
    let path = dir.join("bench.sync");
    let mut file = std::fs::File::create(&path)?;
    file.write_all(&[0; 8192 * SYNCS])?;
    file.sync_all()?;
    let mut times = Vec::with_capacity(SYNCS);
    for at in 0..SYNCS {
        use std::os::unix::fs::FileExt;
        let begun = Instant::now();
        file.write_all_at(&[1; 8192], (at * 8192) as u64)?;
        file.sync_data()?;
        times.push(begun.elapsed());
    }
    drop(file);
    std::fs::remove_file(path)?;
    times.sort();
    Ok(times.get(SYNCS / 2).copied().unwrap_or_default())
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}

/// Processor time of a process, without its children.
pub(crate) fn processor_time(pid: u32) -> anyhow::Result<Duration> {
    Ok(Stat::read(&pid.to_string())?.own)
}

/// Processor time of a Postgres server: the postmaster, its child processes, and its ended child processes.
pub(crate) fn server_processor_time(postmaster: u32) -> anyhow::Result<Duration> {
    let first = Stat::read(&postmaster.to_string())?;
    let mut sum = first.own + first.ended_children;
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        // A process may end before its file is read.
        let Ok(stat) = Stat::read(&name.to_string_lossy()) else { continue };
        if stat.parent == postmaster {
            sum += stat.own;
        }
    }
    Ok(sum)
}

/// Peak memory of a process.
pub(crate) fn peak_memory_mb(pid: u32) -> anyhow::Result<f64> {
    status_mb(pid, "VmHWM:")
}

/// Current memory of a process.
pub(crate) fn memory_mb(pid: u32) -> anyhow::Result<f64> {
    status_mb(pid, "VmRSS:")
}

fn status_mb(pid: u32, name: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).context("no such line in status")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

/// `/proc/PID/stat`, as far as it is read here.
struct Stat {
    parent: u32,
    own: Duration,
    ended_children: Duration,
}

impl Stat {
    fn read(pid: &str) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name of the program, in parentheses, may contain any character, so the fields are counted after it.
        let (_, text) = text.rsplit_once(") ").context("no name in stat")?;
        let fields: Vec<&str> = text.split(' ').collect();
        let number =
            |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).context("a short stat");
        // Linux reports hundredths of a second here, for every clock frequency.
        let ticks = |at: usize| anyhow::Ok(Duration::from_millis(number(at)? * 10));
        Ok(Self {
            parent: u32::try_from(number(1)?)?,
            own: ticks(11)? + ticks(12)?,
            ended_children: ticks(13)? + ticks(14)?,
        })
    }
}
