//! deploy_campaign: one run and its jobs in one transaction, or nothing.

use std::collections::BTreeSet;

use serde_json::json;
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{Stage, Tenant, claim, complete, finalize, reserve_all};
use crate::{
    sql::{execute, number, refusal, texts},
    world::eventually,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_cannot_be_leaves_nothing_behind() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let own = stage.own;
    let good = stage.campaign(own, &json!([stage.phase(own, 3, &json!({})).await?])).await?;
    let empty = stage.campaign(own, &json!([stage.phase(own, 0, &json!({})).await?])).await?;
    let external = json!([{ "id": Uuid::now_v7(), "phase": "theirs", "kind": "external" }]);
    let external = stage.campaign(own, &external).await?;
    let unknown = Uuid::now_v7();
    let before = stage.census().await?;
    for (arguments, code, message, hint) in [
        (format!("'{unknown}'"), "P0002", "there is no campaign", "postrider campaign status"),
        ("null".to_owned(), "P0002", "there is no campaign", ""),
        (format!("'{good}', 'second'"), "P0002", "the campaign has no phase `second`", "It has: first."),
        (format!("'{good}', ''"), "P0002", "the campaign has no phase ``", "It has: first."),
        (format!("'{empty}'"), "22023", "the list of phase `first` is empty", "Import leads"),
        (format!("'{external}'"), "22023", "phase `theirs` is done by another service", ""),
        (
            format!("'{good}', p_job_size => 0"),
            "22023",
            "a send job has between 1 and 10000 items, not 0",
            "",
        ),
        (format!("'{good}', p_job_size => 10001"), "22023", "a send job has between 1 and 10000 items", ""),
        (
            format!("'{good}', p_job_size => null"),
            "22023",
            "a send job has between 1 and 10000 items, not null",
            "",
        ),
    ] {
        let call = format!("select execution.deploy_campaign(tenancy.current_tenant_id(), {arguments})");
        let refused = refusal(stage.ask::<Uuid>(own, &call).await)?;
        assert_eq!(refused.code, code, "{call}: {refused:?}");
        assert!(refused.message.contains(message) && refused.hint.contains(hint), "{call}: {refused:?}");
        assert_eq!(stage.census().await?, before, "{call}");
    }
    let without = refusal(
        texts(&stage.app, format!("select execution.deploy_campaign('{}', '{good}')::text", own.id)).await,
    )?;
    assert_eq!(
        (without.code.as_str(), without.message.as_str()),
        ("42501", "no tenant is set for this transaction")
    );
    assert_eq!(stage.census().await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenants_campaign_is_as_unknown_as_one_that_does_not_exist() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = Tenant::create(&stage.admin, "other").await?;
    let theirs = stage.campaign(other, &json!([stage.phase(other, 1, &json!({})).await?])).await?;
    let mut said = Vec::new();
    let before = stage.census().await?;
    for campaign in [theirs, Uuid::now_v7()] {
        let mut refused = refusal(stage.deploy(stage.own, campaign, 10).await)?;
        refused.message = refused.message.replace(&campaign.to_string(), "X");
        said.push(refused);
    }
    assert_eq!(said[0], said[1]);
    assert_eq!(stage.census().await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_and_one_leads_are_two_jobs_and_each_lead_is_in_exactly_one() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let phase = stage.phase(stage.own, 501, &json!({})).await?;
    let campaign = stage.campaign(stage.own, &json!([phase])).await?;
    let run = stage
        .ask::<Uuid>(
            stage.own,
            format!("select execution.deploy_campaign(tenancy.current_tenant_id(), '{campaign}')"),
        )
        .await?;

    let jobs: Vec<(i32, String, String, i32, Vec<Uuid>)> = sqlx::query_as(
        "select position, job_type, status, attempts, item_ids from execution.job_queue where run_id = $1 order by position",
    )
    .bind(run)
    .fetch_all(&stage.admin)
    .await?;
    let shapes: Vec<_> =
        jobs.iter().map(|job| (job.0, job.1.as_str(), job.2.as_str(), job.3, job.4.len())).collect();
    assert_eq!(shapes, [(1, "email_send_batch", "queued", 0, 500), (2, "email_send_batch", "queued", 0, 1)]);
    let items: Vec<Uuid> = jobs.into_iter().flat_map(|job| job.4).collect();
    let leads: Vec<Uuid> =
        sqlx::query_scalar("select id from execution.leads").fetch_all(&stage.admin).await?;
    assert_eq!(items.len(), leads.len());
    assert_eq!(BTreeSet::from_iter(items), BTreeSet::from_iter(leads));
    let facts = "concat_ws(' ', status, channel, intended, same_address, key_part = asset_id::text, provider, started_at is null)";
    assert_eq!(stage.look(facts, "campaign_runs", run).await?, "queued email 501 0 t sim t");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_gets_one_item_and_leads_without_an_address_stay() -> anyhow::Result<()> {
    for (channel, address, alike) in [
        ("email", "email", ["'Ann@Example.com'", "'ann@example.com'"]),
        ("voice", "phone", ["'+15550001'", "'+15550001'"]),
    ] {
        let stage = Stage::new().await?;
        let phase = stage.phase(stage.own, 6, &json!({ "channel": channel })).await?;
        let changes = format!(
            "update execution.leads set {address} = {} where identity like '% 1';
             update execution.leads set {address} = {} where identity like '% 2';
             update execution.leads set {address} = null where identity like '% 3' or identity like '% 4'",
            alike[0], alike[1]
        );
        execute(&stage.admin, changes).await?;
        let campaign = stage.campaign(stage.own, &json!([phase])).await?;
        let run = stage.deploy(stage.own, campaign, 500).await?;
        let counts = stage.look("intended || ' ' || same_address", "campaign_runs", run).await?;
        assert_eq!(counts, "5 1", "{channel}");
        let left_out = "select right(identity, 1) from execution.leads \
             where id not in (select unnest(item_ids) from execution.job_queue)";
        let left_out = texts(&stage.admin, left_out).await?;
        assert!(left_out == ["1"] || left_out == ["2"], "{channel}: {left_out:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_social_phase_without_a_list_is_one_post() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let run = stage.run_of(stage.own, 5, 500, &json!({ "channel": "social", "list": null })).await?;
    let asset = stage.look("asset_id", "campaign_runs", run).await?;
    let job = format!(
        "select job_type || ' ' || array_to_string(item_ids, ' ') from execution.job_queue where run_id = '{run}'"
    );
    assert_eq!(texts(&stage.admin, job).await?, [format!("social_post_batch {asset}")]);
    assert_eq!(stage.look("intended || ' ' || key_part", "campaign_runs", run).await?, "1 social");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_sets_queued_and_nothing_else() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    // A trigger records every status that a statement of the deployment sets.
    let note = "create table public.noted (what text);
        create function public.note() returns trigger language plpgsql as
        $$ begin insert into public.noted values (tg_table_name || ' ' || lower(tg_op) || ' ' || new.status); return null; end $$;
        grant insert on public.noted to postrider_owner;
        create trigger note after insert or update on execution.campaign_runs for each row execute function public.note();
        create trigger note after insert or update on execution.job_queue for each row execute function public.note();
        create trigger note after insert or update on execution.channel_outbox for each row execute function public.note()";
    execute(&stage.admin, note).await?;
    stage.run(2, 1).await?;
    assert_eq!(
        texts(&stage.admin, "select what from public.noted order by 1").await?,
        ["campaign_runs insert queued", "job_queue insert queued", "job_queue insert queued"]
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_scheduled_waits_for_its_time() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let run = stage.run_of(stage.own, 1, 1, &json!({ "scheduled_for": "2999-01-01T00:00:00Z" })).await?;
    assert_eq!(claim(&stage.worker, "w", 10).await?.len(), 0);
    let due = "select count(*) from execution.job_queue where run_after = '2999-01-01T00:00:00Z'";
    assert_eq!(number(&stage.admin, due).await?, 1);
    execute(&stage.admin, "update execution.job_queue set run_after = now()").await?;
    assert_eq!(claim(&stage.worker, "w", 10).await?.len(), 1);
    assert_eq!(stage.look("scheduled_for is not null", "campaign_runs", run).await?, "true");

    let past = stage.run_of(stage.own, 1, 1, &json!({ "scheduled_for": "2020-01-01T00:00:00Z" })).await?;
    let jobs = claim(&stage.worker, "w", 10).await?;
    assert_eq!((jobs.len(), jobs[0].run_id), (1, past));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_deployments_at_once_are_one_run_and_both_get_its_id() -> anyhow::Result<()> {
    for phase in ["null", "'first'"] {
        let stage = Stage::new().await?;
        let phases = json!([stage.phase(stage.own, 3, &json!({})).await?]);
        let campaign = stage.campaign(stage.own, &phases).await?;
        let deploy = format!(
            "select execution.deploy_campaign(tenancy.current_tenant_id(), '{campaign}', {phase}, 'me', gen_random_uuid(), 1)"
        );
        let mut first = stage.acting_for(stage.own).await?;
        let made: Uuid = sqlx::query_scalar(AssertSqlSafe(deploy.clone())).fetch_one(&mut *first).await?;

        let mut second = stage.acting_for(stage.own).await?;
        let waiter = number(&mut *second, "select pg_backend_pid()::bigint").await?;
        let waiting = tokio::spawn(async move {
            let got: Uuid = sqlx::query_scalar(AssertSqlSafe(deploy)).fetch_one(&mut *second).await?;
            second.commit().await.map(|()| got)
        });
        let blocked = format!("select cardinality(pg_blocking_pids({waiter}))::bigint");
        eventually("the second deployment waits for the first", async || {
            Ok(number(&stage.admin, blocked.clone()).await? > 0)
        })
        .await?;
        first.commit().await?;

        assert_eq!(waiting.await??, made);
        let rows = "select (select count(*) from execution.campaign_runs) * 10 + (select count(*) from execution.job_queue)";
        assert_eq!(number(&stage.admin, rows).await?, 13);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn deploying_again_answers_with_the_run_until_it_has_ended_and_then_goes_to_the_next_phase()
-> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let first = stage.phase(stage.own, 1, &json!({})).await?;
    let second = stage.phase(stage.own, 1, &json!({ "phase": "second" })).await?;
    let campaign = stage.campaign(stage.own, &json!([first, second])).await?;
    let run = stage.deploy(stage.own, campaign, 10).await?;
    let before = stage.census().await?;
    assert_eq!(stage.deploy(stage.own, campaign, 10).await?, run);
    execute(&stage.admin, "update execution.campaign_phases set status = 'paused' where position = 1")
        .await?;
    assert_eq!(stage.deploy(stage.own, campaign, 10).await?, run, "a paused phase is still under way");
    execute(&stage.admin, "update execution.campaign_phases set status = 'in_progress' where position = 1")
        .await?;
    assert_eq!(stage.census().await?, before);

    let job = claim(&stage.worker, "w", 10).await?.remove(0);
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "sent")]).await?;
    complete(&stage.worker, "w", &job).await?;

    let again =
        format!("select execution.deploy_campaign(tenancy.current_tenant_id(), '{campaign}', 'first')");
    let refused = refusal(stage.ask::<Uuid>(stage.own, again).await)?;
    assert_eq!(refused.message, "phase `first` is completed and is not deployed twice");
    let next = stage.deploy(stage.own, campaign, 10).await?;
    assert_ne!(next, run);
    let phase = "(select phase from execution.campaign_phases as phase where phase.id = phase_id)";
    assert_eq!(stage.look(phase, "campaign_runs", next).await?, "second");
    execute(&stage.admin, "update execution.campaign_phases set status = 'completed' where position = 2")
        .await?;
    let refused = refusal(stage.deploy(stage.own, campaign, 10).await)?;
    assert_eq!(refused.message, "every phase of the campaign was deployed already");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_is_logged_with_its_actor_or_the_login() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for (actor, logged) in [("'ann'", "ann"), ("null", "postrider_app"), ("' '", "postrider_app")] {
        let phases = json!([stage.phase(stage.own, 1, &json!({})).await?]);
        let campaign = stage.campaign(stage.own, &phases).await?;
        let deploy = format!(
            "select execution.deploy_campaign(tenancy.current_tenant_id(), '{campaign}', null, {actor})"
        );
        let run = stage.ask::<Uuid>(stage.own, deploy).await?;
        let log = stage.log_of(run).await?;
        assert_eq!(log, [format!("run.deployed by {logged}"), format!("phase.in_progress by {logged}")]);
    }
    Ok(())
}
