import { op } from "../../api/base";
import { address } from "../../api/client";
import { problemOf } from "../../api/problem";
import type { ListedItem } from "../../model/receipts";
import { inSlices } from "../../model/rows";

/** Reads every item of a run, in the form of its export. */
export async function exportedItems(run: string): Promise<ListedItem[]> {
  const { path, query } = op("GET", "/runs/{id}/items/export", { id: run, format: "ndjson" });
  const response = await fetch(address(path, query), { credentials: "same-origin", cache: "no-store" });
  const text = await response.text();
  if (!response.ok) {
    const body = response.headers.get("content-type")?.includes("json") ? JSON.parse(text) : {};
    throw problemOf(response.status, body, response.headers.get("retry-after"));
  }
  const items: ListedItem[] = [];
  await inSlices(text.split("\n"), (line) => {
    if (line !== "") items.push(JSON.parse(line));
  });
  return items;
}
