// The state machines of postrider-model, written by `make mirror`. Do not edit: a test compares this file with the model.

export const PHASE_MACHINE = [
  ["not_started", "start", "in_progress"],
  ["in_progress", "pause", "paused"],
  ["in_progress", "complete", "completed"],
  ["in_progress", "fail", "failed"],
  ["paused", "resume", "in_progress"],
  ["completed", "rerun", "in_progress"],
  ["failed", "retry", "in_progress"],
] as const;

export const CONTROL_STEPS = [
  ["in_progress", "cancel", ["fail"]],
  ["paused", "cancel", ["resume", "fail"]],
] as const;

export const TRIGGER_KINDS = {
  start: ["delivery", "external"],
  pause: ["delivery", "external"],
  resume: ["delivery", "external"],
  retry: ["delivery", "external"],
  rerun: ["delivery", "external"],
  cancel: ["delivery"],
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

export const MESSAGE_TRANSITIONS = [
  ["accepted", "executed"],
  ["accepted", "denied_unlinked"],
  ["accepted", "denied_rbac"],
  ["accepted", "denied_sentinel"],
  ["accepted", "dispatch_failed"],
  ["dispatch_failed", "executed"],
  ["dispatch_failed", "denied_unlinked"],
  ["dispatch_failed", "denied_rbac"],
  ["dispatch_failed", "denied_sentinel"],
] as const;

export const REPLY_TRANSITIONS = [
  ["pending", "sending"],
  ["sending", "sent"],
  ["sending", "pending"],
  ["sending", "dead"],
  ["dead", "pending"],
] as const;

export const JOB_RUN_TRANSITIONS = [
  ["running", "completed"],
  ["running", "failed"],
  ["running", "cancelled"],
  ["failed", "running"],
  ["failed", "cancelled"],
] as const;

export const EVENT_TRANSITIONS = [
  ["pending", "claimed"],
  ["claimed", "claimed"],
  ["claimed", "processed"],
  ["claimed", "pending"],
  ["pending", "pending"],
  ["pending", "processed"],
] as const;
