import { expect, test } from "vitest";
import { readPrefs } from "./prefs";

test("stored preferences are read, and anything unexpected has its default", () => {
  expect(
    readPrefs('{"theme":"dark","density":"compact","zone":"utc","shortcuts":false,"hidden":{"runs":["cause"]}}'),
  ).toEqual({
    theme: "dark",
    density: "compact",
    zone: "utc",
    shortcuts: false,
    hidden: { runs: ["cause"] },
  });
  const defaults = { theme: "system", density: "comfortable", zone: "local", shortcuts: true, hidden: {} };
  for (const text of [null, "", "{", "[]", '{"theme":"<b>","hidden":[1],"zone":7}', '{"hidden":{"a":"b"}}']) {
    expect(readPrefs(text)).toEqual(defaults);
  }
});
