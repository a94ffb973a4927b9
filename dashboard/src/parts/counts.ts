// The counters of a run as segments of a bar: intended = succeeded + failed + skipped + in doubt + in flight + not started.

import type { RunStanding } from "../api/campaigns";
import type { Segment } from "../ui/Bar";

export type Counts = Pick<RunStanding, "intended" | "succeeded" | "failed" | "skipped" | "inDoubt" | "inFlight">;

export function notStarted(counts: Counts): number {
  const { intended, succeeded, failed, skipped, inDoubt, inFlight } = counts;
  return Math.max(0, intended - succeeded - failed - skipped - inDoubt - inFlight);
}

export function segments(counts: Counts): Segment[] {
  return [
    { name: "succeeded", tone: "good", count: counts.succeeded },
    { name: "skipped", tone: "idle", count: counts.skipped },
    { name: "failed", tone: "bad", count: counts.failed },
    { name: "in_doubt", tone: "doubt", count: counts.inDoubt },
    { name: "in_flight", tone: "busy", count: counts.inFlight },
  ];
}
