import type { PhaseKind, PhaseStatus, PhaseTrigger } from "../../api/campaigns";
import type { SettledBy } from "../../api/inDoubt";
import type { Channel, JobStatus, RunCause, RunStatus, WaitReason } from "../../api/runs";
import type { ItemState } from "../../model/tones";

const phase: Record<PhaseStatus, string> = {
  not_started: "Not started",
  in_progress: "In progress",
  paused: "Paused",
  completed: "Completed",
  failed: "Failed",
};

const pending: Record<PhaseTrigger, string> = {
  start: "Starting…",
  pause: "Pausing…",
  resume: "Resuming…",
  retry: "Retrying…",
  rerun: "Starting again…",
  complete: "Completing…",
  fail: "Failing…",
};

const trigger: Record<PhaseTrigger, string> = {
  start: "Start",
  pause: "Pause",
  resume: "Resume",
  retry: "Retry failed…",
  rerun: "Rerun for everyone…",
  complete: "Complete…",
  fail: "Fail…",
};

const kind: Record<PhaseKind, string> = { delivery: "delivery", external: "external" };
const channel: Record<Channel, string> = { email: "email", voice: "voice", social: "social" };

const run: Record<RunStatus, string> = {
  queued: "Queued",
  running: "Running",
  completed: "Completed",
  partial: "Partly completed",
  failed: "Failed",
};

const cause: Record<RunCause, string> = { start: "Start", retry: "Retry", rerun: "Rerun", message: "Messages" };

const job: Record<JobStatus, string> = {
  queued: "Queued",
  locked: "At work",
  completed: "Completed",
  failed: "Retrying",
  dead: "Ended",
};

const item: Record<ItemState, string> = {
  queued: "In flight",
  in_doubt: "In doubt",
  sent: "Sent",
  called: "Called",
  posted: "Posted",
  failed: "Failed",
  skipped: "Skipped",
};

const settledBy: Record<SettledBy, string> = {
  repeat: "Resends with the same key",
  look_up: "Looks it up",
  callback: "Waits for callback",
  person: "Needs review",
};

const waits: Record<WaitReason, string> = {
  rate: "account rate limit reached",
  daily: "daily limit of the account reached",
  hours: "outside of the account's sending hours",
  retry_after: "the provider asked to wait",
  circuit: "circuit breaker open",
};

/** How people reached on this channel are counted. */
const reached: Record<Channel, string> = { email: "sent", voice: "called", social: "posted" };

export const states = { phase, pending, trigger, kind, channel, run, cause, job, item, settledBy, waits, reached };
