// The kinds of things that need a person, worst first.

import type { Overview } from "../../api/overview";
import type { Tone } from "../../model/tones";
import { words } from "../../words";

const { kinds, as } = words.overview;

export interface Need {
  name: string;
  tone: Tone;
  text: string;
  detail?: string;
  oldestSeconds?: number | null | undefined;
  to?: "/in-doubt" | "/campaigns";
  search?: Record<string, string>;
}

export function needs(overview: Overview): Need[] {
  const isCapped = (field: string) => overview.capped.includes(field);
  const need = (
    field: string,
    count: number,
    tone: Tone,
    text: (n: number, shown: string) => string,
    rest: Omit<Need, "name" | "tone" | "text"> = {},
  ): Need[] => (count > 0 ? [{ name: field, tone, text: text(count, as(count, isCapped(field))), ...rest }] : []);
  const { items, attention, replies, messages, events, phases, accounts } = overview;
  return [
    ...need("items.in_doubt_for_person", items.in_doubt_for_person, "doubt", kinds.inDoubtForPerson, {
      detail: kinds.inDoubtForPersonText,
      oldestSeconds: items.oldest_doubt_seconds,
      to: "/in-doubt",
    }),
    ...need("attention.decision_cards", attention.decision_cards, "waiting", kinds.decisionCards, {
      oldestSeconds: attention.oldest_decision_card_seconds,
    }),
    ...need("attention.sync_errors", attention.sync_errors, "bad", kinds.deadLetters, {
      detail: kinds.deadLettersText,
      oldestSeconds: attention.oldest_sync_error_seconds,
    }),
    ...need("replies.dead", replies.dead, "bad", kinds.deadReplies, {
      detail: kinds.deadRepliesText,
      oldestSeconds: replies.oldest_dead_seconds,
    }),
    ...need("messages.dispatch_failed", messages.dispatch_failed, "bad", kinds.dispatchFailed, {
      oldestSeconds: messages.oldest_failed_seconds,
    }),
    ...need("events.stuck", events.stuck, "bad", kinds.stuckEvents, { detail: kinds.stuckEventsText }),
    ...need("phases.failed", phases.failed, "bad", kinds.failedPhases, {
      oldestSeconds: phases.oldest_failed_seconds,
      to: "/campaigns",
      search: { phase_status: "failed" },
    }),
    ...need("accounts.circuit_open", accounts.circuit_open, "waiting", kinds.circuits, { detail: kinds.circuitsText }),
  ];
}
