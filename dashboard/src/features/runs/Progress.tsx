import { Link } from "@tanstack/react-router";
import type { RunWithProgress } from "../../api/runs";
import { useGetRunQuery } from "../../api/runs";
import { useDeadline } from "../../live/clock";
import type { ItemState, Tone } from "../../model/tones";
import { notStarted, segments } from "../../parts/counts";
import { Bar } from "../../ui/Bar";
import { Fact, Facts, Panel } from "../../ui/Panel";
import { Id, Text } from "../../ui/Text";
import { Clock, Countdown } from "../../ui/Time";
import { ToneIcon } from "../../ui/ToneIcon";
import { number, words } from "../../words";
import css from "./Run.module.css";

const texts = words.runs.progress;
const SENT_AS = { email: "sent", voice: "called", social: "posted" } as const;

/** The conservation law of a run, and its send jobs. */
export function Progress({ run }: { run: RunWithProgress }) {
  const { refetch } = useGetRunQuery({ id: run.id });
  useDeadline(run.waiting?.until, () => void refetch());
  const { intended, succeeded, failed, skipped, in_doubt: inDoubt, in_flight: inFlight, jobs } = run.progress;
  const counts = { intended, succeeded, failed, skipped, inDoubt, inFlight };
  const rest = notStarted(counts);
  const groups: { name: string; count: number; tone: Tone; status?: ItemState }[] = [
    { name: texts.succeeded, count: succeeded, tone: "good", status: SENT_AS[run.channel] },
    { name: texts.failed, count: failed, tone: "bad", status: "failed" },
    { name: texts.skipped, count: skipped, tone: "idle", status: "skipped" },
    { name: texts.inDoubt, count: inDoubt, tone: "doubt", status: "in_doubt" },
    { name: texts.inFlight, count: inFlight, tone: "busy", status: "queued" },
    { name: texts.notStarted, count: rest, tone: "idle" },
  ];
  const isWhole = groups.reduce((sum, group) => sum + group.count, 0) === intended;
  return (
    <>
      <Panel title={texts.title} aside={`${number(intended)} ${texts.intended.toLowerCase()}`} isPadded>
        <Bar
          segments={segments(counts)}
          total={intended}
          label={texts.label(groups.map((group) => `${number(group.count)} ${group.name.toLowerCase()}`).join(", "))}
        />
        <div className={css.groups}>
          {groups.map((group) => (
            <div key={group.name} className={css.group}>
              <span>
                <ToneIcon tone={group.tone} size={10} />
                {group.name}
              </span>
              <strong>
                {group.status && group.count > 0 ? (
                  <Link to="." search={{ tab: "items", status: group.status } as never}>
                    {number(group.count)}
                  </Link>
                ) : (
                  number(group.count)
                )}
              </strong>
            </div>
          ))}
        </div>
        <p className={css.sum}>{isWhole ? texts.sum : texts.noSum}</p>
        {run.waiting && (
          <p>
            {texts.waiting(run.waiting.jobs, words.states.waits[run.waiting.why])}{" "}
            <Countdown until={run.waiting.until} />
          </p>
        )}
      </Panel>
      <div className={css.cols}>
        <Panel title={texts.jobs} isPadded>
          <Facts>
            {(Object.keys(texts.jobStates) as (keyof typeof texts.jobStates)[]).map((state) => (
              <Fact key={state} name={texts.jobStates[state]}>
                {number(jobs[state])}
              </Fact>
            ))}
          </Facts>
        </Panel>
        <Panel title={texts.details} isPadded>
          <Facts>
            <Fact name={texts.facts.channel}>{words.states.channel[run.channel]}</Fact>
            <Fact name={texts.facts.provider}>
              <Text>{run.provider}</Text>
            </Fact>
            <Fact name={texts.facts.same}>{number(run.same_address)}</Fact>
            {run.scheduled_for && (
              <Fact name={texts.facts.scheduled}>
                <Clock at={run.scheduled_for} />
              </Fact>
            )}
            <Fact name={texts.facts.created}>
              <Clock at={run.created_at} />
            </Fact>
            <Fact name={texts.facts.started}>
              <Clock at={run.started_at} />
            </Fact>
            <Fact name={texts.facts.finished}>
              <Clock at={run.finished_at} />
            </Fact>
            <Fact name={words.runs.correlation}>
              <Id what={words.runs.correlation}>{run.correlation_id}</Id>
            </Fact>
          </Facts>
        </Panel>
      </div>
    </>
  );
}
