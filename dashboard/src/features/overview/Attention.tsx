import { Link } from "@tanstack/react-router";
import type { Overview } from "../../api/overview";
import { duration } from "../../model/durations";
import { ToneSquare } from "../../ui/Chip";
import { words } from "../../words";
import { needs } from "./attention";
import css from "./Overview.module.css";

export function Attention({ overview }: { overview: Overview }) {
  const rows = needs(overview);
  if (rows.length === 0) {
    return (
      <div className={css.calm}>
        <ToneSquare tone="good" />
        <div>
          <b>{words.overview.calm}</b>
          <p className={css.muted}>{words.overview.calmText}</p>
        </div>
      </div>
    );
  }
  return (
    <ul>
      {rows.map((need) => (
        <li key={need.name} className={css.row} data-need={need.name}>
          <ToneSquare tone={need.tone} />
          <span>
            <b>{need.text}</b> <span className={css.muted}>{need.detail}</span>
          </span>
          <span className={`${css.muted} ${css.age}`}>
            {need.oldestSeconds != null && words.time.oldest(duration(need.oldestSeconds * 1000))}
          </span>
          <span className={css.action}>
            {need.to && (
              <Link to={need.to} search={(need.search ?? {}) as never}>
                {need.to === "/in-doubt" ? words.overview.actions.resolve : words.overview.actions.view}
              </Link>
            )}
          </span>
        </li>
      ))}
    </ul>
  );
}
