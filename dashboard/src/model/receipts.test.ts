import { describe, expect, test } from "vitest";
import { compare, keyIn, type ListedItem, reasonOf } from "./receipts";
import { guess, read } from "./rows";

const key = (n: number) => n.toString(16).padStart(64, "0");
const item = (n: number, status: ListedItem["status"] = "sent"): ListedItem => ({
  id: `item-${n}`,
  idempotency_key: key(n),
  status,
  recipient: `p${n}@example.org`,
  provider_message_id: status === "sent" ? `m-${n}` : null,
  doubted_since: status === "queued" ? "2026-03-01T12:00:00Z" : null,
});

describe("files of the provider", () => {
  test("NDJSON, JSON arrays and CSV are read", async () => {
    const ndjson = await read('{"key":"a","n":1}\n\n{"key":"b","deep":{"x":1}}\nbroken\n[1]\n');
    expect(ndjson).toEqual({
      columns: ["key", "n", "deep"],
      rows: [
        { key: "a", n: "1" },
        { key: "b", deep: '{"x":1}' },
      ],
      bad: 2,
    });
    expect((await read('[{"to":"a@b.c"}]')).rows).toEqual([{ to: "a@b.c" }]);
    const csv = await read('\ufeffTo;Note\r\n"a;b";"say ""hi""\nand more"\r\nc;d\r\none\r\n');
    expect(csv.columns).toEqual(["To", "Note"]);
    expect(csv.rows).toEqual([
      { To: "a;b", Note: 'say "hi"\nand more' },
      { To: "c", Note: "d" },
    ]);
    expect(csv.bad).toBe(1);
    expect((await read("")).rows).toEqual([]);
    expect((await read('a,b\n"never closed,1')).rows).toEqual([]);
  });

  test("the column to compare by is guessed, keys first", () => {
    expect(guess(["to", "message_id", "key"])).toEqual({ column: "key", by: "key" });
    expect(guess(["To", "Message-ID"])).toEqual({ column: "Message-ID", by: "message_id" });
    expect(guess(["Email"])).toEqual({ column: "Email", by: "recipient" });
    expect(guess(["a"])).toBeUndefined();
  });

  test("a key is found inside a Message-ID", () => {
    expect(keyIn(`<${key(10).toUpperCase()}@example.com>`)).toBe(key(10));
    expect(keyIn("msg_short")).toBeUndefined();
  });
});

describe("the comparison with receipts", () => {
  const items = [item(1), item(2), item(3), item(4, "failed"), item(5, "queued"), item(6, "skipped")];
  const by = { column: "key", by: "key" } as const;

  test("each item and each row is in exactly one group", async () => {
    const rows = [
      { key: key(1), acted: "true" },
      { key: `<${key(2)}@x.example>`, acted: "true" },
      { key: key(2), acted: "true" },
      { key: key(5), acted: "true" },
      { key: key(99), acted: "true" },
      { key: key(4), acted: "false" },
      { acted: "true" },
    ];
    const found = await compare(items, rows, by);
    expect(found.matched.map((pair) => pair.item.id)).toEqual(["item-1"]);
    expect(found.duplicated.map((pair) => [pair.item.id, pair.receipts.length])).toEqual([["item-2", 2]]);
    expect(found.onlyHere.map((only) => only.id)).toEqual(["item-3"]);
    expect(found.onlyThere.map((only) => [only.item?.id, reasonOf(only)])).toEqual([
      [undefined, undefined],
      [undefined, undefined],
      ["item-5", "in_doubt"],
    ]);
    expect(found.ignored).toBe(1);
  });

  test("without keys the provider's ids or the recipients are compared", async () => {
    const byId = await compare(items, [{ id: "m-1" }], { column: "id", by: "message_id" });
    expect([byId.matched.length, byId.onlyHere.length]).toEqual([1, 2]);
    const byRecipient = await compare(items, [{ to: " P3@Example.org " }], { column: "to", by: "recipient" });
    expect(byRecipient.matched.map((pair) => pair.item.id)).toEqual(["item-3"]);
  });

  test("a large comparison pauses, so that the page stays usable", async () => {
    let pauses = 0;
    const many = Array.from({ length: 40_000 }, (_, n) => item(n));
    const rows = many.map((one) => ({ key: one.idempotency_key }));
    const found = await compare(many, rows, by, async () => {
      pauses += 1;
    });
    expect(found.matched).toHaveLength(40_000);
    expect(pauses).toBeGreaterThan(0);
  });
});
