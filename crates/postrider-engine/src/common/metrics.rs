//! Every metric of Postrider: its name, its labels, its kind and its help text.
//!
//! `describe` registers the help texts with the exporter, and docs/operations.md has one row for each line of this table (a test
//! compares them). Each name has one writer: a gauge is set in one place, and a counter or histogram is written in one module.

use metrics::{describe_counter, describe_gauge, describe_histogram};

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A number that only increases.
    Counter,
    /// A current value.
    Gauge,
    /// Durations, counted by upper bounds in seconds.
    Histogram(&'static [f64]),
}

/// The definition of a metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// The name, without labels.
    pub name: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// The help text, a noun phrase.
    pub help: &'static str,
}

/// Buckets for the time from the claim of a send job to a call: milliseconds, or longer while the limits of an account delay the call.
const WAITS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];
/// Buckets for the duration of one network call: at most 120 seconds.
const CALLS: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0, 120.0];
/// Buckets for the time from a commit to the delivery, with backoff of up to 1024 seconds between attempts.
const DELIVERIES: &[f64] =
    &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0];

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, labels, kind: Kind::Counter, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, labels, kind: Kind::Gauge, help }
}

const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    buckets: &'static [f64],
    help: &'static str,
) -> Metric {
    Metric { name, labels, kind: Kind::Histogram(buckets), help }
}

/// Every metric, in the order of docs/operations.md.
#[rustfmt::skip]
pub const METRICS: &[Metric] = &[
    // Campaigns
    gauge("postrider_items_in_doubt", &[], "Items whose outcome is not known, over all tenants"),
    gauge("postrider_items_oldest_doubt_seconds", &[], "Age of the oldest item in doubt"),
    gauge("postrider_sending_waits", &[], "1 while the database is taken for a restored copy and nothing is sent, else 0"),
    gauge("postrider_send_jobs_waiting", &[], "Queued send jobs of campaigns, also those that must wait for their hour, over all tenants"),
    gauge("postrider_send_jobs_locked", &[], "Send jobs of campaigns that a worker holds, over all tenants"),
    gauge("postrider_send_jobs_oldest_lock_seconds", &[], "Age of the oldest heartbeat among locked send jobs"),
    counter("postrider_send_jobs_claimed_total", &[], "Claims of send jobs"),
    counter("postrider_send_jobs_ended_total", &["status"], "Attempts at send jobs that ended, by the status of the send job after the attempt"),
    counter("postrider_send_jobs_put_off_total", &["why"], "Send jobs that were released because their account must wait: `daily`, `hours`, `retry_after`, `circuit`"),
    histogram("postrider_item_claim_to_call_seconds", &["provider"], WAITS, "Time from the claim of a send job to the first provider call of each of its items"),
    histogram("postrider_call_seconds", &["provider"], CALLS, "Duration of provider calls for items"),
    counter("postrider_calls_total", &["provider", "outcome"], "Provider calls for items, by outcome: `delivered`, `rejected`, `not_sent`, `unknown`"),
    counter("postrider_items_passed_over_total", &["status"], "Items without a call because they had a row already, or because the row was written without one"),
    counter("postrider_items_moved_total", &[], "Items that moved to the failover account of their phase"),
    gauge("postrider_circuit_open", &["provider"], "Provider accounts whose circuit breaker is not closed, over all tenants"),
    counter("postrider_commits_total", &[], "Transactions with reservations and outcomes of items"),
    counter("postrider_commits_retried_total", &[], "Transactions with reservations and outcomes that were tried again"),
    counter("postrider_doubts_settled_total", &["provider", "as"], "Items in doubt that the resolver settled, as `sent` or `failed`"),
    counter("postrider_doubts_left_to_people_total", &["provider"], "Items in doubt that only a person can settle"),
    counter("postrider_callbacks_total", &["provider"], "Verified status callbacks of providers"),
    counter("postrider_callbacks_refused_total", &["provider"], "Status callbacks without a valid signature"),
    counter("postrider_deliveries_total", &["provider", "status"], "Reports that gave an item another delivery status"),
    counter("postrider_unsubscribed_total", &["scope"], "People who unsubscribed by a link, from the `workspace` or a `list`"),
    // Chat
    gauge("postrider_replies_pending", &["older_than_seconds"], "Replies that are not sent yet and older than `older_than_seconds`: 0, 60, 600, 3600"),
    gauge("postrider_replies_due", &[], "Replies that are due and that no dispatcher holds"),
    gauge("postrider_replies_retrying", &[], "Replies that are not sent yet and failed before"),
    gauge("postrider_replies_in_doubt", &[], "Replies that are not sent yet and may have arrived"),
    gauge("postrider_replies_dead", &[], "Replies without further attempts, over all tenants"),
    gauge("postrider_replies_oldest_seconds", &[], "Age of the oldest reply that is not sent yet"),
    gauge("postrider_messages_unfinished", &[], "Messages that are being executed, or whose reply is not in the outbox yet"),
    counter("postrider_channel_messages_total", &["provider", "status"], "Delivered chat messages, by result: `executed`, `enqueued`, `duplicate`, `denied`, `denied_sentinel`, `failed`"),
    counter("postrider_executions_total", &["provider", "ended"], "Executions of chat messages, by result: `executed`, `denied_sentinel`, `failed`"),
    histogram("postrider_reply_commit_to_call_seconds", &["provider"], DELIVERIES, "Time from the commit of a reply to its first provider call"),
    histogram("postrider_reply_call_seconds", &["provider"], CALLS, "Duration of provider calls for replies"),
    counter("postrider_reply_attempts_total", &["provider", "outcome"], "Provider calls for replies, by outcome: `delivered`, `rejected`, `not_sent`, `unknown`"),
    counter("postrider_replies_total", &["provider", "as"], "Results of attempts at replies: `sent`, `retry`, `dead`, `released`, and `late` ones whose reply another dispatcher holds by now"),
    counter("postrider_replies_reclaimed_total", &[], "Replies whose dispatcher held them for too long"),
    // Jobs
    gauge("postrider_job_runs_waiting", &[], "Job runs that no runner has claimed yet, over all tenants"),
    gauge("postrider_job_runs_running", &[], "Job runs that a runner holds, over all tenants"),
    gauge("postrider_job_runs_retry_pending", &[], "Job runs that wait for their next attempt"),
    gauge("postrider_job_runs_failed_24h", &[], "Job runs of the last 24 hours that failed, over all tenants"),
    gauge("postrider_job_runs_24h", &[], "Job runs of the last 24 hours, over all tenants"),
    gauge("postrider_job_runs_retry_rate_24h", &[], "Share of the job runs of the last 24 hours that were retried"),
    gauge("postrider_job_runs_long_running", &[], "Job runs that have been running for more than 30 minutes"),
    gauge("postrider_job_runs_oldest_heartbeat_seconds", &[], "Age of the oldest heartbeat among running job runs"),
    counter("postrider_job_runs_total", &["as"], "Attempts at job runs that ended: `completed`, `retry`, `failed`, `abandoned` (cancelled), `recovered` (the process died), `late`"),
    gauge("postrider_schedules_overdue_seconds", &[], "Time for which the oldest due schedule has not fired"),
    gauge("postrider_schedule_firings_waiting", &[], "Firings that wait for the runs that they depend on"),
    counter("postrider_schedule_firings_total", &[], "Firings of schedules"),
    gauge("postrider_sync_errors_open", &[], "Dead letters of job runs that are not resolved"),
    gauge("postrider_alerts_open", &[], "Alerts that are not resolved"),
    gauge("postrider_alert_notifications_in_doubt", &[], "Notifications of alerts whose outcome is not known"),
    // Events
    gauge("postrider_events_pending", &[], "Events that are not processed, counted up to 100,000"),
    gauge("postrider_events_oldest_ready_seconds", &[], "Time for which the oldest due event has not been claimed"),
    gauge("postrider_events_stuck", &[], "Events with more failures than `relay.stuck_after_retries`"),
    counter("postrider_events_claimed_total", &[], "Claims of events"),
    counter("postrider_events_completed_total", &[], "Events that were processed"),
    counter("postrider_events_unmatched_total", &[], "Events that were processed without a delivery because no sink wants their type"),
    counter("postrider_events_delivered_total", &["sink"], "Deliveries of events"),
    counter("postrider_events_failed_total", &["sink", "kind"], "Failed deliveries of events, by kind: `refused`, `unreachable`, `unanswered`, `busy`"),
    histogram("postrider_event_commit_to_delivery_seconds", &["sink"], DELIVERIES, "Time from the publication of an event to its delivery"),
    // HTTP
    counter("postrider_requests_throttled_total", &[], "Requests refused because their key was too fast, or because too many keys from their address were not valid"),
    gauge("postrider_stream_readers", &[], "Open event streams"),
    counter("postrider_stream_events_sent_total", &[], "Events sent to event streams, counted once per reader"),
    counter("postrider_stream_overviews_total", &["result"], "Overviews that were read for event streams, once for all readers of a tenant: `read`, or `late` when the database did not answer in time"),
    counter("postrider_stream_readers_too_slow_total", &[], "Event streams that ended because their reader was too slow"),
    counter("postrider_connections_stalled_total", &[], "Connections closed because the client accepted no data for `api.write_timeout_seconds`"),
];

/// Registers the help texts with the installed recorder.
pub fn describe() {
    for Metric { name, kind, help, .. } in METRICS {
        match kind {
            Kind::Counter => describe_counter!(*name, *help),
            Kind::Gauge => describe_gauge!(*name, *help),
            Kind::Histogram(_) => describe_histogram!(*name, *help),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_metric_is_in_the_table_once_with_a_help_text_and_rising_buckets() {
        let names: HashSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for Metric { name, kind, help, .. } in METRICS {
            assert!(
                name.starts_with("postrider_") && help.len() > 10 && !help.ends_with('.'),
                "{name}: {help}"
            );
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            if let Kind::Histogram(buckets) = kind {
                assert!(name.ends_with("_seconds") && buckets.is_sorted_by(|a, b| a < b), "{name}");
            }
        }
    }
}
