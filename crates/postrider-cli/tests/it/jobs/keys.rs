//! Lock keys and entity hashes: the model, the database and a JavaScript engine compute one and the same.

use std::process::Stdio;

use anyhow::Context;
use jiff::Timestamp;
use postrider_model::{
    ids::TenantId,
    jobs::lock_key::{EntityHash, Grain, lock_key},
};
use tokio::io::AsyncWriteExt;
use uuid::Uuid;

use super::entities;
use crate::{
    sql::{execute, refusal},
    world::World,
};

/// The function as it was given to us, and what `JSON.stringify` writes, for each text on the standard input.
const JAVASCRIPT: &str = r#"
const { createHash } = require('crypto');
function computeEntityHash(entities) {
    const canonical = JSON.stringify(
        Object.keys(entities).sort().map(k => [k, entities[k]])
    );
    return createHash('sha256').update(canonical).digest('hex').slice(0, 12);
}
const texts = JSON.parse(require('fs').readFileSync(0, 'utf8'));
const answers = texts.map(text => [computeEntityHash(JSON.parse(text)), JSON.stringify(JSON.parse(text))]);
process.stdout.write(JSON.stringify(answers));
"#;

/// The result of JavaScript: the hash and the text.
async fn javascript(texts: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let mut node = tokio::process::Command::new("node")
        .args(["-e", JAVASCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("node does not start; scripts/setup tests installs it")?;
    let mut stdin = node.stdin.take().context("it has a standard input")?;
    // It reads everything before it writes.
    stdin.write_all(&serde_json::to_vec(texts)?).await?;
    drop(stdin);
    let said = node.wait_with_output().await?;
    anyhow::ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    Ok(serde_json::from_slice(&said.stdout)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn entity_hashes_are_those_of_javascript_in_the_model_and_in_the_database() -> anyhow::Result<()> {
    let world = World::new().await?;
    let mut texts = entities::written();
    let by_hand = texts.len();
    texts.extend(entities::powers_of_two());
    texts.extend(entities::made(3000));
    let expected = javascript(&texts).await?;
    assert_eq!(expected[0].0, "971121298e66");

    // Settings of a session that could change how numbers and literals are read and written.
    let mut client = world.client("postrider_app").await?.acquire().await?;
    execute(
        &mut *client,
        "set extra_float_digits = -3; set standard_conforming_strings = off; set escape_string_warning = off",
    )
    .await?;
    let hashes: Vec<String> = sqlx::query_scalar(
        "select jobs.entity_hash(entities::json) from unnest($1) with ordinality as given (entities, place) order by place",
    )
    .bind(&texts)
    .fetch_all(&mut *client)
    .await?;
    let stringified: Vec<String> = sqlx::query_scalar(
        "select jobs.json_text(jobs.json_shielded(value::json), 1) from unnest($1) with ordinality as given (value, place) order by place",
    )
    .bind(&texts[..by_hand])
    .fetch_all(&mut *client)
    .await?;

    assert_eq!((hashes.len(), expected.len(), stringified.len()), (texts.len(), texts.len(), by_hand));
    for (text, written) in expected.iter().map(|(_, text)| text).zip(&stringified) {
        assert_eq!(text, written);
    }
    let mut wrong = Vec::new();
    for ((text, (expected, _)), in_sql) in texts.iter().zip(&expected).zip(&hashes) {
        let in_rust = EntityHash::of(text).map_or_else(|error| error.to_string(), |hash| hash.to_string());
        if in_rust != *expected || in_sql != expected {
            wrong.push(format!("{expected} in JavaScript, {in_rust} in Rust, {in_sql} in SQL: {text}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        texts.len(),
        wrong[..wrong.len().min(10)].join("\n")
    );
    Ok(())
}

#[tokio::test]
async fn a_value_without_a_hash_is_refused_by_the_model_and_the_database() -> anyhow::Result<()> {
    let world = World::new().await?;
    let client = world.client("postrider_read").await?;
    let table = [
        ("[1]", "must be a JSON object", "22023"),
        ("\"{}\"", "must be a JSON object", "22023"),
        ("-1", "must be a JSON object", "22023"),
        ("null", "must be a JSON object", "22023"),
        (&entities::nested(65), "deeper than 64 levels", "22023"),
        (&entities::nested(1000), "deeper than 64 levels", "22023"),
        (&format!("{{\"a\":{}{}}}", "[".repeat(64), "]".repeat(64)), "deeper than 64 levels", "22023"),
        ("", "not valid JSON", "22P02"),
        ("{\"a\":1,}", "not valid JSON", "22P02"),
        ("{\"a\":01}", "not valid JSON", "22P02"),
        ("{\"a\":1.}", "not valid JSON", "22P02"),
        ("{\"a\":+1}", "not valid JSON", "22P02"),
        ("{\"a\":NaN}", "not valid JSON", "22P02"),
        ("{'a':1}", "not valid JSON", "22P02"),
        ("{\"a\":\"\\x\"}", "not valid JSON", "22P02"),
        ("{\"a\":\"\\ud80\"}", "not valid JSON", "22P02"),
        ("{\"a\":\"\n\"}", "not valid JSON", "22P02"),
        ("{} {}", "not valid JSON", "22P02"),
        ("\u{feff}{}", "not valid JSON", "22P02"),
    ];
    for (text, reason, code) in table {
        let in_rust = EntityHash::of(text).unwrap_err().to_string();
        assert!(in_rust.contains(reason), "{text}: {in_rust}");
        let asked = sqlx::query_scalar::<_, String>("select jobs.entity_hash($1::text::json)").bind(text);
        let in_sql = refusal(asked.fetch_one(&client).await)?;
        assert_eq!(in_sql.code, code, "{text}: {in_sql:?}");
        assert!(code == "22P02" || in_sql.message.contains(reason), "{text}: {in_sql:?}");
    }
    // Without entities there is no hash, and that is no error.
    let none: Option<String> = sqlx::query_scalar("select jobs.entity_hash(null)").fetch_one(&client).await?;
    assert_eq!(none, None);
    Ok(())
}

/// Moments from 1970 to 2100: on, just before and just after the borders of grains, and in between.
fn moments() -> Vec<i64> {
    const DAY: i64 = 86_400_000_000;
    let days = (0..130 * 365).step_by(401).chain([59, 60, 364, 365, 11_016, 20_490, 20_491, 47_540, 47_541]);
    days.flat_map(|day| {
        let within = day * 7919 % DAY;
        [0, 1, within * 1_000_003 % DAY, 299_999_999, 300_000_000, 3_599_999_999, 3_600_000_000, DAY - 1]
            .map(|more| day * DAY + more)
    })
    .collect()
}

#[tokio::test]
async fn grains_and_lock_keys_are_the_same_in_the_model_and_in_the_database() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (tenant, moments) = (TenantId(Uuid::now_v7()), moments());
    let hash = EntityHash::of(r#"{"rule_id":"r123","sku":"SKU001"}"#)?;
    for (role, settings) in [
        ("postrider_app", "set timezone = 'UTC'"),
        (
            "postrider_worker",
            "set timezone = 'America/St_Johns'; set datestyle = 'German, DMY'; set intervalstyle = 'iso_8601'",
        ),
    ] {
        let mut client = world.client(role).await?.acquire().await?;
        execute(&mut *client, settings).await?;
        for grain in Grain::ALL {
            let rows: Vec<(i64, i64, i64, String, String, String)> = sqlx::query_as(
                "select micros,
                        (extract(epoch from jobs.grain_start($2, at)) * 1000000)::bigint,
                        (extract(epoch from jobs.grain_length($2)) * 1000000)::bigint,
                        jobs.grain_label($2, at),
                        jobs.lock_key('detect-alerts', $3, $2, at),
                        jobs.lock_key('detect-alerts', $3, $2, at, $4)
                   from unnest($1) as micros,
                        lateral (select timestamptz 'epoch' + micros * interval '1 microsecond') as moment (at)",
            )
            .bind(&moments)
            .bind(grain.as_str())
            .bind(tenant.0)
            .bind(hash.as_str())
            .fetch_all(&mut *client)
            .await?;
            assert_eq!(rows.len(), moments.len());
            for (micros, start, length, label, key, key_of_entity) in rows {
                let at = Timestamp::from_microsecond(micros)?;
                assert_eq!(grain.start(at).as_microsecond(), start, "{grain} at {at}");
                assert_eq!(grain.length().as_micros(), u128::try_from(length)?);
                assert_eq!(grain.label(at), label, "{grain} at {at}");
                assert_eq!(lock_key("detect-alerts", tenant, *grain, at, None), key);
                assert_eq!(lock_key("detect-alerts", tenant, *grain, at, Some(&hash)), key_of_entity);
            }
        }
    }
    Ok(())
}
