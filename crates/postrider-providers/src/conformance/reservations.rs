//! Reservations and doubts for the suite, from committed rows of a real database, because there is no other way to get one.

use std::time::Duration;

use postrider_model::{
    Channel, Message, Outcome,
    campaigns::{
        PhaseKind,
        audience::{Chunk, Leads, Options as Reading},
    },
    ids::{OutboxId, TenantId, WorkspaceId},
    seal::MasterKey,
};
use postrider_store::{
    HeldDoubt, Pool, Reservation, StoreError,
    campaigns::{
        self, NewCampaign, NewPhase, assets, leads,
        outbox::{self, Plan, PlannedItem, Reserved, Window, WindowAnswer},
        resolving, send_jobs,
    },
    postgres::{
        embedded::{EmbeddedError, SUPERUSER},
        migrate, pool, provision,
    },
    tenancy::{
        accounts::{self, NewAccount},
        tenants,
    },
};
use serde_json::json;
use tokio::sync::Mutex;

use super::private::PrivateCluster;

/// Name under which the suite reserves, settles and looks up.
const ACTOR: &str = "conformance";
/// The database in a private cluster.
const DATABASE: &str = "conformance";
/// Longer than any run of the suite.
const LEASE: Duration = Duration::from_secs(600);

/// Reservations could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NoReservations {
    /// No private Postgres could be started.
    #[error("no private Postgres could be started; install it, or use `Reservations::in_database`")]
    NoCluster(#[from] EmbeddedError),
    /// A statement of the suite failed.
    #[error("the suite's database failed")]
    Database(#[from] StoreError),
    /// Something else.
    #[error("{0}")]
    Other(String),
}

/// The source of reservations. Dropping it stops the private cluster and removes it.
pub struct Reservations {
    pool: Pool,
    /// Serializes claims, because a claim takes any job of the tenant.
    claiming: Mutex<()>,
    tenant: TenantId,
    workspace: WorkspaceId,
    /// A name that no vendor has, so that the suite never claims doubts of other tenants.
    provider: String,
    key: MasterKey,
    // Last, so that it is dropped after the connections.
    _private: Option<PrivateCluster>,
}

impl Reservations {
    /// Starts a Postgres for this suite alone in a temporary directory. It takes a few seconds.
    pub async fn start() -> Result<Self, NoReservations> {
        let private = tokio::task::spawn_blocking(|| PrivateCluster::start(&std::env::temp_dir())).await;
        let private = private.map_err(|error| NoReservations::Other(error.to_string()))??;
        let (maintenance, url) = (private.url(SUPERUSER, "postgres"), private.url(SUPERUSER, DATABASE));
        provision::ensure_database(&maintenance, DATABASE).await?;
        migrate::run(&url).await?;
        Self::with(&url, Some(private)).await
    }

    /// Uses an existing database for tests. The suite migrates it if needed, adds a tenant of its own, and touches no other
    /// tenant. `url` is that of an administrator, as for `postrider migrate`.
    pub async fn in_database(url: &str) -> Result<Self, NoReservations> {
        migrate::run(url).await?;
        Self::with(url, None).await
    }

    async fn with(url: &str, private: Option<PrivateCluster>) -> Result<Self, NoReservations> {
        let pool = pool::connect(url, pool::Settings::default()).await?;
        let key = MasterKey::generate().map_err(|error| NoReservations::Other(error.to_string()))?;
        let provider = format!("conformance_{}", TenantId::new().0.simple());

        let mut transaction = pool::begin(&pool).await?;
        let (tenant, workspace) = tenants::create(&mut transaction, &provider, ACTOR).await?;
        pool::act_as(&mut transaction, tenant).await?;
        let account = NewAccount {
            tenant,
            workspace,
            name: ACTOR,
            provider: &provider,
            settings: &json!({}),
            secret: &String::new().into(),
        };
        accounts::create(&mut transaction, &key, &account, ACTOR).await?;
        pool::commit(transaction).await?;
        Ok(Self { pool, claiming: Mutex::default(), tenant, workspace, provider, key, _private: private })
    }

    /// This many reservations for a message, each with its own key.
    pub async fn take(&self, message: &Message, count: usize) -> Result<Vec<Reservation>, NoReservations> {
        let _claiming = self.claiming.lock().await;
        // Campaigns have no chat channel. For an adapter the reservation of a social post is the same.
        let channel = match message.channel() {
            Channel::Chat => Channel::Social,
            channel => channel,
        };
        let list = format!("list {}", TenantId::new().0);
        self.people(&list, count).await?;
        self.deploy(channel, &list, count).await?;

        let mut job = None;
        for claimed in send_jobs::claim(&self.pool, ACTOR, 1, &self.others().await?, &[]).await? {
            if claimed.hold.tenant_id == self.tenant {
                job = Some(claimed);
            } else {
                send_jobs::release(&self.pool, ACTOR, claimed.hold, Duration::ZERO).await?;
            }
        }
        let job = job
            .ok_or_else(|| NoReservations::Other("another worker claimed the suite's send job".to_owned()))?;
        let plan = |item_id| PlannedItem {
            item_id,
            outbox_id: OutboxId::new(),
            recipient: message.recipient().map(str::to_owned),
            plan: Plan::Call { message_hash: message.hash(), payload: "{}".to_owned() },
        };
        let window = Window::new(job.hold, 0, job.item_ids.into_iter().map(plan).collect());
        let answers =
            outbox::Writer::new(self.pool.clone()).settle_and_reserve(ACTOR, &[], &[&window]).await?;
        let reserved = answers.into_iter().flat_map(|answer| match answer {
            WindowAnswer::Items(items) => items,
            WindowAnswer::Paused | WindowAnswer::Closed | WindowAnswer::Lost => Vec::new(),
        });
        let yours = reserved.map(|item| match item {
            Reserved::Yours(reservation) => Ok(reservation),
            Reserved::Already(status) => Err(NoReservations::Other(format!("an item is {status} already"))),
        });
        yours.collect()
    }

    /// Records the outcome of a reservation.
    pub(super) async fn settle(
        &self,
        reservation: Reservation,
        outcome: Outcome,
    ) -> Result<(), NoReservations> {
        let settlement = reservation.settle(outcome);
        outbox::Writer::new(self.pool.clone()).settle_and_reserve(ACTOR, &[&settlement], &[]).await?;
        Ok(())
    }

    /// Puts an item in doubt, and claims the doubt as the resolver does.
    pub async fn doubt(&self, reservation: Reservation) -> Result<HeldDoubt, NoReservations> {
        let _claiming = self.claiming.lock().await;
        let id = reservation.outbox_id();
        self.settle(reservation, Outcome::Unknown { reason: "the suite puts this item in doubt".to_owned() })
            .await?;
        // Also claims doubts of other calls, which are ignored. A claim takes as many as were due when the tenant was chosen, so a
        // doubt that another call makes at that moment may be claimed in place of this one.
        loop {
            let held =
                resolving::claim(&self.pool, ACTOR, &self.key, &[&self.provider], 1000, LEASE, &[]).await?;
            if held.is_empty() {
                let lost = format!("item {id} is in doubt and could not be claimed");
                return Err(NoReservations::Other(lost));
            }
            let ours = held.into_iter().map(|claimed| claimed.doubt).find(|doubt| doubt.outbox_id() == id);
            if let Some(doubt) = ours {
                return Ok(doubt);
            }
        }
    }

    async fn people(&self, list: &str, count: usize) -> Result<(), NoReservations> {
        let unfit = |error: &dyn std::error::Error| NoReservations::Other(error.to_string());
        let mut file = String::from("external_id,email,phone\n");
        for n in 0..count {
            file.push_str(&format!("{list} {n},lead{n}@example.com,+4917612{n:06}\n"));
        }
        let mut chunk = Chunk::default();
        for entry in Leads::open(file.as_bytes(), &Reading::default()).map_err(|error| unfit(&error))? {
            chunk.add(entry.map_err(|error| unfit(&error))?);
        }
        let to = leads::Destination { tenant: self.tenant, workspace: self.workspace, list };
        let imported = leads::import(&self.pool, to, &chunk.rows).await?;
        match chunk.bad.iter().chain(&imported.refused).next() {
            Some(bad) => Err(NoReservations::Other(bad.reason.clone())),
            None => Ok(()),
        }
    }

    async fn deploy(&self, channel: Channel, list: &str, count: usize) -> Result<(), NoReservations> {
        let content = match channel {
            Channel::Email => json!({ "subject": "Hello", "text": "Hello." }),
            Channel::Voice => json!({ "script": "Hello." }),
            Channel::Social | Channel::Chat => json!({ "text": "Hello." }),
        };
        let mut transaction = pool::begin_as(&self.pool, self.tenant).await?;
        let (asset, _) = assets::create(
            &mut transaction,
            self.tenant,
            self.workspace,
            channel.as_str(),
            channel,
            &content,
            ACTOR,
        )
        .await?;
        let phase = NewPhase {
            phase: "only".to_owned(),
            kind: PhaseKind::Delivery,
            channel: Some(channel),
            asset_id: Some(asset),
            list: Some(list.to_owned()),
            provider_account: Some(ACTOR.to_owned()),
            failover_account: None,
            failure_tolerance: None,
            scheduled_for: None,
            quiet_time_seconds: None,
        };
        let campaign = NewCampaign { name: list.to_owned(), auto_advance: false, phases: vec![phase] };
        let campaign =
            campaigns::create(&mut transaction, self.tenant, self.workspace, &campaign, ACTOR).await?;
        let size = i32::try_from(count).unwrap_or(campaigns::JOB_SIZE_MAX);
        campaigns::deploy(&mut transaction, self.tenant, campaign, None, size, ACTOR).await?;
        Ok(pool::commit(transaction).await?)
    }

    /// Every tenant except that of the suite.
    async fn others(&self) -> Result<Vec<TenantId>, NoReservations> {
        let mut transaction = pool::begin(&self.pool).await?;
        let tenants = tenants::list(&mut transaction).await?;
        pool::commit(transaction).await?;
        Ok(tenants.into_iter().map(|tenant| tenant.id).filter(|id| *id != self.tenant).collect())
    }
}
