import type { Tone } from "../model/tones";
import css from "./Bar.module.css";
import { cx } from "./cx";

export interface Segment {
  name: string;
  tone: Tone;
  count: number;
}

/** A stacked bar. Its text says the same numbers, so it is hidden from screen readers where the text stands beside it. */
export function Bar({
  segments,
  total,
  label,
  isSmall = false,
}: {
  segments: readonly Segment[];
  total: number;
  label?: string;
  isSmall?: boolean;
}) {
  const shown = segments.filter((segment) => segment.count > 0);
  const naming = label === undefined ? { "aria-hidden": true as const } : { role: "img", "aria-label": label };
  return (
    <div className={cx(css.bar, isSmall && css.isSmall)} {...naming}>
      {shown.map((segment) => (
        <span
          key={segment.name}
          className={cx(css.segment, css[segment.tone])}
          style={{ flexBasis: `${total > 0 ? (100 * segment.count) / total : 0}%` }}
        />
      ))}
    </div>
  );
}
