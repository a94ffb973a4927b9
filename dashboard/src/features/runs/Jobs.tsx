import { Link } from "@tanstack/react-router";
import type { SendJob, Trace } from "../../api/runs";
import { JobChip } from "../../parts/chips";
import { segments } from "../../parts/counts";
import { Bar } from "../../ui/Bar";
import type { Column } from "../../ui/DataTable";
import { Empty } from "../../ui/Empty";
import { ListView } from "../../ui/ListView";
import { Text } from "../../ui/Text";
import { Ago, Clock } from "../../ui/Time";
import { words } from "../../words";

const texts = words.runs.jobs;
const { columns: names } = texts;

const done = (job: SendJob) => job.succeeded + job.failed + job.skipped;
const counts = (job: SendJob) => ({ ...job, inDoubt: job.in_doubt, inFlight: job.in_flight });

const COLUMNS: readonly Column<SendJob>[] = [
  {
    id: "position",
    name: names.position,
    width: "70px",
    render: (job) => (
      <Link to="." search={{ tab: "items", job_id: job.id } as never}>
        {job.position}
      </Link>
    ),
  },
  { id: "status", name: names.status, width: "136px", isMain: true, render: (job) => <JobChip status={job.status} /> },
  {
    id: "items",
    name: names.items,
    width: "220px",
    isMain: true,
    render: (job) => (
      <span style={{ display: "grid", gap: 4, inlineSize: "100%" }} title={texts.counts(done(job), job.intended)}>
        <Bar
          segments={segments(counts(job))}
          total={job.intended}
          isSmall
          label={texts.counts(done(job), job.intended)}
        />
      </span>
    ),
  },
  {
    id: "attempts",
    name: names.attempts,
    width: "90px",
    isEnd: true,
    render: (job) => texts.attempts(job.attempts, job.max_attempts),
  },
  {
    id: "worker",
    name: names.worker,
    width: "170px",
    render: (job) =>
      job.locked_by ? (
        <code title={job.locked_by}>
          <Text>{job.locked_by}</Text>
        </code>
      ) : (
        "–"
      ),
  },
  { id: "runAfter", name: names.runAfter, width: "150px", render: (job) => <Next job={job} /> },
  {
    id: "error",
    name: names.error,
    render: (job) => (
      <span title={job.last_error ?? undefined}>
        <Text>{job.last_error}</Text>
      </span>
    ),
  },
];

function Next({ job }: { job: SendJob }) {
  if (job.finished_at) return <Ago at={job.finished_at} />;
  if (job.locked_at) return <Ago at={job.locked_at} />;
  return job.run_after ? <Clock at={job.run_after} /> : texts.whilePaused;
}

/** The send jobs of a run, in their order. */
export function Jobs({ trace }: { trace: Trace }) {
  const list = {
    asked: {
      data: { rows: trace.jobs, hasMore: false, isFetchingMore: false, fetchMore: () => {} },
      isFetching: false,
      refetch: () => {},
    },
    setHeld: () => {},
  };
  return (
    <>
      <ListView
        name="send-jobs"
        label={texts.label}
        list={list}
        columns={COLUMNS}
        keyOf={(job) => job.id}
        empty={<Empty title={words.runs.emptyTitle} />}
      />
      {trace.jobs_left_out > 0 && <p style={{ padding: "12px 16px" }}>{texts.leftOut(trace.jobs_left_out)}</p>}
    </>
  );
}
