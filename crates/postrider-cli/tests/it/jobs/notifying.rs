//! Notifications of alerts: each recipient gets one, and one that may have been sent is in doubt.

use sqlx::PgPool;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::stage::{Stage, acting_for, ask};
use crate::sql::{execute, number, refusal, texts};

/// A right to one call.
#[derive(Debug, Clone, PartialEq, sqlx::FromRow)]
struct Reserved {
    id: Uuid,
    recipient: String,
    subject: String,
    claims: i32,
}

/// Two recipients at one account.
fn plan(account: Uuid) -> String {
    format!(
        "select jobs.plan_notifications(tenancy.current_tenant_id(), array['{account}', '{account}']::uuid[], '{{ann,bob}}')"
    )
}

async fn reserve(client: &PgPool, tenant: Uuid, from: &str) -> Result<Vec<Reserved>, sqlx::Error> {
    let mut transaction = acting_for(client, tenant).await?;
    let sql = sqlx::AssertSqlSafe(format!(
        "select id, recipient, subject, claims from jobs.{from} order by recipient, subject"
    ));
    let reserved = sqlx::query_as(sql).fetch_all(&mut *transaction).await?;
    transaction.commit().await.map(|()| reserved)
}

const NEW: &str = "reserve_notifications(tenancy.current_tenant_id(), 100)";
const DOUBTFUL: &str = "claim_doubtful_notifications(tenancy.current_tenant_id(), '10 minutes', 100)";

async fn settle(stage: &Stage, tenant: Uuid, given: &Reserved, verdict: &str) -> Result<bool, sqlx::Error> {
    let (id, claim) = (given.id, given.claims);
    let sql = format!(
        "select jobs.settle_notification(tenancy.current_tenant_id(), '{id}', {claim}, '{verdict}', 'theirs', '{verdict}')"
    );
    stage.ask_as_worker(tenant, sql).await
}

async fn raise(stage: &Stage, name: &str) -> Result<Uuid, sqlx::Error> {
    stage
        .ask(
            stage.own,
            format!("select jobs.raise_alert(tenancy.current_tenant_id(), '{name}', null, 'about {name}')"),
        )
        .await
}

const ROW: &str = "concat_ws(' ', status, attempts, called_at is not null, in_doubt_since is not null, provider_message_id, last_error)";

#[tokio::test(flavor = "multi_thread")]
async fn each_recipient_is_told_once_of_each_alert_and_of_its_end() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (own, other, account) = (stage.own, stage.another("other").await?, Uuid::now_v7());
    raise(&stage, "one").await?;
    stage
        .ask::<Uuid>(other, "select jobs.raise_alert(tenancy.current_tenant_id(), 'theirs', null, 't')")
        .await?;
    assert_eq!(stage.ask_as_worker::<i32>(own, plan(account)).await?, 2);
    assert_eq!(stage.ask_as_worker::<i32>(own, plan(account)).await?, 0);
    let told = reserve(&stage.worker, own, NEW).await?;
    let subjects: Vec<_> = told.iter().map(|one| (one.recipient.as_str(), one.subject.as_str())).collect();
    assert_eq!(subjects, [("ann", "[warning] about one"), ("bob", "[warning] about one")]);
    assert_eq!(reserve(&stage.worker, own, NEW).await?, [], "handed out once");
    let body = stage.look("body", "alert_notifications", told[0].id).await?;
    assert!(
        body.starts_with("about one\n\nalert: one\nsince: 20") && body.ends_with("evidence: {}"),
        "{body}"
    );

    // Ann was told; what became of Bob's is not known. A third is planned and never called before it is over.
    assert!(settle(&stage, own, &told[0], "sent").await?);
    assert_eq!(stage.look(ROW, "alert_notifications", told[0].id).await?, "sent 1 t f theirs sent");
    assert!(settle(&stage, own, &told[1], "unknown").await?);
    raise(&stage, "two").await?;
    assert_eq!(stage.ask_as_worker::<i32>(own, plan(account)).await?, 2);
    for name in ["one", "two"] {
        assert!(
            stage
                .ask::<bool>(
                    own,
                    format!("select jobs.resolve_alert(tenancy.current_tenant_id(), '{name}', null)")
                )
                .await?
        );
    }
    let other_account = Uuid::now_v7();
    assert_eq!(
        stage.ask_as_worker::<i32>(own, plan(other_account)).await?,
        0,
        "who was not told needs no end"
    );
    let others = plan(account).replace("ann,bob", "cat,dan");
    assert_eq!(stage.ask_as_worker::<i32>(own, others).await?, 0, "nor do others at that account");
    assert_eq!(stage.ask_as_worker::<i32>(own, plan(account)).await?, 2);
    assert_eq!(stage.ask_as_worker::<i32>(own, plan(account)).await?, 0);
    let ends = "select concat_ws(' ', recipient, subject) from jobs.alert_notifications where about = 'resolved' order by 1";
    assert_eq!(texts(&stage.admin, ends).await?, ["ann [resolved] about one", "bob [resolved] about one"]);
    // A recipient without the notification of the alert gets none of its end.
    let failed = reserve(&stage.worker, own, NEW).await?;
    for notification in failed.iter().filter(|one| one.subject.contains("two")) {
        assert!(settle(&stage, own, notification, "failed").await?);
    }
    assert_eq!(stage.ask_as_worker::<i32>(own, plan(account)).await?, 0);
    assert_eq!(number(&stage.admin, "select count(*) from jobs.alert_notifications where tenant_id <> (select id from tenancy.tenants where name = 'own')").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsent_notification_is_released_five_times_and_then_given_up() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    raise(&stage, "one").await?;
    stage.ask_as_worker::<i32>(stage.own, plan(Uuid::now_v7())).await?;
    for attempt in 1..=5 {
        let told = reserve(&stage.worker, stage.own, NEW).await?;
        assert_eq!((told.len(), told[0].claims), (2, attempt));
        for one in &told {
            assert!(settle(&stage, stage.own, one, "not_sent").await?);
        }
        let status = if attempt < 5 { "queued" } else { "failed" };
        assert_eq!(
            stage.look(ROW, "alert_notifications", told[0].id).await?,
            format!("{status} {attempt} f f theirs not_sent")
        );
    }
    assert_eq!(reserve(&stage.worker, stage.own, NEW).await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_that_may_have_been_sent_comes_again_after_the_quiet_time_as_a_doubt()
-> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let own = stage.own;
    raise(&stage, "one").await?;
    stage.ask_as_worker::<i32>(own, plan(Uuid::now_v7())).await?;
    // The first is told as unknown; whoever has the second dies.
    let told = reserve(&stage.worker, own, NEW).await?;
    assert!(settle(&stage, own, &told[0], "unknown").await?);
    assert_eq!(stage.look(ROW, "alert_notifications", told[0].id).await?, "queued 1 t t theirs unknown");
    for from in [NEW, DOUBTFUL] {
        assert_eq!(reserve(&stage.worker, own, from).await?, [], "{from}");
    }
    let age = |age: &str| format!("update jobs.alert_notifications set called_at = now() - interval '{age}'");
    execute(&stage.admin, age("9 minutes 50 seconds")).await?;
    assert_eq!(reserve(&stage.worker, own, DOUBTFUL).await?, []);
    execute(&stage.admin, age("10 minutes 1 second")).await?;
    assert_eq!(reserve(&stage.worker, own, NEW).await?, []);
    let doubts = reserve(&stage.worker, own, DOUBTFUL).await?;
    assert_eq!(doubts.iter().map(|one| one.claims).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(reserve(&stage.worker, own, DOUBTFUL).await?, [], "the quiet time began anew");
    let in_doubt = "select count(*) from jobs.alert_notifications where in_doubt_since is not null and first_called_at is not null";
    assert_eq!(number(&stage.admin, in_doubt).await?, 2);

    // Late words of the first calls are not believed, unless they prove that it was sent.
    let before = stage.everything().await?;
    for verdict in ["failed", "not_sent", "unknown"] {
        assert!(!settle(&stage, own, &told[0], verdict).await?);
        assert!(!settle(&stage, own, &told[1], verdict).await?);
    }
    assert_eq!(stage.everything().await?, before);
    assert!(settle(&stage, own, &told[0], "sent").await?);
    // The other was not sent after all: it may be called again, and one more time it is somebody else's.
    assert!(settle(&stage, own, &doubts[1], "not_sent").await?);
    let again = reserve(&stage.worker, own, NEW).await?;
    assert_eq!((again.len(), again[0].id, again[0].claims), (1, told[1].id, 3));
    assert!(settle(&stage, own, &again[0], "failed").await?);
    // A settled notification stays settled, and is no doubt.
    execute(&stage.admin, age("1 day")).await?;
    assert_eq!(reserve(&stage.worker, own, DOUBTFUL).await?, []);
    let before = stage.everything().await?;
    for given in [&told[0], &doubts[0], &told[1], &again[0]] {
        for verdict in ["sent", "failed", "not_sent", "unknown"] {
            assert!(!settle(&stage, own, given, verdict).await?);
        }
    }
    assert_eq!(stage.everything().await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_cannot_reserve_settle_or_plan_for_another() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (own, other, account) = (stage.own, stage.another("other").await?, Uuid::now_v7());
    raise(&stage, "one").await?;
    assert_eq!(stage.ask_as_worker::<i32>(other, plan(account)).await?, 0);
    stage.ask_as_worker::<i32>(own, plan(account)).await?;
    assert_eq!(reserve(&stage.worker, other, NEW).await?, []);
    let told = reserve(&stage.worker, own, NEW).await?;
    execute(&stage.admin, "update jobs.alert_notifications set called_at = now() - interval '1 day'").await?;
    let before = stage.everything().await?;
    assert_eq!(reserve(&stage.worker, other, DOUBTFUL).await?, []);
    for verdict in ["sent", "failed", "not_sent", "unknown"] {
        assert!(!settle(&stage, other, &told[0], verdict).await?);
    }
    assert_eq!(stage.everything().await?, before);
    for call in [NEW, DOUBTFUL] {
        // Without a tenant, the argument is null.
        let without = refusal(execute(&stage.worker, format!("select * from jobs.{call}")).await)?;
        assert_eq!(without.code, "22004", "{call}");
        let for_another = format!(
            "select * from jobs.{}",
            call.replace("tenancy.current_tenant_id()", &format!("'{own}'"))
        );
        let mut transaction = acting_for(&stage.worker, other).await?;
        assert_eq!(refusal(execute(&mut *transaction, for_another).await)?.code, "42501", "{call}");
    }
    assert_eq!(stage.everything().await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_who_plan_and_reserve_at_once_make_one_call_each() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (own, account) = (stage.own, Uuid::now_v7());
    for at in 0..10 {
        raise(&stage, &format!("alert {at}")).await?;
    }
    let mut crowd = JoinSet::new();
    for _ in 0..8 {
        let worker = stage.worker.clone();
        crowd.spawn(async move {
            let planned: i32 = ask(&worker, own, plan(account)).await?;
            let mut reserved = Vec::new();
            loop {
                let some =
                    reserve(&worker, own, "reserve_notifications(tenancy.current_tenant_id(), 3)").await?;
                if some.is_empty() {
                    return anyhow::Ok((planned, reserved));
                }
                reserved.extend(some.into_iter().map(|one| one.id));
            }
        });
    }
    let (mut planned, mut reserved) = (0, Vec::new());
    while let Some(done) = crowd.join_next().await {
        let (count, ids) = done??;
        planned += count;
        reserved.extend(ids);
    }
    // A caller that found every row locked returned early: the rows left over are reserved now.
    reserved.extend(reserve(&stage.worker, own, NEW).await?.into_iter().map(|one| one.id));
    assert_eq!((planned, reserved.len()), (20, 20));
    reserved.sort_unstable();
    reserved.dedup();
    assert_eq!(reserved.len(), 20);
    assert_eq!(
        number(&stage.admin, "select count(*) from jobs.alert_notifications where claims = 1").await?,
        20
    );
    Ok(())
}
