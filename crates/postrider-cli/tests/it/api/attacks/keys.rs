//! Authentication and roles of every operation.

use postrider_model::tenancy::Role;
use postrider_store::{postgres::pool, tenancy::keys};

use super::Duel;

#[tokio::test(flavor = "multi_thread")]
async fn no_operation_lets_anybody_in_without_a_valid_key() -> anyhow::Result<()> {
    let duel = Duel::new().await?;
    let owner = &duel.attacker;
    let mut transaction = pool::begin_as(&duel.stage.admin, owner.tenant.id).await?;
    let (revoked_id, revoked) =
        keys::create(&mut transaction, owner.tenant.id, "revoked", Role::Admin, None, "test").await?;
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let (_, expired) =
        keys::create(&mut transaction, owner.tenant.id, "expired", Role::Admin, Some(soon), "test").await?;
    keys::revoke(&mut transaction, owner.tenant.id, revoked_id, "test").await?;
    pool::commit(transaction).await?;
    sqlx::query(
        "update tenancy.api_keys set expires_at = now() - interval '1 second' where name = 'expired'",
    )
    .execute(&duel.stage.admin)
    .await?;

    let valid = &owner.tenant.admin;
    // Of the same tenant, and of another one.
    let (prefix, random) = valid.split_at("pr_".len() + 32 + 1);
    let wrong = format!("{prefix}{}", "A".repeat(random.len()));
    let moved = format!("pr_{}_{random}", duel.victim.tenant.id.0.simple());
    let bearer = |key: &str| vec![format!("Bearer {key}")];
    let headers = [
        ("no key", vec![]),
        ("an empty key", bearer("")),
        ("a wrong key", bearer(&wrong)),
        ("a key that names another tenant", bearer(&moved)),
        ("half a key", bearer(&valid[..20])),
        ("a revoked key", bearer(revoked.expose())),
        ("an expired key", bearer(expired.expose())),
        ("another scheme", vec![format!("Basic {valid}")]),
        ("two keys", vec![format!("Bearer {valid}"), format!("Bearer {valid}")]),
    ];
    let before = duel.census().await?;
    for operation in &duel.operations {
        if operation.role().is_none() {
            continue;
        }
        for (what, given) in &headers {
            let mut call = duel.call(operation, owner, owner.named(operation.attack.names));
            for value in given {
                call = call.header("authorization", value);
            }
            let reply = call.header("x-api-key", valid).header("cookie", &format!("key={valid}")).send()?;
            assert_eq!(reply.status, 401, "{operation} with {what}: {}", reply.text());
            reply.problem(401)?;
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"), "{operation} with {what}");
        }
        duel.unchanged(&before, &operation.to_string()).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_operation_does_anything_for_a_role_below_the_one_it_needs() -> anyhow::Result<()> {
    let duel = Duel::new().await?;
    let owner = &duel.attacker;
    let before = duel.census().await?;
    for operation in &duel.operations {
        let Some(needed) = operation.role() else { continue };
        for role in Role::ALL.into_iter().filter(|role| *role < needed) {
            let call =
                duel.call(operation, owner, owner.named(operation.attack.names)).key(owner.secret(role));
            let reply =
                if operation.method == "POST" { call.idempotency_key("mine").send()? } else { call.send()? };
            assert_eq!(reply.status, 403, "{operation} as {role}: {}", reply.text());
            assert_eq!(reply.problem(403)?["needed_role"], needed.as_str(), "{operation} as {role}");
        }
        duel.unchanged(&before, &operation.to_string()).await?;
    }
    Ok(())
}
