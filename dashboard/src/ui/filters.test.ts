import { describe, expect, test } from "vitest";
import { type FilterField, readFilters, time, uuid, withFilter, withoutFilter } from "./filters";

const fields: FilterField[] = [
  {
    name: "status",
    label: "Status",
    isMany: true,
    values: [
      { value: "paused", label: "Paused" },
      { value: "failed", label: "Failed" },
    ],
  },
  { name: "provider", label: "Provider" },
  { name: "run_id", label: "Run", check: uuid },
];
const ID = "0199e4a0-0000-7000-8000-00000000000a";

describe("filters and the URL", () => {
  test("known parameters are read, and unknown or invalid ones are left out and named", () => {
    const search = { status: ["paused", "gone"], provider: " smtp ", run_id: "x", tab: "items", evil: "<script>" };
    expect(readFilters(fields, search, ["tab"])).toEqual({
      filters: { status: ["paused"], provider: "smtp" },
      dropped: ["status", "run_id", "evil"],
    });
    expect(readFilters(fields, { run_id: ID.toUpperCase(), status: "failed" }).filters).toEqual({
      run_id: ID,
      status: ["failed"],
    });
    expect(readFilters(fields, { provider: { a: 1 }, status: null })).toEqual({
      filters: {},
      dropped: ["provider", "status"],
    });
  });

  test("filters in the URL are read back as they were written", () => {
    let filters = withFilter(fields[0] as FilterField, {}, "paused");
    filters = withFilter(fields[0] as FilterField, filters, "failed");
    filters = withFilter(fields[1] as FilterField, filters, "smtp");
    expect(readFilters(fields, filters)).toEqual({ filters, dropped: [] });
    filters = withoutFilter(withoutFilter(filters, "status", "paused"), "provider", "smtp");
    expect(filters).toEqual({ status: ["failed"] });
    expect(withoutFilter(filters, "status", "failed")).toEqual({});
  });

  test("times are dates or timestamps", () => {
    expect(time("2026-03-01T10:00:00Z")).toBe("2026-03-01T10:00:00.000Z");
    expect(time("2026-03-01")).toMatch(/^2026-0[23]-\d\dT/);
    expect(time("yesterday")).toBeUndefined();
    expect(time("2026-99-99")).toBeUndefined();
  });
});
