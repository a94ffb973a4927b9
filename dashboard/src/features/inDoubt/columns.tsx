import { Link } from "@tanstack/react-router";
import type { Doubt } from "../../api/inDoubt";
import { nameOf } from "../../parts/names";
import type { Column } from "../../ui/DataTable";
import { Text } from "../../ui/Text";
import { Age, Countdown } from "../../ui/Time";
import { number, words } from "../../words";
import css from "./InDoubt.module.css";

const { columns: names, now, in: inTime } = words.inDoubt;

/** Columns that stay beside an open panel. */
const BESIDE: Record<string, string | undefined> = { recipient: undefined, phase: "32%", age: "76px", quiet: "124px" };

export function columnsOf(open: (id: string) => void, isBesidePanel: boolean): readonly Column<Doubt>[] {
  const all: readonly Column<Doubt>[] = [
    {
      id: "recipient",
      name: names.recipient,
      width: "22%",
      render: (doubt) => (
        <button type="button" className={css.open} onClick={() => open(doubt.outbox_id)}>
          <Text>{doubt.recipient ?? words.runs.items.noRecipient}</Text>
        </button>
      ),
    },
    {
      id: "phase",
      name: names.phase,
      width: "18%",
      render: (doubt) => (
        <Link to="/runs/$id" params={{ id: doubt.run_id }}>
          <Text>{nameOf(doubt)}</Text>
        </Link>
      ),
    },
    { id: "provider", name: names.provider, width: "100px", render: (doubt) => <Text>{doubt.provider}</Text> },
    {
      id: "reason",
      name: names.reason,
      isMain: true,
      render: (doubt) => (
        <span title={doubt.reason}>
          <Text>{doubt.reason}</Text>
        </span>
      ),
    },
    { id: "age", name: names.age, width: "90px", isEnd: true, render: (doubt) => <Age since={doubt.doubted_since} /> },
    {
      id: "quiet",
      name: names.quiet,
      width: "170px",
      isEnd: true,
      isMain: true,
      render: (doubt) => <Quiet doubt={doubt} />,
    },
    { id: "looks", name: names.looks, width: "80px", isEnd: true, render: (doubt) => number(doubt.looks) },
    {
      id: "note",
      name: names.note,
      width: "14%",
      render: (doubt) => (
        <span title={doubt.note ?? undefined}>
          <Text>{doubt.note}</Text>
        </span>
      ),
    },
  ];
  if (!isBesidePanel) return all;
  return all
    .filter((column) => column.id in BESIDE)
    .map(({ width: _, ...column }) => {
      const width = BESIDE[column.id];
      return width === undefined ? column : { ...column, width };
    });
}

function Quiet({ doubt }: { doubt: Doubt }) {
  const over = <span className={css.ready}>{now}</span>;
  if (doubt.is_quiet) return over;
  return (
    <span className={css.muted}>
      <Countdown until={doubt.quiet_until} ended={over} /> <span className="visually-hidden">{inTime}</span>
    </span>
  );
}
