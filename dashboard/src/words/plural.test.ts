import { expect, test } from "vitest";
import { list, number, percent, plural } from "./plural";

test("numbers have separators and their nouns the right form", () => {
  expect(number(1284)).toBe("1,284");
  expect(plural(1, "item", "items")).toBe("1 item");
  expect(plural(0, "item", "items")).toBe("0 items");
  expect(plural(12_000, "item", "items")).toBe("12,000 items");
  expect(list(["a", "b", "c"])).toBe("a, b, and c");
});

test("a share of 100 % is shown only when nothing is left", () => {
  expect(percent(71.04)).toBe("71 %");
  expect(percent(99.99)).toBe("99.9 %");
  expect(percent(100)).toBe("100 %");
  expect(percent(0)).toBe("0 %");
});
