import { describe, expect, test } from "vitest";
import document from "../../openapi.json";
import { after, agrees, allowed, itemHasEnded, runHasEnded, sets } from "./machine";
import { CONTROL_STEPS, EVENT_SETS, JOB_TRANSITIONS, PHASE_MACHINE, TRIGGER_KINDS } from "./machines.gen";

const words = (name: "PhaseStatus" | "PhaseTrigger" | "PhaseKind" | "JobStatus") =>
  document.components.schemas[name].enum as string[];

type Status = Parameters<typeof after>[0];
type Trigger = Parameters<typeof after>[1];
type Kind = Parameters<typeof allowed>[1];

describe("the mirror of the phase machine", () => {
  test("every state, trigger and kind answers as the table says", () => {
    for (const status of words("PhaseStatus") as Status[]) {
      for (const trigger of words("PhaseTrigger") as Trigger[]) {
        const row = PHASE_MACHINE.find(([from, by]) => from === status && by === trigger);
        const steps = CONTROL_STEPS.find(([from, by]) => from === status && by === trigger);
        expect(after(status, trigger)).toBe(steps ? "failed" : row?.[2]);
        for (const kind of words("PhaseKind") as Kind[]) {
          const may = (row ?? steps) !== undefined && (TRIGGER_KINDS[trigger] as readonly string[]).includes(kind);
          expect(allowed(status, kind).includes(trigger)).toBe(may);
        }
      }
    }
  });

  test("the table has the seven transitions of the contract, and no state has two for one trigger", () => {
    expect(PHASE_MACHINE).toHaveLength(7);
    expect(new Set(PHASE_MACHINE.map(([from, by]) => `${from} ${by}`)).size).toBe(7);
  });

  test("it names each word of the document and no other", () => {
    expect(Object.keys(TRIGGER_KINDS).sort()).toEqual([...words("PhaseTrigger")].sort());
    const states = new Set(PHASE_MACHINE.flatMap(([from, , to]) => [from, to]));
    expect([...states].sort()).toEqual([...words("PhaseStatus")].sort());
    expect([...new Set(JOB_TRANSITIONS.flat())].sort()).toEqual([...words("JobStatus")].sort());
  });

  test("progress sets no state, and an unknown event sets none either", () => {
    expect(sets("campaign_progress")).toBeNull();
    expect(sets("phase_paused")).toBe("paused");
    expect(sets("phase_renamed")).toBeUndefined();
    expect(sets("toString")).toBeUndefined();
    expect(Object.keys(EVENT_SETS)).toHaveLength(6);
  });

  test("callers cannot complete or fail a delivery", () => {
    expect(allowed("in_progress", "delivery")).toEqual(["pause", "cancel"]);
    expect(allowed("in_progress", "external")).toEqual(["pause", "complete", "fail"]);
    expect(agrees("in_progress", "delivery", ["cancel", "pause"])).toBe(true);
    expect(agrees("in_progress", "delivery", ["pause", "fail"])).toBe(false);
  });

  test("a cancel is made of the machine's transitions", () => {
    expect(CONTROL_STEPS.map(([from, by, steps]) => [from, by, ...steps])).toEqual([
      ["in_progress", "cancel", "fail"],
      ["paused", "cancel", "resume", "fail"],
    ]);
    expect(allowed("paused", "delivery")).toEqual(["resume", "cancel"]);
  });

  test("terminal states are those without a way out", () => {
    expect(["queued", "running", "completed", "partial", "failed"].filter(runHasEnded)).toEqual([
      "completed",
      "partial",
      "failed",
    ]);
    expect(itemHasEnded("queued")).toBe(false);
    expect(itemHasEnded("skipped")).toBe(true);
  });
});
