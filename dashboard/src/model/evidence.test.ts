import { expect, test } from "vitest";
import type { Doubt } from "../api/inDoubt";
import { guessId, propose } from "./evidence";

const key = (n: number) => n.toString(16).padStart(64, "a");
const doubt = (n: number, isQuiet = true) =>
  ({ outbox_id: `o${n}`, idempotency_key: key(n), recipient: `P${n}@example.org`, is_quiet: isQuiet }) as Doubt;
const ids = (doubts: Doubt[]) => doubts.map((one) => one.outbox_id);

test("a key in the list proves that the item was sent, and its absence counts only after the quiet time", () => {
  const rows = [{ "message-id": `<${key(1)}@example.com>`, queue_id: "q-1" }];
  const found = propose(
    [doubt(1), doubt(2), doubt(3, false)],
    rows,
    { column: "message-id", by: "message_id", idColumn: "queue_id" },
    (one) => one.is_quiet,
  );
  expect(found.sent.map((one) => [one.doubt.outbox_id, one.messageId])).toEqual([["o1", "q-1"]]);
  expect([ids(found.notSent), ids(found.tooEarly), ids(found.byHand)]).toEqual([["o2"], ["o3"], []]);
});

test("a recipient in the list decides nothing", () => {
  const found = propose(
    [doubt(1), doubt(2)],
    [{ to: "p1@example.org" }],
    { column: "to", by: "recipient" },
    () => true,
  );
  expect([found.sent.length, ids(found.byHand), ids(found.notSent)]).toEqual([0, ["o1"], ["o2"]]);
});

test("a request that the provider refused is no evidence", () => {
  const found = propose([doubt(1)], [{ key: key(1), acted: "false" }], { column: "key", by: "key" }, () => true);
  expect([found.sent.length, ids(found.notSent)]).toEqual([0, ["o1"]]);
});

test("the column of the provider's id is guessed", () => {
  expect(guessId(["to", "SID"], "to")).toBe("SID");
  expect(guessId(["message_id"], "message_id")).toBeUndefined();
});
