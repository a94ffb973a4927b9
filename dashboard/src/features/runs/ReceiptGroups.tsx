import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { type Comparison, type ListedItem, reasonOf } from "../../model/receipts";
import type { Row } from "../../model/rows";
import type { ItemState, Tone } from "../../model/tones";
import { ToneSquare } from "../../ui/Chip";
import { Text } from "../../ui/Text";
import { ToneIcon } from "../../ui/ToneIcon";
import { number, words } from "../../words";
import css from "./Run.module.css";

const texts = words.runs.receipts;
const GROUPS = ["matched", "duplicated", "onlyHere", "onlyThere"] as const;
type Group = (typeof GROUPS)[number];
const TONES: Record<Group, Tone> = { matched: "good", duplicated: "bad", onlyHere: "waiting", onlyThere: "waiting" };
const SHOWN = 200;

interface Line {
  key: string;
  item?: ListedItem | undefined;
  receipt?: Row | undefined;
  note?: string;
}

function linesOf(found: Comparison, group: Group): Line[] {
  switch (group) {
    case "matched":
      return found.matched.map(({ item, receipts }) => ({ key: item.id, item, receipt: receipts[0] }));
    case "duplicated":
      return found.duplicated.map(({ item, receipts }) => ({
        key: item.id,
        item,
        receipt: receipts[0],
        note: `× ${number(receipts.length)}`,
      }));
    case "onlyHere":
      return found.onlyHere.map((item) => ({ key: item.id, item }));
    case "onlyThere":
      return found.onlyThere.map((entry, n) => {
        const state = reasonOf(entry) as ItemState | undefined;
        return {
          key: String(n),
          item: entry.item,
          receipt: entry.receipt,
          note: state ? words.states.item[state] : texts.otherRun,
        };
      });
  }
}

/** The four groups of a comparison, each with its rows. */
export function ReceiptGroups({ found }: { found: Comparison }) {
  const [shown, setShown] = useState<Group>("matched");
  // Rows of other runs in the same file are no difference.
  const foreign = found.onlyThere.filter((entry) => entry.item === undefined).length;
  const isPerfect = found.duplicated.length + found.onlyHere.length + found.onlyThere.length - foreign === 0;
  const lines = linesOf(found, shown);
  return (
    <>
      <p style={{ display: "flex", gap: 10, alignItems: "center" }} role="status" data-agrees={isPerfect}>
        <ToneSquare tone={isPerfect ? "good" : "bad"} />
        {isPerfect ? texts.perfect : texts.imperfect}
      </p>
      <div className={css.results}>
        {GROUPS.map((group) => (
          <button
            key={group}
            type="button"
            className={css.result}
            aria-pressed={shown === group}
            onClick={() => setShown(group)}
            data-group={group}
            data-count={found[group].length}
          >
            <span>
              <ToneIcon tone={TONES[group]} size={10} /> {texts.groups[group]}
            </span>
            <strong>{number(found[group].length)}</strong>
            <small>{texts.texts[group]}</small>
          </button>
        ))}
      </div>
      {lines.length > 0 && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls
        <section className={css.pairs} tabIndex={0} aria-label={texts.groups[shown]}>
          {lines.slice(0, SHOWN).map((line) => (
            <div key={line.key} className={css.pair}>
              <span>
                {line.item ? (
                  <Link to="/items/$id" params={{ id: line.item.id }}>
                    <Text>{line.item.recipient ?? words.runs.items.noRecipient}</Text>
                  </Link>
                ) : (
                  <Text>{line.receipt?.to ?? line.receipt?.recipient ?? "–"}</Text>
                )}
              </span>
              <code>
                <Text>{line.receipt?.message_id ?? line.receipt?.id ?? line.item?.provider_message_id}</Text>
              </code>
              <span className={css.muted}>{line.note}</span>
            </div>
          ))}
          {lines.length > SHOWN && <div className={css.pair}>{texts.more(lines.length - SHOWN)}</div>}
        </section>
      )}
    </>
  );
}
