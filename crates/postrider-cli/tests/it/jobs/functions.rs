//! Functions are set, keep their secret, and are kept while a schedule needs them.

use uuid::Uuid;

use super::stage::{Stage, acting_for, ask};
use crate::sql::{execute, refusal, texts};

/// Sets a function of this kind, with a secret or without one.
fn put(id: Uuid, name: &str, kind: &str, target: &str, secret: Option<&str>) -> String {
    let secret = secret.map_or("null".to_owned(), |secret| format!("'{secret}'"));
    format!(
        "select jobs.put_function(tenancy.current_tenant_id(), '{id}', '{name}', '{kind}', '{target}', 'hour', 10, 1, 2, 3, 4, {secret}, 'me')"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_is_set_again_under_its_id_and_keeps_its_secret() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (own, other, id) = (stage.own, stage.another("other").await?, Uuid::now_v7());
    let row = format!(
        "select concat_ws(' ', kind, target, grain, timeout_seconds, max_retries, initial_delay_ms, backoff_multiplier, max_delay_ms,
                          convert_from(sealed_secret, 'UTF8'))
           from jobs.functions where tenant_id = '{own}' and name = 'web'"
    );
    // A new one needs a secret.
    let refused = refusal(stage.ask::<bool>(own, put(id, "web", "http", "https://a", None)).await)?;
    assert!(refused.message.contains("functions_requests_are_signed"), "{refused:?}");
    for (kind, target, given, kept) in [
        ("http", "https://a", Some("one"), " one"),
        ("http", "https://b", None, " one"),
        ("http", "https://b", Some("two"), " two"),
        ("sql", "public.f", None, ""),
        ("http", "https://c", Some("three"), " three"),
    ] {
        assert!(stage.ask::<bool>(own, put(id, "web", kind, target, given)).await?);
        assert_eq!(texts(&stage.admin, &row).await?, [format!("{kind} {target} hour 10 1 2 3 4{kept}")]);
    }
    // Under another id the secret would not fit its row: nothing changes.
    let before = stage.everything().await?;
    assert!(!stage.ask::<bool>(own, put(Uuid::now_v7(), "web", "http", "https://d", Some("x"))).await?);
    assert_eq!(stage.everything().await?, before);
    // Another tenant has a function of this name of its own, even under the same id.
    assert!(stage.ask::<bool>(other, put(id, "web", "sql", "public.g", None)).await?);
    assert_eq!(texts(&stage.admin, &row).await?, ["http https://c hour 10 1 2 3 4 three"]);
    assert_eq!(stage.log_of("function:web".to_owned()).await?.len(), 6);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_built_in_function_is_made_once_and_replaces_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let make = |name: &str| {
        format!("select jobs.put_builtin(tenancy.current_tenant_id(), gen_random_uuid(), '{name}', '5min')")
    };
    for name in ["noop", "noop", "f"] {
        stage.tell(stage.own, make(name)).await?;
    }
    let all = format!(
        "select concat_ws(' ', name, kind, target, grain, timeout_seconds, max_retries) from jobs.functions
          where tenant_id = '{}' order by name",
        stage.own
    );
    assert_eq!(texts(&stage.admin, all).await?, ["f sql public.f day 60 3", "noop builtin noop 5min 60 3"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_that_a_schedule_needs_is_kept_and_its_runs_outlive_it() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (own, other) = (stage.own, stage.another("other").await?);
    stage.function(own, "g").await?;
    stage.function(own, "free").await?;
    let run = stage.run(own, "free").await?;
    let schedule = Uuid::now_v7();
    let scheduled = format!(
        "insert into jobs.schedules (id, tenant_id, function_name, cron, timezone, depends_on, enabled)
         values ('{schedule}', '{own}', 'f', '0 0 * * *', 'UTC', '{{g}}', false)"
    );
    execute(&stage.admin, scheduled).await?;
    let remove =
        |name: &str| format!("select jobs.remove_function(tenancy.current_tenant_id(), '{name}', 'me')");
    for name in ["f", "g"] {
        let refused = refusal(stage.ask::<bool>(own, remove(name)).await)?;
        assert_eq!(
            (refused.code.as_str(), refused.message.as_str()),
            ("23503", "a schedule of the function f needs it")
        );
    }
    assert!(!stage.ask::<bool>(own, remove("nobodys")).await?);
    assert!(!stage.ask::<bool>(other, remove("free")).await?);
    assert!(stage.ask::<bool>(own, remove("free")).await?);
    assert_eq!(stage.look_at_run("status", run).await?, "running");
    assert!(
        stage
            .ask::<bool>(
                own,
                format!("select jobs.remove_schedule(tenancy.current_tenant_id(), '{schedule}', 'me')")
            )
            .await?
    );
    for name in ["f", "g"] {
        assert!(stage.ask::<bool>(own, remove(name)).await?);
    }
    assert_eq!(stage.log_of("function:g".to_owned()).await?, ["function.removed by me"]);
    Ok(())
}

/// One caller sets a schedule while another removes its function: one of the two is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_function_is_not_removed_under_a_schedule_that_is_being_set() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.function(stage.own, "g").await?;
    let mut setting = acting_for(&stage.app, stage.own).await?;
    let put = "select jobs.put_schedule(tenancy.current_tenant_id(), gen_random_uuid(), 'f', '0 0 * * *', 'UTC', null, null, null, null, '{g}', 'once', true, now(), 'me')";
    execute(&mut *setting, put).await?;
    let (app, own) = (stage.app.clone(), stage.own);
    let removing = tokio::spawn(async move {
        ask::<bool>(&app, own, "select jobs.remove_function(tenancy.current_tenant_id(), 'g', 'me')").await
    });
    stage.someone_waits().await?;
    setting.commit().await?;
    assert_eq!(refusal(removing.await?)?.code, "23503");

    execute(&stage.admin, "delete from jobs.schedules").await?;
    let mut removing = acting_for(&stage.app, stage.own).await?;
    execute(&mut *removing, "select jobs.remove_function(tenancy.current_tenant_id(), 'g', 'me')").await?;
    let app = stage.app.clone();
    let setting = tokio::spawn(async move { execute(&mut *acting_for(&app, own).await?, put).await });
    stage.someone_waits().await?;
    removing.commit().await?;
    let refused = refusal(setting.await?)?;
    assert_eq!((refused.code.as_str(), refused.message.as_str()), ("23503", "there is no function g"));
    Ok(())
}
