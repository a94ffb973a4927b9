//! Results of attempts: sent, to be retried, dead or released, each under its claim.

use super::rows::{
    Bot, Capacity, DEAD, RELEASE, RETRY, Rows, SENT, UNKNOWN, Verdict, claim, reclaim, settle,
};
use crate::sql::{execute, texts};

const STANDING: &str =
    "concat_ws(' ', status, attempt_count, provider_message_id, last_error, in_doubt_since is not null,
                                  sent_at is not null, locked_by, locked_at)";

#[tokio::test(flavor = "multi_thread")]
async fn each_verdict_leaves_the_reply_as_it_says() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    for (verdict, answer, standing) in [
        (SENT, "sent", "sent 0 theirs f t"),
        (RETRY, "pending", "pending 1 it failed f f"),
        (UNKNOWN, "pending", "pending 1 no answer t f"),
        (DEAD, "dead", "dead 1 refused f f"),
        (RELEASE, "pending", "pending 0 f f"),
    ] {
        let held = rows.held(rows.own, "w").await?;
        assert_eq!(settle(&rows.worker, "w", &[(&held, verdict)]).await?, [answer]);
        assert_eq!(rows.look(STANDING, "channel_outbox", held.id).await?, standing, "{verdict:?}");
        // Out of the way of the next one.
        execute(
            &rows.admin,
            "update channels.channel_outbox set next_attempt_at = 'infinity' where status = 'pending'",
        )
        .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_begins_when_it_is_settled_and_is_waited_for() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    for verdict in [RETRY, RELEASE] {
        let held = rows.held(rows.own, "w").await?;
        let mut transaction = rows.admin.begin().await?;
        let verdict = Verdict { pause_seconds: 90.0, ..verdict };
        assert_eq!(settle(&mut *transaction, "w", &[(&held, verdict)]).await?, ["pending"]);
        let pause = format!(
            "select (next_attempt_at - now())::text from channels.channel_outbox where id = '{}'",
            held.id
        );
        assert_eq!(texts(&mut *transaction, pause).await?, ["00:01:30"]);
        transaction.commit().await?;
        assert_eq!(claim(&rows.worker, "w", &Capacity::of(10)).await?, []);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_failed_as_often_as_it_may_is_dead_and_audited() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let reply = rows.reply(rows.own).await?;
    for failures in 1..=5 {
        let held = claim(&rows.worker, "w", &Capacity::of(10)).await?.remove(0);
        assert_eq!((held.claims, held.attempt_count), (failures, failures - 1));
        // A claim without a call counts no attempt, however often it happens.
        assert_eq!(settle(&rows.worker, "w", &[(&held, RELEASE)]).await?, ["pending"]);
        execute(&rows.admin, "update channels.channel_outbox set claims = claims - 1").await?;
        let held = claim(&rows.worker, "w", &Capacity::of(10)).await?.remove(0);
        let expected = if failures < 5 { "pending" } else { "dead" };
        assert_eq!(settle(&rows.worker, "w", &[(&held, RETRY)]).await?, [expected], "{failures}");
    }
    assert_eq!(rows.look(STANDING, "channel_outbox", reply).await?, "dead 5 it failed f f");
    assert_eq!(claim(&rows.worker, "w", &Capacity::of(10)).await?, []);
    assert_eq!(rows.log_of(format!("reply:{reply}")).await?, ["reply.dead by w it failed"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doubt_stays_until_the_reply_is_sent() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let reply = rows.reply(rows.own).await?;
    for (verdict, doubted) in [(RETRY, false), (UNKNOWN, true), (RETRY, true), (RELEASE, true), (SENT, false)]
    {
        let held = claim(&rows.worker, "w", &Capacity::of(10)).await?.remove(0);
        settle(&rows.worker, "w", &[(&held, verdict)]).await?;
        let is_in_doubt = rows.look("in_doubt_since is not null", "channel_outbox", reply).await?;
        assert_eq!(is_in_doubt, doubted.to_string(), "{verdict:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_by_another_worker_or_under_another_claim_changes_nothing() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let held = rows.held(rows.own, "w").await?;
    let before = rows.reply_row(held.id).await?;
    for verdict in [SENT, RETRY, DEAD, RELEASE] {
        assert_eq!(settle(&rows.worker, "v", &[(&held, verdict)]).await?, [""; 0], "{verdict:?}");
        for claims in [0, 2] {
            let other = super::rows::Claimed { claims, ..held.clone() };
            assert_eq!(
                settle(&rows.worker, "w", &[(&other, verdict)]).await?,
                [""; 0],
                "{verdict:?} {claims}"
            );
        }
        let unknown = Verdict { word: "posted", ..verdict };
        assert_eq!(settle(&rows.worker, "w", &[(&held, unknown)]).await?, [""; 0]);
    }
    assert_eq!(rows.reply_row(held.id).await?, before);
    assert_eq!(rows.log_of(format!("reply:{}", held.id)).await?, [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_result_changes_nothing_for_any_present_holder() -> anyhow::Result<()> {
    for heir in ["v", "w"] {
        let rows = Rows::new().await?;
        let late = rows.held(rows.own, "w").await?;
        rows.age_lock(late.id, "1 hour").await?;
        assert_eq!(reclaim(&rows.worker, "1 minute").await?, [late.id]);
        let refuse_all = async |when: &str| -> anyhow::Result<()> {
            let before = rows.reply_row(late.id).await?;
            for verdict in [SENT, RETRY, DEAD, RELEASE] {
                assert_eq!(
                    settle(&rows.worker, "w", &[(&late, verdict)]).await?,
                    [""; 0],
                    "{when}: {verdict:?}"
                );
            }
            assert_eq!(rows.reply_row(late.id).await?, before, "{when}");
            Ok(())
        };
        refuse_all("it is pending").await?;
        // The heir may be the same worker: it is another claim.
        let held = claim(&rows.worker, heir, &Capacity::of(1)).await?.remove(0);
        refuse_all("it is claimed again").await?;
        assert_eq!(settle(&rows.worker, heir, &[(&held, SENT)]).await?, ["sent"]);
        refuse_all("it is sent").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sent_reply_stays_sent_and_a_repeated_result_counts_once() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let held = rows.held(rows.own, "w").await?;
    assert_eq!(settle(&rows.worker, "w", &[(&held, SENT)]).await?, ["sent"]);
    let before = rows.reply_row(held.id).await?;
    for verdict in [SENT, RETRY, DEAD, RELEASE] {
        assert_eq!(settle(&rows.worker, "w", &[(&held, verdict)]).await?, [""; 0]);
    }
    assert_eq!(rows.reply_row(held.id).await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_are_settled_at_once_each_by_its_own_verdict() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let other = Bot::create(&rows.admin, "other").await?;
    // A result counts only for a reply of the tenant that it names.
    let held = rows.held(rows.own, "w").await?;
    let theirs = super::rows::Claimed { tenant_id: other.tenant, ..held.clone() };
    assert_eq!(settle(&rows.worker, "w", &[(&theirs, SENT)]).await?, [""; 0]);
    assert_eq!(rows.look("status", "channel_outbox", held.id).await?, "sending");
    assert_eq!(settle(&rows.worker, "w", &[(&held, SENT)]).await?, ["sent"]);
    for bot in [rows.own, other] {
        rows.fill_due(bot, 3).await?;
    }
    let held = claim(&rows.worker, "w", &Capacity::of(6)).await?;
    let lost = held[3].id;
    rows.age_lock(lost, "1 hour").await?;
    assert_eq!(reclaim(&rows.worker, "1 minute").await?, [lost]);
    let verdicts = [SENT, RETRY, DEAD, SENT, RELEASE, UNKNOWN];
    let settled: Vec<_> = held.iter().zip(verdicts).collect();
    assert_eq!(
        settle(&rows.worker, "w", &settled).await?,
        ["sent", "pending", "dead", "pending", "pending"],
        "all but the one that was taken away"
    );
    assert_eq!(rows.look("status", "channel_outbox", lost).await?, "pending");
    assert_eq!(settle(&rows.worker, "w", &[]).await?, [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_known_to_have_arrived_is_sent_after_any_end_of_its_attempt() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    for (verdict, answer) in [(RETRY, "sent"), (UNKNOWN, "sent"), (DEAD, "sent"), (RELEASE, "pending")] {
        let held = rows.held(rows.own, "w").await?;
        let proof = format!(
            "select channels.record_delivery('{}', '{}', '{}', 'proof', 'delivered', true, null, null)",
            rows.own.tenant, rows.own.account, held.id
        );
        assert!(rows.ask::<bool>(rows.own, proof).await?);
        assert_eq!(settle(&rows.worker, "w", &[(&held, verdict)]).await?, [answer], "{verdict:?}");
        let row = "concat_ws(' ', status, provider_message_id, in_doubt_since)";
        assert_eq!(rows.look(row, "channel_outbox", held.id).await?, format!("{answer} proof"));
        assert_eq!(rows.log_of(format!("reply:{}", held.id)).await?, [""; 0]);
    }
    // The one that was given back says so to the next who claims it.
    let held = claim(&rows.worker, "w", &Capacity::of(1)).await?.remove(0);
    assert_eq!(held.provider_message_id.as_deref(), Some("proof"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_story_is_cut_and_a_reply_keeps_its_last_error() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let held = rows.held(rows.own, "w").await?;
    let long: &'static str = Box::leak("x".repeat(5_000).into_boxed_str());
    settle(&rows.worker, "w", &[(&held, Verdict { error: Some(long), ..RETRY })]).await?;
    assert_eq!(rows.look("length(last_error)", "channel_outbox", held.id).await?, "1000");
    let held = claim(&rows.worker, "w", &Capacity::of(1)).await?.remove(0);
    settle(&rows.worker, "w", &[(&held, Verdict { message_id: Some(long), ..SENT })]).await?;
    let row = "concat_ws(' ', length(last_error), length(provider_message_id))";
    assert_eq!(rows.look(row, "channel_outbox", held.id).await?, "1000 512");
    Ok(())
}
