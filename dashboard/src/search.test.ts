import { expect, test } from "vitest";
import { parseSearch, stringifySearch } from "./search";

test("search parameters are read back as they were written", () => {
  const search = { tab: "items", phase_status: ["paused", "failed"], q: "a b&c=d#e" };
  expect(parseSearch(stringifySearch(search))).toEqual(search);
  expect(stringifySearch({ a: undefined, b: "", c: null })).toBe("");
  expect(parseSearch("?n=007&broken=%E0%A4%A")).toMatchObject({ n: "007" });
});
