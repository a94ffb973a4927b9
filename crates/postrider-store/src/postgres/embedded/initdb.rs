//! Makes the cluster: beside its place first, then renamed, so that an incomplete one is never used.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::SUPERUSER;
use super::account::ServerUser;
use super::binaries::Binaries;
use super::errors::{EmbeddedError, complaint, io_error, reports_full_disk, unusable};
use super::home::{Home, UNFINISHED_PREFIX};

/// Makes the cluster in `pg/`.
pub(super) fn create(home: &Home, user: &ServerUser, binaries: &Binaries) -> Result<(), EmbeddedError> {
    home.must_have_space_to_create()?;
    // Removed when dropped, which happens on every return but the last.
    let unfinished = tempfile::Builder::new()
        .prefix(UNFINISHED_PREFIX)
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(home.dir())
        .map_err(unusable(home.dir()))?;
    user.own(unfinished.path()).map_err(io_error("change the owner of", unfinished.path()))?;

    // Not every system has the first.
    for locale in ["C.UTF-8", "C"] {
        match run(unfinished.path(), locale, user, binaries)? {
            Made::Whole => break,
            Made::Failed(output) if locale != "C" && output.contains("invalid locale") => {}
            Made::Failed(output) if reports_full_disk(&output) => {
                let detail = complaint(&output);
                return Err(EmbeddedError::DiskFull { path: home.dir().to_owned(), detail });
            }
            Made::Failed(output) => {
                return Err(EmbeddedError::Initdb {
                    path: home.dir().to_owned(),
                    detail: complaint(&output),
                });
            }
        }
    }

    let pgdata = home.pgdata();
    fs::rename(unfinished.path(), &pgdata).map_err(io_error("move the new cluster to", &pgdata))?;
    let _ = unfinished.keep();
    File::open(home.dir()).and_then(|dir| dir.sync_all()).map_err(io_error("sync", home.dir()))
}

enum Made {
    Whole,
    Failed(String),
}

fn run(into: &Path, locale: &str, user: &ServerUser, binaries: &Binaries) -> Result<Made, EmbeddedError> {
    let mut initdb = user.command(binaries.program("initdb"));
    initdb.arg("-D").arg(into);
    // Every user who reaches the socket is trusted; only our user and the server's do.
    initdb.args([
        "-U",
        SUPERUSER,
        "--auth=trust",
        "--encoding=UTF8",
        "--data-checksums",
        "--no-instructions",
    ]);
    initdb.arg(format!("--locale={locale}"));
    let output = user.run(&mut initdb)?;
    if output.status.success() {
        return Ok(Made::Whole);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Ok(Made::Failed(if said.trim().is_empty() {
        format!("initdb: {}", output.status)
    } else {
        said.into_owned()
    }))
}
