//! The catalogue's entries of the three functions, and the checks that notice another entry.

use postrider_store::postgres::{
    doctor,
    migrate::{self, Tree},
};

use crate::{sql::execute, world::World};

/// A function, its arguments in their order, and its result, as the contract writes them.
const CONTRACT: &[(&str, &[&str], &str)] = &[
    (
        "publish_outbox",
        &["p_aggregate_type text", "p_aggregate_id text", "p_event_type text", "p_payload jsonb"],
        "bigint",
    ),
    (
        "claim_outbox_events",
        &["p_processor_id text", "p_batch_size integer DEFAULT 10"],
        "TABLE(id bigint, aggregate_type text, aggregate_id text, event_type text, payload jsonb, retry_count integer)",
    ),
    (
        "complete_outbox_event",
        &["p_event_id bigint", "p_processor_id text", "p_success boolean", "p_error text DEFAULT NULL::text"],
        "void",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_function_has_one_signature_and_it_is_the_contracts() -> anyhow::Result<()> {
    let client = World::new().await?.client("postrider_read").await?;

    for (name, arguments, result) in CONTRACT {
        let found: Vec<(String, String)> = sqlx::query_as(
            "select pg_get_function_arguments(oid), pg_get_function_result(oid) from pg_proc where proname = $1",
        )
        .bind(name)
        .fetch_all(&client)
        .await?;
        assert_eq!(found, [(arguments.join(", "), (*result).to_owned())], "{name}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outbox_has_the_contracts_columns_and_no_second_retry_field() -> anyhow::Result<()> {
    let client = World::new().await?.client("postrider_read").await?;
    let expected = [
        ("id", "bigint"),
        ("aggregate_type", "text"),
        ("aggregate_id", "text"),
        ("event_type", "text"),
        ("payload", "jsonb"),
        ("created_at", "timestamp with time zone"),
        ("processed_at", "timestamp with time zone"),
        ("retry_count", "integer"),
        ("process_after", "timestamp with time zone"),
        ("claimed_at", "timestamp with time zone"),
        ("claimed_by", "text"),
    ];

    let found: Vec<(String, String)> = sqlx::query_as(
        "select attname::text, format_type(atttypid, atttypmod) from pg_attribute \
          where attrelid = 'm10_recovery.outbox'::regclass and attnum > 0 and not attisdropped order by attnum",
    )
    .fetch_all(&client)
    .await?;

    let begins: Vec<_> = found.iter().take(11).map(|(name, kind)| (name.as_str(), kind.as_str())).collect();
    assert_eq!(begins, expected);
    assert!(!found.iter().any(|(name, _)| name.contains("retry_at")), "{found:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_functions_are_called_by_name_by_position_and_with_their_defaults() -> anyhow::Result<()> {
    let client = World::new().await?.client("postrider_worker").await?;
    for call in [
        "select m10_recovery.publish_outbox(p_payload => '{}', p_event_type => 'e', p_aggregate_id => '1', p_aggregate_type => 't')",
        "select m10_recovery.publish_outbox('t', '2', 'e', '{}')",
        "select * from m10_recovery.claim_outbox_events(p_batch_size => 1, p_processor_id => 'p')",
        "select * from m10_recovery.claim_outbox_events('p')",
        "select m10_recovery.complete_outbox_event(p_success => true, p_processor_id => 'p', p_event_id => 1)",
        "select m10_recovery.complete_outbox_event(2, 'p', false)",
    ] {
        execute(&client, call).await.map_err(|error| anyhow::anyhow!("{call}: {error}"))?;
    }
    Ok(())
}

/// Ways to break the contract, and what is said about each.
const VIOLATIONS: &[(&str, &str)] = &[
    (
        "create function m10_recovery.claim_outbox_events(p_batch_size integer, p_processor_id text) returns integer \
         language sql as 'select 1'",
        "m10_recovery.claim_outbox_events has 2 signatures instead of one",
    ),
    (
        "create function m10_recovery.complete_outbox_event(bigint, text, boolean) returns void language sql as ''",
        "m10_recovery.complete_outbox_event has 2 signatures instead of one",
    ),
    (
        "create function m10_recovery.publish_outbox(text, text, text, json) returns bigint language sql as 'select 1::bigint'",
        "m10_recovery.publish_outbox has 2 signatures instead of one",
    ),
    (
        "drop function m10_recovery.publish_outbox(text, text, text, jsonb)",
        "m10_recovery.publish_outbox has 0 signatures instead of one",
    ),
    (
        "drop function m10_recovery.complete_outbox_event(bigint, text, boolean, text);
         create function m10_recovery.complete_outbox_event(p_event_id bigint, p_processor_id text, p_success boolean, \
         p_error text default 'none') returns void language sql as ''",
        "the contract says (p_event_id bigint, p_processor_id text, p_success boolean, p_error text DEFAULT NULL::text)",
    ),
    (
        "drop function m10_recovery.publish_outbox(text, text, text, jsonb);
         create function m10_recovery.publish_outbox(p_aggregate_id text, p_aggregate_type text, p_event_type text, \
         p_payload jsonb) returns bigint language sql as 'select 1::bigint'",
        "m10_recovery.publish_outbox(p_aggregate_id text, p_aggregate_type text,",
    ),
    (
        "alter table m10_recovery.outbox add next_retry_at timestamptz",
        "m10_recovery.outbox has a column next_retry_at, which the contract does not list",
    ),
    (
        "alter table m10_recovery.outbox drop claimed_by cascade",
        "m10_recovery.outbox has no column claimed_by",
    ),
    (
        "alter table m10_recovery.outbox alter last_error type varchar(100)",
        "m10_recovery.outbox.last_error is character varying(100); the contract says text",
    ),
    (
        "create function m10_recovery.retry_outbox_event(bigint) returns void language sql as ''",
        "m10_recovery.retry_outbox_event is in schema m10_recovery, and the contract does not list it",
    ),
    ("create table m10_recovery.inbox ()", "m10_recovery.inbox is in schema m10_recovery, and the contract does not list it"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signature_or_any_other_breach_is_noticed_by_the_migration_and_by_doctor()
-> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    for (breach, expected) in VIOLATIONS {
        let mut transaction = admin.begin().await?;
        execute(&mut *transaction, *breach).await?;
        let findings = doctor::examine(&mut transaction).await?;
        let found = findings.iter().find(|finding| finding.check == "contracts").unwrap();
        assert_eq!(found.severity, doctor::Severity::Failure, "{breach}: {}", found.found);
        assert!(found.found.contains(expected), "{breach}: {}", found.found);
        transaction.rollback().await?;

        let tree = Tree::current().with_step("upgrades/0001_breach.sql", &format!("{breach};\n"));
        let refused = migrate::apply(&world.admin_url(), &tree).await.unwrap_err().to_string();
        assert!(refused.contains("would break the frozen contracts"), "{breach}: {refused}");
        assert!(refused.contains(expected), "{breach}: {refused}");
    }
    Ok(())
}
