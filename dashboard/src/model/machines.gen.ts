// Generated from the tables of postrider-model by `make mirror`. Do not edit.

export const PHASE_MACHINE = [
  ["not_started", "start", "in_progress"],
  ["in_progress", "pause", "paused"],
  ["in_progress", "complete", "completed"],
  ["in_progress", "fail", "failed"],
  ["paused", "resume", "in_progress"],
  ["completed", "rerun", "in_progress"],
  ["failed", "retry", "in_progress"],
] as const;

export const TRIGGER_KINDS = {
  start: ["delivery", "external"],
  pause: ["delivery", "external"],
  resume: ["delivery", "external"],
  retry: ["delivery", "external"],
  rerun: ["delivery", "external"],
  complete: ["external"],
  fail: ["external"],
} as const;

export const EVENT_SETS = {
  phase_started: "in_progress",
  phase_paused: "paused",
  phase_resumed: "in_progress",
  phase_completed: "completed",
  phase_failed: "failed",
  campaign_progress: null,
} as const;

export const RUN_TRANSITIONS = [
  ["queued", "running"],
  ["running", "completed"],
  ["running", "partial"],
  ["running", "failed"],
] as const;

export const JOB_TRANSITIONS = [
  ["queued", "locked"],
  ["locked", "completed"],
  ["locked", "failed"],
  ["locked", "queued"],
  ["failed", "queued"],
  ["failed", "dead"],
] as const;

export const ITEM_TRANSITIONS = [
  ["queued", "sent"],
  ["queued", "called"],
  ["queued", "posted"],
  ["queued", "failed"],
  ["queued", "skipped"],
] as const;
