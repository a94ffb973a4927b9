//! No tenant reads another's rows, and without one there is nothing to read.

use uuid::Uuid;

use super::{
    firing::{fire, schedule},
    stage::{Capacity, Claimed, End, Stage, ask, claim, ends},
};
use crate::sql::{acting_as, execute, number, refusal, texts};

/// Tables and the view, of which each has rows.
const READABLE: [&str; 9] = [
    "functions",
    "schedules",
    "job_runs",
    "schedule_firings",
    "sync_errors",
    "alert_instances",
    "decision_cards",
    "alert_notifications",
    "job_health",
];

/// Tables whose rows belong to the installation.
const OF_THE_INSTALLATION: [&str; 1] = ["provided_functions"];

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_sees_nothing_of_anothers_jobs() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (own, other) = (stage.own, stage.another("other").await?);
    stage.ended(own, "f", End::Refused).await?;
    let id = schedule(&stage, "f", &[]).await?;
    fire(&stage.worker, &stage, id).await?;
    stage.ask::<Uuid>(own, "select jobs.raise_alert(tenancy.current_tenant_id(), 'a', null, 't')").await?;
    stage
        .ask_as_worker::<i32>(
            own,
            "select opened from jobs.generate_decision_cards(tenancy.current_tenant_id())",
        )
        .await?;
    stage
        .ask_as_worker::<i32>(
            own,
            "select jobs.plan_notifications(tenancy.current_tenant_id(), array[gen_random_uuid()], '{ann}')",
        )
        .await?;
    let all = "select relname::text from pg_class where relnamespace = 'jobs'::regnamespace and relkind in ('r', 'v') order by 1";
    let mut known: Vec<&str> = READABLE.into_iter().chain(OF_THE_INSTALLATION).collect();
    known.sort_unstable();
    assert_eq!(texts(&stage.admin, all).await?, known);
    let reader = stage.world.client("postrider_read").await?;
    for table in READABLE {
        let count = format!("select count(*) from jobs.{table}");
        // Both have the function `f`; the rest is the first one's.
        let theirs = i64::from(table == "functions");
        for client in [&stage.app, &stage.worker, &reader] {
            assert!(ask::<i64>(client, own, &count).await? >= 1, "{table}");
            assert_eq!(ask::<i64>(client, other, &count).await?, theirs, "{table}");
            assert_eq!(number(client, &count).await?, 0, "{table}");
        }
    }
    Ok(())
}

/// Calls of every function of the schema that takes a tenant first and that this role may execute, for this tenant.
async fn calls(stage: &Stage, role: &str, tenant: Uuid) -> Result<Vec<String>, sqlx::Error> {
    let calls = format!(
        "select format('select jobs.%I(%L::uuid%s)', function.proname, '{tenant}',
                       (select string_agg(format(', null::%s', argument.type::regtype), '' order by argument.place)
                          from unnest(function.proargtypes) with ordinality as argument (type, place)
                         where argument.place > 1))
           from pg_proc as function
          where function.pronamespace = 'jobs'::regnamespace
            and function.proargnames[1] = 'p_tenant_id'
            and has_function_privilege('{role}', function.oid, 'execute')
          order by 1"
    );
    texts(&stage.admin, calls).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_app_acts_for_the_tenant_of_its_context_alone() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.another("other").await?;
    let before = stage.everything().await?;
    let calls = calls(&stage, "postrider_app", other).await?;
    assert!(calls.len() >= 14, "{calls:?}");
    for call in &calls {
        for context in [acting_as(stage.own), String::new()] {
            let mut transaction = stage.app.begin().await?;
            execute(&mut *transaction, context).await?;
            assert_eq!(refusal(execute(&mut *transaction, call).await)?.code, "42501", "{call}");
        }
    }
    assert_eq!(stage.everything().await?, before);
    Ok(())
}

// Only a superuser, or a tenant that chooses its ids with care, makes two runs with one id.
#[tokio::test(flavor = "multi_thread")]
async fn runs_of_two_tenants_with_one_id_are_kept_apart() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.another("other").await?;
    let id = stage.run(stage.own, "f").await?;
    stage.fill(other, 1, "id", &format!("'{id}'")).await?;
    let claimed = claim(&stage.worker, "w", &Capacity::of(10)).await?;
    let [own, theirs] = [stage.own, other].map(|tenant| claimed.iter().find(|run| run.tenant_id == tenant));
    let (Some(own), Some(theirs)) = (own, theirs) else { anyhow::bail!("{claimed:?}") };
    assert_eq!((own.id, theirs.id, claimed.len()), (id, id, 2));

    let state = "select concat_ws(' ', status, locked_by, heartbeat_at < now() - interval '1 minute') from jobs.job_runs";
    let states = async || -> Result<Vec<String>, sqlx::Error> {
        let mut states = Vec::new();
        for tenant in [stage.own, other] {
            states.extend(texts(&stage.admin, format!("{state} where tenant_id = '{tenant}'")).await?);
        }
        Ok(states)
    };
    execute(&stage.admin, "update jobs.job_runs set heartbeat_at = now() - interval '1 hour'").await?;
    let beat = |run: &Claimed| {
        let (tenant, claims) = (run.tenant_id, run.claims);
        format!(
            "select count(*) from jobs.heartbeat_runs(array['{tenant}']::uuid[], array['{id}']::uuid[], array[{claims}], 'w')"
        )
    };
    assert_eq!(number(&stage.worker, beat(own)).await?, 1);
    assert_eq!(states().await?, ["running w f", "running w t"]);
    assert_eq!(ends(&stage.worker, "w", &[(own, End::Done)]).await?, ["completed"]);
    assert_eq!(states().await?, ["completed", "running w t"]);
    let ended = format!(
        "select count(*) from jobs.which_ended(array['{}', '{other}']::uuid[], array['{id}', '{id}']::uuid[])",
        stage.own
    );
    assert_eq!(stage.ask::<i64>(Uuid::nil(), ended).await?, 1);
    let recover = format!("select count(*) from jobs.recover_runs('{}', '1 minute')", stage.own);
    assert_eq!(number(&stage.worker, recover).await?, 0);
    assert_eq!(ends(&stage.worker, "w", &[(theirs, End::Refused)]).await?, ["failed"]);
    assert_eq!(states().await?, ["completed", "failed"]);
    Ok(())
}
