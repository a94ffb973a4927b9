//! Reads what the auditor compares.

use std::collections::{BTreeMap, HashMap};

use postrider_testkit::crash::provider_faults;
use sqlx::{PgPool, Row};
use uuid::Uuid;

use super::{
    audit::{Facts, Message, Receipt, Reply, Said},
    driver::{Delivered, vendor_of},
};
use crate::{
    channels::bots::{Bots, text},
    sql::execute,
    world::Sim,
};

/// Keeps every claim as the database made it, beside the system under test.
pub async fn record_claims(admin: &PgPool) -> anyhow::Result<()> {
    let sql = "create table public.claims (reply uuid, worker text);
               create function public.record_claim() returns trigger language plpgsql security definer as $$
               begin
                   insert into public.claims values (new.id, new.locked_by);
                   return null;
               end $$;
               create trigger record_claims after update on channels.channel_outbox for each row
                   when (new.status = 'sending' and new.locked_at is distinct from old.locked_at)
                   execute function public.record_claim()";
    Ok(execute(admin, sql).await?)
}

/// The facts, and how often each fault occurred at a request to send.
pub async fn gather(
    bots: &Bots,
    sim: &Sim,
    delivered: &Delivered,
) -> anyhow::Result<(Facts, BTreeMap<String, usize>)> {
    let said = (0..delivered.messages)
        .map(|n| Said { text: text(vendor_of(n), n), was_taken: delivered.taken.contains(&n) });
    let lines = sim.receipts()?;
    let faults = provider_faults(lines.iter().map(|line| line["fault"].as_str()));
    let mut receipts = Vec::new();
    for line in lines {
        let text = |name: &str| line[name].as_str().map(str::to_owned);
        receipts.push(Receipt {
            provider: text("provider").unwrap_or_default(),
            text: text("text").unwrap_or_default(),
            acted: line["acted"] == true,
            message_id: text("message_id"),
        });
    }
    let (messages, replies) = (messages(&bots.admin).await?, replies(&bots.admin).await?);
    let claims = claims(&bots.admin).await?;
    Ok((Facts { said: said.collect(), messages, replies, receipts, claims }, faults))
}

async fn messages(admin: &PgPool) -> anyhow::Result<Vec<Message>> {
    let rows = sqlx::query("select id, text, status from channels.channel_messages").fetch_all(admin).await?;
    let message = |row: &sqlx::postgres::PgRow| {
        Ok(Message { id: row.try_get("id")?, text: row.try_get("text")?, status: row.try_get("status")? })
    };
    rows.iter().map(message).collect()
}

async fn replies(admin: &PgPool) -> anyhow::Result<Vec<Reply>> {
    let sql =
        "select id, channel_message_id, provider, payload ->> 'text' as text, status, claims, last_error,
                      provider_message_id
                 from channels.channel_outbox";
    let rows = sqlx::query(sql).fetch_all(admin).await?;
    let reply = |row: &sqlx::postgres::PgRow| {
        Ok(Reply {
            id: row.try_get("id")?,
            message: row.try_get("channel_message_id")?,
            provider: row.try_get("provider")?,
            text: row.try_get("text")?,
            status: row.try_get("status")?,
            claims: usize::try_from(row.try_get::<i32, _>("claims")?)?,
            last_error: row.try_get("last_error")?,
            provider_message_id: row.try_get("provider_message_id")?,
        })
    };
    rows.iter().map(reply).collect()
}

async fn claims(admin: &PgPool) -> anyhow::Result<HashMap<Uuid, usize>> {
    let rows = sqlx::query("select reply, count(*) as claims from public.claims group by reply")
        .fetch_all(admin)
        .await?;
    let claims = |row: &sqlx::postgres::PgRow| {
        Ok((row.try_get("reply")?, usize::try_from(row.try_get::<i64, _>("claims")?)?))
    };
    rows.iter().map(claims).collect()
}
