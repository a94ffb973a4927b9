// A history in the disorder of a network, and of a person who presses buttons. Tests alone use it.

import assert from "node:assert/strict";
import fc from "fast-check";
import type { PhaseStatus, PhaseTrigger, Status } from "../api/campaigns";
import { allowed } from "./machine";
import { type Campaign, type CampaignEvent, event, press, shown, snapshot } from "./phases";

/** A campaign on the server: its events, and its status at each sequence, from 0 on. */
export interface History {
  events: CampaignEvent[];
  snapshots: Status[];
}

interface Act {
  act: "deliver" | "repeat" | "skip" | "snapshot" | "late" | "press";
  at: number;
}

/** How the stream behaves before each event: it repeats, breaks, or the user presses a button. */
export const weather: fc.Arbitrary<Act[]> = fc.array(
  fc.record({
    act: fc.constantFrom<Act["act"]>("deliver", "deliver", "deliver", "repeat", "skip", "snapshot", "late", "press"),
    at: fc.nat(1000),
  }),
  { minLength: 1, maxLength: 120 },
);

const statuses = (phases: readonly { status: PhaseStatus }[]) => phases.map(({ status }) => status);
const known = (campaign: Campaign) => campaign.order.map((name) => campaign.known[name]?.status);

/** Gives the history to the reducer in this disorder. The known state is the server's at each moment and at the end. */
export function endsInTheServersState({ events, snapshots }: History, acts: readonly Act[]): void {
  const at = (sequence: number) => snapshots[sequence] as Status;
  let campaign = snapshot(at(0));
  let next = 0;
  for (const { act, at: n } of acts) {
    const before = campaign;
    if (act === "deliver" && next < events.length) {
      campaign = event(campaign, events[next++] as CampaignEvent);
    } else if (act === "repeat") {
      const old = events[n % Math.max(next, 1)];
      if (old && old.sequence <= campaign.lastApplied) campaign = event(campaign, old);
    } else if (act === "skip") {
      next = Math.min(events.length, next + (n % 3));
    } else if (act === "snapshot") {
      campaign = snapshot(at(next));
    } else if (act === "late") {
      // A snapshot that was taken before events that are applied already: the stream goes on behind it.
      next = n % (next + 1);
      campaign = snapshot(at(next));
    } else if (act === "press") {
      const name = campaign.order[n % campaign.order.length] as string;
      const kind = campaign.known[name]?.kind ?? "external";
      const may = allowed(shown(campaign, name) as PhaseStatus, kind);
      if (may.length > 0) campaign = press(campaign, name, may[n % may.length] as PhaseTrigger);
      assert.equal(campaign.known, before.known);
    }
    // The known state was once true on the server, at exactly this sequence.
    assert.deepEqual(known(campaign), statuses(at(campaign.lastApplied).phases));
    if (act === "snapshot" || act === "late") assert.deepEqual(campaign.optimistic, {});
  }
  while (next < events.length) campaign = event(campaign, events[next++] as CampaignEvent);
  const last = at(events.length);
  if (campaign.hasGap || campaign.lastApplied !== last.sequence) campaign = snapshot(last);
  assert.equal(campaign.lastApplied, last.sequence);
  for (const phase of last.phases) {
    const { status, progressPercentage } = campaign.known[phase.phase] ?? {};
    assert.deepEqual(
      { status, progressPercentage },
      { status: phase.status, progressPercentage: phase.progressPercentage },
    );
  }
}
