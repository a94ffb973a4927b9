//! Delivery statuses in the output of commands.

use postrider_store::campaigns::deliveries::{Delivery, Summary};

use crate::cli::output;

/// The delivery status of an item, such as `bounced 2026-02-02 02:40:00 (Permanent, General)`.
pub fn of_item(delivery: &Delivery) -> String {
    let detail = delivery.detail.as_ref().map(|detail| format!(" ({detail})")).unwrap_or_default();
    format!("{} {}{detail}", words(delivery.status.as_str()), output::time(delivery.at))
}

/// The delivery statuses of a run, such as `3 no answer, 12 completed; 12 of 15 calls answered`. `None` without a report.
pub fn of_run(summary: &Summary) -> Option<String> {
    if summary.statuses.is_empty() {
        return None;
    }
    let counts =
        summary.statuses.iter().map(|count| format!("{} {}", count.items, words(count.status.as_str())));
    let mut text = counts.collect::<Vec<_>>().join(", ");
    if let Some(calls) = summary.calls {
        text.push_str(&format!("; {} of {} calls answered", calls.answered, calls.placed));
        if calls.answered_by_machine > 0 {
            text.push_str(&format!(", {} by a machine", calls.answered_by_machine));
        }
    }
    Some(text)
}

fn words(status: &str) -> String {
    status.replace('_', " ")
}
