//! Reports of providers in raw SQL: ranks of delivery statuses, suppressions, and what a report does not touch.

use std::collections::BTreeMap;

use postrider_model::campaigns::delivery::DeliveryStatus;
use uuid::Uuid;

use super::{Stage, Tenant, claim, complete, finalize, reserve_all};
use crate::sql::{acting_as, execute, number, refusal, texts};

/// The items of a run of one send job, which a worker has reserved.
struct Subject {
    stage: Stage,
    run: Uuid,
    job: super::Job,
    account: Uuid,
    items: Vec<Uuid>,
    keys: BTreeMap<Uuid, String>,
}

impl Subject {
    async fn new(items: usize) -> anyhow::Result<Self> {
        let stage = Stage::new().await?;
        let run = stage.run(items, 10_000).await?;
        let job = claim(&stage.worker, "w", 1).await?.remove(0);
        let items = reserve_all(&stage.worker, "w", &job).await?;
        let account: Uuid =
            sqlx::query_scalar("select id from tenancy.provider_accounts").fetch_one(&stage.admin).await?;
        let rows =
            texts(&stage.admin, "select id || ' ' || idempotency_key from execution.channel_outbox").await?;
        let keys = rows.iter().filter_map(|row| row.split_once(' '));
        let keys = keys.map(|(id, key)| Ok((id.parse()?, key.to_owned()))).collect::<anyhow::Result<_>>()?;
        Ok(Self { stage, run, job, account, items, keys })
    }

    fn sql(&self, item: Uuid, status: &str, more: &str) -> String {
        let (account, key) = (self.account, &self.keys[&item]);
        format!(
            "select concat_ws(' ', verdict, is_delivery_new, is_suppressed)
               from execution.record_callback(tenancy.current_tenant_id(), '{account}', '{key}', 'm', 'their-{status}', true, '{status}'{more})"
        )
    }

    async fn report(&self, item: Uuid, status: &str, more: &str) -> Result<String, sqlx::Error> {
        self.stage.ask(self.stage.own, self.sql(item, status, more)).await
    }

    async fn status(&self, item: Uuid) -> Result<String, sqlx::Error> {
        let sql = format!(
            "select status || coalesce(': ' || detail, '') from execution.deliveries where outbox_id = '{item}'"
        );
        Ok(texts(&self.stage.admin, sql).await?.concat())
    }

    async fn recipient(&self, item: Uuid) -> anyhow::Result<Uuid> {
        Ok(self.stage.look("recipient_id", "channel_outbox", item).await?.parse()?)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_reports_the_one_of_the_higher_rank_stays_in_either_order() -> anyhow::Result<()> {
    let all = DeliveryStatus::ALL;
    let subject = Subject::new(all.len() * all.len()).await?;
    let ranks =
        "select concat_ws(' ', status, execution.delivery_rank(status)) from unnest($1) as status order by 1";
    let words: Vec<&str> = all.iter().map(|status| status.as_str()).collect();
    let mut ranked: Vec<String> = all.iter().map(|status| format!("{status} {}", status.rank())).collect();
    ranked.sort();
    let in_database: Vec<String> =
        sqlx::query_scalar(ranks).bind(&words).fetch_all(&subject.stage.admin).await?;
    assert_eq!(in_database, ranked);
    let pairs = all.iter().flat_map(|first| all.iter().map(move |second| (*first, *second)));
    for ((first, second), item) in pairs.zip(&subject.items) {
        assert_eq!(subject.report(*item, first.as_str(), "").await?, "recorded t f");
        let replaces = if second.replaces(first) { "t" } else { "f" };
        assert_eq!(subject.report(*item, second.as_str(), "").await?, format!("recorded {replaces} f"));
        let stays = if second.replaces(first) { second } else { first };
        assert_eq!(subject.status(*item).await?, stays.as_str(), "{first}, then {second}");
        // No client may lower a status, the owner included.
        let lower = format!("update execution.deliveries set status = '{first}' where outbox_id = '{item}'");
        if !first.replaces(stays) {
            assert_eq!(refusal(execute(&subject.stage.admin, lower).await)?.code, "23514");
        }
    }
    for sql in ["delete from execution.deliveries", "truncate execution.deliveries"] {
        assert_eq!(refusal(execute(&subject.stage.admin, sql).await)?.code, "23514", "{sql}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_counts_before_the_settlement_and_leaves_the_item_and_its_send_job_alone()
-> anyhow::Result<()> {
    let subject = Subject::new(2).await?;
    let [item, other] = subject.items[..] else { anyhow::bail!("two items") };
    let row = "select xmin || ' ' || ctid from execution.channel_outbox order by id";
    let before = texts(&subject.stage.admin, row).await?;
    // A worker that reserves the next window holds the send job.
    let mut worker = subject.stage.admin.begin().await?;
    execute(&mut *worker, "select from execution.job_queue for update").await?;
    let mut app = subject.stage.app.begin().await?;
    let acting = format!("{}; set local lock_timeout = '5s'", acting_as(subject.stage.own.id));
    execute(&mut *app, acting).await?;
    execute(&mut *app, subject.sql(item, "delivered", ", 'at the door', '2026-01-01 00:00Z'")).await?;
    app.commit().await?;
    worker.rollback().await?;
    assert_eq!(texts(&subject.stage.admin, row).await?, before);
    assert_eq!(subject.status(item).await?, "delivered: at the door");

    finalize(&subject.stage.worker, subject.stage.own.id, "w", &[(item, "sent"), (other, "sent")]).await?;
    complete(&subject.stage.worker, "w", &subject.job).await?;
    assert_eq!(subject.status(item).await?, "delivered: at the door");
    assert_eq!(subject.report(item, "delivered", ", 'again'").await?, "recorded f f");
    assert_eq!(subject.report(item, "bounced", "").await?, "recorded t f");
    assert_eq!(subject.stage.look("status", "channel_outbox", item).await?, "sent", "{}", subject.run);
    // The provider's clock may be ahead of ours.
    assert_eq!(subject.report(other, "accepted", ", null, now() + interval '1 day'").await?, "recorded t f");
    assert_eq!(
        number(&subject.stage.admin, "select count(*) from execution.deliveries where reported_at > now()")
            .await?,
        0
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_suppresses_the_lead_that_still_has_the_address_and_a_complaint_any() -> anyhow::Result<()> {
    let subject = Subject::new(4).await?;
    let [bounced, moved, complained, known] = subject.items[..] else { anyhow::bail!("four items") };
    let admin = &subject.stage.admin;
    for item in [bounced, complained, known] {
        let lead = subject.recipient(item).await?;
        let sql = format!(
            "update execution.leads set email = (select upper(recipient) from execution.channel_outbox where id = '{item}') where id = '{lead}'"
        );
        execute(admin, sql).await?;
    }
    let (hard, complaint) = (", 'no such user', null, 'hard bounce', true", ", null, null, 'complaint'");
    assert_eq!(subject.report(bounced, "bounced", hard).await?, "recorded t t");
    assert_eq!(subject.report(bounced, "bounced", hard).await?, "recorded f f", "repeated");
    assert_eq!(subject.report(moved, "bounced", hard).await?, "recorded t f", "another address by now");
    assert_eq!(subject.report(complained, "complained", complaint).await?, "recorded t t");
    let lead = subject.recipient(known).await?;
    let suppress =
        format!("select execution.suppress_lead(tenancy.current_tenant_id(), '{lead}', 'asked', 'me')");
    assert!(subject.stage.ask::<bool>(subject.stage.own, suppress).await?);
    assert_eq!(subject.report(known, "complained", complaint).await?, "recorded t f", "suppressed already");
    for (item, reason) in
        [(bounced, "hard bounce"), (moved, "null"), (complained, "complaint"), (known, "asked")]
    {
        let lead = subject.recipient(item).await?;
        assert_eq!(subject.stage.look("suppression_reason", "leads", lead).await?, reason);
    }
    let log =
        "select actor || ' ' || note from tenancy.audit_log where action = 'lead.suppressed' order by id";
    assert_eq!(texts(admin, log).await?, ["callback-sim hard bounce", "callback-sim complaint", "me asked"]);
    // Another tenant reaches nothing.
    let other = Tenant::create(admin, "other").await?;
    let theirs = subject.stage.ask::<String>(other, subject.sql(moved, "complained", complaint)).await?;
    assert_eq!(theirs, "unknown f f");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_after_an_erasure_leaves_no_words_behind() -> anyhow::Result<()> {
    let subject = Subject::new(1).await?;
    let item = subject.items[0];
    let lead = subject.recipient(item).await?;
    assert_eq!(subject.report(item, "delayed", ", 'ann@example.org is busy'").await?, "recorded t f");
    finalize(&subject.stage.worker, subject.stage.own.id, "w", &[(item, "sent")]).await?;
    complete(&subject.stage.worker, "w", &subject.job).await?;
    for step in [
        format!("select execution.begin_erasure(tenancy.current_tenant_id(), '{lead}')::text"),
        format!(
            "select (erased_at is not null)::text from execution.erase_lead(tenancy.current_tenant_id(), '{lead}', 'me')"
        ),
    ] {
        assert_eq!(subject.stage.ask::<String>(subject.stage.own, step).await?, "true");
    }
    assert_eq!(subject.status(item).await?, "delayed");
    let hard = ", 'no ann@example.org', null, 'hard bounce', true";
    assert_eq!(subject.report(item, "bounced", hard).await?, "recorded t f");
    assert_eq!(subject.status(item).await?, "bounced");
    assert_eq!(subject.stage.look("suppression_reason", "leads", lead).await?, "erased");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_is_not_reserved_once_its_lead_is_suppressed_for_the_list() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.run(3, 10_000).await?;
    let job = claim(&stage.worker, "w", 1).await?.remove(0);
    let list = texts(&stage.admin, "select name from execution.lead_lists").await?.concat();
    let suppress = |lead: Uuid, list: &str| {
        format!(
            "select execution.suppress_on_list(tenancy.current_tenant_id(), '{lead}', '{list}', 'asked', 'me')"
        )
    };
    let lead = job.item_ids[1];
    assert_eq!(stage.ask::<String>(stage.own, suppress(lead, &list)).await?, "done");
    assert_eq!(stage.ask::<String>(stage.own, suppress(lead, "nobody")).await?, "no_list");
    assert_eq!(stage.ask::<String>(stage.own, suppress(Uuid::now_v7(), &list)).await?, "no_lead");
    let reasons = format!(
        "select array_to_string(array(select coalesce(reason, '-') from unnest(suppression_reasons) as reason order by 1), ' ')
           from execution.read_audience('{}', 'w', '{}', 1, false)",
        stage.own.id, job.job_id
    );
    assert_eq!(texts(&stage.worker, reasons).await?, ["- - asked"]);
    let begun = super::Windows::of(&job, 1, 3).begin(&stage.worker, "w").await?;
    let verdicts: Vec<&str> = begun.iter().map(|item| item.verdict.as_str()).collect();
    assert_eq!(verdicts, ["reserved", "skipped", "reserved"]);
    // Tokens of one tenant mean nothing to another, and neither do its leads.
    let other = Tenant::create(&stage.admin, "other").await?;
    let tokens = format!(
        "select execution.unsubscribe_tokens(tenancy.current_tenant_id(), '{}', array['{lead}'::uuid])",
        job.run_id
    );
    let token = stage.ask::<Vec<String>>(stage.own, &tokens).await?.remove(0);
    assert_eq!(stage.ask::<Option<Vec<String>>>(other, &tokens).await?, None);
    let unsubscribe =
        format!("select execution.unsubscribe(tenancy.current_tenant_id(), '{token}', 'workspace', 'r')");
    assert_eq!(stage.ask::<String>(other, &unsubscribe).await?, "unknown");
    assert_eq!(stage.ask::<String>(stage.own, &unsubscribe).await?, "workspace");
    assert_eq!(stage.look("suppression_reason", "leads", lead).await?, "r");
    Ok(())
}
