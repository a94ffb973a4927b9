import { Check } from "lucide-react";
import { cx } from "../../ui/cx";
import { Panel } from "../../ui/Panel";
import { Command } from "../../ui/Text";
import { words } from "../../words";
import css from "./Overview.module.css";

const COMMANDS = [
  'postrider accounts add mailer --provider smtp --settings \'{"host": "smtp.example.com", "from": "News <news@example.com>"}\'',
  "postrider campaign import --list customers people.csv",
  "postrider campaign create spring.toml",
  "postrider campaign start spring",
  "postrider campaign verify spring",
];

/** The first steps of a new tenant, with their commands. */
export function Checklist({ accounts }: { accounts: number }) {
  return (
    <Panel title={words.overview.start.title} foot={words.overview.start.text}>
      <ol className={css.steps}>
        {words.overview.start.steps.map((step, n) => {
          const isDone = n === 0 && accounts > 0;
          return (
            <li key={step.title} className={css.step}>
              <span className={cx(css.place, isDone && css.isDone)}>
                {isDone ? <Check size={14} aria-hidden="true" /> : n + 1}
              </span>
              <span>
                <b>{step.title}</b>
                <br />
                <span className={css.muted}>{step.text}</span>
              </span>
              <Command>{COMMANDS[n] ?? ""}</Command>
            </li>
          );
        })}
      </ol>
    </Panel>
  );
}
