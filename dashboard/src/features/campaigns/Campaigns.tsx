import { Link } from "@tanstack/react-router";
import type { Args } from "../../api/base";
import { type CampaignRow, useListCampaignsInfiniteQuery } from "../../api/campaigns";
import { PHASE_TONES } from "../../model/tones";
import { useApp } from "../../store";
import { Bar } from "../../ui/Bar";
import { Chip } from "../../ui/Chip";
import type { Column } from "../../ui/DataTable";
import { Empty } from "../../ui/Empty";
import { FilterBar } from "../../ui/FilterBar";
import { type FilterField, toArgs } from "../../ui/filters";
import { ListView } from "../../ui/ListView";
import { Page } from "../../ui/Page";
import { Panel } from "../../ui/Panel";
import { Command, Text } from "../../ui/Text";
import { Ago } from "../../ui/Time";
import { useFilters } from "../../ui/useFilters";
import { useList } from "../../ui/useList";
import { number, percent, words } from "../../words";
import css from "./Campaigns.module.css";
import { RowMenu } from "./RowMenu";

const { columns: names, filters: labels } = words.campaigns;

const FIELDS: readonly FilterField[] = [
  { name: "q", label: labels.q },
  {
    name: "phase_status",
    label: labels.phaseStatus,
    isMany: true,
    values: Object.entries(words.states.phase).map(([value, label]) => ({ value, label })),
  },
];

const COLUMNS: readonly Column<CampaignRow>[] = [
  {
    id: "name",
    name: names.name,
    width: "24%",
    render: (row) => (
      <Link to="/campaigns/$id" params={{ id: row.id }}>
        <Text>{row.name}</Text>
      </Link>
    ),
  },
  {
    id: "phases",
    name: names.phases,
    isMain: true,
    render: (row) => (
      <span className={css.phases}>
        {row.phases.map((phase) => (
          <span key={phase.phase} title={`${phase.phase}: ${words.states.phase[phase.status]}`}>
            <Chip tone={PHASE_TONES[phase.status]}>
              <Text>{phase.phase}</Text>
              <span className="visually-hidden">{words.states.phase[phase.status]}</span>
            </Chip>
          </span>
        ))}
      </span>
    ),
  },
  { id: "progress", name: names.progress, width: "140px", render: (row) => <Progress row={row} /> },
  { id: "doubt", name: names.inDoubt, width: "90px", isEnd: true, render: (row) => <InDoubt id={row.id} /> },
  {
    id: "advance",
    name: names.advance,
    width: "120px",
    render: (row) => (row.auto_advance ? words.campaigns.advance.on : words.campaigns.advance.off),
  },
  {
    id: "created",
    name: names.created,
    width: "110px",
    isEnd: true,
    isMain: true,
    render: (row) => <Ago at={row.created_at} />,
  },
  { id: "menu", name: "", width: "64px", isEnd: true, isAction: true, render: (row) => <RowMenu row={row} /> },
];

/** The progress of the phase at work, or of the whole campaign. */
function Progress({ row }: { row: CampaignRow }) {
  const atWork = row.phases.find((phase) => phase.status === "in_progress" || phase.status === "paused");
  const done = row.phases.filter((phase) => phase.status === "completed").length;
  const share = atWork ? atWork.progress_percentage : (100 * done) / Math.max(1, row.phases.length);
  return (
    <span className={css.progress}>
      <Bar
        segments={[{ name: "done", tone: atWork?.status === "paused" ? "waiting" : "good", count: share }]}
        total={100}
        isSmall
      />
      <span>{percent(share)}</span>
    </span>
  );
}

function InDoubt({ id }: { id: string }) {
  const count = useApp(
    (state) => state.live.overview?.in_doubt_by_campaign.find((one) => one.campaign_id === id)?.count ?? 0,
  );
  if (count === 0) return <>–</>;
  return (
    <Link to="/in-doubt" search={{ campaign_id: id } as never} className={css.doubt}>
      {number(count)}
    </Link>
  );
}

export function Campaigns() {
  const { filters, setFilters, isFiltered } = useFilters(FIELDS);
  const list = useList(useListCampaignsInfiniteQuery(toArgs(filters) as Args<"list_campaigns">), ["campaigns"]);
  return (
    <Page title={words.campaigns.title}>
      <FilterBar fields={FIELDS} filters={filters} onChange={setFilters} />
      <Panel>
        <ListView
          name="campaigns"
          label={words.campaigns.list}
          list={list}
          columns={COLUMNS}
          keyOf={(row) => row.id}
          isFiltered={isFiltered}
          onClear={() => setFilters({})}
          empty={
            <Empty title={words.campaigns.emptyTitle} actions={<FirstCampaign />}>
              {words.campaigns.emptyText}
            </Empty>
          }
        />
      </Panel>
    </Page>
  );
}

function FirstCampaign() {
  return (
    <div className={css.first}>
      <strong>{words.campaigns.emptyFile}</strong>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a block that scrolls must be reached by the keyboard */}
      <pre tabIndex={0}>{words.campaigns.toml}</pre>
      <Command>postrider campaign create spring.toml</Command>
    </div>
  );
}
