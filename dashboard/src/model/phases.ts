// The state of a campaign's phases in the dashboard. Snapshot > event > optimistic state.
//
//   snapshot   always wins, whatever its sequence; no optimistic state survives it
//   event      counts only on a live stream and only as the next one; a gap asks for a snapshot
//   press      changes nothing but the shown state, and only where the machine allows the control

import type { PhaseStanding, PhaseStatus, PhaseTrigger, RunStanding, Status } from "../api/campaigns";
import { after, allowed, sets } from "./machine";

export interface CampaignEvent {
  type: string;
  campaignId: string;
  phase: string;
  sequence: number;
  timestamp: string;
  payload: Record<string, unknown>;
}

export interface Campaign {
  name: string;
  autoAdvance: boolean;
  advancing: boolean;
  notAdvanced: string | null;
  /** Names of the phases, in order. */
  order: string[];
  known: Record<string, PhaseStanding>;
  lastApplied: number;
  optimistic: Record<string, PhaseStatus>;
  /** The time of the newest snapshot or event. */
  asOf: string;
  /** Events are missing: only a snapshot helps. */
  hasGap: boolean;
}

export function snapshot(status: Status): Campaign {
  return {
    name: status.name,
    autoAdvance: status.autoAdvance,
    advancing: status.advancing,
    notAdvanced: status.notAdvanced ?? null,
    order: status.phases.map((phase) => phase.phase),
    known: Object.fromEntries(status.phases.map((phase) => [phase.phase, phase])),
    lastApplied: status.sequence,
    optimistic: {},
    asOf: status.timestamp,
    hasGap: false,
  };
}

/** Applies an event of a live stream. An event that was seen before changes nothing. */
export function event(campaign: Campaign, happened: CampaignEvent): Campaign {
  if (happened.sequence <= campaign.lastApplied || campaign.hasGap) return campaign;
  if (happened.sequence > campaign.lastApplied + 1) return { ...campaign, hasGap: true };
  const next = { ...campaign, lastApplied: happened.sequence, asOf: happened.timestamp };
  const phase = campaign.known[happened.phase];
  // A phase or an event that this page does not know: the snapshot has it.
  const status = sets(happened.type);
  if (phase === undefined || status === undefined) return { ...next, hasGap: true };
  const { [happened.phase]: _, ...optimistic } = campaign.optimistic;
  const moved = status === null ? progressed(phase, happened.payload) : standing(phase, status, happened);
  const known = { ...campaign.known, [happened.phase]: moved };
  return { ...next, ...advance(next, happened.type, known), optimistic, known };
}

/** Whether a next phase is about to start by itself. */
function advance(campaign: Campaign, type: string, known: Campaign["known"]): Partial<Campaign> {
  if (type === "phase_started") return { advancing: false, notAdvanced: null };
  if (type !== "phase_completed") return {};
  return { advancing: campaign.autoAdvance && campaign.order.some((name) => known[name]?.status === "not_started") };
}

/** The phase after a change of its state. */
function standing(phase: PhaseStanding, status: PhaseStatus, { type, payload }: CampaignEvent): PhaseStanding {
  const moved = {
    ...phase,
    status,
    allowed: allowed(status, phase.kind),
    canceled: payload.control === "cancel" && status === "failed",
  };
  // Started, retried and rerun phases have a run of their own. The percentage has events of its own.
  if (type === "phase_started") moved.run = startedRun(payload);
  return moved;
}

function startedRun(payload: Record<string, unknown>): RunStanding | null {
  const { runId, items } = payload;
  if (typeof runId !== "string") return null;
  const intended = typeof items === "number" ? items : 0;
  return {
    id: runId,
    status: "queued",
    intended,
    succeeded: 0,
    failed: 0,
    skipped: 0,
    inDoubt: 0,
    inFlight: 0,
    waiting: null,
  };
}

const COUNTERS = ["intended", "succeeded", "failed", "skipped", "inDoubt", "inFlight"] as const;

/** Progress touches the percentage and the counters, and nothing else. */
function progressed(phase: PhaseStanding, payload: Record<string, unknown>): PhaseStanding {
  const moved = { ...phase };
  if (typeof payload.progressPercentage === "number") moved.progressPercentage = payload.progressPercentage;
  const counted = payload.run as Record<string, unknown> | null | undefined;
  if (typeof counted !== "object" || counted === null || typeof counted.id !== "string") return moved;
  const run: RunStanding =
    phase.run?.id === counted.id
      ? { ...phase.run }
      : {
          id: counted.id,
          status: "running",
          intended: 0,
          succeeded: 0,
          failed: 0,
          skipped: 0,
          inDoubt: 0,
          inFlight: 0,
          waiting: null,
        };
  for (const counter of COUNTERS) {
    const value = counted[counter];
    if (typeof value === "number") run[counter] = value;
  }
  moved.run = run;
  return moved;
}

/** Shows the state that a control leads to, until the server answers. */
export function press(campaign: Campaign, phase: string, by: PhaseTrigger): Campaign {
  const standing = campaign.known[phase];
  const from = shown(campaign, phase);
  if (standing === undefined || from === undefined || !allowed(from, standing.kind).includes(by)) return campaign;
  const to = after(from, by);
  return to === undefined ? campaign : { ...campaign, optimistic: { ...campaign.optimistic, [phase]: to } };
}

/** Forgets the optimistic state of a phase. */
export function drop(campaign: Campaign, phase: string): Campaign {
  const { [phase]: _, ...optimistic } = campaign.optimistic;
  return { ...campaign, optimistic };
}

export function shown(campaign: Campaign, phase: string): PhaseStatus | undefined {
  return campaign.optimistic[phase] ?? campaign.known[phase]?.status;
}
