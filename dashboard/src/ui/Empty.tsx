import { words } from "../words";
import css from "./Empty.module.css";

/** Nothing to show: what this is, and what to do next. */
export function Empty({
  title,
  children,
  actions,
}: {
  title: string;
  children?: React.ReactNode;
  actions?: React.ReactNode;
}) {
  return (
    <div className={css.empty}>
      <p className={css.title}>{title}</p>
      {children && <div className={css.text}>{children}</div>}
      {actions && <div className={css.actions}>{actions}</div>}
    </div>
  );
}

const WIDTHS = ["62%", "88%", "74%", "91%", "56%", "82%", "69%", "94%"];

/** The layout of what is loading, after a moment. */
export function Skeleton({ rows = 4 }: { rows?: number }) {
  return (
    <div className={css.skeleton} role="status" aria-busy="true" aria-label={words.text.loading}>
      {Array.from({ length: rows }, (_, n) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the rows never change
        <span key={n} style={{ inlineSize: WIDTHS[n % WIDTHS.length] }} />
      ))}
    </div>
  );
}
