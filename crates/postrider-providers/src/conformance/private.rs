//! A Postgres for one run of the suite, in a temporary directory.

use std::path::{Path, PathBuf};

use postrider_model::ids::TenantId;
use postrider_store::postgres::embedded::{Cluster, EmbeddedError, Options, Stopped};

/// Prefix of the directories; the process id and a unique part follow.
const PREFIX: &str = "postrider-conformance-";

/// A cluster that stops when this value is dropped. All functions block.
pub(super) struct PrivateCluster {
    cluster: Option<Cluster>,
}

impl PrivateCluster {
    /// Starts a cluster below this directory, and removes clusters there that killed processes left behind.
    pub fn start(below: &Path) -> Result<Self, EmbeddedError> {
        for left_behind in abandoned(below) {
            if let Ok(cluster) = start_in(left_behind) {
                end(cluster);
            }
        }
        let new = format!("{PREFIX}{}-{}", std::process::id(), TenantId::new().0.simple());
        // The server makes the directory, for the user that it runs as.
        Ok(Self { cluster: Some(start_in(below.join(new))?) })
    }

    pub fn url(&self, user: &str, database: &str) -> String {
        self.cluster.as_ref().map(|cluster| cluster.url(user, database)).unwrap_or_default()
    }
}

impl Drop for PrivateCluster {
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster.take() {
            // The caller may be an async runtime, which must not block.
            let _ = std::thread::spawn(move || end(cluster)).join();
        }
    }
}

fn start_in(data_dir: PathBuf) -> Result<Cluster, EmbeddedError> {
    Cluster::start_or_adopt(&Options { data_dir, ..Options::default() })
}

fn end(cluster: Cluster) {
    let data_dir = cluster.data_dir().to_owned();
    match cluster.stop() {
        Ok(Stopped::ShutDown) => drop(std::fs::remove_dir_all(data_dir)),
        Ok(Stopped::LeftRunning) => {}
        Err(error) => {
            tracing::warn!(%error, "the private Postgres in {} was not stopped", data_dir.display());
        }
    }
}

/// Directories of processes that no longer run, on systems with `/proc`.
fn abandoned(below: &Path) -> Vec<PathBuf> {
    let processes = Path::new("/proc");
    let is_gone = |name: &str| {
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
        process.is_some_and(|(id, _)| id.parse::<u32>().is_ok() && !processes.join(id).exists())
    };
    let entries = std::fs::read_dir(below).into_iter().flatten().flatten();
    entries
        .filter(|entry| processes.join("self").exists() && entry.file_name().to_str().is_some_and(is_gone))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Whether a process runs. A zombie does not.
    fn runs(process: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
    }

    #[test]
    fn a_cluster_ends_with_its_owner_and_its_start_removes_abandoned_clusters() {
        let below = tempfile::tempdir().unwrap();
        // The server may run as another user.
        std::fs::set_permissions(below.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let entries = || std::fs::read_dir(below.path()).unwrap().count();

        // No process has this id. Dropping a cluster leaves it running, as a kill would.
        let left_behind = start_in(below.path().join(format!("{PREFIX}4294967295-x"))).unwrap();
        let postmaster = left_behind.postmaster_pid();
        drop(left_behind);
        assert!(runs(postmaster));

        let private = PrivateCluster::start(below.path()).unwrap();
        let begun = std::time::Instant::now();
        while runs(postmaster) {
            assert!(begun.elapsed().as_secs() < 60, "the abandoned cluster does not stop");
            std::thread::yield_now();
        }
        assert_eq!(entries(), 1);
        // A cluster that is in use stays.
        drop(PrivateCluster::start(below.path()).unwrap());
        assert_eq!(entries(), 1);
        drop(private);
        assert_eq!(entries(), 0);
    }
}
