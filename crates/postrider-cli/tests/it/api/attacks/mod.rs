//! Attacks on every operation there is. The list comes from the OpenAPI document, which comes from the routes; how each is attacked is
//! in `table.rs`. A route that is not in that table fails these tests.

mod bodies;
mod isolation;
mod jobs;
mod keys;
mod leaks;
mod streams;
mod table;

use std::collections::BTreeMap;

use postrider_model::tenancy::Role;
use postrider_store::Pool;
use serde_json::{Value, json};

pub use self::table::Things;
use self::table::{Attack, Names, Needs, Sent};
use super::{Call, Reply, Stage, Tenant};
use crate::sql::texts;

/// Two tenants, each with one or more of everything.
struct Duel {
    stage: Stage,
    attacker: Things,
    victim: Things,
    operations: Vec<Operation>,
}

/// An operation of the document, and how it is attacked.
struct Operation {
    method: String,
    path: String,
    described: Value,
    attack: &'static Attack,
}

impl Duel {
    async fn new() -> anyhow::Result<Self> {
        Self::on(Stage::new().await?).await
    }

    /// With another configuration.
    async fn with(more: &str) -> anyhow::Result<Self> {
        Self::on(Stage::with(more).await?).await
    }

    async fn on(stage: Stage) -> anyhow::Result<Self> {
        let other = stage.tenant("victim").await?;
        let acme = Tenant {
            id: stage.acme.id,
            workspace_id: stage.acme.workspace_id,
            viewer: stage.acme.viewer.clone(),
            operator: stage.acme.operator.clone(),
            admin: stage.acme.admin.clone(),
        };
        let attacker = Things::make(&stage, acme, "attacker").await?;
        let victim = Things::make(&stage, other, "victim").await?;
        Ok(Self { stage, attacker, victim, operations: operations()? })
    }

    /// The request that an operation takes, about these things, without a key.
    fn call(&self, operation: &Operation, about: &Things, id: &str) -> Call {
        let call = Call::new(&self.stage.server.http_url, &operation.method, &operation.concrete(about, id));
        match operation.attack.sent {
            Sent::Nothing => call,
            Sent::Json(body) => call.json(&body(about)),
            Sent::Csv => call.bytes("text/csv", about.csv().as_bytes()),
            Sent::Bytes(bytes) => call.bytes("application/octet-stream", bytes),
        }
    }

    /// Everything that is stored, but for the time when a key was used last.
    async fn census(&self) -> anyhow::Result<BTreeMap<String, String>> {
        census(&self.stage.admin).await
    }

    /// That nothing has changed since.
    async fn unchanged(&self, before: &BTreeMap<String, String>, why: &str) -> anyhow::Result<()> {
        let after = self.census().await?;
        let changed: Vec<_> = after
            .iter()
            .filter(|(table, rows)| before.get(*table) != Some(rows))
            .map(|(table, _)| table)
            .collect();
        anyhow::ensure!(changed.is_empty(), "{why} changed {changed:?}");
        Ok(())
    }
}

impl Operation {
    /// Its path with what it names filled in.
    fn concrete(&self, about: &Things, id: &str) -> String {
        let fill = |part: &str| match part {
            "{id}" | "{outbox_id}" | "{account}" | "{name}" => id.to_owned(),
            "{tenant}" => about.tenant.id.0.to_string(),
            "{phase}" => about.phase.to_owned(),
            "{control}" => "start".to_owned(),
            "{provider}" => "sim".to_owned(),
            "{key}" => "some-key".to_owned(),
            "{token}" => "A".repeat(64),
            part => part.to_owned(),
        };
        let path = self.path.split('/').map(fill).collect::<Vec<_>>().join("/");
        format!("{path}{}", self.attack.query)
    }

    /// Whether it says that it may answer so.
    fn documents(&self, reply: &Reply) -> bool {
        self.described["responses"].get(reply.status.to_string()).is_some()
    }

    /// A list in pages.
    fn is_list(&self) -> bool {
        self.parameters("query").any(|name| name == "cursor")
    }

    fn parameters(&self, place: &str) -> impl Iterator<Item = &str> {
        let all = self.described["parameters"].as_array().into_iter().flatten();
        all.filter(move |parameter| parameter["in"] == place)
            .filter_map(|parameter| parameter["name"].as_str())
    }

    fn names_something(&self) -> bool {
        self.attack.names != Names::Nothing
    }

    /// The least role that it lets in, if it asks for a key.
    fn role(&self) -> Option<Role> {
        match self.attack.needs {
            Needs::Nothing | Needs::Signature => None,
            Needs::Role(role) => Some(role),
        }
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} {})", self.attack.operation, self.method, self.path)
    }
}

/// Every operation of the document, in the order of the table.
fn operations() -> anyhow::Result<Vec<Operation>> {
    let document = serde_json::to_value(postrider_api::document())?;
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for (method, described) in item.as_object().into_iter().flatten() {
            let id = described["operationId"].as_str().unwrap_or_default();
            let attack = table::ATTACKS.iter().find(|attack| attack.operation == id);
            let Some(attack) = attack else {
                anyhow::bail!(
                    "no attack is listed for operation `{id}` ({} {path}): add a line to ATTACKS in \
                     tests/it/api/attacks/table.rs with the role that it needs, what its path names, and a body that it takes",
                    method.to_uppercase()
                );
            };
            found.push(Operation {
                method: method.to_uppercase(),
                path: path.clone(),
                described: described.clone(),
                attack,
            });
        }
    }
    for attack in table::ATTACKS {
        let known = found.iter().any(|operation| operation.attack.operation == attack.operation);
        anyhow::ensure!(
            known,
            "ATTACKS has `{}`, which is no operation any more: remove its line",
            attack.operation
        );
    }
    let place = |operation: &Operation| {
        table::ATTACKS.iter().position(|attack| attack.operation == operation.attack.operation)
    };
    found.sort_by_key(place);
    for operation in &found {
        let in_path = operation.path.contains('{');
        anyhow::ensure!(
            in_path == operation.names_something(),
            "{operation}: ATTACKS must say what its path names, or that it names nothing"
        );
    }
    Ok(found)
}

/// A line for each table: how many rows, and a hash of them.
pub async fn census(admin: &Pool) -> anyhow::Result<BTreeMap<String, String>> {
    let tables = "select format('%I.%I', schemaname, tablename) from pg_tables
                   where schemaname not in ('pg_catalog', 'information_schema')";
    let mut census = BTreeMap::new();
    for table in texts(admin, tables).await? {
        let rows = format!(
            "select count(*) || ' ' || coalesce(md5(string_agg(line, ',' order by line)), '')
               from (select (to_jsonb(stored) - 'last_used_at')::text as line from {table} as stored) as lines"
        );
        census.insert(table, texts(admin, rows).await?.concat());
    }
    anyhow::ensure!(census.len() > 15, "these are not all tables: {census:?}");
    Ok(census)
}

/// An answer without what differs from request to request.
fn told(reply: &Reply) -> anyhow::Result<(u16, Value)> {
    let mut problem = reply.problem(reply.status)?;
    problem["request_id"] = json!(null);
    Ok((reply.status, problem))
}
