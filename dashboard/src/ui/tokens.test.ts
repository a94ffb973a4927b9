import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { TONES } from "../model/tones";

const css = readFileSync(new URL("./tokens.css", import.meta.url), "utf8");

/** Name → [light, dark]. */
const tokens = new Map(
  [...css.matchAll(/--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)/g)].map(
    ([, name = "", light = "", dark = ""]) => [name, [light, dark] as const],
  ),
);

/** Relative luminance, as WCAG 2.2 defines it. */
function luminance(color: string): number {
  const [red = 0, green = 0, blue = 0] = [1, 3, 5].map((at) => {
    const part = Number.parseInt(color.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one: string, other: string): number {
  const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a) as [number, number];
  return (high + 0.05) / (low + 0.05);
}

const grounds = ["page", "surface", "raised", "hover"];
const pairs: [ink: string, ground: string, least: number][] = [
  ...["ink", "muted", "link", "danger"].flatMap((ink) =>
    grounds.map((ground): [string, string, number] => [ink, ground, 4.5]),
  ),
  ...TONES.map((tone): [string, string, number] => [tone, `${tone}-ground`, 4.5]),
  ...TONES.flatMap((tone) => grounds.map((ground): [string, string, number] => [tone, ground, 4.5])),
  ["on-link", "link", 4.5],
  ["on-danger", "danger", 4.5],
  ["muted", "idle-ground", 4.5],
  ...grounds.map((ground): [string, string, number] => ["control", ground, 3]),
  ...["busy", "waiting", "good", "bad", "doubt"].map((tone): [string, string, number] => [
    `fill-${tone}`,
    "idle-ground",
    3,
  ]),
];

test.each(pairs)("%s on %s has a contrast of at least %d in both themes", (ink, ground, least) => {
  for (const theme of [0, 1] as const) {
    const [one, other] = [tokens.get(ink)?.[theme], tokens.get(ground)?.[theme]];
    expect(one, ink).toBeDefined();
    expect(other, ground).toBeDefined();
    expect(contrast(one ?? "", other ?? "")).toBeGreaterThanOrEqual(least);
  }
});
