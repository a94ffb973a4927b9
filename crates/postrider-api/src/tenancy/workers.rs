//! Workers that hold work of a tenant.

use axum::{Json, extract::State};
use jiff::Timestamp;
use postrider_store::tenancy::overview::{self, Worker};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    App,
    common::{auth::Viewer, error::ApiResult, requests::Reading},
};

/// A worker that holds work of the tenant.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Worker)]
pub(crate) struct WorkerBody {
    /// Name of the worker, new at every start of its process.
    name: String,
    /// Send jobs that it holds.
    jobs: i64,
    /// Job runs that it holds.
    job_runs: i64,
    /// Replies that it holds.
    replies: i64,
    /// Time of its newest heartbeat or claim among them.
    last_heard_at: Timestamp,
}

impl From<Worker> for WorkerBody {
    fn from(worker: Worker) -> Self {
        let Worker { name, jobs, job_runs, replies, last_heard_at } = worker;
        Self { name, jobs, job_runs, replies, last_heard_at }
    }
}

/// Maximum number of workers that are listed.
const WORKERS_MAX: i64 = 1000;

/// The workers that hold work of the tenant at this moment, by name: at most 1,000.
#[utoipa::path(
    get,
    path = "/workers",
    operation_id = "list_workers",
    tag = "overview",
    responses((status = 200, description = "The workers", body = Vec<WorkerBody>)),
)]
pub(crate) async fn list(State(app): State<App>, Viewer(caller): Viewer) -> ApiResult<Json<Vec<WorkerBody>>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let workers = overview::workers(reading.connection(), caller.tenant_id, WORKERS_MAX).await?;
    reading.end().await?;
    Ok(Json(workers.into_iter().map(WorkerBody::from).collect()))
}
