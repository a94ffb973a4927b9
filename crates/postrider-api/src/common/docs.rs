//! The OpenAPI document, and descriptions that several resources share.

use axum::{
    Router,
    http::{HeaderValue, header},
};
use serde::Serialize;
use tower_http::set_header::SetResponseHeaderLayer;
use utoipa::{
    Modify, ToSchema,
    openapi::{
        ContentBuilder, Header, Object, OpenApi, Ref, RefOr, Response, Schema, Type,
        path::{Operation, Parameter, ParameterIn},
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};
use utoipa_swagger_ui::SwaggerUi;

use crate::{campaigns::stream, common::cookie};

/// The base of the document, to which the generated parts are added.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Postrider",
        description = "An execution kernel for outbound side effects. See docs/api.md for how to authenticate, page and repeat requests."
    ),
    servers((url = "/")),
    security(("key" = []), ("session" = [])),
    modifiers(&Credentials),
    components(schemas(
        crate::common::error::Problem,
        stream::CampaignEvent,
        stream::frame::StreamBye,
        stream::frame::StreamSnapshotRequired,
        stream::news::StreamOverview<'_>,
        stream::tenant::StreamChanged,
        stream::tenant::StreamHello,
    )),
)]
pub(crate) struct Document;

struct Credentials;

impl Modify for Credentials {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("An API key, `pr_…`. It belongs to one tenant and has a role: `viewer`, `operator` or `admin`."))
            .build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", SecurityScheme::Http(scheme));
        let cookie = ApiKeyValue::with_description(
            cookie::NAME,
            "A session of the dashboard, from `POST /session`. Its requests must come from a page of this server. Over https the name is \
             `__Host-postrider_session`.",
        );
        components.add_security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
    }
}

/// The role of a key. Each role includes the rights of the one before it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum Role {
    /// May read.
    Viewer,
    /// May start, pause, retry and resolve.
    Operator,
    /// May manage keys and provider accounts.
    Admin,
}

/// Adds what all operations share, so that handlers describe only their own responses: the error responses, and that they are
/// problems.
pub(crate) fn complete(mut document: OpenApi) -> OpenApi {
    for item in document.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            body(operation);
            refusals(operation);
        }
    }
    document
}

/// An optional body may be left out and is not nullable: generated clients send one or the other, and the server takes the first.
fn body(operation: &mut Operation) {
    let Some(RefOr::T(body)) = &mut operation.request_body else { return };
    for content in body.content.values_mut() {
        let RefOr::T(content) = content else { continue };
        let Some(RefOr::T(Schema::OneOf(either))) = &mut content.schema else { continue };
        either.items.retain(|item| !matches!(item, RefOr::T(Schema::Object(object)) if object.schema_type == Type::Null.into()));
        if let [only] = &either.items[..] {
            content.schema = Some(only.clone());
        }
    }
}

fn refusals(operation: &mut Operation) {
    let mut add = |status: &str, description: &str| {
        operation
            .responses
            .responses
            .entry(status.to_owned())
            .or_insert_with(|| RefOr::T(Response::new(description)));
    };
    let is_open = operation.security.is_some();
    let parameters: Vec<&Parameter> = operation
        .parameters
        .iter()
        .flatten()
        .filter_map(|parameter| match parameter {
            RefOr::T(parameter) => Some(parameter),
            RefOr::Ref(_) => None,
        })
        .collect();
    if !is_open {
        add("400", "The request cannot be read; `errors` names the field");
        add("401", "The request has no API key and no session, or it is not valid");
        add(
            "403",
            "The key's role does not allow the request, or a request with a session does not come from a page of this server",
        );
        add("429", "Too many requests with this key; `Retry-After` says how long to wait");
        add("503", "The database does not answer, or the process is not set up for this; try again later");
        add("504", "The request timed out; the server may have carried it out");
        if parameters.iter().any(|parameter| matches!(parameter.parameter_in, ParameterIn::Path)) {
            add("404", "The tenant has no such resource");
        }
        if operation.request_body.is_some() {
            add("413", "The body is too large");
            add("415", "The body is not JSON");
            add("422", "The request can be read, and a value is not allowed");
        }
        if parameters.iter().any(|parameter| parameter.name == "Idempotency-Key") {
            add(
                "409",
                "The resource's state does not allow it, or a request with this `Idempotency-Key` is in progress",
            );
            add("422", "A value is not allowed, or the `Idempotency-Key` was used for another request");
        }
    }
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response
            && status == "429"
        {
            let seconds = Header::new(Object::with_type(Type::Integer));
            response.headers.insert("Retry-After".to_owned(), RefOr::T(seconds));
        }
        if let RefOr::T(response) = response
            && status.starts_with(['4', '5'])
            && response.content.is_empty()
        {
            let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
            response.content.insert("application/problem+json".to_owned(), RefOr::T(problem));
        }
    }
}

/// `/docs` and `/openapi.json`. Everything the page needs comes from this binary.
pub(crate) fn pages(document: OpenApi) -> Router {
    let pages: Router = SwaggerUi::new("/docs").url("/openapi.json", document).into();
    let policy =
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'";
    pages.layer(SetResponseHeaderLayer::if_not_present(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(policy),
    ))
}
