import { useNow } from "../live/clock";
import { age, countdown, fullTime, shortTime } from "../model/durations";
import { useApp } from "../store";
import { words } from "../words";

type At = string | number;

/** How long ago, with the time itself on hover. */
export function Ago({ at }: { at: At | null | undefined }) {
  const now = useNow();
  const zone = useApp((state) => state.prefs.zone);
  if (at === null || at === undefined) return <span>–</span>;
  const ms = new Date(at).getTime();
  return (
    <time dateTime={new Date(ms).toISOString()} title={fullTime(ms, zone)}>
      {now - ms < 1_000 ? words.time.justNow : words.time.ago(age(now - ms))}
    </time>
  );
}

/** The time itself, as short as it is clear. */
export function Clock({ at }: { at: At | null | undefined }) {
  const now = useNow();
  const zone = useApp((state) => state.prefs.zone);
  if (at === null || at === undefined) return <span>–</span>;
  const ms = new Date(at).getTime();
  return (
    <time dateTime={new Date(ms).toISOString()} title={fullTime(ms, zone)}>
      {shortTime(ms, zone, now)}
    </time>
  );
}

/** The time that is left. */
export function Countdown({ until, ended }: { until: At; ended?: React.ReactNode }) {
  const left = new Date(until).getTime() - useNow();
  const zone = useApp((state) => state.prefs.zone);
  if (left <= 0 && ended !== undefined) return ended;
  return (
    <time dateTime={new Date(until).toISOString()} title={fullTime(new Date(until).getTime(), zone)}>
      {countdown(left)}
    </time>
  );
}

/** The age of something that goes on. */
export function Age({ since }: { since: At }) {
  const ms = useNow() - new Date(since).getTime();
  return <>{age(ms)}</>;
}
