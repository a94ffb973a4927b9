import { describe, expect, test } from "vitest";
import { visible, webAddress } from "./visible";

describe("text of other people", () => {
  test("controls and invisible characters are shown as their code points", () => {
    expect(visible("a\u202eb")).toBe("a‹U+202E›b");
    expect(visible("x\u0000\u200b")).toBe("x‹U+0000›‹U+200B›");
    expect(visible("\ud800")).toBe("‹U+D800›");
    expect(visible("\u{e0041}")).toBe("‹U+E0041›");
  });

  test("ordinary text of any script stays as it is", () => {
    const text = "Änne 山田 😀 שלום\tand\nmore";
    expect(visible(text)).toBe(text);
  });

  test("only addresses of the web become links", () => {
    expect(webAddress("https://example.com/a b")).toBe("https://example.com/a%20b");
    expect(webAddress("javascript:alert(1)")).toBeUndefined();
    expect(webAddress("https://a\u202e.com")).toBeUndefined();
    expect(webAddress("//example.com")).toBeUndefined();
    expect(webAddress("https://")).toBeUndefined();
  });
});
