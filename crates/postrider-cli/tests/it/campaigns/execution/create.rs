//! create_campaign: all of a campaign or nothing, and what is wrong is said.

use serde_json::{Value, json};
use uuid::Uuid;

use super::{Stage, Tenant};
use crate::sql::{Refusal, acting_as, execute, refusal, texts};

/// The refusal of a campaign of these phases, which must leave nothing behind.
async fn refused(stage: &Stage, phases: &Value) -> anyhow::Result<Refusal> {
    let before = stage.census().await?;
    let refused = refusal(stage.campaign(stage.own, phases).await)
        .map_err(|error| error.context(phases.to_string()))?;
    assert_eq!(stage.census().await?, before, "{phases}");
    Ok(refused)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_with_one_bad_phase_is_refused_whole() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let good = stage.phase(stage.own, 1, &json!({})).await?;
    let with = |name: &str, value: Value| {
        let mut bad = good.clone();
        bad["id"] = json!(Uuid::now_v7());
        bad["phase"] = json!("second");
        bad[name] = value;
        json!([good, bad])
    };
    let unknown = Uuid::now_v7();
    let voice = stage.asset(stage.own, "voice").await?;
    for (phases, code, message) in [
        (json!([]), "22023", "a campaign has between 1 and 100 phases"),
        (json!({}), "22023", "a campaign has between 1 and 100 phases"),
        (json!("first"), "22023", "a campaign has between 1 and 100 phases"),
        (json!(vec![&good; 101]), "22023", "a campaign has between 1 and 100 phases"),
        (json!([1]), "P0002", "there is no asset (none)"),
        (with("asset_id", json!(unknown)), "P0002", "phase `second`: there is no asset"),
        (with("asset_id", json!(null)), "P0002", "phase `second`: there is no asset (none)"),
        (with("asset_id", json!("x")), "22P02", "invalid input syntax for type uuid"),
        (
            with("asset_id", json!(voice)),
            "22023",
            "phase `second`: the asset is for channel voice, the phase for email",
        ),
        (with("channel", json!(null)), "22023", "the asset is for channel email, the phase for (none)"),
        (with("channel", json!("fax")), "22023", "the asset is for channel email, the phase for fax"),
        (with("list", json!("nobody")), "P0002", "phase `second`: there is no list `nobody`"),
        (with("list", json!(null)), "22023", "phase `second` names no list"),
        (with("provider_account", json!("x")), "P0002", "phase `second`: there is no provider account `x`"),
        (
            with("provider_account", json!(null)),
            "P0002",
            "phase `second`: there is no provider account `(none)`",
        ),
        (with("kind", json!("internal")), "23514", "violates check constraint"),
        (with("id", json!(null)), "23502", "id"),
        (with("id", good["id"].clone()), "23505", "campaign_phases_pkey"),
        (with("phase", good["phase"].clone()), "23505", "campaign_phases_one_per_name"),
        (with("phase", json!("A b")), "23514", "campaign_phases_name_is_simple"),
        (with("phase", json!(null)), "23502", "phase"),
        (with("failure_tolerance", json!(1.01)), "23514", "campaign_phases_tolerance_is_a_share"),
        (with("failure_tolerance", json!(-0.01)), "23514", "campaign_phases_tolerance_is_a_share"),
        (with("failure_tolerance", json!("NaN")), "23514", "campaign_phases_tolerance_is_a_share"),
        (with("quiet_time_seconds", json!(0)), "23514", "campaign_phases_quiet_time_is_positive"),
        (with("quiet_time_seconds", json!(-1)), "23514", "campaign_phases_quiet_time_is_positive"),
        (with("scheduled_for", json!("soon")), "22007", "invalid input syntax"),
        (with("scheduled_for", json!("infinity")), "23514", "campaign_phases_scheduled_in_a_plain_year"),
        (with("scheduled_for", json!("-infinity")), "23514", "campaign_phases_scheduled_in_a_plain_year"),
        (
            with("scheduled_for", json!("9999-06-01T00:00:00Z")),
            "23514",
            "campaign_phases_scheduled_in_a_plain_year",
        ),
        (with("scheduled_for", json!("0044-03-15 BC")), "23514", "campaign_phases_scheduled_in_a_plain_year"),
    ] {
        let refused = refused(&stage, &phases).await?;
        assert_eq!(refused.code, code, "{phases}: {refused:?}");
        assert!(refused.message.contains(message), "{phases}: {refused:?}");
    }
    stage.campaign(stage.own, &json!([good])).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_without_a_name_an_actor_a_workspace_or_a_tenant_is_refused() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let phases = json!([stage.phase(stage.own, 1, &json!({})).await?]).to_string();
    let other = Tenant::create(&stage.admin, "other").await?;
    let own = format!("'{}'", stage.own.workspace);
    let call = |workspace: &str, name: &str, actor: &str| {
        format!(
            "select execution.create_campaign(tenancy.current_tenant_id(), gen_random_uuid(), {workspace}, {name}, true, '{phases}', {actor})::text"
        )
    };
    let before = stage.census().await?;
    for (sql, code) in [
        (call(&own, "' '", "'me'"), "23514"),
        (call(&own, "null", "'me'"), "23502"),
        (call(&own, "'n'", "null"), "23502"),
        (call(&own, "'n'", "' '"), "23514"),
        (call("null", "'n'", "'me'"), "23502"),
        (call("gen_random_uuid()", "'n'", "'me'"), "23503"),
        (call(&format!("'{}'", other.workspace), "'n'", "'me'"), "23503"),
    ] {
        assert_eq!(refusal(stage.ask::<String>(stage.own, &sql).await)?.code, code, "{sql}");
    }
    let without =
        call(&own, "'n'", "'me'").replace("tenancy.current_tenant_id()", &format!("'{}'", stage.own.id));
    assert_eq!(refusal(texts(&stage.app, without).await)?.code, "42501", "no tenant");
    assert_eq!(stage.census().await?, before);

    let named = call(&own, "'n'", "'me'");
    stage.ask::<String>(stage.own, &named).await?;
    let refused = refusal(stage.ask::<String>(stage.own, &named).await)?;
    assert_eq!(refused.code, "23505", "one campaign per name: {refused:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_another_tenant_or_workspace_are_as_unknown_as_missing_ones() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = Tenant::create(&stage.admin, "other").await?;
    let elsewhere = Tenant { id: stage.own.id, workspace: Uuid::now_v7() };
    let more = format!(
        "insert into tenancy.workspaces (id, tenant_id, name) values ('{workspace}', '{id}', 'second');
         insert into tenancy.provider_accounts (id, tenant_id, workspace_id, name, provider, sealed_secret)
         values (gen_random_uuid(), '{id}', '{workspace}', 'elsewhere', 'sim', 'x'),
                (gen_random_uuid(), '{}', '{}', 'theirs', 'sim', 'x')",
        other.id,
        other.workspace,
        id = elsewhere.id,
        workspace = elsewhere.workspace
    );
    execute(&stage.admin, more).await?;
    let good = stage.phase(stage.own, 1, &json!({})).await?;
    for (tenant, account) in [(other, "theirs"), (elsewhere, "elsewhere")] {
        let asset = stage.asset(tenant, "email").await?;
        let list = format!("of {}", tenant.workspace);
        stage.list(tenant, &list, 1).await?;
        let unknown = Uuid::now_v7();
        for (name, theirs, missing) in [
            ("asset_id", asset.to_string(), unknown.to_string()),
            ("list", list, unknown.to_string()),
            ("provider_account", account.to_owned(), unknown.to_string()),
        ] {
            let mut said = Vec::new();
            for value in [&theirs, &missing] {
                let mut phase = good.clone();
                phase[name] = json!(value);
                let mut refusal = refused(&stage, &json!([phase])).await?;
                refusal.message = refusal.message.replace(value, "X");
                said.push(refusal);
            }
            assert_eq!(said[0], said[1], "{name}");
            assert_eq!(said[0].code, "P0002", "{name}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn external_phases_need_nothing_and_may_come_first_or_last() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let external = |phase: &str| json!({ "id": Uuid::now_v7(), "phase": phase, "kind": "external" });
    let delivery = stage.phase(stage.own, 1, &json!({})).await?;
    let campaign =
        stage.campaign(stage.own, &json!([external("before"), delivery, external("after")])).await?;
    let phases = format!(
        "select concat_ws(' ', position, phase, kind, status, channel, asset_id is null, list_id is null, \
                          failure_tolerance, quiet_time) \
           from execution.campaign_phases where campaign_id = '{campaign}' order by position"
    );
    assert_eq!(
        texts(&stage.admin, phases).await?,
        [
            "1 before external not_started t t 0.05 00:11:00",
            "2 first delivery not_started email f f 0.05 00:11:00",
            "3 after external not_started t t 0.05 00:11:00",
        ]
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_of_an_asset_count_without_gaps_and_the_same_words_make_no_new_one() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let create = |content: &str| {
        format!(
            "select version from execution.create_asset(tenancy.current_tenant_id(), gen_random_uuid(), '{}', 'letter', 'email', '{content}', 'me')",
            stage.own.workspace
        )
    };
    for (content, version) in [(r#"{"a": 1}"#, 1), (r#"{"a": 1}"#, 1), (r#"{"a": 2}"#, 2), (r#"{"a": 1}"#, 3)]
    {
        assert_eq!(stage.ask::<i32>(stage.own, create(content)).await?, version, "{content}");
    }
    let mut tasks = tokio::task::JoinSet::new();
    for at in 0..8 {
        let (app, own) = (stage.app.clone(), stage.own);
        let sql = create(&format!(r#"{{"b": {at}}}"#));
        tasks.spawn(async move {
            let mut transaction = app.begin().await?;
            execute(&mut *transaction, acting_as(own.id)).await?;
            execute(&mut *transaction, sql).await?;
            transaction.commit().await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let versions = "select string_agg(version::text, ' ' order by version) from execution.assets";
    assert_eq!(texts(&stage.admin, versions).await?, ["1 2 3 4 5 6 7 8 9 10 11"]);
    // No client can block these functions with a guessed advisory lock.
    assert!(
        !texts(&stage.admin, "select prosrc from pg_proc where pronamespace = 'execution'::regnamespace")
            .await?
            .iter()
            .any(|source| source.contains("pg_advisory"))
    );
    Ok(())
}
