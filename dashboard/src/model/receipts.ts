// Compares the items of a run with the provider's own list.

import type { Item } from "../api/runs";
import { inSlices, type MatchBy, type Pause, type Row } from "./rows";
import { itemState } from "./tones";

export type ListedItem = Pick<
  Item,
  "id" | "idempotency_key" | "status" | "recipient" | "provider_message_id" | "doubted_since"
>;

export interface Pair {
  item: ListedItem;
  receipts: Row[];
}

export interface Comparison {
  /** Sent by the record, and exactly once in the provider's list. */
  matched: Pair[];
  /** More than once in the provider's list. */
  duplicated: Pair[];
  /** Sent by the record, and not in the provider's list. */
  onlyHere: ListedItem[];
  /** In the provider's list, and not sent by the record. Without an item, the row belongs to another run or to no run. */
  onlyThere: { receipt: Row; item?: ListedItem }[];
  /** Rows of refused requests, which the provider did not act on. */
  ignored: number;
}

const SUCCESS = new Set(["sent", "called", "posted"]);

/** A key as the providers write it: 64 hex digits, perhaps with a prefix, or as the local part of a Message-ID. */
export function keyIn(text: string): string | undefined {
  return /[0-9a-f]{64}/i.exec(text)?.[0].toLowerCase();
}

function idOf(item: ListedItem, by: MatchBy): string | undefined {
  if (by === "key") return item.idempotency_key.toLowerCase();
  if (by === "recipient") return item.recipient?.trim().toLowerCase();
  return item.provider_message_id ?? undefined;
}

function idIn(row: Row, column: string, by: MatchBy): string | undefined {
  const text = row[column]?.trim();
  if (!text) return undefined;
  if (by === "key") return keyIn(text) ?? text.toLowerCase();
  return by === "recipient" ? text.toLowerCase() : text;
}

export async function compare(
  items: readonly ListedItem[],
  rows: readonly Row[],
  { column, by }: { column: string; by: MatchBy },
  pause?: Pause,
): Promise<Comparison> {
  const result: Comparison = { matched: [], duplicated: [], onlyHere: [], onlyThere: [], ignored: 0 };
  const pairs = new Map<string, Pair>();
  const seldom: ListedItem[] = [];
  const index = (item: ListedItem) => {
    const id = idOf(item, by);
    if (id !== undefined && !pairs.has(id)) pairs.set(id, { item, receipts: [] });
    else seldom.push(item);
  };
  const assign = (row: Row) => {
    // The sim also lists the requests that it refused.
    if (row.acted === "false") {
      result.ignored += 1;
      return;
    }
    const id = idIn(row, column, by);
    const pair = id === undefined ? undefined : pairs.get(id);
    if (pair) pair.receipts.push(row);
    else result.onlyThere.push({ receipt: row });
  };
  await inSlices(items, index, pause);
  await inSlices(rows, assign, pause);
  await inSlices(
    pairs.values(),
    (pair) => {
      const wasSent = SUCCESS.has(pair.item.status);
      if (pair.receipts.length > 1) result.duplicated.push(pair);
      else if (pair.receipts.length === 1 && wasSent) result.matched.push(pair);
      else if (pair.receipts[0]) result.onlyThere.push({ receipt: pair.receipts[0], item: pair.item });
      else if (wasSent) result.onlyHere.push(pair.item);
    },
    pause,
  );
  result.onlyHere.push(...seldom.filter((item) => SUCCESS.has(item.status)));
  return result;
}

/** Why a row of the provider's list has no sent item. */
export function reasonOf(entry: Comparison["onlyThere"][number]): string | undefined {
  return entry.item && itemState(entry.item);
}
