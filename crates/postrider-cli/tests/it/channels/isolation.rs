//! Whose rows these are, under row-level security: asked in raw SQL, with the connections that serve.

use uuid::Uuid;

use super::rows::{Bot, Rows, acting_for, claim, receive};
use crate::{
    sql::{execute, refusal, texts},
    world::signature,
};

const TABLES: [&str; 4] = ["channel_outbox", "channel_messages", "channel_links", "channel_executors"];

/// The settings of a transaction, and the tenant whose rows are visible then.
type Context<'a> = (Vec<(&'a str, &'a str)>, Option<&'a str>);

/// Two tenants with a reply each, and so with a row in each table.
async fn two_bots(rows: &Rows) -> anyhow::Result<[Bot; 2]> {
    let other = Bot::create(&rows.admin, "other").await?;
    for bot in [rows.own, other] {
        rows.reply(bot).await?;
    }
    Ok([rows.own, other])
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_tables_show_a_tenant_its_own_rows_and_none_without_a_tenant() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let [own, other] = two_bots(&rows).await?.map(|bot| bot.tenant.to_string());
    let (id, alias) = ("app.current_tenant_id", "app.current_tenant");
    let contexts: [Context<'_>; 9] = [
        (vec![], None),
        (vec![(id, &own)], Some(&own)),
        (vec![(alias, &own)], Some(&own)),
        (vec![(id, &other)], Some(&other)),
        (vec![(alias, &other)], Some(&other)),
        (vec![(id, &own), (alias, &own)], Some(&own)),
        (vec![(id, &own), (alias, &other)], None),
        (vec![(id, ""), (alias, "")], None),
        (vec![(id, "00000000-0000-0000-0000-000000000000")], None),
    ];
    for role in ["postrider_app", "postrider_worker", "postrider_read"] {
        let client = rows.world.client(role).await?;
        for table in TABLES {
            for (settings, visible) in &contexts {
                let mut transaction = client.begin().await?;
                for (name, value) in settings {
                    execute(&mut *transaction, format!("set local {name} = '{value}'")).await?;
                }
                // The server's signature covers the one tenant that the settings name.
                let signed = visible.map_or(Uuid::nil(), |visible| visible.parse().unwrap());
                let sign = format!("set local app.tenant_signature = '{}'", signature(signed));
                execute(&mut *transaction, sign).await?;
                for sql in [
                    format!("select tenant_id::text from channels.{table}"),
                    format!(
                        "select tenant_id::text from channels.{table} where tenant_id in ('{own}', '{other}') or true"
                    ),
                ] {
                    let seen = texts(&mut *transaction, &sql).await?;
                    assert_eq!(seen, Vec::from_iter(*visible), "{role}: {sql} after {settings:?}");
                }
                transaction.rollback().await?;
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_and_workers_cannot_write_chat_tables_even_in_the_own_tenant() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    two_bots(&rows).await?;
    let before = texts(&rows.admin, everything()).await?;
    for role in ["postrider_app", "postrider_worker", "postrider_read"] {
        let client = rows.world.client(role).await?;
        for table in TABLES {
            for attempt in [
                format!("insert into channels.{table} (tenant_id) values ('{}')", rows.own.tenant),
                format!("update channels.{table} set tenant_id = tenant_id"),
                format!("update channels.{table} set created_at = now()"),
                format!("delete from channels.{table}"),
                format!("truncate channels.{table}"),
                format!("select id from channels.{table} for update"),
            ] {
                let mut transaction = acting_for(&client, rows.own).await?;
                let refused = refusal(execute(&mut *transaction, &attempt).await)
                    .map_err(|error| error.context(format!("{role}: {attempt}")))?;
                assert_eq!(refused.code, "42501", "{role}: {attempt}: {refused:?}");
            }
        }
    }
    assert_eq!(texts(&rows.admin, everything()).await?, before);
    Ok(())
}

/// Every row of every table.
fn everything() -> String {
    let tables = TABLES.map(|table| format!("select to_jsonb(t) as x from channels.{table} as t"));
    format!("select jsonb_agg(x order by x)::text from ({}) as rows", tables.join(" union all "))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_secret_of_an_executor_is_given_to_who_executes_for_the_tenant_and_never_read_from_the_table()
-> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let other = Bot::create(&rows.admin, "other").await?;
    let put = format!(
        "select channels.put_executor('{}', '{}', '{}', 'http', 'https://agent.example', 30, 'sealed', 'viewer', '{{}}', 'me')::text",
        rows.own.tenant,
        Uuid::now_v7(),
        rows.own.account
    );
    rows.ask::<String>(rows.own, put).await?;
    for role in ["postrider_app", "postrider_worker", "postrider_read"] {
        let client = rows.world.client(role).await?;
        for attempt in ["sealed_secret", "*", "to_jsonb(channel_executors)"] {
            let mut transaction = acting_for(&client, rows.own).await?;
            let sql = format!("select {attempt} from channels.channel_executors");
            assert_eq!(refusal(execute(&mut *transaction, &sql).await)?.code, "42501", "{role}: {sql}");
        }
    }
    let secret = |tenant: Uuid| {
        format!(
            "select coalesce(convert_from(sealed_secret, 'utf8'), 'none') from channels.executor_of('{tenant}', '{}')",
            rows.own.account
        )
    };
    assert_eq!(rows.ask::<String>(rows.own, secret(rows.own.tenant)).await?, "sealed");
    // The other tenant gets the secret of its executor for all accounts, and nothing of this tenant's.
    assert_eq!(rows.ask::<String>(other, secret(other.tenant)).await?, "none");
    assert_eq!(refusal(rows.ask::<String>(other, secret(rows.own.tenant)).await)?.code, "42501");
    assert_eq!(refusal(texts(&rows.app, secret(rows.own.tenant)).await)?.code, "42501");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_cannot_be_received_at_the_account_of_another_tenant() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let other = Bot::create(&rows.admin, "other").await?;
    let theirs = Bot { tenant: rows.own.tenant, ..other };
    let nobodys = Bot { account: Uuid::now_v7(), ..rows.own };
    let before = texts(&rows.admin, everything()).await?;
    let mut said = Vec::new();
    for bot in [theirs, nobodys] {
        said.push(refusal(rows.receive(bot, "one").await)?);
    }
    assert_eq!((said[0].code.as_str(), said[0].message.as_str()), ("P0002", "there is no such account"));
    assert_eq!(said[0], said[1]);
    let without = receive(&rows.app, rows.own, "ann", "one").await;
    assert_eq!(refusal(without)?.code, "42501");
    assert_eq!(texts(&rows.admin, everything()).await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatcher_sends_for_every_tenant_and_reads_no_table() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let bots = two_bots(&rows).await?;
    assert_eq!(texts(&rows.worker, "select id::text from channels.channel_outbox").await?, [""; 0]);
    let mut claimed: Vec<Uuid> = claim(&rows.worker, "w", &super::rows::Capacity::of(10))
        .await?
        .iter()
        .map(|reply| reply.account_id)
        .collect();
    claimed.sort_unstable();
    let mut expected = bots.map(|bot| bot.account);
    expected.sort_unstable();
    assert_eq!(claimed, expected);
    Ok(())
}
