import type { Args } from "../../api/base";
import { RunsTable } from "../../parts/RunsTable";
import { FilterBar } from "../../ui/FilterBar";
import { type FilterField, time, toArgs, uuid } from "../../ui/filters";
import { Page } from "../../ui/Page";
import { Panel } from "../../ui/Panel";
import { useFilters } from "../../ui/useFilters";
import { words } from "../../words";

const { filters: labels } = words.runs;
const options = (labelled: Record<string, string>) =>
  Object.entries(labelled).map(([value, label]) => ({ value, label }));

const FIELDS: readonly FilterField[] = [
  { name: "status", label: labels.status, values: options(words.states.run) },
  { name: "channel", label: labels.channel, values: options(words.states.channel) },
  { name: "cause", label: labels.cause, values: options(words.states.cause) },
  { name: "provider", label: labels.provider },
  { name: "campaign_id", label: labels.campaign, check: uuid },
  { name: "created_after", label: labels.after, check: time, help: "2026-03-01" },
  { name: "created_before", label: labels.before, check: time, help: "2026-03-01" },
];

export function Runs() {
  const { filters, setFilters, isFiltered } = useFilters(FIELDS);
  return (
    <Page title={words.runs.title}>
      <FilterBar fields={FIELDS} filters={filters} onChange={setFilters} />
      <Panel>
        <RunsTable args={toArgs(filters) as Args<"list_runs">} isFiltered={isFiltered} onClear={() => setFilters({})} />
      </Panel>
    </Page>
  );
}
