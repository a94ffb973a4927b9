//! Provider secrets: sealed, bound to their row, and never shown.

use sqlx::Row;

use super::{MASTER_KEY, World, assert_refused, succeeded};
use crate::world::{postrider, run, run_with_input};

const TWILIO: &str = r#"{"account_sid": "AC00000000000000000000000000000000", "from": "+15005550006", "callback_url": "https://a.example"}"#;
const CANARY: &str = "canary-3f1c9a-secret";

fn check(world: &World, tenant: &str) -> anyhow::Result<crate::world::Output> {
    world.postrider_with_secret(&["accounts", "check", "--tenant", tenant], "")
}

fn add(world: &World, tenant: &str, name: &str, secret: &str) -> anyhow::Result<()> {
    let args = ["accounts", "add", name, "--tenant", tenant, "--provider", "twilio", "--settings", TWILIO];
    succeeded(world.postrider_with_secret(&args, secret)?)?;
    Ok(())
}

#[tokio::test]
async fn a_sealed_secret_copied_to_another_row_or_tenant_does_not_open() -> anyhow::Result<()> {
    let world = World::new().await?;
    for tenant in ["acme", "other"] {
        world.stdout(&["tenants", "create", tenant])?;
        add(&world, tenant, "sms", CANARY)?;
    }
    add(&world, "acme", "mail", CANARY)?;
    for tenant in ["acme", "other"] {
        succeeded(check(&world, tenant)?)?;
    }

    let copy = |from: &str, to: &str| {
        let place = |at: &str| {
            let (tenant, name) = at.split_once('/').unwrap_or_default();
            format!(
                "name = '{name}' and tenant_id = (select id from tenancy.tenants where name = '{tenant}')"
            )
        };
        format!(
            "update tenancy.provider_accounts set sealed_secret =
                 (select sealed_secret from tenancy.provider_accounts where {}) where {}",
            place(from),
            place(to)
        )
    };
    // Within a tenant.
    world.as_superuser(&copy("acme/sms", "acme/mail")).await?;
    assert_refused(
        &check(&world, "acme")?,
        "1 of 2 secrets do not open: `mail`: the sealed secret is damaged or belongs to another row",
    );
    // Across tenants, to an account of the same name and provider.
    world.as_superuser(&copy("acme/sms", "other/sms")).await?;
    assert_refused(&check(&world, "other")?, "`sms`: the sealed secret is damaged or belongs to another row");

    // Storing it again puts it right.
    succeeded(world.postrider_with_secret(&["accounts", "rotate", "mail", "--tenant", "acme"], CANARY)?)?;
    succeeded(check(&world, "acme")?)?;
    Ok(())
}

#[tokio::test]
async fn a_secret_does_not_open_when_damaged_or_under_another_master_key() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.stdout(&["tenants", "create", "acme"])?;
    add(&world, "acme", "sms", CANARY)?;
    let mut command = postrider();
    command.env("POSTRIDER_MASTER_KEY", "YW5vdGhlciBtYXN0ZXIga2V5IG9mIHRoZSB0ZXN0cy4=").args([
        "--database-url",
        &world.admin_url(),
        "accounts",
        "check",
        "--tenant",
        "acme",
    ]);
    assert_refused(&run(&mut command)?, "`sms`: the secret was sealed under another master key");

    world.as_superuser("update tenancy.provider_accounts set sealed_secret = set_byte(sealed_secret, 40, get_byte(sealed_secret, 40) # 1)").await?;
    assert_refused(&check(&world, "acme")?, "`sms`: the sealed secret is damaged");
    Ok(())
}

#[tokio::test]
async fn the_secret_stands_nowhere_in_the_database_nor_in_any_output_or_log() -> anyhow::Result<()> {
    let world = World::new().await?;
    let made = world.json(&["tenants", "create", "acme"])?;
    let api_key = made["admin_key"].as_str().unwrap();
    let mut printed = String::new();
    for (args, input) in [
        (&["accounts", "add", "sms", "--provider", "twilio", "--settings", TWILIO][..], CANARY),
        (&["accounts", "rotate", "sms"], CANARY),
        (&["accounts", "list"], ""),
        (&["accounts", "list", "--json"], ""),
        (&["accounts", "check"], ""),
        (&["keys", "list"], ""),
        (&["keys", "list", "--json"], ""),
    ] {
        let mut command = postrider();
        command
            .env("POSTRIDER_MASTER_KEY", MASTER_KEY)
            .args(["--log", "trace", "--log-format", "json", "--database-url", &world.admin_url()])
            .args(args)
            .args(["--tenant", "acme"]);
        let output = succeeded(run_with_input(&mut command, input)?)?;
        assert!(output.stderr.contains("DEBUG"), "it logs all it can: {}", output.stderr);
        printed.extend([output.stdout, output.stderr]);
    }
    let dump = world.dump().await?;
    assert!(dump.contains("twilio") && printed.contains("twilio"), "what is not secret is there");
    for secret in [CANARY, MASTER_KEY, api_key] {
        assert!(!printed.contains(secret) && !dump.contains(secret));
        let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert!(!dump.contains(&hex) && !printed.contains(&hex));
    }

    let admin = world.client("postgres").await?;
    let row = sqlx::query("select sealed_secret from tenancy.provider_accounts").fetch_one(&admin).await?;
    let sealed: Vec<u8> = row.get(0);
    assert!(
        sealed.len() > CANARY.len()
            && !sealed.windows(6).any(|window| CANARY.as_bytes().windows(6).any(|part| part == window))
    );
    Ok(())
}

#[tokio::test]
async fn the_same_secret_is_sealed_differently_each_time() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.stdout(&["tenants", "create", "acme"])?;
    let admin = world.client("postgres").await?;
    add(&world, "acme", "sms", CANARY)?;
    let sealed = async || {
        sqlx::query_scalar::<_, Vec<u8>>("select sealed_secret from tenancy.provider_accounts")
            .fetch_one(&admin)
            .await
    };
    let before = sealed().await?;
    succeeded(world.postrider_with_secret(&["accounts", "rotate", "sms", "--tenant", "acme"], CANARY)?)?;
    assert_ne!(before, sealed().await?);
    Ok(())
}

#[tokio::test]
async fn a_removed_account_leaves_no_trace_of_its_sealed_secret() -> anyhow::Result<()> {
    let world = World::new().await?;
    world.stdout(&["tenants", "create", "acme"])?;
    add(&world, "acme", "sms", CANARY)?;
    let admin = world.client("postgres").await?;
    let sealed: String =
        sqlx::query_scalar("select encode(sealed_secret, 'hex') from tenancy.provider_accounts")
            .fetch_one(&admin)
            .await?;
    assert!(world.dump().await?.contains(&sealed));
    world.stdout(&["accounts", "remove", "sms", "--tenant", "acme"])?;
    assert!(!world.dump().await?.contains(&sealed));
    Ok(())
}
