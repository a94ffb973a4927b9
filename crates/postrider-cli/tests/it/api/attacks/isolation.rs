//! One tenant against another: ids, lists, cursors, filters, and fields that are not the caller's to set.

use anyhow::Context;
use serde_json::{Value, json};

use super::{Duel, Names, Operation, Sent, told};
use crate::api::material::UNKNOWN;

/// An id of the same kind that nobody has.
fn unknown(operation: &Operation) -> &'static str {
    if operation.attack.names == Names::Event { "999999999" } else { UNKNOWN }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_of_another_tenant_gets_the_answer_of_a_missing_one() -> anyhow::Result<()> {
    let duel = Duel::new().await?;
    let (attacker, victim) = (&duel.attacker, &duel.victim);
    let before = duel.census().await?;
    // A request that creates a named resource creates it for its caller, whether or not other tenants use that name.
    let makes = |operation: &&Operation| operation.attack.names == Names::NewFunction;
    let about_something = duel.operations.iter().filter(|operation| operation.names_something());
    for operation in about_something.filter(|operation| !makes(operation)) {
        let ask = |id: &str| {
            // Only the API key decides the tenant; the server ignores every other claim in the request.
            let mut call = duel.call(operation, victim, id).key(&attacker.tenant.admin);
            for name in ["x-tenant-id", "x-tenant", "tenant", "x-workspace-id", "x-forwarded-user"] {
                call = call.header(name, &victim.tenant.id.0.to_string());
            }
            call.header("x-request-id", "same").send()
        };
        let theirs = ask(victim.named(operation.attack.names))?;
        let nobodys = ask(unknown(operation))?;
        assert_eq!(theirs.status, 404, "{operation} told another tenant: {}", theirs.text());
        assert_eq!(theirs.text(), nobodys.text(), "{operation} shows which ids exist");
        let shown = |reply: &super::Reply| {
            let of_interest = reply.headers.iter().filter(|(name, _)| name != "date");
            of_interest.cloned().collect::<Vec<_>>()
        };
        assert_eq!(shown(&theirs), shown(&nobodys), "{operation} shows in its headers which ids exist");
        duel.unchanged(&before, &operation.to_string()).await?;
    }
    Ok(())
}

/// The other tests would hold for a server that refuses everything.
#[tokio::test(flavor = "multi_thread")]
async fn the_owner_is_answered_by_every_operation_with_no_more_than_the_role_it_needs() -> anyhow::Result<()>
{
    let duel = Duel::new().await?;
    let owner = &duel.victim;
    for operation in &duel.operations {
        let mut call = duel.call(operation, owner, owner.named(operation.attack.names));
        if let Some(role) = operation.role() {
            call = call.key(owner.secret(role));
        }
        let reply = call.send()?;
        assert_eq!(reply.status, operation.attack.done, "{operation}: {}", reply.text());
        assert!(
            operation.documents(&reply),
            "{operation} answers {}, which it does not document",
            reply.status
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_list_shows_another_tenant_s_rows_by_any_cursor_or_filter() -> anyhow::Result<()> {
    let duel = Duel::new().await?;
    let (attacker, victim) = (&duel.attacker, &duel.victim);
    let theirs = victim.marks();
    let shows_theirs = |text: &str| theirs.iter().find(|mark| text.contains(mark.as_str())).cloned();
    for operation in duel.operations.iter().filter(|operation| operation.is_list()) {
        let get = |things: &super::Things, query: &str| {
            let path = operation.concrete(things, things.named(operation.attack.names));
            super::Call::new(&duel.stage.server.http_url, "GET", &format!("{path}?{query}"))
                .key(&things.tenant.admin)
                .send()
        };
        let logs: &[&str] = if operation.attack.operation == "list_audit" {
            &["", "source=administration&", "source=campaigns&"]
        } else {
            &[""]
        };
        for log in logs {
            let case = format!("{operation} {log}");
            // There is something to see for each of them.
            let page = get(victim, &format!("{log}limit=1"))?.expect(200).context(case.clone())?;
            assert!(page["items"].as_array().is_some_and(|items| items.len() == 1), "{case}: {page}");
            let cursor =
                page["next_cursor"].as_str().with_context(|| format!("{case}: no second page"))?.to_owned();
            let own = get(attacker, log)?;
            assert_ne!(own.expect(200)?["items"], json!([]), "{case}");

            for query in [
                String::new(),
                "limit=200".to_owned(),
                format!("cursor={cursor}"),
                format!("cursor={cursor}&limit=1"),
            ] {
                let reply = get(attacker, &format!("{log}{query}"))?;
                reply.expect(200).with_context(|| format!("{case} {query}"))?;
                assert_eq!(shows_theirs(&reply.text()), None, "{case} {query}: {}", reply.text());
            }
            for parameter in operation.parameters("query").chain(["tenant_id", "tenant", "workspace_id"]) {
                let value = match parameter {
                    "campaign_id" => victim.delivery.clone(),
                    "run_id" => victim.run.clone(),
                    "workspace_id" => victim.tenant.workspace_id.0.to_string(),
                    "list" => victim.list.clone(),
                    "email" => format!("{}-000000@example.org", victim.list),
                    "name" => format!("{}-a", victim.mark),
                    _ => victim.tenant.id.0.to_string(),
                };
                let reply = get(attacker, &format!("{log}{parameter}={value}"))?;
                let case = format!("{case} {parameter}={value}");
                if reply.status == 200 {
                    assert_eq!(shows_theirs(&reply.text()), None, "{case}: {}", reply.text());
                    let items = &reply.json()?["items"];
                    let is_filter = !matches!(parameter, "phone" | "external_id");
                    assert!(!is_filter || *items == json!([]), "{case} was taken and is no filter: {items}");
                } else {
                    reply.problem(400).context(case)?;
                }
            }
        }
    }
    Ok(())
}

/// Fields that a caller would like to set, and never may.
const FORCED: &[&str] = &[
    "tenant_id",
    "tenant",
    "workspace_id",
    "id",
    "status",
    "state",
    "attempts",
    "attempt",
    "created_at",
    "updated_at",
    "role_needed",
    "locked_by",
    "idempotency_key",
    "processed_at",
    "retry_count",
    "in_doubt_since",
    "sealed_secret",
    "key_hash",
    "actor",
    "sequence",
    "run_id",
    "version",
    "__proto__",
];

#[tokio::test(flavor = "multi_thread")]
async fn no_field_can_be_set_that_is_not_the_callers_to_set() -> anyhow::Result<()> {
    let duel = Duel::new().await?;
    let (attacker, victim) = (&duel.attacker, &duel.victim);
    let before = duel.census().await?;
    for operation in &duel.operations {
        let (Sent::Json(body), Some(role)) = (operation.attack.sent, operation.role()) else { continue };
        let send = |body: &Value| {
            let path = operation.concrete(attacker, attacker.named(operation.attack.names));
            super::Call::new(&duel.stage.server.http_url, &operation.method, &path)
                .key(attacker.secret(role))
                .json(body)
                .send()
        };
        for forced in FORCED {
            let value = match *forced {
                "workspace_id" => victim.tenant.workspace_id.0.to_string(),
                _ => victim.tenant.id.0.to_string(),
            };
            let mut whole = body(attacker);
            if whole.get(forced).is_some() {
                continue;
            }
            whole[*forced] = json!(value);
            let reply = send(&whole)?;
            // A workspace in the request must belong to the caller.
            let expected = if *forced == "workspace_id" && reply.status == 422 { 422 } else { 400 };
            let field = reply.field(expected).with_context(|| format!("{operation} with `{forced}`"))?;
            assert_eq!(field, *forced, "{operation}");
            if let Some(phase) = body(attacker)["phases"].get(0) {
                let mut phase = phase.clone();
                phase[*forced] = json!(value);
                let mut whole = body(attacker);
                whole["phases"][0] = phase;
                assert_eq!(send(&whole)?.field(400)?, format!("phases[0].{forced}"), "{operation}");
            }
        }
        duel.unchanged(&before, &operation.to_string()).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_in_bodies_and_queries_must_belong_to_the_caller() -> anyhow::Result<()> {
    let duel = Duel::new().await?;
    let (attacker, victim) = (&duel.attacker, &duel.victim);
    let before = duel.census().await?;
    let own = super::super::material::one_phase("mine", &attacker.asset, &attacker.list);
    let spare = format!("{}-spare", victim.mark);
    for (member, theirs, unknown) in [
        ("asset_id", victim.asset.as_str(), UNKNOWN),
        ("list", victim.list.as_str(), "no such list"),
        ("provider_account", spare.as_str(), "no such account"),
        ("failover_account", spare.as_str(), "no such account"),
    ] {
        let ask = |value: &str| {
            let mut body = own.clone();
            body["phases"][0][member] = json!(value);
            duel.stage.post(&attacker.tenant.operator, "/campaigns", &body)
        };
        let theirs_told = told(&ask(theirs)?)?.1.to_string().replace(theirs, "…");
        let (status, problem) = told(&ask(unknown)?)?;
        assert_eq!(status, 422, "{member}: {problem}");
        assert_eq!(theirs_told, problem.to_string().replace(unknown, "…"), "{member}");
    }
    let import = |workspace: &str| {
        let path = format!("/leads/import?list=l&workspace_id={workspace}");
        duel.stage
            .call("POST", &path)
            .key(&attacker.tenant.operator)
            .bytes("text/csv", attacker.csv().as_bytes())
            .send()
    };
    let theirs = import(&victim.tenant.workspace_id.0.to_string())?;
    assert_eq!(theirs.field(422)?, "workspace_id");
    assert_eq!(told(&theirs)?, told(&import(UNKNOWN)?)?);
    duel.unchanged(&before, "naming what others have").await
}
