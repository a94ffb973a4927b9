import { type Answer, type Args, op, PAGE_SIZE } from "../../api/base";
import { call } from "../../api/client";
import type { Doubt } from "../../api/inDoubt";

const MOST = 10_000;

/** Reads every item in doubt of a filter, page by page. */
export async function allDoubts(args: Args<"list_in_doubt">): Promise<Doubt[]> {
  const doubts: Doubt[] = [];
  let cursor: string | null | undefined;
  do {
    const outcome = await call<Answer<"list_in_doubt">>(op("GET", "/in-doubt", { ...args, limit: PAGE_SIZE, cursor }));
    if (!outcome.ok) throw outcome.problem;
    doubts.push(...outcome.data.items);
    cursor = outcome.data.next_cursor;
  } while (cursor && doubts.length < MOST);
  return doubts;
}
