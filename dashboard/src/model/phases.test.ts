import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { PhaseStanding, PhaseStatus, PhaseTrigger, Status } from "../api/campaigns";
import { endsInTheServersState, type History, weather } from "./interleavings";
import { after, allowed } from "./machine";
import { PHASE_MACHINE } from "./machines.gen";
import { type CampaignEvent, drop, event, press, shown, snapshot } from "./phases";

const ID = "0199e4a0-0000-7000-8000-000000000001";
const TYPES: Record<PhaseTrigger, string> = {
  start: "phase_started",
  retry: "phase_started",
  rerun: "phase_started",
  pause: "phase_paused",
  resume: "phase_resumed",
  complete: "phase_completed",
  cancel: "phase_failed",
  fail: "phase_failed",
};

function status(phases: Partial<PhaseStanding>[], sequence = 0): Status {
  return {
    campaignId: ID,
    name: "spring",
    autoAdvance: true,
    advancing: false,
    notAdvanced: null,
    sequence,
    timestamp: `2026-03-01T12:00:${String(sequence % 60).padStart(2, "0")}Z`,
    phases: phases.map((phase, n) => ({
      phase: `p${n}`,
      kind: "external",
      status: "not_started",
      canceled: false,
      progressPercentage: 0,
      allowed: allowed(phase.status ?? "not_started", phase.kind ?? "external"),
      scheduledFor: null,
      run: null,
      ...phase,
    })),
  };
}

const happened = (
  sequence: number,
  phase: string,
  type: string,
  payload: Record<string, unknown> = {},
): CampaignEvent => ({
  campaignId: ID,
  phase,
  type,
  sequence,
  payload,
  timestamp: `2026-03-01T12:00:${String(sequence % 60).padStart(2, "0")}Z`,
});

describe("the reducer of phases", () => {
  test("a canceled phase is failed and canceled until it starts again", () => {
    let campaign = snapshot(status([{ kind: "delivery", status: "paused" }], 4));
    campaign = press(campaign, "p0", "cancel");
    expect(shown(campaign, "p0")).toBe("failed");
    campaign = event(campaign, happened(5, "p0", "phase_resumed", { trigger: "resume", control: "cancel" }));
    expect(campaign.known.p0).toMatchObject({ status: "in_progress", canceled: false });
    campaign = event(campaign, happened(6, "p0", "phase_failed", { trigger: "fail", control: "cancel" }));
    expect(campaign.known.p0).toMatchObject({ status: "failed", canceled: true, allowed: ["retry"] });
    campaign = event(campaign, happened(7, "p0", "phase_started", { trigger: "retry", runId: "r", items: 2 }));
    expect(campaign.known.p0).toMatchObject({ status: "in_progress", canceled: false });
  });

  test("a snapshot replaces everything, also one with a lower sequence", () => {
    let campaign = snapshot(status([{ status: "in_progress" }], 9));
    campaign = press(campaign, "p0", "pause");
    expect(shown(campaign, "p0")).toBe("paused");
    campaign = snapshot(status([{ status: "failed" }], 3));
    expect([shown(campaign, "p0"), campaign.lastApplied, campaign.optimistic]).toEqual(["failed", 3, {}]);
  });

  test("an event that was seen before changes nothing", () => {
    const campaign = snapshot(status([{ status: "paused" }], 5));
    expect(event(campaign, happened(5, "p0", "phase_resumed"))).toBe(campaign);
    expect(event(campaign, happened(1, "p0", "phase_failed"))).toBe(campaign);
  });

  test("a gap asks for a snapshot and applies nothing more", () => {
    let campaign = event(snapshot(status([{ status: "in_progress" }], 5)), happened(7, "p0", "phase_paused"));
    expect([campaign.hasGap, campaign.lastApplied, shown(campaign, "p0")]).toEqual([true, 5, "in_progress"]);
    campaign = event(campaign, happened(6, "p0", "phase_paused"));
    expect([campaign.lastApplied, shown(campaign, "p0")]).toEqual([5, "in_progress"]);
  });

  test("an event of an unknown type or phase asks for a snapshot", () => {
    const campaign = snapshot(status([{}], 5));
    expect(event(campaign, happened(6, "p0", "phase_renamed")).hasGap).toBe(true);
    expect(event(campaign, happened(6, "p9", "phase_started")).hasGap).toBe(true);
  });

  test("progress changes the percentage and the counters, and never a status", () => {
    const run = { id: ID, intended: 10, succeeded: 4, failed: 1, skipped: 0, inDoubt: 1, inFlight: 2 };
    for (const from of ["not_started", "in_progress", "paused", "completed", "failed"] as PhaseStatus[]) {
      const before = snapshot(status([{ status: from, kind: "delivery" }], 1));
      const payload = { progressPercentage: 60, status: "failed", run: { ...run, status: "failed" } };
      const changed = event(before, happened(2, "p0", "campaign_progress", payload));
      expect(changed.known.p0).toMatchObject({
        status: from,
        progressPercentage: 60,
        run: { ...run, status: "running" },
      });
      expect(changed.known.p0?.allowed).toEqual(before.known.p0?.allowed);
    }
  });

  test("an event of the phase ends its optimistic state, and one of another phase does not", () => {
    let campaign = press(snapshot(status([{ status: "in_progress" }, {}], 1)), "p0", "pause");
    campaign = event(campaign, happened(2, "p1", "phase_started"));
    expect(shown(campaign, "p0")).toBe("paused");
    campaign = event(campaign, happened(3, "p0", "phase_failed"));
    expect([shown(campaign, "p0"), campaign.optimistic]).toEqual(["failed", {}]);
  });

  test("a press changes only the shown state, and only where the machine allows it", () => {
    const campaign = snapshot(status([{ status: "in_progress", kind: "delivery" }], 1));
    expect(press(campaign, "p0", "complete")).toBe(campaign);
    expect(press(campaign, "p0", "start")).toBe(campaign);
    expect(press(campaign, "p9", "pause")).toBe(campaign);
    const pressed = press(campaign, "p0", "pause");
    expect(pressed.known).toBe(campaign.known);
    expect(shown(drop(pressed, "p0"), "p0")).toBe("in_progress");
  });

  test("a new run begins with its own counters", () => {
    const campaign = snapshot(status([{ status: "failed", kind: "delivery", progressPercentage: 80 }], 1));
    const retried = event(campaign, happened(2, "p0", "phase_started", { runId: "r2", items: 3 }));
    expect(retried.known.p0).toMatchObject({
      status: "in_progress",
      progressPercentage: 80,
      run: { id: "r2", intended: 3 },
    });
  });
});

/** A server with three external phases: its history, and its state after each event. */
function history(steps: { phase: number; choice: number; isProgress: boolean }[]): History {
  const states: PhaseStatus[] = ["not_started", "not_started", "not_started"];
  const progress = [0, 0, 0];
  const events: CampaignEvent[] = [];
  const snapshots = [status([{}, {}, {}], 0)];
  for (const { phase, choice, isProgress } of steps) {
    const from = states[phase] ?? "not_started";
    const sequence = events.length + 1;
    if (isProgress && from === "in_progress") {
      progress[phase] = choice % 101;
      events.push(happened(sequence, `p${phase}`, "campaign_progress", { progressPercentage: progress[phase] }));
    } else {
      const may = allowed(from, "external");
      const by = may[choice % may.length] as PhaseTrigger;
      states[phase] = after(from, by) as PhaseStatus;
      events.push(happened(sequence, `p${phase}`, TYPES[by]));
    }
    snapshots.push(
      status(
        states.map((state, n) => ({ status: state, progressPercentage: progress[n] ?? 0 })),
        sequence,
      ),
    );
  }
  return { events, snapshots };
}

const steps = fc.array(fc.record({ phase: fc.nat(2), choice: fc.nat(1000), isProgress: fc.boolean() }), {
  minLength: 1,
  maxLength: 60,
});

describe("the reducer against a history", () => {
  test("3,000 random interleavings end in the server's state", () => {
    fc.assert(
      fc.property(steps, weather, (made, acts) => endsInTheServersState(history(made), acts)),
      { numRuns: 3000 },
    );
  });

  test("every transition of the machine has an event", () => {
    expect(PHASE_MACHINE.every(([, by]) => TYPES[by] !== undefined)).toBe(true);
  });
});
