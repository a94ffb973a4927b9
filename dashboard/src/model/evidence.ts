// Proposes verdicts for items in doubt from the provider's own list. A person confirms each group.

import type { Doubt } from "../api/inDoubt";
import { keyIn } from "./receipts";
import type { MatchBy, Row } from "./rows";

export interface Proposal {
  /** The list has the item's key or Message-ID: it was sent. */
  sent: { doubt: Doubt; messageId?: string }[];
  /** The list does not have it, and nothing can arrive any more. */
  notSent: Doubt[];
  /** The list has the recipient only, which proves nothing: the row may be another message. */
  byHand: Doubt[];
  /** The list does not have it, and the message can still arrive. */
  tooEarly: Doubt[];
}

const ID_COLUMNS = ["provider_message_id", "message_id", "sid", "queue_id", "id"];

export function propose(
  doubts: readonly Doubt[],
  rows: readonly Row[],
  { column, by, idColumn }: { column: string; by: MatchBy; idColumn?: string },
  isQuiet: (doubt: Doubt) => boolean,
): Proposal {
  const listed = new Map<string, Row>();
  for (const row of rows) {
    const text = row[column]?.trim() ?? "";
    if (text === "" || row.acted === "false") continue;
    listed.set(by === "recipient" ? text.toLowerCase() : (keyIn(text) ?? text.toLowerCase()), row);
  }
  const proposal: Proposal = { sent: [], notSent: [], byHand: [], tooEarly: [] };
  for (const doubt of doubts) {
    const id = by === "recipient" ? doubt.recipient?.toLowerCase() : doubt.idempotency_key.toLowerCase();
    const row = id === undefined ? undefined : listed.get(id);
    if (row !== undefined && by === "recipient") proposal.byHand.push(doubt);
    else if (row !== undefined) {
      const messageId = idColumn === undefined ? undefined : row[idColumn]?.trim();
      proposal.sent.push(messageId ? { doubt, messageId } : { doubt });
    } else if (isQuiet(doubt)) proposal.notSent.push(doubt);
    else proposal.tooEarly.push(doubt);
  }
  return proposal;
}

/** The column that probably has the provider's own id of the message. */
export function guessId(columns: readonly string[], except: string): string | undefined {
  return columns.find((name) => name !== except && ID_COLUMNS.includes(name.trim().toLowerCase()));
}
