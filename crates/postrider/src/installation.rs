//! Where the data is: a database somebody else runs, or a private cluster that we run.
//!
//! With a URL nothing is ever started. Without one, the data directory holds
//!
//! | file | what |
//! |---|---|
//! | `pg/`, `postgres.log` | the cluster |
//! | `master.key` | the key provider secrets are sealed under (0600) |
//! | `admin.key` | the API key of tenant `default` (0600) |
//! | `run.json` | how to reach the process that serves, while one does (0600) |

use std::{
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context;
use postrider_model::{
    ids::TenantId,
    seal::MasterKey,
    tenancy::{ApiKeySecret, Role},
};
use postrider_store::{
    Pool, doctor,
    embedded::{Cluster, Options, SUPERUSER},
    keys, migrate, pool, provision,
    tenants::{self, Tenant},
};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::config::Config;

/// The name of the database in a private cluster.
const DATABASE: &str = "postrider";
/// The tenant that a private installation begins with.
pub const DEFAULT_TENANT: &str = "default";

/// How long to wait for connections that do not come back.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// How often to look whether the private cluster is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Imports take turns, chunk by chunk, on so many connections, and wait so long for theirs.
const IMPORTS: pool::Settings =
    pool::Settings { connections_max: 2, acquire_timeout: Duration::from_secs(120) };

/// A database that is up, and the ways into it.
pub struct Installation {
    private: Option<Private>,
    urls: Urls,
    /// What was opened, so that it can be closed before the server goes away.
    pools: Mutex<Vec<Pool>>,
}

struct Private {
    cluster: Cluster,
    data_dir: PathBuf,
}

/// One URL per kind of work, least rights each.
struct Urls {
    admin: String,
    worker: String,
    app: String,
    listen: String,
}

/// What `run.json` says.
#[derive(Serialize, Deserialize)]
pub struct RunFile {
    pub database_url: String,
    pub http_url: String,
    pub tenant_id: uuid::Uuid,
    pub workspace_id: uuid::Uuid,
    pub admin_key: String,
    pub pid: u32,
}

impl Installation {
    /// Opens the database. A private cluster is started or adopted, migrated, and given its first tenant.
    pub async fn open(config: &Config) -> anyhow::Result<Self> {
        if config.database.url.is_some() || config.database.admin_url.is_some() {
            return Ok(Self { private: None, urls: given_urls(config), pools: Mutex::default() });
        }

        let data_dir = config.data_dir.clone().map_or_else(default_data_dir, Ok)?;
        let options = Options {
            data_dir: data_dir.clone(),
            bin_dir: config.database.bin_dir.clone(),
            settings: Vec::new(),
        };
        let is_new = !data_dir.join("pg").exists();
        let cluster = tokio::task::spawn_blocking(move || Cluster::start_or_adopt(&options)).await??;
        if is_new {
            tell!("no database URL is set: made a private PostgreSQL in {}", data_dir.display());
        }
        let urls = Urls {
            admin: cluster.url(SUPERUSER, DATABASE),
            worker: cluster.url("postrider_worker", DATABASE),
            app: cluster.url("postrider_app", DATABASE),
            listen: cluster.url("postrider_worker", DATABASE),
        };
        let maintenance = cluster.url(SUPERUSER, "postgres");
        let opened = Self { private: Some(Private { cluster, data_dir }), urls, pools: Mutex::default() };
        match opened.prepare(&maintenance).await {
            Ok(()) => Ok(opened),
            Err(error) => {
                opened.close().await?;
                Err(error)
            }
        }
    }

    async fn prepare(&self, maintenance: &str) -> anyhow::Result<()> {
        provision::ensure_database(maintenance, DATABASE).await?;
        migrate::run(&self.urls.admin).await?;
        self.default_tenant().await?;
        Ok(())
    }

    /// Leaves the database. The last process to leave a private cluster stops it.
    pub async fn close(self) -> anyhow::Result<()> {
        let pools = std::mem::take(&mut *self.pools.lock().unwrap_or_else(PoisonError::into_inner));
        for pool in pools {
            // A loop that was given up on may still hold a connection; the process ends without it.
            let _ = tokio::time::timeout(CLOSE_WITHIN, pool.close()).await;
        }
        if let Some(Private { cluster, .. }) = self.private {
            tokio::task::spawn_blocking(move || cluster.stop()).await??;
        }
        Ok(())
    }

    /// Waits until the private cluster is gone, and says so. Where somebody else runs the database, waits for ever.
    pub async fn lost(&self) -> anyhow::Error {
        let Some(Private { cluster, .. }) = &self.private else { return std::future::pending().await };
        while cluster.is_running() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        anyhow::anyhow!(
            "the private Postgres (pid {}) is gone; {} may say why; start again, what was committed is safe",
            cluster.postmaster_pid(),
            cluster.log_file().display()
        )
    }

    /// Whether we run the cluster ourselves.
    pub fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// For migrations, tenants and operators.
    pub fn admin_url(&self) -> &str {
        &self.urls.admin
    }

    /// A direct way to the server.
    pub fn listen_url(&self) -> &str {
        &self.urls.listen
    }

    /// One administrative connection, for commands. Refuses a schema that this version was not made for.
    pub async fn admin_pool(&self) -> anyhow::Result<Pool> {
        let pool = self.unchecked_admin_pool().await?;
        let mut transaction = pool::begin(&pool).await?;
        migrate::verify(&mut transaction).await?;
        doctor::require_operator(&mut transaction).await?;
        drop(transaction);
        Ok(pool)
    }

    /// The same to whatever schema there is, for who examines it.
    pub async fn unchecked_admin_pool(&self) -> anyhow::Result<Pool> {
        self.connect(&self.urls.admin, 1).await
    }

    /// For the loops.
    pub async fn worker_pool(&self, connections_max: u32) -> anyhow::Result<Pool> {
        self.connect(&self.urls.worker, connections_max).await
    }

    /// For HTTP requests.
    pub async fn app_pool(&self, connections_max: u32) -> anyhow::Result<Pool> {
        self.connect(&self.urls.app, connections_max).await
    }

    /// For HTTP requests that import.
    pub async fn import_pool(&self) -> anyhow::Result<Pool> {
        self.connect_with(&self.urls.app, IMPORTS).await
    }

    async fn connect(&self, url: &str, connections_max: u32) -> anyhow::Result<Pool> {
        self.connect_with(url, pool::Settings { connections_max, ..Default::default() }).await
    }

    async fn connect_with(&self, url: &str, settings: pool::Settings) -> anyhow::Result<Pool> {
        let pool = pool::connect(url, settings).await?;
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).push(pool.clone());
        Ok(pool)
    }

    /// The master key: from the configuration, or from the data directory, where it is made when it is missing.
    pub fn master_key(&self, config: &Config) -> anyhow::Result<MasterKey> {
        if let Some(key) = &config.master_key {
            return Ok(key.0.expose_secret().parse()?);
        }
        let Some(private) = &self.private else {
            anyhow::bail!(
                "provider secrets are sealed under a master key, and none is set; make one with `head -c 32 /dev/urandom | \
                 base64`, keep it, and set POSTRIDER_MASTER_KEY to it"
            );
        };
        let file = private.data_dir.join("master.key");
        if !file.exists() {
            make_private(&file, &MasterKey::generate()?.to_base64())?;
        }
        Ok(read_private(&file)?.parse::<MasterKey>()?)
    }

    /// The tenant `default` of a private installation and an admin key that works.
    async fn default_tenant(&self) -> anyhow::Result<Option<(Tenant, ApiKeySecret)>> {
        let Some(private) = &self.private else { return Ok(None) };
        let file = private.data_dir.join("admin.key");
        let pool = self.admin_pool().await?;
        let mut transaction = pool::begin(&pool).await?;
        if tenants::find(&mut transaction, DEFAULT_TENANT).await.is_err() {
            match tenants::create(&mut transaction, DEFAULT_TENANT, "postrider").await {
                Ok(_) => {}
                // Two processes at once: the other one made it. This transaction is spoiled, so begin again.
                Err(_) => {
                    drop(transaction);
                    transaction = pool::begin(&pool).await?;
                }
            }
        }
        let tenant = tenants::find(&mut transaction, DEFAULT_TENANT).await?;

        let kept =
            if file.exists() { read_private(&file)?.trim().parse::<ApiKeySecret>().ok() } else { None };
        let kept = match kept {
            Some(secret) if keys::authenticate(&mut transaction, &secret).await?.is_ok() => Some(secret),
            _ => None,
        };
        let secret = match kept {
            Some(secret) => secret,
            None => {
                pool::act_as(&mut transaction, tenant.id).await?;
                let (_, secret) =
                    keys::create(&mut transaction, "embedded", Role::Admin, None, "postrider").await?;
                write_private(&file, secret.expose())?;
                secret
            }
        };
        pool::commit(transaction).await?;
        Ok(Some((tenant, secret)))
    }

    /// Tells other programs how to reach this process. Only a private installation has such a file.
    pub async fn write_run_file(&self, http_url: String) -> anyhow::Result<()> {
        let (Some(private), Some((tenant, key))) = (&self.private, self.default_tenant().await?) else {
            return Ok(());
        };
        let run = RunFile {
            database_url: self.urls.admin.clone(),
            http_url,
            tenant_id: tenant.id.0,
            workspace_id: tenant.workspace_id.0,
            admin_key: key.expose().to_owned(),
            pid: std::process::id(),
        };
        write_private(&private.data_dir.join("run.json"), &serde_json::to_string_pretty(&run)?)
    }

    /// The process that serves this private installation, if one does and its key is of this tenant.
    pub fn server_of(&self, tenant: TenantId) -> Option<(Url, SecretString)> {
        let private = self.private.as_ref()?;
        let run = read_private(&private.data_dir.join("run.json")).ok()?;
        let run: RunFile = serde_json::from_str(&run).ok()?;
        if run.tenant_id != tenant.0 || !Path::new(&format!("/proc/{}", run.pid)).exists() {
            return None;
        }
        Some((run.http_url.parse().ok()?, run.admin_key.into()))
    }

    /// Takes the file back, if it is still ours.
    pub fn remove_run_file(&self) {
        let Some(private) = &self.private else { return };
        let file = private.data_dir.join("run.json");
        let ours = std::fs::read_to_string(&file)
            .ok()
            .and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok())
            .is_some_and(|run| run["pid"] == std::process::id());
        if ours {
            let _ = std::fs::remove_file(file);
        }
    }
}

fn given_urls(config: &Config) -> Urls {
    let database = &config.database;
    let of = |urls: [&Option<crate::config::DatabaseUrl>; 3]| {
        urls.into_iter().flatten().next().map(|url| url.expose().to_owned()).unwrap_or_default()
    };
    Urls {
        admin: of([&database.admin_url, &database.url, &None]),
        worker: of([&database.url, &database.admin_url, &None]),
        app: of([&database.app_url, &database.url, &database.admin_url]),
        listen: of([&database.listen_url, &database.url, &database.admin_url]),
    }
}

/// Root's home is closed to the user that Postgres runs as, so root's data lives where servers keep theirs.
fn default_data_dir() -> anyhow::Result<PathBuf> {
    let from = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if is_root() {
        return Ok(PathBuf::from("/var/lib/postrider"));
    }
    from("XDG_DATA_HOME")
        .or_else(|| from("HOME").map(|home| home.join(".local/share")))
        .map(|base| base.join("postrider"))
        .context("neither HOME nor XDG_DATA_HOME is set; say where to keep the data with --data-dir")
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0)
}

/// Writes a file that only we can read, all of it or nothing.
fn write_private(path: &Path, content: &str) -> anyhow::Result<()> {
    let written = write_beside(path, content).and_then(|temporary| std::fs::rename(temporary, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// The same, unless the file exists: then what it holds stays. Two processes that make one at once agree on the first.
fn make_private(path: &Path, content: &str) -> anyhow::Result<()> {
    let made = write_beside(path, content).and_then(|temporary| {
        let linked = std::fs::hard_link(&temporary, path);
        std::fs::remove_file(&temporary)?;
        match linked {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    });
    made.with_context(|| format!("cannot write {}", path.display()))
}

fn write_beside(path: &Path, content: &str) -> std::io::Result<PathBuf> {
    let temporary = path.with_extension(format!("new-{}", std::process::id()));
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(content.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    Ok(temporary)
}

/// Reads a file, and refuses one that others can read.
fn read_private(path: &Path) -> anyhow::Result<String> {
    let mode = std::fs::metadata(path)
        .with_context(|| format!("cannot read {}", path.display()))?
        .permissions()
        .mode();
    anyhow::ensure!(
        mode & 0o077 == 0,
        "{} can be read by others (mode {:o}); run `chmod 600` on it",
        path.display(),
        mode & 0o777
    );
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
