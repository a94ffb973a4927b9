//! Every route, in one list: the router and the OpenAPI document are both made from it.

use std::{any::Any, time::Duration};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request},
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use tower_http::{
    catch_panic::CatchPanicLayer,
    compression::{
        CompressionLayer,
        predicate::{NotForContentType, Predicate, SizeAbove},
    },
    cors::{AllowOrigin, CorsLayer},
    request_id::{MakeRequestId, PropagateRequestIdLayer, RequestId, SetRequestIdLayer},
    timeout::TimeoutLayer,
    trace::TraceLayer,
};
use utoipa::{OpenApi, openapi::OpenApi as OpenApiDocument};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App,
    campaigns::{
        self, assets, callbacks, history,
        in_doubt::{self, many},
        items,
        leads::{self, people},
        messages as single_messages, phases,
        runs::{self, export},
        stream,
    },
    channels::{executors, ingress, links, messages, outbox},
    common::{
        body::BODY_BYTES_MAX,
        docs,
        error::{ApiError, Problem},
        health,
    },
    dashboard, events,
    jobs::{alerts, errors, functions, health as job_health, invoke, runs as job_runs, schedules},
    tenancy::{accounts, audit, catalogue, keys, overview, sessions, workers},
};

/// How long an ordinary request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an import may take.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// How long a webhook may take: longer than the longest execution.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(90);
/// How long the invocation of a function may take: longer than the longest wait for its end.
const INVOKE_TIMEOUT: Duration = Duration::from_secs(invoke::WAIT_SECONDS_MAX as u64 + 60);
/// Smaller answers are not worth compressing.
const COMPRESS_BYTES_MIN: u64 = 1024;

/// Routes that every process serves.
fn process() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, REQUEST_TIMEOUT))
}

/// Metrics, where they have no listener of their own.
fn metrics() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(health::metrics))
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, REQUEST_TIMEOUT))
}

/// `/api/v2`: requests that are short.
fn short() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(sessions::whoami))
        .routes(routes!(overview::show))
        .routes(routes!(catalogue::show))
        .routes(routes!(workers::list))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::revoke))
        .routes(routes!(sessions::create, sessions::end))
        .routes(routes!(sessions::list))
        .routes(routes!(sessions::revoke))
        .routes(routes!(accounts::list, accounts::create))
        .routes(routes!(accounts::show, accounts::limit, accounts::remove))
        .routes(routes!(accounts::rotate))
        .routes(routes!(audit::list))
        .routes(routes!(events::list, events::publish))
        .routes(routes!(events::retry))
        .routes(routes!(phases::status))
        .routes(routes!(phases::control))
        .routes(routes!(phases::progress))
        .routes(routes!(leads::list))
        .routes(routes!(leads::get))
        .routes(routes!(leads::suppress))
        .routes(routes!(leads::list_lists))
        .routes(routes!(people::unsuppress))
        .routes(routes!(people::erase))
        .routes(routes!(people::list_items))
        .routes(routes!(assets::list, assets::create))
        .routes(routes!(assets::get))
        .routes(routes!(campaigns::list, campaigns::create))
        .routes(routes!(campaigns::get))
        .routes(routes!(history::list))
        .routes(routes!(runs::list))
        .routes(routes!(runs::get))
        .routes(routes!(runs::list_items))
        .routes(routes!(runs::failures))
        .routes(routes!(export::export))
        .routes(routes!(items::get))
        .routes(routes!(single_messages::list, single_messages::create))
        .routes(routes!(single_messages::get))
        .routes(routes!(runs::launch))
        .routes(routes!(runs::trace))
        .routes(routes!(in_doubt::list))
        .routes(routes!(in_doubt::resolve))
        .routes(routes!(many::resolve))
        .routes(routes!(links::list, links::create))
        .routes(routes!(links::remove))
        .routes(routes!(executors::list, executors::put))
        .routes(routes!(executors::remove))
        .routes(routes!(messages::list))
        .routes(routes!(messages::get))
        .routes(routes!(messages::retry))
        .routes(routes!(outbox::list))
        .routes(routes!(outbox::requeue_all))
        .routes(routes!(outbox::get))
        .routes(routes!(outbox::requeue))
        .routes(routes!(functions::list))
        .routes(routes!(functions::show, functions::put, functions::remove))
        .routes(routes!(job_runs::list))
        .routes(routes!(job_runs::show))
        .routes(routes!(job_runs::retry))
        .routes(routes!(job_runs::cancel))
        .routes(routes!(job_health::show))
        .routes(routes!(schedules::list, schedules::create))
        .routes(routes!(schedules::preview))
        .routes(routes!(schedules::show, schedules::put, schedules::remove))
        .routes(routes!(schedules::enable))
        .routes(routes!(schedules::disable))
        .routes(routes!(schedules::firings))
        .routes(routes!(errors::list))
        .routes(routes!(errors::show))
        .routes(routes!(errors::resolve))
        .routes(routes!(errors::retry))
        .routes(routes!(alerts::list))
        .routes(routes!(alerts::list_cards))
        .routes(routes!(alerts::show_card))
        .routes(routes!(alerts::decide))
        .routes(routes!(callbacks::receive))
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, REQUEST_TIMEOUT))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

/// `/api/v2`: webhooks, which are answered after their messages were executed.
fn webhooks() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(ingress::receive, ingress::verify))
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, WEBHOOK_TIMEOUT))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

/// `/api/v2`: invocations of functions, which wait for the run's end.
fn invocations() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(invoke::invoke))
        .layer(middleware::map_response(invoke::refused))
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, INVOKE_TIMEOUT))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

/// `/api/v2`: requests whose body is read while it comes, however long it is; they bound it themselves.
fn long() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(leads::import))
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, IMPORT_TIMEOUT))
        .layer(DefaultBodyLimit::disable())
}

/// `/api/v2`: answers that do not end by themselves.
fn streams() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(stream::events)).routes(routes!(stream::tenant::stream_tenant))
}

/// The routes and their document.
fn documented(serves_api: bool, serves_metrics: bool) -> (Router<App>, OpenApiDocument) {
    let mut routes = OpenApiRouter::with_openapi(docs::Document::openapi()).merge(process());
    if serves_metrics {
        routes = routes.merge(metrics());
    }
    if serves_api {
        routes = routes
            .nest("/api/v2", short().merge(webhooks()).merge(invocations()).merge(long()).merge(streams()));
    }
    let (router, document) = routes.split_for_parts();
    (router, docs::complete(document))
}

/// The whole HTTP surface, as OpenAPI describes it.
#[must_use]
pub fn document() -> OpenApiDocument {
    documented(true, true).1
}

/// The whole HTTP surface of one process.
pub fn router(app: App) -> Router {
    let (routes, document) = documented(app.serves_api, app.serves_metrics);
    let cors = cors(&app.cors_origins);
    let serves_api = app.serves_api;
    let mut router = routes
        .with_state(app)
        .merge(docs::pages(document))
        .fallback(async move |request: Request| match serves_api {
            true => dashboard::serve(request).await,
            false => ApiError::NotFound("route").into_response(),
        })
        .method_not_allowed_fallback(async || ApiError::MethodNotAllowed)
        .layer(CatchPanicLayer::custom(broken))
        .layer(middleware::from_fn(finish))
        // Outside of the layer that rewrites bodies.
        .layer(CompressionLayer::new().gzip(true).compress_when(
            SizeAbove::new(COMPRESS_BYTES_MIN).and(NotForContentType::IMAGES).and(NotForContentType::SSE),
        ));
    router = match cors {
        Some(cors) => router.layer(cors),
        None => router.layer(middleware::from_fn(invoke::open_to_pages)),
    };
    router
        .layer(TraceLayer::new_for_http().make_span_with(span).on_failure(()))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(SetRequestIdLayer::x_request_id(NewRequestId))
}

/// Answers a panic of a handler with 500, without details. The process goes on serving.
#[expect(clippy::needless_pass_by_value, reason = "the layer gives it away")]
fn broken(panic: Box<dyn Any + Send>) -> Response {
    let words = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no text");
    ApiError::Internal(format!("a handler panicked: {words}")).into_response()
}

/// Finishes every response: problems carry the request's id, and clients and proxies neither store a response nor guess its type.
async fn finish(request: Request, next: Next) -> Response {
    let id = request.headers().get("x-request-id").and_then(|id| id.to_str().ok()).map(shortened);
    let mut response = next.run(request).await;
    if response.status().is_client_error() || response.status().is_server_error() {
        response = with_id(response, id);
    }
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Writes a problem again, with the id. A refusal by a layer becomes a problem here.
fn with_id(response: Response, id: Option<String>) -> Response {
    let (mut parts, _) = response.into_parts();
    let status = parts.status;
    let known = parts.extensions.remove::<Problem>();
    let problem = known.unwrap_or_else(|| {
        let detail = match status {
            StatusCode::GATEWAY_TIMEOUT => {
                "the request timed out, and the server may have carried it out: look before you send it again, or send it \
                 with the same `Idempotency-Key`"
            }
            StatusCode::PAYLOAD_TOO_LARGE => "the body is too large",
            _ => "the request cannot be served",
        };
        Problem::new(status, detail)
    });
    let mut rewritten = Problem { request_id: id, ..problem }.into_response();
    for name in [header::CONTENT_TYPE, header::CONTENT_LENGTH] {
        parts.headers.remove(name);
    }
    rewritten.headers_mut().extend(parts.headers);
    rewritten
}

/// Browsers may read answers where the operator says so, and nowhere else.
fn cors(origins: &[HeaderValue]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let layer = CorsLayer::new()
        .allow_origin(AllowOrigin::list(origins.iter().cloned()))
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE])
        .allow_headers([
            header::AUTHORIZATION,
            header::CONTENT_TYPE,
            HeaderName::from_static("idempotency-key"),
            HeaderName::from_static("last-event-id"),
            HeaderName::from_static("x-request-id"),
            // Headers that callers of functions customarily send.
            HeaderName::from_static("apikey"),
            HeaderName::from_static("x-client-info"),
        ])
        .expose_headers([
            header::RETRY_AFTER,
            HeaderName::from_static("idempotent-replayed"),
            HeaderName::from_static("x-request-id"),
        ])
        .max_age(Duration::from_secs(600));
    Some(layer)
}

/// The id under which a request is found in the logs. A caller may bring its own as `x-request-id`.
#[derive(Clone, Copy)]
struct NewRequestId;

impl MakeRequestId for NewRequestId {
    fn make_request_id<B>(&mut self, _: &axum::http::Request<B>) -> Option<RequestId> {
        uuid::Uuid::now_v7().to_string().parse().ok().map(RequestId::new)
    }
}

fn span(request: &Request) -> tracing::Span {
    let id = request.headers().get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
    let id = shortened(id);
    tracing::info_span!("request", correlation_id = %id, method = %request.method(), path = %request.uri().path())
}

fn shortened(id: &str) -> String {
    id.chars().take(128).collect()
}
