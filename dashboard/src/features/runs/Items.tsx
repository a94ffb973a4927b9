import { Link } from "@tanstack/react-router";
import { Download } from "lucide-react";
import type { Args } from "../../api/base";
import { op } from "../../api/base";
import { address } from "../../api/client";
import { type Item, useListRunItemsInfiniteQuery } from "../../api/runs";
import { ItemChip } from "../../parts/chips";
import { useMe } from "../../parts/useMe";
import type { Column } from "../../ui/DataTable";
import { Empty } from "../../ui/Empty";
import { FilterBar } from "../../ui/FilterBar";
import { type FilterField, toArgs, uuid } from "../../ui/filters";
import { ListView } from "../../ui/ListView";
import { Menu } from "../../ui/Menu";
import { Panel } from "../../ui/Panel";
import { Id, Text } from "../../ui/Text";
import { Ago } from "../../ui/Time";
import { useFilters } from "../../ui/useFilters";
import { useList } from "../../ui/useList";
import { number, words } from "../../words";

const texts = words.runs.items;
const { columns: names, filters: labels } = texts;

const FIELDS: readonly FilterField[] = [
  {
    name: "status",
    label: labels.status,
    values: Object.entries(words.states.item).map(([value, label]) => ({ value, label })),
  },
  { name: "recipient", label: labels.recipient },
  { name: "error_contains", label: labels.error },
  { name: "job_id", label: labels.job, check: uuid },
];

const COLUMNS: readonly Column<Item>[] = [
  {
    id: "recipient",
    name: names.recipient,
    width: "22%",
    render: (item) => (
      <Link to="/items/$id" params={{ id: item.id }}>
        <Text>{item.recipient ?? texts.noRecipient}</Text>
      </Link>
    ),
  },
  { id: "status", name: names.status, width: "120px", isMain: true, render: (item) => <ItemChip item={item} /> },
  {
    id: "id",
    name: names.id,
    width: "150px",
    render: (item) => (
      <code>
        <Text>{item.provider_message_id}</Text>
      </code>
    ),
  },
  {
    id: "error",
    name: names.error,
    render: (item) => (
      <span title={item.error ?? undefined}>
        <Text>{item.error}</Text>
      </span>
    ),
  },
  {
    id: "attempt",
    name: names.attempt,
    width: "80px",
    isEnd: true,
    render: (item) => (item.attempt == null ? "–" : number(item.attempt)),
  },
  {
    id: "worker",
    name: names.worker,
    width: "120px",
    render: (item) =>
      item.reserved_by ? (
        <code title={item.reserved_by}>
          <Text>{item.reserved_by}</Text>
        </code>
      ) : (
        "–"
      ),
  },
  { id: "key", name: names.key, width: "150px", render: (item) => <Id what={names.key}>{item.idempotency_key}</Id> },
  { id: "reserved", name: names.reserved, width: "100px", isEnd: true, render: (item) => <Ago at={item.created_at} /> },
  {
    id: "finished",
    name: names.finished,
    width: "100px",
    isEnd: true,
    isMain: true,
    render: (item) => <Ago at={item.finalized_at} />,
  },
];

export function Items({ id, name }: { id: string; name: string }) {
  const { filters, setFilters, isFiltered } = useFilters(FIELDS, ["tab"]);
  const list = useList(useListRunItemsInfiniteQuery({ id, ...toArgs(filters) } as Args<"list_run_items">), ["runs"]);
  const { whyNot } = useMe();
  const why = whyNot("operator");
  const download = (format: "csv" | "ndjson") => {
    const link = document.createElement("a");
    const { path, query } = op("GET", "/runs/{id}/items/export", { id, format, status: filters.status });
    link.href = address(path, query);
    link.download = `${name}.${format}`;
    link.click();
  };
  return (
    <>
      <FilterBar fields={FIELDS} filters={filters} onChange={setFilters}>
        <span style={{ marginInlineStart: "auto" }}>
          <Menu
            label={texts.export}
            entries={(["csv", "ndjson"] as const).map((format) => ({
              label: texts.exportAs(format),
              why,
              onSelect: () => download(format),
            }))}
          >
            <Download size={14} aria-hidden="true" /> {texts.export}
          </Menu>
        </span>
      </FilterBar>
      <Panel>
        <ListView
          name="items"
          label={texts.label}
          list={list}
          columns={COLUMNS}
          keyOf={(item) => item.id}
          isFiltered={isFiltered}
          onClear={() => setFilters({})}
          empty={<Empty title={texts.emptyTitle}>{texts.emptyText}</Empty>}
        />
      </Panel>
    </>
  );
}
