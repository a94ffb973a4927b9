import { clockTime, duration, fullTime } from "../model/durations";
import type { Tone } from "../model/tones";
import { useApp } from "../store";
import { words } from "../words";
import { ToneSquare } from "./Chip";
import css from "./Timeline.module.css";

export interface Step {
  key: string;
  /** Unknown where only the order is certain. */
  at?: string | null;
  tone: Tone;
  title: React.ReactNode;
  detail?: React.ReactNode;
  /** Shown instead of the time since the step before. */
  aside?: React.ReactNode;
}

/** Steps, oldest first, with the time between them. */
export function Timeline({ steps, label }: { steps: readonly Step[]; label: string }) {
  const zone = useApp((state) => state.prefs.zone);
  let previous: number | undefined;
  return (
    <ol className={css.timeline} aria-label={label}>
      {steps.map((step) => {
        const at = step.at ? Date.parse(step.at) : undefined;
        const gap = at !== undefined && previous !== undefined ? at - previous : undefined;
        if (at !== undefined) previous = at;
        return (
          <li key={step.key} className={css.step}>
            {at === undefined ? (
              <time>·</time>
            ) : (
              <time dateTime={new Date(at).toISOString()} title={fullTime(at, zone)}>
                {clockTime(at, zone, true)}
              </time>
            )}
            <ToneSquare tone={step.tone} />
            <div className={css.body}>
              {step.title}
              {step.detail && <p>{step.detail}</p>}
            </div>
            <span className={css.gap}>
              {step.aside ?? (gap !== undefined && gap >= 0 ? words.time.later(duration(gap)) : "")}
            </span>
          </li>
        );
      })}
    </ol>
  );
}
