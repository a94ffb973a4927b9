//! The items of a run as a file. The server reads it page by page while the client takes it, so no connection is held while a client is slow.

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures::stream;
use postrider_engine::campaigns::export::Format;
use postrider_model::ids::{RunId, TenantId};
use postrider_store::{
    Pool, StoreError,
    campaigns::items::{self, After, Filter},
    postgres::pool,
};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{InState, ItemState, find};
use crate::{
    App,
    common::{
        auth::Operator,
        body::{Path, Query},
        error::{ApiError, ApiResult},
        requests::Reading,
        words,
    },
};

/// Items that are read at a time.
const PAGE: i64 = 1_000;

/// Format and filter of an export.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExportQuery {
    /// The format of the file, `csv` unless given.
    #[serde(default)]
    #[param(inline, value_type = Option<ShownFormat>)]
    format: Format,
    /// Only those in this state.
    #[param(inline, value_type = Option<words::ItemState>)]
    status: Option<ItemState>,
}

/// The format of a file.
#[derive(ToSchema)]
#[schema(as = ExportFormat, rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum ShownFormat {
    /// A header and a line per item. A text that a spreadsheet would execute begins with an apostrophe.
    Csv,
    /// A JSON object per line.
    Ndjson,
}

/// The items of a run that were reserved, as a file, in the order of its send jobs.
#[utoipa::path(
    get,
    path = "/runs/{id}/items/export",
    operation_id = "export_run_items",
    tag = "runs",
    params(("id" = Uuid, Path, description = "The run's id"), ExportQuery),
    responses((status = 200, description = "The items", content(
        (String = "text/csv"),
        (String = "application/x-ndjson"),
    ))),
)]
pub(crate) async fn export(
    State(app): State<App>,
    Operator(caller): Operator,
    Path(run): Path<RunId>,
    Query(query): Query<ExportQuery>,
) -> ApiResult<Response> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    find(reading.connection(), caller.tenant_id, run).await?;
    reading.end().await?;
    let filter = Filter { state: query.status.map(InState::from), ..Filter::default() };
    let format = query.format;
    let export = Export { pool: app.pool, tenant: caller.tenant_id, run, filter, format, next: Some(None) };
    // The first page is read before the response begins, so that its failure has a status of its own.
    let (first, export) = export.page().await?;
    let first = Bytes::from(format!("{}{first}", format.head()));
    let rest = stream::try_unfold(export, move |export| async move {
        if export.next.is_none() {
            return Ok::<_, ApiError>(None);
        }
        let page = export.page().await.inspect_err(|error| {
            tracing::error!(?error, run.id = %run, "an export of run {run} broke off: {error}");
        });
        let (page, export) = page?;
        Ok(Some((Bytes::from(page), export)))
    });
    let chunks = futures::StreamExt::chain(stream::once(async move { Ok(first) }), rest);
    let mut response = Body::from_stream(chunks).into_response();
    let name = format!("attachment; filename=\"run-{}.{}\"", run.0, format.ending());
    let name = HeaderValue::try_from(name).map_err(|error| ApiError::Internal(error.to_string()))?;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
    headers.insert(header::CONTENT_DISPOSITION, name);
    Ok(response)
}

/// An export in progress.
struct Export {
    pool: Pool,
    tenant: TenantId,
    run: RunId,
    filter: Filter,
    format: Format,
    /// The start of the next page, if there is one.
    next: Option<Option<After>>,
}

impl Export {
    /// The lines of the next page.
    async fn page(mut self) -> Result<(String, Self), StoreError> {
        let after = self.next.take().flatten();
        let mut transaction = pool::begin_as(&self.pool, self.tenant).await?;
        let items = items::page(&mut transaction, self.tenant, self.run, &self.filter, after, PAGE).await?;
        pool::commit(transaction).await?;
        let is_full = i64::try_from(items.len()).is_ok_and(|count| count == PAGE);
        self.next = items.last().filter(|_| is_full).map(|last| Some((last.job_position, last.id)));
        Ok((self.format.lines(&items), self))
    }
}
