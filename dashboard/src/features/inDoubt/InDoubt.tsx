import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import type { Args } from "../../api/base";
import { type Doubt, useListInDoubtInfiniteQuery } from "../../api/inDoubt";
import { useDeadline, useNow } from "../../live/clock";
import { useMe } from "../../parts/useMe";
import { useApp } from "../../store";
import { BulkBar } from "../../ui/BulkBar";
import { Button } from "../../ui/Button";
import { cx } from "../../ui/cx";
import { Empty } from "../../ui/Empty";
import { FilterBar } from "../../ui/FilterBar";
import { type FilterField, toArgs, uuid } from "../../ui/filters";
import { ListView } from "../../ui/ListView";
import { Page, TAB, Tabs } from "../../ui/Page";
import { Panel } from "../../ui/Panel";
import { useFilters, useTab } from "../../ui/useFilters";
import { useList } from "../../ui/useList";
import { number, words } from "../../words";
import { Bulk } from "./Bulk";
import { columnsOf } from "./columns";
import { Evidence } from "./Evidence";
import css from "./InDoubt.module.css";
import { isQuiet } from "./quiet";
import { SidePanel } from "./SidePanel";

const texts = words.inDoubt;
const TABS = ["person", "auto", "callback"] as const;
const WAYS = { person: "person", auto: "repeat,look_up", callback: "callback" } as const;

const FIELDS: readonly FilterField[] = [
  { name: "provider", label: texts.filters.provider },
  {
    name: "is_quiet",
    label: texts.filters.quiet,
    values: Object.entries(texts.quietValues).map(([value, label]) => ({ value, label })),
  },
  { name: "campaign_id", label: texts.filters.campaign, check: uuid },
  { name: "run_id", label: texts.filters.run, check: uuid },
];

/** Items that may or may not have been sent, and the verdicts on them. */
export function InDoubt() {
  const tab = useTab(TABS);
  const { filters, setFilters, isFiltered } = useFilters(FIELDS, ["tab", "item"]);
  const args = { ...toArgs(filters), settled_by: WAYS[tab] } as Args<"list_in_doubt">;
  const query = useListInDoubtInfiniteQuery(args);
  const list = useList(query, ["in_doubt"]);
  const { rows } = list.pages;
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [verdict, setVerdict] = useState<"sent" | "failed">();
  const [isImporting, setImporting] = useState(false);
  const { opened, open } = useOpened();
  const { whyNot } = useMe();
  const why = whyNot("operator");
  const waiting = useApp((state) => state.live.overview?.items.in_doubt_for_person);
  useDeadline(firstQuiet(rows), () => void query.refetch({ refetchCachedPages: false }));

  const shown = rows.find((doubt) => doubt.outbox_id === opened);
  const chosen = rows.filter((doubt) => selected.has(doubt.outbox_id));
  return (
    <Page
      title={texts.title}
      actions={
        <Button onClick={() => setImporting(true)} why={why}>
          {texts.evidence}
        </Button>
      }
    >
      <p className={css.intro}>{texts.intro}</p>
      <Tabs label={texts.title}>
        {TABS.map((one) => (
          <Link
            key={one}
            to="."
            search={{ ...filters, ...(one === TABS[0] ? {} : { tab: one }) } as never}
            aria-current={tab === one ? "page" : undefined}
            {...TAB}
            onClick={() => setSelected(new Set())}
          >
            {texts.tabs[one]}
            {one === "person" && waiting !== undefined && waiting > 0 && <span>{number(waiting)}</span>}
          </Link>
        ))}
      </Tabs>
      <FilterBar fields={FIELDS} filters={filters} onChange={setFilters} />
      <div className={cx(css.cols, shown && css.hasPanel)}>
        <Panel>
          <ListView
            name="in-doubt"
            label={texts.list}
            list={list}
            columns={columnsOf(open, shown !== undefined)}
            keyOf={(doubt) => doubt.outbox_id}
            selected={selected}
            onSelect={setSelected}
            opened={opened}
            isFiltered={isFiltered}
            onClear={() => setFilters({})}
            empty={<Empty title={texts.emptyTab[tab]}>{texts.emptyText}</Empty>}
          />
          <Selection chosen={chosen} why={why} onVerdict={setVerdict} onClear={() => setSelected(new Set())} />
        </Panel>
        {shown && <SidePanel key={shown.outbox_id} doubt={shown} onClose={() => open(undefined)} />}
      </div>
      {verdict && (
        <Bulk
          as={verdict}
          items={chosen.map((doubt) => ({ doubt }))}
          onClose={() => {
            setVerdict(undefined);
            setSelected(new Set());
          }}
        />
      )}
      {isImporting && <Evidence args={args} onClose={() => setImporting(false)} />}
    </Page>
  );
}

function Selection({
  chosen,
  why,
  onVerdict,
  onClear,
}: {
  chosen: readonly Doubt[];
  why: string | undefined;
  onVerdict: (as: "sent" | "failed") => void;
  onClear: () => void;
}) {
  const now = useNow();
  const early = chosen.filter((doubt) => !isQuiet(doubt, now)).length;
  return (
    <BulkBar count={chosen.length} onClear={onClear}>
      <Button onClick={() => onVerdict("sent")} why={why}>
        {texts.bulkSent}
      </Button>
      <Button onClick={() => onVerdict("failed")} why={why ?? (early === chosen.length ? texts.allEarly : undefined)}>
        {texts.bulkNotSent(early)}
      </Button>
    </BulkBar>
  );
}

/** The item whose panel is open is part of the address. */
function useOpened() {
  const search = useSearch({ strict: false }) as Record<string, unknown>;
  const navigate = useNavigate();
  const opened = typeof search.item === "string" ? uuid(search.item) : undefined;
  const open = (id: string | undefined) => {
    const { item: _, ...rest } = search;
    void navigate({
      to: ".",
      search: (id === undefined ? rest : { ...rest, item: id }) as never,
      replace: true,
      resetScroll: false,
    });
  };
  return { opened, open };
}

/** The next moment at which an item may be marked as not sent. */
function firstQuiet(rows: readonly Doubt[]): string | undefined {
  return rows
    .filter((doubt) => !doubt.is_quiet)
    .map((doubt) => doubt.quiet_until)
    .sort()[0];
}
