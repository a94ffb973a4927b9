import { Link } from "@tanstack/react-router";
import { type Failure, type RunWithProgress, useListRunFailuresQuery } from "../../api/runs";
import type { Column } from "../../ui/DataTable";
import { Empty } from "../../ui/Empty";
import { ListView } from "../../ui/ListView";
import { Panel } from "../../ui/Panel";
import { Text } from "../../ui/Text";
import { useTopics } from "../../ui/useList";
import { number, percent, words } from "../../words";
import css from "./Run.module.css";

const texts = words.runs.failures;

/** Failed items, grouped by their error. */
export function Failures({ run }: { run: RunWithProgress }) {
  const query = useListRunFailuresQuery({ id: run.id });
  useTopics(["runs"], () => void query.refetch());
  const total = Math.max(1, run.progress.failed);
  const columns: readonly Column<Failure>[] = [
    {
      id: "error",
      name: texts.columns.error,
      render: (failure) => (
        <Link
          to="."
          search={
            {
              tab: "items",
              status: "failed",
              ...(failure.error ? { error_contains: failure.error.slice(0, 200) } : {}),
            } as never
          }
        >
          <Text>{failure.error ?? texts.noError}</Text>
        </Link>
      ),
    },
    {
      id: "count",
      name: texts.columns.count,
      width: "90px",
      isEnd: true,
      isMain: true,
      render: (failure) => number(failure.count),
    },
    {
      id: "share",
      name: texts.columns.share,
      width: "90px",
      isEnd: true,
      render: (failure) => percent((100 * failure.count) / total),
    },
    {
      id: "examples",
      name: texts.columns.examples,
      width: "300px",
      isMain: true,
      render: (failure) => (
        <span className={css.examples}>
          {failure.item_ids.map((id, n) => (
            <Link key={id} to="/items/$id" params={{ id }}>
              {texts.example(n + 1)}
            </Link>
          ))}
        </span>
      ),
    },
  ];
  const list = {
    asked: {
      ...query,
      data: query.data && { rows: query.data, hasMore: false, isFetchingMore: false, fetchMore: () => {} },
    },
    setHeld: () => {},
    readAt: query.fulfilledTimeStamp,
  };
  return (
    <Panel
      {...(query.data?.length && run.campaign_id
        ? {
            foot: (
              <Link to="/campaigns/$id" params={{ id: run.campaign_id }}>
                {texts.retry}
              </Link>
            ),
          }
        : {})}
    >
      <ListView
        name="failures"
        label={texts.label}
        list={list}
        columns={columns}
        keyOf={(failure) => failure.error ?? ""}
        empty={<Empty title={texts.none}>{texts.noneText}</Empty>}
      />
    </Panel>
  );
}
