import type { Doubt } from "../../api/inDoubt";

/** Whether nothing can arrive any more, so that "not sent" counts. The server decides. */
export function isQuiet(doubt: Pick<Doubt, "is_quiet" | "quiet_until">, now: number): boolean {
  return doubt.is_quiet || Date.parse(doubt.quiet_until) <= now;
}
