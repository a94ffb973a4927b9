//! The auditor finds each fact that is broken, and nothing else.

use postrider_testkit::crash::Findings as _;
use uuid::Uuid;

use super::audit::{Facts, Item, Job, Receipt, Report, Run, audit};

/// One run of one job of four items: two sent, one failed, one skipped. All is well.
fn well() -> Facts {
    let (run, job) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let intended: Vec<Uuid> = (10..14).map(Uuid::from_u128).collect();
    let statuses = ["sent", "sent", "failed", "skipped"];
    let item = |(id, status): (&Uuid, &str)| Item {
        key: format!("key of {}", id.as_u128()),
        key_is_right: true,
        job,
        id: *id,
        status: status.to_owned(),
        in_doubt: false,
        reserved_by: Some("worker".to_owned()),
    };
    Facts {
        receipts: vec![receipt(10), receipt(11)],
        items: intended.iter().zip(statuses).map(item).collect(),
        jobs: vec![Job {
            id: job,
            run,
            status: "completed".to_owned(),
            outcome: Some("partial".to_owned()),
            intended,
            counts: Some([2, 1, 1]),
        }],
        runs: vec![Run { id: run, status: "partial".to_owned(), intended: 4 }],
        messages: Vec::new(),
        struck: [("worker".to_owned(), 1)].into(),
        in_flight_max: 1,
    }
}

fn receipt(item: u32) -> Receipt {
    Receipt { key: Some(format!("key of {item}")), record: None, acted: true, left_in_doubt: false }
}

fn refused(item: u32) -> Receipt {
    Receipt { acted: false, ..receipt(item) }
}

type Change = fn(&mut Facts);

/// The auditor's report after this change.
fn after(change: impl FnOnce(&mut Facts)) -> Report {
    let mut facts = well();
    change(&mut facts);
    audit(&facts)
}

/// The job and its run as they must be while an item is in doubt and no attempt is left.
fn with_a_doubt(facts: &mut Facts) {
    facts.items[0].status = "queued".to_owned();
    facts.items[0].in_doubt = true;
    let job = &mut facts.jobs[0];
    (job.status, job.counts) = ("dead".to_owned(), Some([1, 1, 1]));
}

#[test]
fn a_run_in_which_all_is_well_is_clean() {
    assert_eq!(after(|_| {}), Report { in_doubt_max: 1, ..Report::default() });
    // Refusals, and one call after another that was refused, are no duplicates.
    assert!(after(|facts| facts.receipts.extend([refused(12), refused(12), refused(10)])).is_clean());
    // In doubt, with and without a receipt.
    assert!(after(with_a_doubt).is_clean());
    assert!(
        after(|facts| {
            with_a_doubt(facts);
            facts.receipts.remove(0);
        })
        .is_clean()
    );
}

#[test]
fn each_wrong_is_found_and_called_by_its_name() {
    type Found = fn(&Report) -> usize;
    let wrongs: [(&str, Change, Found); 9] = [
        ("a duplicate", |facts| facts.receipts.push(receipt(10)), |report| report.duplicates.len()),
        ("sent without a receipt", |facts| drop(facts.receipts.remove(1)), |report| report.never_sent.len()),
        (
            "sent with a refusal only",
            |facts| facts.receipts[1] = refused(11),
            |report| report.never_sent.len(),
        ),
        (
            "failed with a receipt",
            |facts| facts.receipts.push(receipt(12)),
            |report| report.sent_after_all.len(),
        ),
        (
            "skipped with a receipt",
            |facts| facts.receipts.push(receipt(13)),
            |report| report.sent_after_all.len(),
        ),
        (
            "a receipt without a row",
            |facts| facts.receipts.push(receipt(99)),
            |report| report.without_a_row.len(),
        ),
        (
            "a receipt without a key",
            |facts| facts.receipts.push(Receipt { key: None, ..receipt(0) }),
            |report| report.without_a_row.len(),
        ),
        ("another key", |facts| facts.items[0].key_is_right = false, |report| report.strange_rows.len()),
        (
            "two rows of one key",
            |facts| facts.items[3].key = facts.items[2].key.clone(),
            |report| report.strange_rows.len(),
        ),
    ];
    for (name, change, found) in wrongs {
        let report = after(change);
        assert_eq!(found(&report), 1, "{name}: {report:?}");
        assert!(!report.is_clean(), "{name}");
        let lists = [&report.duplicates, &report.never_sent, &report.sent_after_all, &report.without_a_row];
        let others: usize = lists.iter().map(|list| list.len()).sum::<usize>() + report.strange_rows.len();
        assert_eq!(others, 1, "{name} was taken for something else too: {report:?}");
    }
}

#[test]
fn an_intended_item_without_a_row_waits_or_is_forgotten() {
    let report = after(|facts| drop(facts.items.pop()));
    assert_eq!(report.forgotten, [Uuid::from_u128(13)]);
    let report = after(|facts| {
        facts.items.pop();
        let job = &mut facts.jobs[0];
        (job.status, job.outcome, job.counts) = ("failed".to_owned(), None, None);
        facts.runs[0].status = "running".to_owned();
    });
    assert!(report.is_clean() && report.waiting == 1, "{report:?}");
    // One that was given up has a row, and its job is dead.
    let report = after(|facts| {
        facts.items[2].reserved_by = None;
        facts.jobs[0].status = "dead".to_owned();
    });
    assert!(report.is_clean() && report.given_up == 1, "{report:?}");
}

#[test]
fn doubt_needs_a_cause() {
    // Its worker was never struck, and the provider answered.
    let report = after(|facts| {
        with_a_doubt(facts);
        facts.struck.clear();
    });
    assert_eq!((report.doubt_without_cause.len(), report.in_doubt, report.in_doubt_max), (1, 1, 0));
    assert!(!report.is_clean());
    // The provider's silence is one.
    let report = after(|facts| {
        with_a_doubt(facts);
        facts.struck.clear();
        facts.receipts[0].left_in_doubt = true;
    });
    assert!(report.is_clean(), "{report:?}");
    // One fault leaves at most what was in flight.
    let report = after(|facts| {
        with_a_doubt(facts);
        facts.items[1].status = "queued".to_owned();
        facts.items[1].in_doubt = true;
        let job = &mut facts.jobs[0];
        (job.outcome, job.counts) = (Some("failed".to_owned()), Some([0, 1, 1]));
        facts.runs[0].status = "failed".to_owned();
    });
    assert_eq!(report.doubt_without_cause, ["worker: 2 of at most 1"]);
}

#[test]
fn statuses_must_follow_from_the_items() {
    let wrongs: [(&str, Change); 8] = [
        ("completed, and one failed", |facts| facts.jobs[0].outcome = Some("completed".to_owned())),
        ("dead, and all ended", |facts| facts.jobs[0].status = "dead".to_owned()),
        ("miscounted", |facts| facts.jobs[0].counts = Some([3, 1, 0])),
        ("an outcome before the end", |facts| facts.jobs[0].status = "queued".to_owned()),
        ("completed with a doubt", |facts| {
            with_a_doubt(facts);
            facts.jobs[0].status = "completed".to_owned();
        }),
        ("ended, and a doubt is not marked", |facts| {
            with_a_doubt(facts);
            facts.items[0].in_doubt = false;
        }),
        ("the run says more than its job", |facts| facts.runs[0].status = "completed".to_owned()),
        ("the run intends more than its job", |facts| facts.runs[0].intended = 5),
    ];
    for (name, change) in wrongs {
        let report = after(change);
        assert!(!report.inconsistent.is_empty() && !report.is_clean(), "{name}: {report:?}");
    }
}
