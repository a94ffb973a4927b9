// Questions to the generated tables. A mismatch with the words of the API does not compile.

import type { PhaseKind, PhaseStatus, PhaseTrigger } from "../api/campaigns";
import {
  CONTROL_STEPS,
  EVENT_SETS,
  ITEM_TRANSITIONS,
  PHASE_MACHINE,
  RUN_TRANSITIONS,
  TRIGGER_KINDS,
} from "./machines.gen";

const machine: readonly (readonly [PhaseStatus, PhaseTrigger, PhaseStatus])[] = PHASE_MACHINE;
const steps: readonly (readonly [PhaseStatus, PhaseTrigger, readonly PhaseTrigger[]])[] = CONTROL_STEPS;
const kinds: Readonly<Record<PhaseTrigger, readonly PhaseKind[]>> = TRIGGER_KINDS;

export type EventType = keyof typeof EVENT_SETS;

/** The state that a control leads to, if the phase allows it. */
export function after(status: PhaseStatus, by: PhaseTrigger): PhaseStatus | undefined {
  const several = steps.find(([from, control]) => from === status && control === by)?.[2];
  if (several) return several.reduce<PhaseStatus | undefined>((state, step) => state && after(state, step), status);
  return machine.find(([from, trigger]) => from === status && trigger === by)?.[2];
}

/** The controls that a caller may use on a phase of this kind in this state. */
export function allowed(status: PhaseStatus, kind: PhaseKind): PhaseTrigger[] {
  return [...machine, ...steps].filter(([from, by]) => from === status && kinds[by].includes(kind)).map(([, by]) => by);
}

/** The state that an event sets; null for progress, and undefined for an event that this version does not know. */
export function sets(type: string): PhaseStatus | null | undefined {
  return Object.hasOwn(EVENT_SETS, type) ? EVENT_SETS[type as EventType] : undefined;
}

/** Whether no transition leaves this state of a run. */
export function runHasEnded(status: string): boolean {
  return !RUN_TRANSITIONS.some(([from]) => from === status);
}

/** Whether no transition leaves this state of an item. */
export function itemHasEnded(status: string): boolean {
  return !ITEM_TRANSITIONS.some(([from]) => from === status);
}

/** Whether the server allows the same controls as the mirror. Another answer means that the server is of another version. */
export function agrees(status: PhaseStatus, kind: PhaseKind, server: readonly PhaseTrigger[]): boolean {
  return [...allowed(status, kind)].sort().join() === [...server].sort().join();
}
