import { isNumber, write } from "../api/json";
import { words } from "../words";
import css from "./Json.module.css";
import { CopyButton, Text } from "./Text";

/** A value in a viewer that folds and keeps every digit. */
export function Json({ value }: { value: unknown }) {
  return (
    <div className={css.json}>
      <span className={css.copy}>
        <CopyButton text={write(value)} label={words.text.copy("JSON")} />
      </span>
      <Value value={value} isOpen />
    </div>
  );
}

function Value({ value, isOpen = false }: { value: unknown; isOpen?: boolean }) {
  if (typeof value === "string") {
    return <span className={css.text}>"{value !== "" && <Text>{value}</Text>}"</span>;
  }
  if (typeof value === "number") return <span className={css.number}>{String(value)}</span>;
  if (value === null || typeof value !== "object") return <span className={css.word}>{String(value)}</span>;
  const entries = Object.entries(value);
  const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (entries.length === 0) return <>{open + close}</>;
  return (
    <details open={isOpen || entries.length <= 3}>
      <summary>
        {open} <span className={css.key}>{words.text.members(entries.length)}</span> {close}
      </summary>
      <div className={css.inner}>
        {entries.map(([key, member]) => (
          <div key={key}>
            <span className={css.key}>
              <Text>{key}</Text>:{" "}
            </span>
            {isNumber(value, key) ? <span className={css.number}>{String(member)}</span> : <Value value={member} />}
          </div>
        ))}
      </div>
    </details>
  );
}
