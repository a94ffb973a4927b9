//! `POST /leads/import`: a file of leads, however long.
//!
//! ```text
//! body ──spool──▶ a private file ──▶ COPY, merge, commit, chunk by chunk ──▶ the last chunk and the answer
//! ```
//!
//! The whole body is there before the first lead is stored. So an upload that breaks leaves nothing, a slow client holds no
//! lock and no connection to the database, and the fingerprint of a repeated request is known before anything is done.
//!
//! Each chunk is a transaction, so that an unsubscription waits for one chunk at most, and not for the file. An import that
//! ends early leaves the chunks before; the same file again merges with them.

use std::fs::File;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::Response,
};
use postrider_model::{
    campaigns::audience::{self, Country, Delimiter, Format, Leads, OpenError, Options},
    ids::WorkspaceId,
};
use postrider_store::campaigns::leads::{self, Destination, Summary};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::spool;
use crate::{
    App,
    common::{
        auth::Operator,
        body::{Fingerprint, Query},
        error::{ApiError, ApiResult},
        requests::{Repeatable, Writing},
    },
    tenancy::workspace,
};

/// Destination of the leads, and format of the file.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ImportQuery {
    /// The list to put them on; it is made when there is none of this name.
    #[param(min_length = 1, max_length = 255, pattern = r"\S")]
    list: String,
    /// The separator of the cells of CSV: one character, or `tab`; the header shows it, too.
    #[param(min_length = 1, max_length = 3, example = ";")]
    delimiter: Option<String>,
    /// Country of phone numbers without a country code, such as `DE`.
    #[param(min_length = 2, max_length = 2, example = "DE")]
    country: Option<String>,
    /// The workspace; the tenant's first one when left out.
    workspace_id: Option<Uuid>,
}

/// The result of an import.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ImportSummary {
    /// The list, if a lead was put on it.
    list_id: Option<Uuid>,
    /// Lines that were read, good and bad.
    lines: u64,
    /// New leads.
    added: u64,
    /// Leads that existed before.
    updated: u64,
    /// Lines about the person of an earlier line.
    repeated: u64,
    /// Lines whose lead was recognised by its address, because the line or the lead had no external id.
    matched_by_address: u64,
    /// Lines that were left out.
    bad: u64,
    /// The first hundred of those, with their problems.
    bad_lines: Vec<BadLineBody>,
    /// Columns whose names cannot be variables of a template, with the names that their attributes have.
    renamed: Vec<RenamedColumn>,
}

/// A column whose attribute has another name.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RenamedColumn {
    /// The name in the file.
    column: String,
    /// The name of the attribute, as templates use it.
    variable: String,
}

/// A line that was left out.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BadLine)]
pub(crate) struct BadLineBody {
    /// Where it begins in the file, counted from 1.
    line: u64,
    /// The problem of the line.
    reason: String,
}

impl From<Summary> for ImportSummary {
    fn from(summary: Summary) -> Self {
        let renamed =
            |renamed: audience::Renamed| RenamedColumn { column: renamed.column, variable: renamed.variable };
        let bad = |bad: audience::BadLine| BadLineBody { line: bad.line, reason: bad.reason };
        Self {
            list_id: summary.list_id.map(|list| list.0),
            lines: summary.lines,
            added: summary.added,
            updated: summary.updated,
            repeated: summary.repeated,
            matched_by_address: summary.matched_by_address,
            bad: summary.bad,
            bad_lines: summary.bad_lines.into_iter().map(bad).collect(),
            renamed: summary.renamed.into_iter().map(renamed).collect(),
        }
    }
}

/// Imports leads and puts them on a list. Good lines are kept and bad ones reported; when the upload breaks, nothing is
/// imported. Lines are stored in the order of the file, some thousand at a time, and the same file again merges. A lead that is known keeps what the file does not mention, and stays suppressed.
#[utoipa::path(
    post,
    path = "/leads/import",
    operation_id = "import_leads",
    tag = "audience and content",
    params(ImportQuery, Repeatable),
    request_body(
        description = "CSV with a header of `email`, `phone`, `external_id`, `timezone`, `unsubscribed` and attributes; or an \
                       object with the same names per line",
        content((String = "text/csv"), (String = "application/x-ndjson")),
    ),
    responses(
        (status = 200, description = "The result of the import, also when lines were bad", body = ImportSummary),
        (status = 415, description = "The body is neither CSV nor NDJSON in UTF-8"),
        (status = 429, description = "Too many imports of this tenant at a time, or too many requests with this key"),
    ),
)]
pub(crate) async fn import(
    State(app): State<App>,
    Operator(caller): Operator,
    Query(query): Query<ImportQuery>,
    fingerprint: Fingerprint,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Response> {
    let list = audience::list_name(&query.list)
        .map_err(|problem| ApiError::unprocessable("list", problem.to_string()))?;
    let options = query.options(format_of(&headers)?)?;
    let _slot = spool::Slot::take(caller.tenant_id)?;
    let spooled = spool::spool(&headers, body).await?;
    let fingerprint = with_body(fingerprint, &spooled.hash);
    let leads = open(spooled.file, options).await?;

    let mut writing = Writing::begin_on(&app.import_pool, caller, &fingerprint).await?;
    let workspace =
        workspace(writing.connection(), caller.tenant_id, query.workspace_id.map(WorkspaceId)).await?;
    // This transaction only looks: the key is taken together with the last chunk.
    drop(writing);
    let to = Destination { tenant: caller.tenant_id, workspace, list: &list };
    let internal =
        |error: std::io::Error| ApiError::Internal(format!("the spooled file cannot be read: {error}"));
    let mut chunks = leads::read_ahead(leads).map_err(internal)?;
    let Some(first) = chunks.recv().await else { return Err(ApiError::invalid("body", "it has no lines")) };
    let (mut chunk, mut summary) = (first.map_err(internal)?, Summary::default());
    while let Some(next) = chunks.recv().await {
        let imported = leads::import(&app.import_pool, to, &chunk.rows).await?;
        summary.add(std::mem::replace(&mut chunk, next.map_err(internal)?), imported);
    }

    // It returns here if the same request came twice and the other one was faster.
    let mut writing = Writing::begin_on(&app.import_pool, caller, &fingerprint).await?;
    let imported = leads::add(writing.connection(), to, &chunk.rows).await?;
    summary.add(chunk, imported);
    writing.answer(StatusCode::OK, &ImportSummary::from(summary)).await
}

impl ImportQuery {
    fn options(&self, format: Format) -> ApiResult<Options> {
        let delimiter: Option<Delimiter> = match self.delimiter.as_deref().map(str::parse) {
            Some(Err(problem)) => return Err(not_so("delimiter", &problem)),
            value => value.and_then(Result::ok),
        };
        let country: Option<Country> = match self.country.as_deref().map(str::parse) {
            Some(Err(problem)) => return Err(not_so("country", &problem)),
            value => value.and_then(Result::ok),
        };
        Ok(Options { format: Some(format), delimiter, country })
    }
}

fn not_so<E: std::fmt::Display>(field: &str, problem: &E) -> ApiError {
    ApiError::unprocessable(field, problem.to_string())
}

/// The format of the body, by its headers. It must be UTF-8 in either case.
fn format_of(headers: &HeaderMap) -> ApiResult<Format> {
    let content_type =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (essence, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    let is_utf8 = parameters
        .split(';')
        .filter_map(|parameter| parameter.split_once('='))
        .find(|(name, _)| name.trim().eq_ignore_ascii_case("charset"))
        .is_none_or(|(_, value)| value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8"));
    let encoded = headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity");
    match essence.trim().to_ascii_lowercase().as_str() {
        "text/csv" if is_utf8 && !encoded => Ok(Format::Csv),
        "application/x-ndjson" | "application/ndjson" if is_utf8 && !encoded => Ok(Format::Ndjson),
        _ => Err(ApiError::UnsupportedMediaType(
            "send CSV or NDJSON in UTF-8 as it is, and say which: `Content-Type: text/csv` or `application/x-ndjson`"
                .to_owned(),
        )),
    }
}

/// Adds the hash of the body to the fingerprint, which was made before the body was read.
fn with_body(request: Fingerprint, body: &[u8; 32]) -> Fingerprint {
    let hash = Sha256::new().chain_update(request.hash).chain_update(body).finalize().into();
    Fingerprint { hash, ..request }
}

/// Reads the beginning, where a file says what it is.
async fn open(file: File, options: Options) -> ApiResult<Leads<File>> {
    let opened = tokio::task::spawn_blocking(move || Leads::open(file, &options)).await;
    let opened =
        opened.map_err(|error| ApiError::Internal(format!("reading the file ended early: {error}")))?;
    opened.map_err(|error| match error {
        OpenError::Unfit(why) => ApiError::invalid("body", why),
        OpenError::Unreadable(error) => {
            ApiError::Internal(format!("the spooled file cannot be read: {error}"))
        }
    })
}
