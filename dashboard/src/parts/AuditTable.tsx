import type { AuditRow } from "../api/overview";
import { useListAuditInfiniteQuery } from "../api/overview";
import type { Column } from "../ui/DataTable";
import { Empty } from "../ui/Empty";
import { ListView } from "../ui/ListView";
import { Text } from "../ui/Text";
import { Clock } from "../ui/Time";
import { useList } from "../ui/useList";
import { words } from "../words";

const { audit } = words.campaigns;

type Line = Pick<AuditRow, "id" | "at" | "actor" | "action" | "note">;

const LINE: readonly Column<Line>[] = [
  { id: "at", name: audit.columns.at, width: "170px", render: (line) => <Clock at={line.at} /> },
  { id: "actor", name: audit.columns.actor, width: "24%", isMain: true, render: (line) => <Text>{line.actor}</Text> },
  {
    id: "action",
    name: audit.columns.action,
    width: "24%",
    isMain: true,
    render: (line) => <Text>{line.action}</Text>,
  },
  {
    id: "note",
    name: audit.columns.note,
    render: (line) => (
      <span title={line.note ?? undefined}>
        <Text>{line.note}</Text>
      </span>
    ),
  },
];

/** The log of a campaign, newest line first. Only admins may read it. */
export function AuditTable({ campaignId }: { campaignId: string }) {
  const list = useList(useListAuditInfiniteQuery({ source: "campaigns", campaign_id: campaignId }), [
    "campaigns",
    "runs",
  ]);
  return (
    <ListView
      name="audit"
      label={audit.label}
      list={list}
      columns={LINE as readonly Column<AuditRow>[]}
      keyOf={(line) => String(line.id)}
      empty={<Empty title={audit.empty} />}
    />
  );
}

/** Lines that came with something else. */
export function AuditLines({ lines }: { lines: readonly Line[] }) {
  const list = {
    asked: {
      data: { rows: lines, hasMore: false, isFetchingMore: false, fetchMore: () => {} },
      isFetching: false,
      refetch: () => {},
    },
    setHeld: () => {},
  };
  return (
    <ListView
      name="audit"
      label={audit.label}
      list={list}
      columns={LINE}
      keyOf={(line) => String(line.id)}
      empty={<Empty title={audit.empty} />}
    />
  );
}
