import { Link } from "@tanstack/react-router";
import type { Overview } from "../../api/overview";
import { words } from "../../words";
import css from "./Overview.module.css";

const { numbers, as } = words.overview;

/** The amounts of work of this moment. */
export function Numbers({ overview }: { overview: Overview }) {
  const shown = (field: string, count: number) => as(count, overview.capped.includes(field));
  const { items, phases, jobs, job_runs: runs, replies, events } = overview;
  const tiles = [
    {
      name: numbers.phases,
      value: (
        <Link to="/campaigns" search={{ phase_status: "in_progress" } as never}>
          {shown("phases.in_progress", phases.in_progress)}
        </Link>
      ),
      note: numbers.phasesText(shown("phases.paused", phases.paused)),
    },
    { name: numbers.inFlight, value: shown("items.in_flight", items.in_flight), note: "" },
    {
      name: numbers.inDoubt,
      value: <Link to="/in-doubt">{shown("items.in_doubt", items.in_doubt)}</Link>,
      note: `${as(Math.max(0, items.in_doubt - items.in_doubt_for_person), false)} ${numbers.inDoubtAuto}`,
    },
    {
      name: numbers.jobs,
      value: shown("jobs.locked", jobs.locked),
      note: numbers.jobsText(shown("jobs.waiting", jobs.waiting), shown("jobs.put_off", jobs.put_off)),
    },
    {
      name: numbers.jobRuns,
      value: shown("job_runs.running", runs.running),
      note: numbers.jobRunsText(shown("job_runs.failed_24h", runs.failed_24h)),
    },
    {
      name: numbers.replies,
      value: shown("replies.pending", replies.pending),
      note: numbers.repliesText(shown("replies.retrying", replies.retrying)),
    },
    { name: numbers.events, value: shown("events.pending", events.pending), note: "" },
  ].slice(0, 6);
  return (
    <>
      {tiles.map((tile) => (
        <div key={tile.name} className={css.number}>
          <span>{tile.name}</span>
          <strong>{tile.value}</strong>
          {tile.note && <small>{tile.note}</small>}
        </div>
      ))}
    </>
  );
}
