// The tone of each state. A new state of the API does not compile until it has one.

import type { PhaseStatus } from "../api/campaigns";
import type { SettledBy } from "../api/inDoubt";
import type { ItemStatus, JobStatus, RunStatus } from "../api/runs";

export type Tone = "idle" | "busy" | "waiting" | "good" | "bad" | "doubt";
export const TONES: readonly Tone[] = ["idle", "busy", "waiting", "good", "bad", "doubt"];

export const PHASE_TONES: Record<PhaseStatus, Tone> = {
  not_started: "idle",
  in_progress: "busy",
  paused: "waiting",
  completed: "good",
  failed: "bad",
};

export const RUN_TONES: Record<RunStatus, Tone> = {
  queued: "idle",
  running: "busy",
  completed: "good",
  partial: "waiting",
  failed: "bad",
};

export const JOB_TONES: Record<JobStatus, Tone> = {
  queued: "idle",
  locked: "busy",
  completed: "good",
  failed: "waiting",
  dead: "bad",
};

const ITEM_TONES: Record<ItemStatus, Tone> = {
  queued: "busy",
  sent: "good",
  called: "good",
  posted: "good",
  failed: "bad",
  skipped: "idle",
};

export const SETTLED_BY_TONES: Record<SettledBy, Tone> = {
  repeat: "busy",
  look_up: "busy",
  callback: "waiting",
  person: "doubt",
};

/** The state of an item as people read it: a reserved item may be in doubt. */
export type ItemState = ItemStatus | "in_doubt";

export function itemState(item: { status: ItemStatus; doubted_since?: string | null }): ItemState {
  return item.status === "queued" && item.doubted_since ? "in_doubt" : item.status;
}

export function itemTone(state: ItemState): Tone {
  return state === "in_doubt" ? "doubt" : ITEM_TONES[state];
}
