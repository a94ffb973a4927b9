import { useEffect, useRef, useState } from "react";
import type { Args } from "../../api/base";
import { type HistoryRow, useListCampaignHistoryInfiniteQuery } from "../../api/campaigns";
import { sets } from "../../model/machine";
import { PHASE_TONES } from "../../model/tones";
import { Button } from "../../ui/Button";
import { Chip } from "../../ui/Chip";
import type { Column } from "../../ui/DataTable";
import { Dialog } from "../../ui/Dialog";
import { Empty } from "../../ui/Empty";
import { FilterBar } from "../../ui/FilterBar";
import { type FilterField, toArgs } from "../../ui/filters";
import { Json } from "../../ui/Json";
import { ListView } from "../../ui/ListView";
import { Panel } from "../../ui/Panel";
import { Text } from "../../ui/Text";
import { Clock } from "../../ui/Time";
import { useFilters } from "../../ui/useFilters";
import { useList } from "../../ui/useList";
import { number, percent, words } from "../../words";

const texts = words.campaigns.history;
const FIELDS: readonly FilterField[] = [
  {
    name: "type",
    label: texts.type,
    isMany: true,
    values: Object.entries(texts.events).map(([value, label]) => ({ value, label })),
  },
];

/** Every event of the campaign, newest first. */
export function History({ id, sequence }: { id: string; sequence: number }) {
  const { filters, setFilters, isFiltered } = useFilters(FIELDS, ["tab"]);
  const [opened, setOpened] = useState<HistoryRow>();
  const query = useListCampaignHistoryInfiniteQuery({ id, ...toArgs(filters) } as Args<"list_campaign_history">);
  const list = useList(query, []);
  // The stream says when there is another event.
  const { refetch } = query;
  const seen = useRef(sequence);
  useEffect(() => {
    if (seen.current === sequence) return;
    const timer = setTimeout(() => {
      seen.current = sequence;
      void refetch({ refetchCachedPages: false });
    }, 1_000);
    return () => clearTimeout(timer);
  }, [sequence, refetch]);
  const columns: readonly Column<HistoryRow>[] = [
    {
      id: "event",
      name: texts.columns.event,
      width: "150px",
      render: (row) => <Chip tone={toneOf(row)}>{texts.events[row.type] ?? row.type}</Chip>,
    },
    {
      id: "sequence",
      name: texts.columns.sequence,
      width: "100px",
      isEnd: true,
      render: (row) => number(row.sequence),
    },
    { id: "phase", name: texts.columns.phase, width: "150px", isMain: true, render: (row) => <Text>{row.phase}</Text> },
    { id: "details", name: texts.columns.details, render: (row) => <Text>{details(row) || "–"}</Text> },
    { id: "at", name: texts.columns.at, width: "150px", isMain: true, render: (row) => <Clock at={row.timestamp} /> },
    {
      id: "payload",
      name: "",
      width: "150px",
      isEnd: true,
      isAction: true,
      render: (row) => (
        <Button isSmall look="quiet" onClick={() => setOpened(row)}>
          {texts.payload}
        </Button>
      ),
    },
  ];
  return (
    <>
      <FilterBar fields={FIELDS} filters={filters} onChange={setFilters} />
      <Panel>
        <ListView
          name="history"
          label={texts.label}
          list={list}
          columns={columns}
          keyOf={(row) => String(row.sequence)}
          isFiltered={isFiltered}
          onClear={() => setFilters({})}
          empty={<Empty title={texts.empty} />}
        />
      </Panel>
      {opened && (
        <Dialog
          title={`${texts.events[opened.type] ?? opened.type} · ${words.campaigns.sequence(opened.sequence)}`}
          onClose={() => setOpened(undefined)}
          foot={<Button onClick={() => setOpened(undefined)}>{words.dialog.close}</Button>}
        >
          <Json value={opened.payload} />
        </Dialog>
      )}
    </>
  );
}

function toneOf(row: HistoryRow) {
  const status = sets(row.type);
  return status ? PHASE_TONES[status] : "idle";
}

/** The details of an event in one line. */
function details({ type, payload }: HistoryRow): string {
  const { trigger, reason, items, secondMessages, actor, progressPercentage } = payload as Record<string, unknown>;
  if (type === "campaign_progress") return typeof progressPercentage === "number" ? percent(progressPercentage) : "";
  return [
    typeof trigger === "string" ? texts.by(trigger) : "",
    typeof items === "number" ? texts.items(items) : "",
    typeof secondMessages === "number" ? texts.seconds(secondMessages) : "",
    typeof actor === "string" ? actor : "",
    typeof reason === "string" ? `“${reason}”` : "",
  ]
    .filter(Boolean)
    .join(" · ");
}
