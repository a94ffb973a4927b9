import { describe, expect, test } from "vitest";
import { age, clockTime, countdown, duration, fullTime, shortTime } from "./durations";

describe("durations", () => {
  test.each([
    [-5, "0 ms"],
    [32, "32 ms"],
    [999, "999 ms"],
    [1000, "1 s"],
    [2440, "2.4 s"],
    [9_999, "9.9 s"],
    [30_400, "30 s"],
    [60_000, "1 m"],
    [629_000, "10 m 29 s"],
    [3_600_000, "1 h 00 m"],
    [3_720_000, "1 h 02 m"],
    [86_400_000, "1 d"],
    [273_600_000, "3 d 4 h"],
  ])("%d ms is %s", (ms, text) => expect(duration(ms)).toBe(text));

  test.each([
    [0, "0 s"],
    [59_999, "59 s"],
    [61_000, "1 m"],
    [3_599_000, "59 m"],
    [47 * 3_600_000, "47 h"],
    [49 * 3_600_000, "2 d"],
  ])("an age of %d ms is %s", (ms, text) => expect(age(ms)).toBe(text));

  test.each([
    [-1, "0:00"],
    [1, "0:01"],
    [21_000, "0:21"],
    [401_000, "6:41"],
    [3_723_000, "1:02:03"],
    [183_600_000, "2 d 3 h"],
  ])("%d ms left is %s", (ms, text) => expect(countdown(ms)).toBe(text));

  test("times are written in the chosen zone", () => {
    const at = Date.parse("2026-03-01T12:03:09.480Z");
    expect(clockTime(at, "utc")).toBe("12:03:09");
    expect(clockTime(at, "utc", true)).toBe("12:03:09.480");
    expect(fullTime(at, "utc")).toBe("1 Mar 2026, 12:03:09 UTC");
    expect(shortTime(at, "utc", at + 1000)).toBe("12:03:09");
    expect(shortTime(at, "utc", at + 86_400_000)).toBe("1 Mar, 12:03");
  });
});
