//! The catalogue of this version of Postrider, for programs that build forms and for operators.

use std::sync::LazyLock;

use axum::{Json, extract::State};
use postrider_engine::jobs::BUILTINS;
use postrider_model::{Channel, DoubtClass, Rate, jobs::lock_key::Grain, tenancy::Role};
use postrider_providers::{Adapter, Adapters};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    App,
    campaigns::leads::IMPORT_BYTES_MAX,
    common::{auth::Viewer, body::BODY_BYTES_MAX, docs, error::ApiResult, paging::SIZE_MAX, words},
};

/// The catalogue of this version of Postrider. It is the same for every tenant.
#[derive(Debug, Serialize, ToSchema)]
pub struct Catalogue {
    /// Version of the server.
    pub version: &'static str,
    /// Build of the dashboard in the server; absent where it has none.
    pub build: Option<&'static str>,
    /// Vendors of provider accounts, by name.
    pub providers: Vec<ProviderEntry>,
    /// Functions that come with Postrider.
    pub builtins: Vec<BuiltinEntry>,
    /// Names of time zones, sorted.
    pub time_zones: Vec<String>,
    /// Limits of requests.
    pub limits: RequestLimits,
    /// Roles of API keys. Each includes the rights of the one before it.
    #[schema(value_type = Vec<docs::Role>)]
    pub roles: Vec<Role>,
}

/// A vendor of provider accounts.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CatalogueProvider)]
pub struct ProviderEntry {
    /// Its name in `provider` of an account.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// Advice for the operator who adds an account.
    pub help: &'static str,
    /// Channels that it serves.
    #[schema(value_type = Vec<words::ProviderChannel>)]
    pub channels: Vec<Channel>,
    /// How items in doubt are settled here.
    #[schema(value_type = words::DoubtClass)]
    pub doubt: DoubtClass,
    /// Time for which the vendor recognises an idempotency key, where that is limited.
    pub key_lifetime_seconds: Option<u64>,
    /// Rate limit that the vendor documents. The account's own limits count first.
    pub rate: Option<ProviderRate>,
    /// Limit over a longer period that the vendor documents, beside the rate.
    pub quota: Option<ProviderRate>,
    /// Rate limit of look-ups of replies in doubt, shared by all processes.
    pub look_ups: Option<ProviderRate>,
    /// Limit of concurrent calls that the vendor documents.
    pub concurrency: Option<u32>,
    /// JSON Schema of an account's settings.
    #[schema(value_type = Object)]
    pub settings_schema: Value,
    /// JSON Schema of an account's secret: a text, or an object that is sent as JSON text.
    #[schema(value_type = Object)]
    pub secret_schema: Value,
    /// Whether the vendor sends webhooks with inbound messages.
    pub takes_webhooks: bool,
    /// Whether the vendor sends status callbacks about items.
    pub takes_callbacks: bool,
}

/// A number of calls per period.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProviderRate {
    /// Number of calls.
    pub calls: u32,
    /// Length of the period in seconds.
    pub per_seconds: u64,
}

/// A function that comes with Postrider.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CatalogueBuiltin)]
pub struct BuiltinEntry {
    /// Its name.
    pub name: &'static str,
    /// Grain within which it runs once.
    #[schema(value_type = words::Grain)]
    pub grain: Grain,
    /// Its purpose.
    pub help: &'static str,
}

/// Limits of requests.
#[derive(Debug, Serialize, ToSchema)]
pub struct RequestLimits {
    /// Maximum bytes of an import.
    pub import_bytes: usize,
    /// Maximum bytes of any other body.
    pub body_bytes: usize,
    /// Maximum number of items of a page.
    pub page_size: u32,
}

/// Names of the time zones that come with this program.
static TIME_ZONES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut names: Vec<String> =
        jiff::tz::TimeZoneDatabase::bundled().available().map(|name| name.to_string()).collect();
    names.sort_unstable();
    names
});

/// The catalogue of a program with these adapters.
#[must_use]
pub fn catalogue(adapters: &Adapters, build: Option<&'static str>) -> Catalogue {
    Catalogue {
        version: env!("CARGO_PKG_VERSION"),
        build,
        providers: adapters.iter().map(|adapter| provider(adapter.as_ref())).collect(),
        builtins: BUILTINS
            .iter()
            .map(|builtin| BuiltinEntry { name: builtin.name, grain: builtin.grain, help: builtin.help })
            .collect(),
        time_zones: TIME_ZONES.clone(),
        limits: RequestLimits {
            import_bytes: IMPORT_BYTES_MAX,
            body_bytes: BODY_BYTES_MAX,
            page_size: SIZE_MAX,
        },
        roles: Role::ALL.to_vec(),
    }
}

fn provider(adapter: &dyn Adapter) -> ProviderEntry {
    let (manifest, described) = (adapter.manifest(), adapter.describe());
    let rate = |rate: Rate| ProviderRate { calls: rate.calls, per_seconds: rate.per.as_secs() };
    ProviderEntry {
        name: manifest.name,
        title: described.title,
        help: described.help,
        channels: manifest.channels.to_vec(),
        doubt: manifest.doubt,
        key_lifetime_seconds: manifest.key_lifetime.map(|life| life.as_secs()),
        rate: manifest.rate.map(rate),
        quota: manifest.quota.map(rate),
        look_ups: manifest.look_ups.map(rate),
        concurrency: manifest.concurrency,
        settings_schema: described.settings,
        secret_schema: described.secret,
        takes_webhooks: described.takes_webhooks,
        takes_callbacks: described.takes_callbacks,
    }
}

/// The catalogue of this version: providers with the forms of their accounts, functions, time zones, limits and roles.
#[utoipa::path(
    get,
    path = "/catalogue",
    operation_id = "get_catalogue",
    tag = "overview",
    responses((status = 200, description = "The catalogue of this version", body = Catalogue)),
)]
pub(crate) async fn show(State(app): State<App>, Viewer(_): Viewer) -> ApiResult<Json<Catalogue>> {
    Ok(Json(catalogue(&app.adapters, app.build)))
}
