//! The place of the data: a database of the operator, or a private cluster that this process runs.
//!
//! With a URL nothing is ever started. Without one, the data directory holds
//!
//! | file | what |
//! |---|---|
//! | `pg/`, `postgres.log` | the cluster |
//! | `master.key` | the key provider secrets are sealed under (0600) |
//! | `master.key.next` | the key that an interrupted rotation was going to use (0600) |
//! | `admin.key` | the API key of tenant `default` (0600) |
//! | `witness/` | what the processes that send know to be committed |
//! | `run.json` | how to reach the process that began to serve last, of those that do (0600) |
//! | `run/` | one such file per process that serves, and a lock |

mod run_file;

use std::{
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context;
use postrider_model::{
    error_chain,
    ids::TenantId,
    seal::MasterKey,
    tenancy::{ApiKeySecret, Role},
};
use postrider_store::{
    PgConnection, Pool, StoreError,
    postgres::{
        context, doctor,
        embedded::{Alone, Cluster, Options, SUPERUSER},
        migrate, pool, provision,
    },
    tenancy::{
        keys,
        master_key::{self, Standing},
        tenants::{self, Tenant},
    },
};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use self::run_file::{Announced, RunFile};
use crate::{
    config::{Config, DatabaseUrl},
    connections, logins,
};

/// The name of the database in a private cluster.
const DATABASE: &str = "postrider";
/// The tenant that a private installation begins with.
pub const DEFAULT_TENANT: &str = "default";

/// How long to wait for connections that do not come back.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// How often to look whether the private cluster is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long an import waits for a connection.
const IMPORT_PATIENCE: Duration = Duration::from_secs(120);
/// How long a committer waits for a connection before the worker releases its jobs.
const COMMIT_PATIENCE: Duration = Duration::from_secs(5);

/// A database that is up, and the ways into it.
pub struct Installation {
    private: Option<Private>,
    urls: Urls,
    /// The opened pools, which are closed before the server stops.
    pools: Mutex<Vec<Pool>>,
    /// The file that says how to reach this process, while it serves.
    announced: Mutex<Option<Announced>>,
}

struct Private {
    cluster: Arc<Cluster>,
    data_dir: PathBuf,
    /// Whether this process made it.
    is_new: bool,
}

impl Private {
    fn master_key_file(&self) -> PathBuf {
        self.data_dir.join("master.key")
    }

    fn next_master_key_file(&self) -> PathBuf {
        self.data_dir.join("master.key.next")
    }
}

/// The error when no master key is set, with the next step.
pub const NO_MASTER_KEY: &str = "provider secrets are sealed under a master key, and none is set; make one with `postrider master-key generate`, \
                                 keep it apart from the database, and set POSTRIDER_MASTER_KEY to it, or POSTRIDER_MASTER_KEY_FILE to a file that holds it";

/// One URL per kind of work, least rights each.
struct Urls {
    admin: Login,
    worker: Login,
    app: Login,
    listen: Login,
}

/// A URL, and the setting that it came from.
#[derive(Default)]
pub struct Login {
    pub url: String,
    pub setting: &'static str,
}

impl Installation {
    /// Opens the database. A private cluster is started or adopted, migrated, and given its first tenant.
    pub async fn open(config: &Config) -> anyhow::Result<Self> {
        if config.database.url.is_some() || config.database.admin_url.is_some() {
            let (pools, announced) = (Mutex::default(), Mutex::default());
            return Ok(Self { private: None, urls: given_urls(config), pools, announced });
        }

        let data_dir = config.data_dir.clone().map_or_else(default_data_dir, Ok)?;
        let options = Options {
            data_dir: data_dir.clone(),
            bin_dir: config.database.bin_dir.clone(),
            settings: Vec::new(),
        };
        let is_new = !data_dir.join("pg").exists();
        anyhow::ensure!(
            !(is_new && config.only_reads),
            "there is no installation in {}, and a command that only reads does not make one; `postrider serve` makes one and starts it, \
             --data-dir names another directory, --database-url a database that runs already",
            data_dir.display()
        );
        let cluster = tokio::task::spawn_blocking(move || Cluster::start_or_adopt(&options)).await??;
        if is_new {
            tracing::info!("no database URL is set: made a private PostgreSQL in {}", data_dir.display());
        }
        let login = |role| Login { url: cluster.url(role, DATABASE), setting: "data_dir" };
        let urls = Urls {
            admin: login(SUPERUSER),
            worker: login("postrider_worker"),
            app: login("postrider_app"),
            listen: login("postrider_worker"),
        };
        let maintenance = cluster.url(SUPERUSER, "postgres");
        let (private, pools, announced) = (
            Some(Private { cluster: Arc::new(cluster), data_dir, is_new }),
            Mutex::default(),
            Mutex::default(),
        );
        let opened = Self { private, urls, pools, announced };
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
        self.migrate().await?;
        provision::restrict_public(&self.urls.admin.url).await?;
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
        // No other handle is left: `start_again` has ended.
        if let Some(cluster) = self.private.and_then(|private| Arc::into_inner(private.cluster)) {
            tokio::task::spawn_blocking(move || cluster.stop()).await??;
        }
        Ok(())
    }

    /// How many pools were opened so far.
    pub fn pools_opened(&self) -> usize {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Closes the pools that were opened after so many.
    pub async fn close_pools_since(&self, opened: usize) {
        let pools = {
            let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
            let from = opened.min(pools.len());
            pools.split_off(from)
        };
        for pool in pools {
            let _ = tokio::time::timeout(CLOSE_WITHIN, pool.close()).await;
        }
    }

    /// Where this machine keeps what it needs beside the database: the data directory of a private installation, or the default one.
    pub fn state_dir(&self, config: &Config) -> anyhow::Result<PathBuf> {
        match &self.private {
            Some(private) => Ok(private.data_dir.clone()),
            None => config.data_dir.clone().map_or_else(default_data_dir, Ok),
        }
    }

    /// Waits until the private cluster is gone, and says so. With a database of the operator it waits for ever. A process that cannot
    /// find out, because it may open no more files, goes on.
    pub async fn lost(&self) -> anyhow::Error {
        let Some(Private { cluster, .. }) = &self.private else { return std::future::pending().await };
        let mut is_known = true;
        loop {
            match cluster.is_running() {
                Ok(true) => is_known = true,
                Ok(false) => break,
                Err(error) => {
                    if is_known {
                        tracing::warn!("cannot see whether the private Postgres runs; going on: {error}");
                    }
                    is_known = false;
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        anyhow::anyhow!(
            "the private Postgres (pid {}) is gone; {} may say why; start again, what was committed is safe",
            cluster.postmaster_pid(),
            cluster.log_file().display()
        )
    }

    /// Starts the private cluster again after its end. The opened pools connect to it by themselves.
    pub async fn start_again(&self) -> anyhow::Result<()> {
        let Some(private) = &self.private else { return Ok(()) };
        let cluster = Arc::clone(&private.cluster);
        tokio::task::spawn_blocking(move || cluster.start_again()).await??;
        Ok(())
    }

    /// The data directory, if this process made the private cluster in it.
    pub fn made_in(&self) -> Option<&Path> {
        self.private.as_ref().filter(|private| private.is_new).map(|private| private.data_dir.as_path())
    }

    /// Whether we run the cluster ourselves.
    pub fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// Brings the schema forward, and returns the paths of the applied files.
    pub async fn migrate(&self) -> Result<Vec<String>, StoreError> {
        let Login { url, setting } = &self.urls.admin;
        migrate::run(url).await.map_err(|error| error.with_setting(setting))
    }

    /// The logins of HTTP requests, of the loops and of the listeners.
    pub fn logins(&self) -> [&Login; 3] {
        [&self.urls.app, &self.urls.worker, &self.urls.listen]
    }

    /// A direct way to the server.
    pub fn listen_url(&self) -> &str {
        &self.urls.listen.url
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

    /// For the committers of campaigns. All connections are opened now, and kept.
    pub async fn commit_pool(&self, connections: u32) -> anyhow::Result<Pool> {
        let settings = pool::Settings {
            connections_max: connections,
            acquire_timeout: COMMIT_PATIENCE,
            keeps_open: true,
            application_name: "postrider commits",
        };
        self.connect_with(&self.urls.worker, settings).await
    }

    /// For HTTP requests.
    pub async fn app_pool(&self, connections_max: u32) -> anyhow::Result<Pool> {
        self.connect(&self.urls.app, connections_max).await
    }

    /// For HTTP requests that import.
    pub async fn import_pool(&self) -> anyhow::Result<Pool> {
        let settings = pool::Settings {
            connections_max: connections::IMPORTS,
            acquire_timeout: IMPORT_PATIENCE,
            ..pool::Settings::default()
        };
        self.connect_with(&self.urls.app, settings).await
    }

    /// Lets a pool for HTTP requests act for tenants. A login that may not name a tenant itself gets the key that signs
    /// tenants, which only the login of the loops can read.
    pub async fn sign(&self, pool: Pool) -> anyhow::Result<Pool> {
        let mut transaction = pool::begin(&pool).await?;
        let needed = context::needs_signature(&mut transaction).await?;
        drop(transaction);
        if !needed {
            return Ok(pool);
        }
        let Login { url, setting } = &self.urls.worker;
        let settings = pool::Settings { connections_max: 1, ..Default::default() };
        let worker = pool::connect(url, settings).await.map_err(|error| error.with_setting(setting))?;
        let mut transaction = pool::begin(&worker).await?;
        let (role, needed_for, setting_of_login) = logins::SIGNING;
        doctor::require_role(&mut transaction, role, needed_for, setting_of_login).await?;
        let key = context::key(&mut transaction).await?;
        drop(transaction);
        worker.close().await;
        Ok(pool.signing_with(key).await?)
    }

    async fn connect(&self, login: &Login, connections_max: u32) -> anyhow::Result<Pool> {
        self.connect_with(login, pool::Settings { connections_max, ..Default::default() }).await
    }

    async fn connect_with(&self, login: &Login, settings: pool::Settings) -> anyhow::Result<Pool> {
        let pool = pool::connect(&login.url, settings).await;
        let pool = pool.map_err(|error| error.with_setting(login.setting))?;
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).push(pool.clone());
        Ok(pool)
    }

    /// The master key: from the configuration, or from the data directory, where it is made when it is missing. It may be the wrong
    /// one; see [`Self::checked_master_key`].
    pub fn master_key(&self, config: &Config) -> anyhow::Result<MasterKey> {
        if let Some(key) = self.known_master_key(config)? {
            return Ok(key);
        }
        let Some(private) = &self.private else { anyhow::bail!(NO_MASTER_KEY) };
        make_private(&private.master_key_file(), &MasterKey::generate()?.to_base64())?;
        Ok(read_private(&private.master_key_file())?.parse::<MasterKey>()?)
    }

    /// The same where there is one. Makes none.
    pub fn known_master_key(&self, config: &Config) -> anyhow::Result<Option<MasterKey>> {
        if let Some(key) = configured_key("master_key", config.master_key.as_ref(), &config.master_key_file)?
        {
            let previous = configured_key(
                "master_key_previous",
                config.master_key_previous.as_ref(),
                &config.master_key_previous_file,
            )?;
            return Ok(Some(match previous {
                Some(previous) => key.with_previous(previous),
                None => key,
            }));
        }
        let Some(private) = &self.private else { return Ok(None) };
        if !private.master_key_file().exists() {
            return Ok(None);
        }
        let key = read_private(&private.master_key_file())?.parse::<MasterKey>()?;
        // The database says which of the two an interrupted rotation has left in use.
        let next = private.next_master_key_file();
        Ok(Some(if next.exists() { key.with_previous(read_private(&next)?.parse()?) } else { key }))
    }

    /// The master key, once it is certain that the secrets of this installation are sealed under it. The first process registers it.
    pub async fn checked_master_key(
        &self,
        config: &Config,
        connection: &mut PgConnection,
    ) -> anyhow::Result<MasterKey> {
        let key = self.master_key(config)?;
        let standing = master_key::ensure(connection, &key).await?;
        if self.keeps_master_key(config)
            && let Some(private) = &self.private
            && let Some(next) = key.previous()
        {
            // A rotation was interrupted. Before its commit nothing had changed; after it, the file must follow.
            if standing == Standing::Previous {
                std::fs::rename(private.next_master_key_file(), private.master_key_file())?;
                return Ok(next);
            }
            return Ok(key.current());
        }
        if standing == Standing::Previous {
            tracing::warn!(
                "the secrets are sealed under master_key_previous; `postrider master-key rotate` seals them under master_key"
            );
        }
        Ok(key)
    }

    /// Whether the master key is a file in our data directory.
    pub fn keeps_master_key(&self, config: &Config) -> bool {
        self.is_private() && config.master_key.is_none() && config.master_key_file.is_none()
    }

    /// The right to be the only process on the private cluster; `None` when there is another one.
    pub fn alone(&self) -> anyhow::Result<Option<Alone>> {
        let Some(private) = &self.private else { return Ok(None) };
        Ok(private.cluster.alone()?)
    }

    /// The key that a rotation is going to use, made and kept beside the current one.
    pub fn next_master_key(&self) -> anyhow::Result<MasterKey> {
        let private = self.private.as_ref().context("there is no data directory to keep the key in")?;
        let file = private.next_master_key_file();
        if !file.exists() {
            make_private(&file, &MasterKey::generate()?.to_base64())?;
        }
        Ok(read_private(&file)?.parse()?)
    }

    /// Puts the next key in the place of the current one.
    pub fn keep_next_master_key(&self) -> anyhow::Result<()> {
        let private = self.private.as_ref().context("there is no data directory to keep the key in")?;
        std::fs::rename(private.next_master_key_file(), private.master_key_file())?;
        Ok(())
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
                    keys::create(&mut transaction, tenant.id, "embedded", Role::Admin, None, "postrider")
                        .await?;
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
            database_url: self.urls.admin.url.clone(),
            http_url,
            tenant_id: tenant.id.0,
            workspace_id: tenant.workspace_id.0,
            admin_key: key.expose().to_owned(),
            pid: std::process::id(),
        };
        let announced = run_file::announce(&private.data_dir, &run)?;
        *self.announced.lock().unwrap_or_else(PoisonError::into_inner) = Some(announced);
        Ok(())
    }

    /// The process that serves this private installation, if one does and its key is of this tenant.
    pub fn server_of(&self, tenant: TenantId) -> Option<(Url, SecretString)> {
        let private = self.private.as_ref()?;
        let run = run_file::read(&private.data_dir).filter(|run| run.tenant_id == tenant.0)?;
        Some((run.http_url.parse().ok()?, run.admin_key.into()))
    }

    /// The address of a process that serves this private installation, if one does.
    pub fn server_url(&self) -> Option<Url> {
        run_file::read(&self.private.as_ref()?.data_dir)?.http_url.parse().ok()
    }

    /// Takes the file back, if this process has written one.
    pub fn remove_run_file(&self) {
        let announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = announced.map(Announced::withdraw) {
            tracing::warn!("run.json may be out of date: {}", error_chain(error.as_ref()));
        }
    }
}

/// A key from its setting or from the file that another setting names.
fn configured_key(
    name: &str,
    key: Option<&crate::config::Hidden>,
    file: &Option<PathBuf>,
) -> anyhow::Result<Option<MasterKey>> {
    let text = match (key, file) {
        (Some(key), _) => key.0.expose_secret().to_owned(),
        (None, Some(file)) => read_credential(file).with_context(|| format!("{name}_file"))?,
        (None, None) => return Ok(None),
    };
    Ok(Some(text.parse().with_context(|| name.to_owned())?))
}

/// Reads a file as [`read_private`] does. The group may read one that systemd made for this service: there the mode shows the access
/// list with which the service's user was let in.
fn read_credential(path: &Path) -> anyhow::Result<String> {
    let credentials = std::env::var_os("CREDENTIALS_DIRECTORY");
    let is_credential = credentials.is_some_and(|dir| path.parent() == Some(Path::new(&dir)));
    read_closed(path, if is_credential { 0o037 } else { 0o077 })
}

fn given_urls(config: &Config) -> Urls {
    let database = &config.database;
    let [url, admin, app, listen] = [
        ("database.url", &database.url),
        ("database.admin_url", &database.admin_url),
        ("database.app_url", &database.app_url),
        ("database.listen_url", &database.listen_url),
    ];
    // The first that is set.
    let login = |ways: [(&'static str, &Option<DatabaseUrl>); 3]| {
        let set = ways.into_iter().find_map(|(setting, url)| Some((setting, url.as_ref()?)));
        set.map_or_else(Login::default, |(setting, url)| {
            let setting = if database.is_flag { "--database-url" } else { setting };
            Login { url: url.expose().to_owned(), setting }
        })
    };
    Urls {
        admin: login([admin, url, url]),
        worker: login([url, admin, admin]),
        app: login([app, url, admin]),
        listen: login([listen, url, admin]),
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
    read_closed(path, 0o077)
}

/// Reads a file, unless its mode has one of these bits.
fn read_closed(path: &Path, forbidden: u32) -> anyhow::Result<String> {
    let mode = std::fs::metadata(path)
        .with_context(|| format!("cannot read {}", path.display()))?
        .permissions()
        .mode();
    anyhow::ensure!(
        mode & forbidden == 0,
        "{} can be read by others (mode {:o}); run `chmod 600` on it",
        path.display(),
        mode & 0o777
    );
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
