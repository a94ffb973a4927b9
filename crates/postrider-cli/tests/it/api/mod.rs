//! The HTTP API, as its clients meet it.

mod admin;
mod attacks;
mod audit;
mod auth;
mod bodies;
mod browsers;
mod campaigns;
mod channels;
pub mod client;
mod connections;
mod content;
pub mod conversations;
mod dry_run;
mod history;
mod idempotency;
mod in_doubt;
mod items;
mod jobs;
mod leads;
pub mod material;
mod messages;
mod openapi;
mod overview;
mod paging;
mod people;
mod phases;
mod plans;
mod resolving;
mod runs;
mod schemathesis;
mod sent;
pub mod session;
mod throttle;

use anyhow::Context;
use postrider_model::{
    ids::{TenantId, WorkspaceId},
    tenancy::Role,
};
use postrider_store::{
    Pool,
    postgres::pool,
    tenancy::{keys, tenants},
};
use serde_json::Value;

pub use client::{Call, Reply};

use crate::world::{Server, World};

/// A server that serves the API and nothing else, with a tenant.
pub struct Stage {
    pub world: World,
    pub server: Server,
    pub acme: Tenant,
    /// Connections that may do everything.
    pub admin: Pool,
}

/// A tenant with a key of each role.
pub struct Tenant {
    pub id: TenantId,
    pub workspace_id: WorkspaceId,
    pub viewer: String,
    pub operator: String,
    pub admin: String,
}

impl Stage {
    pub async fn new() -> anyhow::Result<Self> {
        // Tests ask faster than people do.
        Self::with("[api]\nrate_per_second = 0\ninvalid_keys_per_second = 0\n").await
    }

    /// With more configuration.
    pub async fn with(more: &str) -> anyhow::Result<Self> {
        let world = World::new().await?;
        let server = Server::start(&world, "api", more)?;
        let admin = world.pool("postgres").await?;
        let acme = tenant(&admin, "acme").await?;
        Ok(Self { world, server, acme, admin })
    }

    /// Another tenant.
    pub async fn tenant(&self, name: &str) -> anyhow::Result<Tenant> {
        tenant(&self.admin, name).await
    }

    /// A request to `/api/v2`, without a key.
    pub fn call(&self, method: &str, path: &str) -> Call {
        Call::new(&self.server.http_url, method, &format!("/api/v2{path}"))
    }

    /// `GET` with a key.
    pub fn get(&self, key: &str, path: &str) -> anyhow::Result<Reply> {
        self.call("GET", path).key(key).send()
    }

    /// `POST` of JSON with a key.
    pub fn post(&self, key: &str, path: &str, body: &Value) -> anyhow::Result<Reply> {
        self.call("POST", path).key(key).json(body).send()
    }

    /// Asks the database, past every policy.
    pub async fn count(&self, sql: &'static str) -> anyhow::Result<i64> {
        Ok(sqlx::query_scalar(sql).fetch_one(&self.admin).await?)
    }
}

pub async fn tenant(admin: &Pool, name: &str) -> anyhow::Result<Tenant> {
    let mut transaction = pool::begin(admin).await?;
    let (id, workspace_id) = tenants::create(&mut transaction, name, "test").await?;
    pool::act_as(&mut transaction, id).await?;
    let mut secrets = Vec::new();
    for role in Role::ALL {
        let (_, secret) = keys::create(&mut transaction, id, role.as_str(), role, None, "test").await?;
        secrets.push(secret.expose().to_owned());
    }
    pool::commit(transaction).await?;
    let [viewer, operator, admin] = <[String; 3]>::try_from(secrets).ok().context("three roles")?;
    Ok(Tenant { id, workspace_id, viewer, operator, admin })
}
