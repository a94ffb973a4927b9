//! What it was measured on. The figures do not travel; the ratios do, mostly.

use std::{
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

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
