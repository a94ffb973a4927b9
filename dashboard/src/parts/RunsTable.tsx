import { Link } from "@tanstack/react-router";
import type { Args } from "../api/base";
import { type Run, useListRunsInfiniteQuery } from "../api/runs";
import { duration } from "../model/durations";
import type { Column } from "../ui/DataTable";
import { Empty } from "../ui/Empty";
import { ListView } from "../ui/ListView";
import { Text } from "../ui/Text";
import { Age, Ago } from "../ui/Time";
import { useList } from "../ui/useList";
import { number, words } from "../words";
import { RunChip } from "./chips";
import { nameOf } from "./names";

const { columns: names } = words.runs;

const COLUMNS: readonly Column<Run>[] = [
  {
    id: "phase",
    name: names.phase,
    render: (run) => (
      <Link to="/runs/$id" params={{ id: run.id }}>
        <Text>{nameOf(run)}</Text>
      </Link>
    ),
  },
  { id: "status", name: names.status, width: "166px", isMain: true, render: (run) => <RunChip status={run.status} /> },
  { id: "cause", name: names.cause, width: "72px", render: (run) => words.states.cause[run.cause] },
  { id: "channel", name: names.channel, width: "78px", render: (run) => words.states.channel[run.channel] },
  { id: "provider", name: names.provider, width: "88px", render: (run) => <Text>{run.provider}</Text> },
  { id: "intended", name: names.intended, width: "76px", isEnd: true, render: (run) => number(run.intended) },
  { id: "same", name: names.same, width: "110px", isEnd: true, render: (run) => number(run.same_address) },
  { id: "duration", name: names.duration, width: "86px", isEnd: true, render: (run) => <Duration run={run} /> },
  {
    id: "created",
    name: names.created,
    width: "96px",
    isEnd: true,
    isMain: true,
    render: (run) => <Ago at={run.created_at} />,
  },
];

function Duration({ run }: { run: Run }) {
  if (!run.started_at) return <>–</>;
  if (!run.finished_at) return <Age since={run.started_at} />;
  return <>{duration(Date.parse(run.finished_at) - Date.parse(run.started_at))}</>;
}

/** Runs, newest first. */
export function RunsTable({
  args,
  isFiltered = false,
  onClear,
}: {
  args: Args<"list_runs">;
  isFiltered?: boolean;
  onClear?: () => void;
}) {
  const list = useList(useListRunsInfiniteQuery(args), ["runs"]);
  return (
    <ListView
      name="runs"
      label={words.runs.list}
      list={list}
      columns={COLUMNS}
      keyOf={(run) => run.id}
      isFiltered={isFiltered}
      {...(onClear ? { onClear } : {})}
      empty={<Empty title={words.runs.emptyTitle}>{words.runs.emptyText}</Empty>}
    />
  );
}
