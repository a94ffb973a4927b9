import fc from "fast-check";
import type { Status } from "../src/api/campaigns";
import { endsInTheServersState, weather } from "../src/model/interleavings";
import type { CampaignEvent } from "../src/model/phases";
import { expect, test, until } from "./test";

/** Controls of three phases, in an order that uses each transition of the machine. */
const STEPS = [
  ["one", "start"],
  ["one", 10],
  ["two", "start"],
  ["one", "pause"],
  ["two", 35.5],
  ["one", "resume"],
  ["two", "fail"],
  ["one", "complete"],
  ["two", "retry"],
  ["three", "start"],
  ["one", "rerun"],
  ["one", 80],
  ["two", "complete"],
  ["three", "pause"],
  ["one", "fail"],
] as const;

test("3,000 random interleavings of a real history end in the server's state", async ({ tenant }) => {
  const campaign = await tenant.external("letters", ["one", "two", "three"]);
  const status = async () => (await tenant.status(campaign)) as unknown as Status;
  const snapshots = [await status()];
  for (const [phase, by] of STEPS) {
    const before = snapshots.length - 1;
    if (typeof by === "number") {
      // The history has an event of a phase's progress every half a second at most, so the service reports until there is one.
      let reported = by;
      await until("the progress is an event", async () => {
        reported += 0.1;
        const path = `/campaigns/${campaign}/phases/${phase}/progress`;
        await tenant.post(path, { progressPercentage: Number(reported.toFixed(1)) });
        return (await status()).sequence > before;
      });
    } else await tenant.control(campaign, phase, by);
    const now = await status();
    // A rerun is two events in one commit. The second one is its progress, which changes no state.
    while (snapshots.length < now.sequence) snapshots.push({ ...now, sequence: snapshots.length });
    snapshots.push(now);
  }
  const events = ((await tenant.history(campaign)) as unknown as CampaignEvent[]).reverse();
  const upTo = (count: number) => Array.from({ length: count }, (_, n) => n);
  expect(events.length).toBeGreaterThan(STEPS.length);
  expect(events.map((event) => event.sequence - 1)).toEqual(upTo(events.length));
  expect(snapshots.map((snapshot) => snapshot.sequence)).toEqual(upTo(events.length + 1));
  fc.assert(
    fc.property(weather, (acts) => endsInTheServersState({ events, snapshots }, acts)),
    { numRuns: 3000 },
  );
});
