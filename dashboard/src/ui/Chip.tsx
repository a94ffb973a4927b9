import type { Tone } from "../model/tones";
import css from "./Chip.module.css";
import { cx } from "./cx";
import { ToneIcon } from "./ToneIcon";

/** A state: tone, shape and word, so that color is never the only sign. */
export function Chip({
  tone,
  children,
  isPending = false,
}: {
  tone: Tone;
  children: React.ReactNode;
  isPending?: boolean;
}) {
  return (
    <span
      className={cx(css.chip, css[tone], isPending && css.isPending)}
      data-tone={tone}
      data-pending={isPending || undefined}
    >
      <ToneIcon tone={tone} size={10} />
      {children}
    </span>
  );
}

/** The shape of a tone alone, beside text that says the same. */
export function ToneSquare({ tone }: { tone: Tone }) {
  return (
    <span className={cx(css.square, css[tone])}>
      <ToneIcon tone={tone} size={11} />
    </span>
  );
}
