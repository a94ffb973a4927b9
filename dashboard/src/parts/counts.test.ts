import fc from "fast-check";
import { expect, test } from "vitest";
import { notStarted, segments } from "./counts";

test("the groups of a run add up to its intended items", () => {
  const count = fc.nat(100_000);
  fc.assert(
    fc.property(count, count, count, count, count, count, (succeeded, failed, skipped, inDoubt, inFlight, rest) => {
      const intended = succeeded + failed + skipped + inDoubt + inFlight + rest;
      const counts = { intended, succeeded, failed, skipped, inDoubt, inFlight };
      const shown = segments(counts).reduce((sum, segment) => sum + segment.count, 0);
      expect(shown + notStarted(counts)).toBe(intended);
      expect(notStarted(counts)).toBe(rest);
    }),
  );
});
