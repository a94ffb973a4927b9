//! Publishing is part of the caller's transaction, and bad input writes nothing.

use serde_json::{Value, json};

use super::{claim, publish};
use crate::{
    sql::{acting_as, execute, number, refusal, tenant},
    world::World,
};

const EVENTS: &str = "select count(*) from m10_recovery.outbox";

#[tokio::test(flavor = "multi_thread")]
async fn a_rolled_back_transaction_publishes_nothing_and_a_committed_one_an_event() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (app, worker) = (world.client("postrider_app").await?, world.client("postrider_worker").await?);
    let admin = world.client("postgres").await?;

    let mut transaction = app.begin().await?;
    publish(&mut *transaction, "rolled back").await?;
    transaction.rollback().await?;
    assert_eq!(number(&admin, EVENTS).await?, 0);

    let mut transaction = app.begin().await?;
    let kept = publish(&mut *transaction, "committed").await?;
    execute(&mut *transaction, "savepoint half").await?;
    publish(&mut *transaction, "rolled back to a savepoint").await?;
    execute(&mut *transaction, "rollback to savepoint half").await?;
    assert_eq!(claim(&worker, "early", 10).await?, [0; 0], "nobody sees an event before its commit");
    transaction.commit().await?;

    assert_eq!(claim(&worker, "p", 10).await?, [kept]);
    assert_eq!(number(&admin, EVENTS).await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_written_as_given_ready_at_once_and_for_the_tenant_of_the_context() -> anyhow::Result<()>
{
    let world = World::new().await?;
    let (app, admin) = (world.client("postrider_app").await?, world.client("postgres").await?);
    let (own, _) = tenant(&admin, "own").await?;
    let payload = json!({ "text": "\"quotes\", \\, ü, 🚚", "deep": [1, [2.5, null]], "": false });

    let mut transaction = app.begin().await?;
    execute(&mut *transaction, acting_as(own)).await?;
    let id: i64 = sqlx::query_scalar("select m10_recovery.publish_outbox($1, $2, $3, $4)")
        .bind("ordér")
        .bind("42 'x' \"y\"")
        .bind("order.placed")
        .bind(&payload)
        .fetch_one(&mut *transaction)
        .await?;
    transaction.commit().await?;

    let written: (String, String, String, Value, i32, Option<uuid::Uuid>) = sqlx::query_as(
        "select aggregate_type, aggregate_id, event_type, payload, retry_count, tenant_id from m10_recovery.outbox \
          where id = $1 and process_after = created_at and num_nulls(processed_at, claimed_at, claimed_by, last_error) = 4",
    )
    .bind(id)
    .fetch_one(&admin)
    .await?;
    let expected =
        ("ordér".to_owned(), "42 'x' \"y\"".to_owned(), "order.placed".to_owned(), payload, 0, Some(own));
    assert_eq!(written, expected);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_without_a_tenant_belongs_to_the_system_tenant() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (app, admin) = (world.client("postrider_app").await?, world.client("postgres").await?);
    publish(&app, "42").await?;
    execute(
        &admin,
        "insert into m10_recovery.outbox (aggregate_type, aggregate_id, event_type, payload) values ('a', '1', 'e', '{}')",
    )
    .await?;
    let systems = "select count(*) from m10_recovery.outbox as event \
                     join tenancy.tenants as tenant on tenant.id = event.tenant_id \
                    where tenant.id = tenancy.system_tenant_id() and tenant.name = 'system'";
    assert_eq!(number(&admin, systems).await?, 2);

    // No tenant sees them, and none can be created or signed in as the system tenant.
    let (own, _) = tenant(&admin, "own").await?;
    let mut transaction = app.begin().await?;
    execute(&mut *transaction, acting_as(own)).await?;
    assert_eq!(number(&mut *transaction, EVENTS).await?, 0);
    transaction.rollback().await?;
    let second = "select tenancy.create_tenant(gen_random_uuid(), gen_random_uuid(), 'system', 'a test')";
    assert_eq!(refusal(execute(&admin, second).await)?.code, "23505");
    let sign_in = "insert into tenancy.api_keys (id, tenant_id, name, role, hint, key_hash)
                   values (gen_random_uuid(), tenancy.system_tenant_id(), 'k', 'admin', 'pr_', sha256('k'))";
    let refused = refusal(execute(&admin, sign_in).await)?;
    assert!(refused.message.contains("api_keys_are_not_the_systems"), "{refused:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_needs_a_tenant_that_exists_and_keeps_it() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    let mut transaction = worker.begin().await?;
    execute(&mut *transaction, acting_as(uuid::Uuid::now_v7())).await?;
    assert_eq!(refusal(publish(&mut *transaction, "42").await)?.code, "23503");
    transaction.rollback().await?;

    let own = uuid::Uuid::now_v7();
    execute(&admin, format!("insert into tenancy.tenants (id, name) values ('{own}', 'own')")).await?;
    let mut publishing = worker.begin().await?;
    execute(&mut *publishing, acting_as(own)).await?;
    publish(&mut *publishing, "42").await?;
    let remove = format!("delete from tenancy.tenants where id = '{own}'");
    let mut removing = admin.begin().await?;
    execute(&mut *removing, "set local lock_timeout = '1ms'").await?;
    assert_eq!(
        refusal(execute(&mut *removing, &remove).await)?.code,
        "55P03",
        "the publisher holds its tenant"
    );
    removing.rollback().await?;
    publishing.commit().await?;
    assert_eq!(refusal(execute(&admin, &remove).await)?.code, "23503");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn any_json_is_a_payload_and_only_sql_null_is_none() -> anyhow::Result<()> {
    let app = World::new().await?.client("postrider_app").await?;
    for payload in [json!(null), json!(1), json!("x"), json!([]), json!(true), json!({})] {
        sqlx::query("select m10_recovery.publish_outbox('a', '1', 'e', $1)")
            .bind(payload)
            .execute(&app)
            .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_arguments_are_refused_in_words_and_write_nothing() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (app, admin) = (world.client("postrider_app").await?, world.client("postgres").await?);
    let missing = "aggregate type, aggregate id, event type and payload must all be given";
    let too_long = "aggregate type, aggregate id and event type have at most 255 bytes";
    let control = "aggregate type, aggregate id and event type hold no control characters";
    let bad_names = [
        ("null::text", missing),
        ("''", missing),
        ("'   '", missing),
        ("repeat('x', 256)", too_long),
        ("repeat('ü', 128)", too_long),
        ("E'order\\nplaced'", control),
        ("E'order\\tplaced'", control),
        ("E'\\x7f'", control),
        ("E'\\u0085'", control),
    ];
    let mut cases = Vec::new();
    for (bad, message) in bad_names {
        for at in 0..3 {
            let names: Vec<&str> = (0..3).map(|place| if place == at { bad } else { "'fine'" }).collect();
            cases.push((format!("{}, '{{}}'", names.join(", ")), "22023", message.to_owned()));
        }
    }
    cases.push(("'a', '1', 'e', null".to_owned(), "22023", missing.to_owned()));
    let large = "the payload has 262145 bytes; the limit is 262144";
    cases.push((
        "'a', '1', 'e', jsonb_build_object('k', repeat('x', 262145 - 17))".to_owned(),
        "54000",
        large.to_owned(),
    ));
    cases.push((
        "'a', '1', 'e', '{not json'".to_owned(),
        "22P02",
        "invalid input syntax for type json".to_owned(),
    ));
    cases.push((
        "'a', '1', 'e', '{\"nul\": \"\\u0000\"}'".to_owned(),
        "22P05",
        "unsupported Unicode".to_owned(),
    ));

    for (arguments, code, message) in cases {
        let call = format!("select m10_recovery.publish_outbox({arguments})");
        let refused = refusal(execute(&app, &call).await).map_err(|error| error.context(call.clone()))?;
        assert_eq!(refused.code, code, "{call}: {refused:?}");
        assert!(refused.message.starts_with(&message), "{call}: {refused:?}");
    }
    assert_eq!(number(&admin, EVENTS).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_255_bytes_and_a_payload_at_the_limit_are_taken() -> anyhow::Result<()> {
    let app = World::new().await?.client("postrider_app").await?;
    let name = "repeat('ü', 127) || 'x'";
    let call = format!(
        "select pg_column_size(given.payload)::bigint, m10_recovery.publish_outbox({name}, {name}, {name}, given.payload) \
           from (select jsonb_build_object('k', repeat('x', 262144 - 17)) #> '{{}}' as payload) as given"
    );
    assert_eq!(number(&app, call).await?, 262_144);
    Ok(())
}

/// `pg_column_size` of a column's value is its compressed size.
#[tokio::test(flavor = "multi_thread")]
async fn a_payload_from_a_table_is_measured_unpacked() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (app, admin) = (world.client("postrider_app").await?, world.client("postgres").await?);
    let mut client = app.acquire().await?;
    execute(
        &mut *client,
        "create temp table big as select jsonb_build_object('k', repeat('x', 5000000)) as payload",
    )
    .await?;
    assert!(number(&mut *client, "select pg_column_size(payload)::bigint from big").await? < 262_144);

    let refused = refusal(
        execute(&mut *client, "select m10_recovery.publish_outbox('a', '1', 'e', payload) from big").await,
    )?;

    assert_eq!(refused.code, "54000");
    assert!(refused.message.starts_with("the payload has 50000"), "{refused:?}");
    assert_eq!(number(&admin, EVENTS).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_those_who_may_publish_or_claim_can() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (app, read) = (world.client("postrider_app").await?, world.client("postrider_read").await?);
    for outcome in [
        publish(&read, "1").await.map(drop),
        claim(&read, "p", 1).await.map(drop),
        claim(&app, "p", 1).await.map(drop),
        super::complete(&app, 1, "p", None).await,
        super::complete(&read, 1, "p", None).await,
    ] {
        assert_eq!(refusal(outcome)?.code, "42501");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_is_small_as_jsonb_and_huge_as_text_is_refused() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (app, admin) = (world.client("postrider_app").await?, world.client("postgres").await?);
    for copies in [9, 8300] {
        let sql = "select m10_recovery.publish_outbox('bomb', '1', 'bomb.dropped',
                       (select jsonb_agg('1e131071'::numeric) from generate_series(1, $1)))";
        let outcome = sqlx::query(sql).bind(copies).execute(&app).await;
        assert_eq!(refusal(outcome)?.code, "54000", "{copies} copies");
    }
    assert_eq!(number(&admin, "select count(*) from m10_recovery.outbox").await?, 0);
    Ok(())
}
