import { Link } from "@tanstack/react-router";
import { Clock3 } from "lucide-react";
import type { PhaseStanding, RunStanding, Campaign as Settings } from "../../api/campaigns";
import { useDeadline } from "../../live/clock";
import { clockTime } from "../../model/durations";
import { after, allowed } from "../../model/machine";
import { type Campaign, shown } from "../../model/phases";
import { PHASE_TONES } from "../../model/tones";
import { PhaseChip } from "../../parts/chips";
import { notStarted, segments } from "../../parts/counts";
import { stream, useApp } from "../../store";
import { Bar } from "../../ui/Bar";
import { cx } from "../../ui/cx";
import { Text } from "../../ui/Text";
import { Countdown } from "../../ui/Time";
import { number, percent, words } from "../../words";
import css from "./Campaign.module.css";
import { PhaseControls } from "./PhaseControls";

const texts = words.campaigns;

export function PhaseRow({
  id,
  place,
  standing,
  campaign,
  settings,
  startsAfter,
}: {
  id: string;
  place: number;
  standing: PhaseStanding;
  campaign: Campaign;
  settings: Settings["phases"][number] | undefined;
  startsAfter: string | undefined;
}) {
  const name = standing.phase;
  const status = shown(campaign, name) ?? standing.status;
  const optimistic = campaign.optimistic[name];
  // Which control leads from the known state to the shown one.
  const pending =
    optimistic && allowed(standing.status, standing.kind).find((by) => after(standing.status, by) === optimistic);
  const { run } = standing;
  // While another phase is at work, starting this one is possible, and not what comes next.
  const isNext =
    status !== "not_started" ||
    !campaign.order.some((other) => ["in_progress", "paused"].includes(shown(campaign, other) ?? ""));
  useDeadline(run?.waiting?.until, () => void stream.refresh(id));
  useDeadline(standing.scheduledFor, () => void stream.refresh(id));
  const detail = [
    settings?.channel ? words.states.channel[settings.channel] : words.states.kind[standing.kind],
    settings?.provider_account,
  ];
  return (
    <li
      className={css.phase}
      data-phase={name}
      data-status={standing.status}
      data-shown={status}
      data-sequence={campaign.lastApplied}
    >
      <span className={cx(css.place, css[PHASE_TONES[status]])} aria-hidden="true">
        {place}
      </span>
      <span className={css.name}>
        <b>
          <Text>{name}</Text>
        </b>
        <span className={css.muted}>
          <Text>{detail.filter(Boolean).join(" · ")}</Text>
        </span>
      </span>
      <div className={css.state}>
        <div className={css.line}>
          <PhaseChip status={status} pending={pending} isCanceled={standing.canceled} />
          {status !== "not_started" && <b>{percent(standing.progressPercentage)}</b>}
          {run && <span className={css.muted}>{texts.ofIntended(run.intended)}</span>}
          {status === "not_started" && startsAfter && (
            <span className={css.muted}>
              <Text>{texts.startsAfter(startsAfter)}</Text>
            </span>
          )}
          <AsOf />
        </div>
        {run ? (
          <Progress run={run} settings={settings} />
        ) : (
          status !== "not_started" && <External percentage={standing.progressPercentage} />
        )}
        {standing.scheduledFor && <Countdown until={standing.scheduledFor} ended={null} />}
        {run?.waiting && status === "in_progress" && (
          <span className={css.muted}>
            {texts.waiting(run.waiting.jobs, run.waiting.why)} <Countdown until={run.waiting.until} />
          </span>
        )}
      </div>
      <PhaseControls
        id={id}
        campaign={campaign.name}
        phase={name}
        status={standing.status}
        kind={standing.kind}
        run={run}
        isCanceled={standing.canceled}
        allowed={allowed(status, standing.kind)}
        isNext={isNext}
      />
    </li>
  );
}

function AsOf() {
  const since = useApp((state) => state.live.staleSince);
  const zone = useApp((state) => state.prefs.zone);
  if (since === null) return null;
  return (
    <span className={css.asOf}>
      <Clock3 size={12} aria-hidden="true" />
      {texts.asOf(clockTime(since, zone))}
    </span>
  );
}

function External({ percentage }: { percentage: number }) {
  return <Bar segments={[{ name: "done", tone: "good", count: percentage }]} total={100} label={percent(percentage)} />;
}

/** The items of the newest run. Each number opens the items that it counts. */
function Progress({ run, settings }: { run: RunStanding; settings: Settings["phases"][number] | undefined }) {
  const reached = settings?.channel
    ? words.states.reached[settings.channel]
    : words.runs.progress.succeeded.toLowerCase();
  const sentAs = { email: "sent", voice: "called", social: "posted" } as const;
  const parts = [
    { name: reached, count: run.succeeded, status: settings?.channel ? sentAs[settings.channel] : undefined },
    { name: texts.counts.failed, count: run.failed, status: "failed" },
    { name: texts.counts.skipped, count: run.skipped, status: "skipped" },
    { name: texts.counts.inDoubt, count: run.inDoubt, status: "in_doubt" },
    { name: texts.counts.inFlight, count: run.inFlight, status: "queued" },
    { name: texts.counts.notStarted, count: notStarted(run), status: undefined },
  ];
  return (
    <>
      <Bar segments={segments(run)} total={run.intended} />
      <div className={css.numbers}>
        {parts.map((part) => {
          const content = (
            <>
              <b>{number(part.count)}</b> {part.name}
            </>
          );
          const look = part.status === "in_doubt" && part.count > 0 ? css.doubt : undefined;
          return part.status === undefined || part.count === 0 ? (
            <span key={part.name} className={look}>
              {content}
            </span>
          ) : (
            <Link
              key={part.name}
              to="/runs/$id"
              params={{ id: run.id }}
              search={{ tab: "items", status: part.status } as never}
              className={look}
            >
              {content}
            </Link>
          );
        })}
      </div>
    </>
  );
}
