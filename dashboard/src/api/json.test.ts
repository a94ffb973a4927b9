import { describe, expect, test } from "vitest";
import { isNumber, parse, write } from "./json";

describe("lossless JSON", () => {
  test("a number that a double cannot hold stays text and is written with every digit", () => {
    const text = '{"id":12345678901234567890,"list":[1.00000000000000000001,2],"n":7}';
    const value = parse(text) as { id: unknown; list: unknown[]; n: number };
    expect(value.id).toBe("12345678901234567890");
    expect(value.list[0]).toBe("1.00000000000000000001");
    expect(isNumber(value, "id")).toBe(true);
    expect(isNumber(value.list, "0")).toBe(true);
    expect(write(value, 0)).toBe(text);
  });

  test("a number that a double holds is a number", () => {
    expect(parse("[9007199254740991, 1e3, 0.10000000000000000, 1.0, -0.5, 1e-7]")).toEqual([
      9007199254740991, 1000, 0.1, 1, -0.5, 1e-7,
    ]);
  });

  test("a text of digits stays a text", () => {
    const value = parse('{"id":"12345678901234567890","big":12345678901234567891}') as object;
    expect(isNumber(value, "id")).toBe(false);
    expect(write(value, 0)).toBe('{"id":"12345678901234567890","big":12345678901234567891}');
  });

  test("empty containers, null and nested values are written as JSON writes them", () => {
    const value = { a: [], b: {}, c: null, d: [{ e: 'x"y' }] };
    expect(write(value)).toBe(JSON.stringify(value, null, 2));
  });
});
