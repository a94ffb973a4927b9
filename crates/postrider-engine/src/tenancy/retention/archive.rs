//! Campaign runs that ended long ago.
//!
//! ```text
//! export to a file, if configured ──▶ archive_run: certificate frozen, no new job ──▶ prune_run … until nothing is left
//! ```
//!
//! Several processes may do this at once. Only the one whose `archive_run` inserts the row keeps its file, and rows are deleted only
//! after that row is committed, so a kept file has every row.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use postrider_model::ids::{RunId, TenantId};
use postrider_store::{Pool, StoreError, campaigns::archives, postgres::pool};
use tokio_util::sync::CancellationToken;

use super::{PAUSE, WINDOW};

/// Actor in the log.
const ACTOR: &str = "retention";

/// Archives the old runs of a tenant and deletes their rows. Returns how many rows were deleted.
pub(super) async fn sweep(
    pool: &Pool,
    shutdown: &CancellationToken,
    tenant: TenantId,
    before: Timestamp,
    export_dir: Option<&Path>,
) -> Result<i64, StoreError> {
    let mut reading = pool::begin_as(pool, tenant).await?;
    let runs = archives::old(&mut reading, tenant, before).await?;
    pool::commit(reading).await?;
    let mut removed = 0;
    for run in runs {
        if !run.is_archived && !archive(pool, tenant, run.id, before, export_dir).await? {
            continue;
        }
        loop {
            if shutdown.is_cancelled() {
                return Ok(removed);
            }
            let mut transaction = pool::begin_as(pool, tenant).await?;
            let step = archives::prune(&mut transaction, tenant, run.id, WINDOW).await?;
            pool::commit(transaction).await?;
            if step == 0 {
                break;
            }
            removed += step;
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(removed)
}

/// Exports a run and freezes its certificate. False if its rows must stay for now: the export failed, or another process archived it.
async fn archive(
    pool: &Pool,
    tenant: TenantId,
    run: RunId,
    before: Timestamp,
    export_dir: Option<&Path>,
) -> Result<bool, StoreError> {
    let Some(directory) = export_dir else {
        let mut transaction = pool::begin_as(pool, tenant).await?;
        let archived = archives::archive(&mut transaction, tenant, run, before, None, ACTOR).await?;
        pool::commit(transaction).await?;
        return Ok(archived);
    };
    let name = format!("{}/{}.ndjson", tenant.0, run.0);
    let file = directory.join(&name);
    let unfinished = file.with_extension(format!("{}.part", std::process::id()));
    let mut transaction = pool::begin_as(pool, tenant).await?;
    let written = match Export::create(unfinished.clone()) {
        Ok(mut export) => {
            let (lines, jobs) = archives::export_head(&mut transaction, tenant, run).await?;
            let mut written = export.write(&lines);
            for job in jobs {
                if written.is_err() {
                    break;
                }
                written = export.write(&archives::export_job(&mut transaction, tenant, job).await?);
            }
            written.and_then(|()| export.finish())
        }
        Err(error) => Err(error),
    };
    let archived = match written {
        Ok(()) => archives::archive(&mut transaction, tenant, run, before, Some(&name), ACTOR).await?,
        Err(error) => {
            tracing::warn!(
                %run, "failed to export run {run} to {}; its items stay: {error}", directory.display()
            );
            false
        }
    };
    if !archived {
        let _ = fs::remove_file(&unfinished);
        return Ok(false);
    }
    // Before the commit: rows are deleted only if the file is there.
    if let Err(error) = finish(&unfinished, &file) {
        tracing::warn!(%run, "failed to export run {run} to {}; its items stay: {error}", file.display());
        return Ok(false);
    }
    pool::commit(transaction).await?;
    Ok(true)
}

/// Gives the file its name, durably.
fn finish(unfinished: &Path, file: &Path) -> io::Result<()> {
    fs::rename(unfinished, file)?;
    file.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// A file that is being written.
struct Export(BufWriter<File>);

impl Export {
    fn create(path: PathBuf) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        Ok(Self(BufWriter::new(File::create(path)?)))
    }

    fn write(&mut self, lines: &[String]) -> io::Result<()> {
        for line in lines {
            self.0.write_all(line.as_bytes())?;
            self.0.write_all(b"\n")?;
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        self.0.flush()?;
        self.0.get_ref().sync_all()
    }
}
