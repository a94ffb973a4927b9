//! Accounts take turns: nobody's backlog is in the way of somebody else's reply.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::rows::{Bot, Capacity, RELEASE, Rows, claim, claim_on, settle};
use crate::sql::{execute, number};

/// How many replies each account has among those of a claim.
async fn shares(rows: &Rows, capacity: &Capacity) -> anyhow::Result<BTreeMap<Uuid, usize>> {
    let mut shares = BTreeMap::new();
    for reply in claim(&rows.worker, "w", capacity).await? {
        *shares.entry(reply.account_id).or_insert(0) += 1;
    }
    Ok(shares)
}

/// Three accounts of two tenants, in the order in which claims go around.
async fn three(rows: &Rows) -> anyhow::Result<[Bot; 3]> {
    let mut bots =
        [rows.own, rows.another_account(rows.own, "second").await?, Bot::create(&rows.admin, "other").await?];
    bots.sort_unstable_by_key(|bot| (bot.tenant, bot.account));
    Ok(bots)
}

/// Rows that were fetched through indexes, in this transaction.
const FETCHED: &str = "select coalesce(idx_tup_fetch, 0) + seq_tup_read from pg_stat_xact_user_tables where relid = 'channels.channel_outbox'::regclass";

#[tokio::test(flavor = "multi_thread")]
async fn ten_replies_do_not_wait_behind_fifty_thousand_of_another_account() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let [big, small, _] = three(&rows).await?;
    rows.fill_due(big, 50_000).await?;
    rows.fill_due(small, 10).await?;

    // A dispatcher that has capacity for so many at each account takes the ten at once, wherever it begins.
    for after in [None, Some(big), Some(small)] {
        let mut transaction = rows.admin.begin().await?;
        let before = number(&mut *transaction, FETCHED).await?;
        let claimed = claim_on(
            &mut transaction,
            "w",
            &Capacity { limit: 100, per_account: 20, accounts: vec![], after },
        )
        .await?;
        let fetched = number(&mut *transaction, FETCHED).await? - before;
        let of = |bot: Bot| claimed.iter().filter(|reply| reply.account_id == bot.account).count();
        assert_eq!((of(big), of(small)), (20, 10), "{after:?}");
        // Each once to be chosen and once to be changed, and a few to find each account.
        assert!(fetched <= 2 * 30 + 10, "{fetched} rows were read for 30");
        transaction.rollback().await?;
    }
    // One that gives all its capacity to whom it finds first finds the other one next.
    let all = Capacity { limit: 100, per_account: 100, accounts: vec![], after: None };
    assert_eq!(shares(&rows, &all).await?, BTreeMap::from([(big.account, 100)]));
    let next = Capacity { after: Some(big), ..all };
    assert_eq!(shares(&rows, &next).await?, BTreeMap::from([(small.account, 10), (big.account, 90)]));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_goes_around_once_beginning_behind_who_was_served_last() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let bots = three(&rows).await?;
    for bot in bots {
        rows.fill_due(bot, 9).await?;
    }
    let mut after = None;
    let mut order = Vec::new();
    for _ in 0..7 {
        let claimed =
            claim(&rows.worker, "w", &Capacity { limit: 1, per_account: 1, accounts: vec![], after }).await?;
        let at = bots.iter().position(|bot| bot.account == claimed[0].account_id).unwrap();
        order.push(at);
        after = Some(bots[at]);
    }
    assert_eq!(order, [0, 1, 2, 0, 1, 2, 0]);
    // All the way around, each account once, and the one it began behind comes last.
    let around = Capacity { limit: 10, per_account: 1, accounts: vec![], after: Some(bots[1]) };
    assert_eq!(shares(&rows, &around).await?, bots.map(|bot| (bot.account, 1)).into());
    let last = Capacity { limit: 2, per_account: 1, accounts: vec![], after: Some(bots[1]) };
    let claimed: Vec<Uuid> = shares(&rows, &last).await?.into_keys().collect();
    assert!(
        claimed.iter().all(|account| *account == bots[2].account || *account == bots[0].account),
        "{claimed:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_served_last_may_be_gone_or_alone() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    rows.fill_due(rows.own, 6).await?;
    let gone = |byte: u8| Bot {
        tenant: Uuid::from_bytes([byte; 16]),
        account: Uuid::from_bytes([byte; 16]),
        ..rows.own
    };
    for after in [
        rows.own,
        gone(0),
        gone(0xff),
        Bot { account: Uuid::nil(), ..rows.own },
        Bot { account: Uuid::max(), ..rows.own },
    ] {
        let claimed = claim(&rows.worker, "w", &Capacity { after: Some(after), ..Capacity::of(1) }).await?;
        assert_eq!(claimed.len(), 1, "{after:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_account_gets_more_than_there_is_room_for_it() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let [first, second, third] = three(&rows).await?;
    for bot in [first, second, third] {
        rows.fill_due(bot, 50).await?;
    }
    let capacity = |limit, accounts: &[(Bot, i32)]| Capacity {
        limit,
        per_account: 5,
        accounts: accounts.to_vec(),
        after: None,
    };
    for (capacity, expected) in [
        (capacity(100, &[]), [5, 5, 5]),
        (capacity(100, &[(first, 0)]), [0, 5, 5]),
        (capacity(100, &[(second, 2), (first, 7)]), [7, 2, 5]),
        (capacity(100, &[(first, 0), (second, 0), (third, 0)]), [0, 0, 0]),
        (capacity(100, &[(first, -1), (third, 1)]), [0, 5, 1]),
        (capacity(8, &[(second, 50)]), [5, 3, 0]),
        (capacity(0, &[]), [0, 0, 0]),
    ] {
        let claimed = claim(&rows.worker, "w", &capacity).await?;
        let of = |bot: Bot| claimed.iter().filter(|reply| reply.account_id == bot.account).count();
        assert_eq!([first, second, third].map(of), expected, "{capacity:?}");
        let all: Vec<_> = claimed.iter().map(|reply| (reply, RELEASE)).collect();
        settle(&rows.worker, "w", &all).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_with_nothing_due_take_no_share() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let [first, second, third] = three(&rows).await?;
    rows.fill(first, 20, "next_attempt_at", "now() + interval '1 hour'").await?;
    rows.fill(second, 20, "status, locked_at, locked_by", "'sending', now(), 'v'").await?;
    rows.fill_due(third, 20).await?;
    assert_eq!(shares(&rows, &Capacity::of(10)).await?, BTreeMap::from([(third.account, 10)]));
    execute(
        &rows.admin,
        "update channels.channel_outbox set next_attempt_at = now() where status = 'pending'",
    )
    .await?;
    assert_eq!(
        shares(&rows, &Capacity { per_account: 6, ..Capacity::of(10) }).await?,
        BTreeMap::from([(first.account, 6), (third.account, 4)])
    );
    Ok(())
}
