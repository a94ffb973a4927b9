//! The effects of `adopt`, its refusals, and the rows that it leaves alone.

use serde_json::Value;
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{ANSWERED, Site, WAITS, hold_in_the_middle, slow_sim};
use crate::{
    campaigns::stage::Stage,
    postgres::Postgres,
    sql::{execute, number, refusal, texts},
    world::{Server, Sim, World, eventually},
};

/// A database in which a process has sent, and which was left in the middle.
struct Left {
    world: World,
    sim: Sim,
    stage: Stage,
}

impl Left {
    async fn new() -> anyhow::Result<Self> {
        let (world, sim) = (World::new().await?, Sim::start(&[])?);
        let stage = Stage::with_sim(&world, &sim, 10).await?;
        Ok(Self { world, sim, stage })
    }

    fn site(&self) -> anyhow::Result<Site> {
        site_of(&self.world, self.world.database())
    }

    /// Serves for a moment, and stops in order.
    fn serve_once(&self) -> anyhow::Result<()> {
        let mut server = self.site()?.serve()?;
        server.process.signal("TERM")?;
        assert!(server.process.wait()?.success());
        Ok(())
    }

    /// Another database of the same cluster with the same content, and the tenant in it.
    async fn copy(&self) -> anyhow::Result<(Site, Stage)> {
        let Self { world, stage, .. } = self;
        stage.no_worker_runs().await?;
        stage.admin.close().await;
        let name = format!("test_{}", Uuid::now_v7().simple());
        let maintenance =
            sqlx::PgPool::connect(&world.admin_url().replace(world.database(), "postgres")).await?;
        let create = format!("create database {name} template {}", world.database());
        eventually("the original has no connections left", async || {
            Ok(sqlx::raw_sql(AssertSqlSafe(create.clone())).execute(&maintenance).await.is_ok())
        })
        .await?;
        let copy = site_of(world, &name)?;
        let copied = copy.same_stage(stage).await?;
        Ok((copy, copied))
    }
}

fn site_of(world: &World, database: &str) -> anyhow::Result<Site> {
    Site::new(world.url("ROLE").replace(world.database(), database))
}

async fn epochs(stage: &Stage) -> anyhow::Result<Vec<String>> {
    Ok(texts(&stage.admin, "select cause from tenancy.epochs order by number").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_no_copy_is_not_adopted_and_a_second_adoption_changes_nothing()
-> anyhow::Result<()> {
    let left = Left::new().await?;
    let before = left.site()?.json(&["adopt", "--yes"])?;
    assert_eq!(
        (&before["adopted"], before["items_in_doubt"].is_null()),
        (&Value::Bool(false), true),
        "{before}"
    );
    left.serve_once()?;
    let run = left.stage.deploy_one("news", "email").await?;
    let site = left.site()?;
    let told = site.postrider(&["adopt", "--yes"])?;
    assert_eq!(told.code, 0);
    assert!(told.stderr.contains("there is nothing to adopt"), "{}", told.stderr);
    assert!(left.stage.items(run).await?.is_empty());

    let (copy, copied) = left.copy().await?;
    assert_eq!(copy.json(&["adopt", "--yes"])?["items_in_doubt"], 10);
    let state =
        "select md5(string_agg(item::text, ',' order by item.id)) from execution.channel_outbox as item";
    let once = texts(&copied.admin, state).await?;
    let again = copy.json(&["adopt", "--yes"])?;
    assert_eq!(again["adopted"], false, "{again}");
    assert_eq!(texts(&copied.admin, state).await?, once);
    assert_eq!(epochs(&copied).await?, ["enrolled", "adopted"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn adopting_asks_first_and_refuses_beside_processes_that_send() -> anyhow::Result<()> {
    let left = Left::new().await?;
    left.serve_once()?;
    let run = left.stage.deploy_one("news", "email").await?;
    let site = left.site()?;
    let server = site.serve()?;
    left.stage.ended(run).await?;
    let refused = site.postrider(&["adopt", "--restored", "--yes"])?;
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("a process was sending from this database"), "{}", refused.stderr);
    drop(server);

    let (copy, copied) = left.copy().await?;
    // There is no terminal to ask on.
    let refused = copy.postrider(&["adopt"])?;
    assert_eq!((refused.code, refused.stdout.as_str()), (1, ""));
    assert!(refused.stderr.contains("add --yes"), "{}", refused.stderr);
    // The process of the original was killed, and may have sent since.
    let refused = copy.postrider(&["adopt", "--moved", "--yes"])?;
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("a process had not shut down cleanly"), "{}", refused.stderr);
    let refused = copy.postrider(&["adopt", "--moved", "--restored"])?;
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert_eq!(epochs(&copied).await?, ["enrolled"], "nothing was changed");
    // A login that serves is no operator.
    let worker = sqlx::PgPool::connect(&copy.url("postrider_worker")).await?;
    let refused = refusal(execute(&worker, "select tenancy.begin_epoch('adopted', 'x', 'x')").await)?;
    assert_eq!(refused.code, "42501");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_was_moved_in_order_goes_on_where_it_was() -> anyhow::Result<()> {
    let left = Left::new().await?;
    left.serve_once()?;
    let run = left.stage.deploy_one("news", "email").await?;
    let (copy, copied) = left.copy().await?;
    let server = copy.serve()?;
    server.process.wait_for_line(WAITS)?;
    let moved = copy.json(&["adopt", "--moved", "--yes"])?;
    assert_eq!((&moved["adopted"], &moved["items_in_doubt"]), (&Value::Bool(true), &0.into()), "{moved}");
    assert_eq!(copied.ended(run).await?, "completed");
    assert_eq!(copied.items(run).await?, [("sent".to_owned(), 10)].into());
    assert_eq!(epochs(&copied).await?, ["enrolled", "moved"]);
    super::assert_called_once(&left.sim, 10)
}

#[tokio::test(flavor = "multi_thread")]
async fn adopting_puts_in_doubt_what_may_have_been_called_and_nothing_else() -> anyhow::Result<()> {
    let left = Left::new().await?;
    left.serve_once()?;
    let stage = &left.stage;
    let due = stage.deploy_one("due", "email").await?;
    // Deployed for tomorrow: no process can have called it.
    let later = stage.campaign("later", &[("only", "email", Some("all"), "sim")]).await?;
    execute(&stage.admin, format!("update execution.campaign_phases set scheduled_for = now() + interval '1 day' where campaign_id = '{later}'")).await?;
    let later = stage.deploy(later, "only").await?;
    // Two phases, of which the first is under way.
    let chain = stage
        .campaign("chain", &[("one", "email", Some("all"), "sim"), ("two", "voice", Some("all"), "sim")])
        .await?;
    let one = stage.deploy(chain, "one").await?;
    // A reply that waits for its second try, and a schedule whose time has come.
    execute(&stage.admin, format!(
        "with message as (insert into channels.channel_messages (tenant_id, account_id, provider, provider_message_id, sender_id, recipient_id, text, correlation_id)
                          select tenant_id, id, provider, 'm', 's', 'r', 't', gen_random_uuid() from tenancy.provider_accounts where tenant_id = '{tenant}'
                          returning id, account_id)
         insert into channels.channel_outbox (tenant_id, channel_message_id, account_id, provider, recipient_id, payload, correlation_id, next_attempt_at)
         select '{tenant}', id, account_id, 'sim', 'r', '{{}}', gen_random_uuid(), now() + interval '1 hour' from message;
         insert into jobs.functions (id, tenant_id, name, kind, target, grain, timeout_seconds) values (gen_random_uuid(), '{tenant}', 'tick', 'builtin', 'detect-alerts', '5min', 10);
         insert into jobs.schedules (id, tenant_id, function_name, cron, timezone, input, misfire, enabled, next_fire_at)
         values (gen_random_uuid(), '{tenant}', 'tick', '*/5 * * * *', 'UTC', '{{}}', 'all', true, now() - interval '1 hour')",
        tenant = stage.tenant)).await?;

    let (copy, copied) = left.copy().await?;
    let adopted = copy.json(&["adopt", "--yes"])?;
    assert_eq!(adopted["items_in_doubt"], 20, "{adopted}");
    assert_eq!(
        (&adopted["replies_in_doubt"], &adopted["firings_skipped"], &adopted["campaigns_stopped"]),
        (&1.into(), &1.into(), &1.into()),
        "{adopted}"
    );
    for run in [due, one] {
        assert_eq!(copied.items(run).await?, [("in doubt".to_owned(), 10)].into());
    }
    assert!(copied.items(later).await?.is_empty(), "it was scheduled for later");
    let adopted_items = "select count(*) from execution.channel_outbox as item
        where in_doubt_since is not null and recipient like '%@example.com' and message_hash is null
          and exists (select from execution.doubts where outbox_id = item.id)
          and exists (select from execution.campaign_audit_log where outbox_id = item.id and action = 'item.adopted')
          -- Before any call that may have been made.
          and created_at < (select began_at from tenancy.epochs where number = 2)";
    assert_eq!(number(&copied.admin, adopted_items).await?, 20);
    let campaign = format!(
        "select auto_advance || ' ' || (not_advanced like '%start it by hand') from execution.campaigns where id = '{chain}'"
    );
    assert_eq!(texts(&copied.admin, campaign).await?, ["false true"]);
    let reply = "select (in_doubt_since is not null) || ' ' || status from channels.channel_outbox";
    assert_eq!(texts(&copied.admin, reply).await?, ["true pending"]);
    let firing = "select outcome || ' ' || (reason like '%the original may have fired it') || ' ' ||
                         (select next_fire_at > now() from jobs.schedules) from jobs.schedule_firings";
    assert_eq!(texts(&copied.admin, firing).await?, ["skipped true true"]);
    assert_eq!(number(&copied.admin, "select count(*) from jobs.job_runs").await?, 0);
    let audited = "select actor like 'cli:%' and action = 'installation.adopted' from tenancy.audit_log where subject like 'installation:%'";
    assert_eq!(sqlx::query_scalar::<_, bool>(AssertSqlSafe(audited)).fetch_all(&copied.admin).await?, [true]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn items_of_a_provider_that_knows_nothing_are_settled_as_failed_and_sent_by_a_retry()
-> anyhow::Result<()> {
    let left = Left::new().await?;
    left.serve_once()?;
    let run = left.stage.deploy_one("news", "email").await?;
    let (copy, copied) = left.copy().await?;
    copy.json(&["adopt", "--yes"])?;
    let _server = copy.serve()?;
    assert_eq!(copied.ended(run).await?, "failed");
    assert_eq!(copied.items(run).await?, [("failed".to_owned(), 10)].into());
    super::assert_called_once(&left.sim, 0)?;
    let retried = copy.postrider(&["campaign", "retry", "news", "--tenant", &copied.tenant.to_string()])?;
    assert_eq!(retried.code, 0, "{}", retried.stderr);
    eventually("everybody has it", async || Ok(super::calls(&left.sim)?.len() == 10)).await?;
    super::assert_called_once(&left.sim, 10)
}

/// The configuration of a machine whose processes also keep their witness in a second database.
fn with_second(site: &Site, second: &World) -> anyhow::Result<tempfile::NamedTempFile> {
    let file = site.config()?;
    let text = std::fs::read_to_string(file.path())?;
    let url = format!("[witness]\nurl = '{}'\n", second.admin_url());
    std::fs::write(file.path(), text.replace("[witness]\n", &url))?;
    Ok(file)
}

#[tokio::test(flavor = "multi_thread")]
async fn older_files_on_a_new_machine_are_recognised_by_the_second_database_alone() -> anyhow::Result<()> {
    const PEOPLE: usize = 60;
    let (mut postgres, sim) = (Postgres::start().await?, slow_sim()?);
    let (second, site) = (World::empty().await?, Site::at(postgres.home())?);
    let stage = site.stage(&sim, PEOPLE).await?;
    let mut server = Server::start_with_witness(with_second(&site, &second)?, "campaigns")?;
    let run = stage.deploy_one("news", "email").await?;
    hold_in_the_middle(&sim, &stage, run, ANSWERED).await?;
    postgres.crash()?;
    postgres.copy_files()?;
    postgres.start_again().await?;
    sim.release()?;
    eventually("everybody was called", async || Ok(super::calls(&sim)?.len() == PEOPLE)).await?;
    server.process.signal("TERM")?;
    assert!(server.process.wait()?.success());

    postgres.stop()?;
    postgres.restore_files()?;
    postgres.start_again().await?;
    let elsewhere = Site::at(postgres.home())?;
    // Neither the database nor the machine shows that this is a copy.
    let (found, is_failure) = elsewhere.doctor()?;
    assert!(!is_failure, "{found}");
    let server = Server::start_with_witness(with_second(&elsewhere, &second)?, "campaigns")?;
    server.process.wait_for_line(WAITS)?;
    assert_eq!(super::calls(&sim)?.len(), PEOPLE);
    super::assert_called_once(&sim, PEOPLE)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_database_is_a_witness_for_every_machine() -> anyhow::Result<()> {
    let left = Left::new().await?;
    let second = World::empty().await?;
    let config = |site: &Site| with_second(site, &second);
    let site = left.site()?;
    let mut server = Server::start_with_witness(config(&site)?, "campaigns")?;
    let run = left.stage.deploy_one("news", "email").await?;
    assert_eq!(left.stage.ended(run).await?, "completed");
    server.process.signal("TERM")?;
    server.process.wait()?;
    // As if it had been restored in place, from before the last mark.
    execute(&left.stage.admin, "update tenancy.process_marks set mark = mark - 1").await?;
    let elsewhere = left.site()?;
    let server = Server::start_with_witness(config(&elsewhere)?, "campaigns")?;
    server.process.wait_for_line(WAITS)?;
    Ok(())
}
