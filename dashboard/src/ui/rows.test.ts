import { expect, test } from "vitest";
import { between, hold } from "./rows";

const row = (key: string, value = 0) => ({ key, value });
const keyOf = (one: { key: string }) => one.key;

test("new rows at the top wait, shown rows are patched in place and further pages are appended", () => {
  const shown = [row("b"), row("c"), row("d")];
  const next = [row("z"), row("a"), row("b", 1), row("d", 2), row("e")];
  const held = hold(shown, next, keyOf);
  expect(held.rows).toEqual([row("b", 1), row("c"), row("d", 2), row("e")]);
  expect(held.waiting).toBe(2);
});

test("without shown rows, or without a common one, nothing moves under the reader", () => {
  expect(hold([], [row("a")], keyOf)).toEqual({ rows: [row("a")], waiting: 0 });
  expect(hold([row("a")], [row("b"), row("c")], keyOf)).toEqual({ rows: [row("a")], waiting: 2 });
});

test("a range goes in both directions", () => {
  expect(between(["a", "b", "c", "d"], "c", "a")).toEqual(["a", "b", "c"]);
  expect(between(["a"], "gone", "a")).toEqual(["a"]);
});
