//! Idempotency keys: the model, `outbox_key` and what begin_outbox_items writes are one and the same.

use jiff::Timestamp;
use postrider_model::{
    IdempotencyKey,
    ids::{AssetId, RunId},
    key::KeyPart,
};
use serde_json::json;
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{Stage, Windows, claim};
use crate::{sql::execute, world::World};

/// Times that are easily written wrong.
const EDGES: &[&str] = &[
    "null",
    "'1970-01-01 00:00:00Z'",
    "'1969-12-31 23:59:59.999999Z'",
    "'0001-01-01 00:00:00Z'",
    "'0099-02-28 01:02:03.000004Z'",
    "'1899-12-31 23:59:59.5Z'",
    "'2000-02-29 12:00:00.000001Z'",
    "'2026-02-02 02:40:00.12Z'",
    "'2026-03-29 01:30:00+01'",
    "'9998-12-31 23:59:59.999999Z'",
];

type Keyed = (Uuid, Uuid, Uuid, i32, Option<i64>, String, String, String);

#[tokio::test(flavor = "multi_thread")]
async fn the_model_and_the_database_compute_the_same_keys() -> anyhow::Result<()> {
    let world = World::new().await?;
    let mut random = Vec::from_iter(EDGES.iter().map(|edge| (*edge).to_owned()));
    random.push("'0001-01-01 00:00:00Z'::timestamptz + random() * interval '9997 years'".to_owned());
    random.push("now() + (random() - 0.5) * interval '40 years'".to_owned());
    for (role, settings) in [
        ("postrider_app", "set timezone = 'UTC'"),
        ("postrider_worker", "set timezone = 'Asia/Kathmandu'; set datestyle = 'German, DMY'"),
        (
            "postrider_read",
            "set timezone = 'America/St_Johns'; set intervalstyle = 'iso_8601'; set extra_float_digits = 0",
        ),
    ] {
        let mut client = world.client(role).await?.acquire().await?;
        execute(&mut *client, settings).await?;
        for at in &random {
            let sql = format!(
                "select run, item, asset, version, (extract(epoch from at) * 1000000)::bigint,
                        execution.outbox_key(run, item, asset::text, at),
                        execution.outbox_key(run, item, version::text, at),
                        execution.outbox_key(run, item, 'social', at)
                   from (select gen_random_uuid() as run, gen_random_uuid() as item, gen_random_uuid() as asset,
                                (random() * 1000000)::integer as version, ({at})::timestamptz as at
                           from generate_series(1, 200)) as random"
            );
            let rows: Vec<Keyed> = sqlx::query_as(AssertSqlSafe(sql)).fetch_all(&mut *client).await?;
            for (run, item, asset, version, at, email, voice, social) in rows {
                let at = at.map(Timestamp::from_microsecond).transpose()?;
                let key = |part| IdempotencyKey::new(RunId(run), item, part, at).to_string();
                assert_eq!(email, key(KeyPart::Asset(AssetId(asset))), "{at:?}");
                assert_eq!(voice, key(KeyPart::ScriptVersion(version)), "{at:?}");
                assert_eq!(social, key(KeyPart::Social), "{at:?}");
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_has_the_key_of_its_channel() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for scheduled in [json!(null), json!("2026-02-02T02:40:00.120001Z")] {
        for channel in ["email", "voice", "social"] {
            let mut more = json!({ "channel": channel, "scheduled_for": scheduled });
            if channel == "social" {
                more["list"] = json!(null);
            }
            if channel == "voice" {
                // The second version of a script.
                let next = format!(
                    "select id from execution.create_asset(tenancy.current_tenant_id(), gen_random_uuid(), '{}', 'script', 'voice', \
                     jsonb_build_object('script', gen_random_uuid()), 'a test')",
                    stage.own.workspace
                );
                for _ in 0..2 {
                    more["asset_id"] = json!(stage.ask::<Uuid>(stage.own, next.clone()).await?);
                }
            }
            let run = stage.run_of(stage.own, 3, 10, &more).await?;
            let asset: Uuid = stage.look("asset_id", "campaign_runs", run).await?.parse()?;
            let version: i32 = stage.look("version", "assets", asset).await?.parse()?;
            assert!(channel != "voice" || version % 2 == 0 && version > 0);
            let part = match channel {
                "email" => KeyPart::Asset(AssetId(asset)),
                "voice" => KeyPart::ScriptVersion(version),
                _ => KeyPart::Social,
            };
            let at: Option<Timestamp> = scheduled.as_str().map(str::parse).transpose()?;

            let jobs = claim(&stage.worker, "w", 10).await?;
            let count = i32::try_from(jobs[0].item_ids.len())?;
            let begun = Windows::of(&jobs[0], 1, count).begin(&stage.worker, "w").await?;

            assert_eq!(begun.len(), if channel == "social" { 1 } else { 3 });
            for item in begun {
                let expected = IdempotencyKey::new(RunId(run), item.item_id.unwrap(), part, at);
                assert_eq!(item.idempotency_key.as_deref(), Some(expected.as_str()), "{channel} {at:?}");
                let stored = stage.look("idempotency_key", "channel_outbox", item.outbox_id.unwrap()).await?;
                assert_eq!(stored, expected.as_str());
            }
        }
    }
    Ok(())
}
