// Rows of a list that stay where they are while the user reads or selects.

export interface Frozen<T> {
  rows: T[];
  /** Rows that came before the first one and wait for the user. */
  waiting: number;
}

/** Keeps the order of the shown rows, patches them in place, and appends what follows. */
export function hold<T>(shown: readonly T[], next: readonly T[], keyOf: (row: T) => string): Frozen<T> {
  if (shown.length === 0) return { rows: [...next], waiting: 0 };
  const fresh = new Map(next.map((row) => [keyOf(row), row]));
  const known = new Set(shown.map(keyOf));
  const patched = shown.map((row) => fresh.get(keyOf(row)) ?? row);
  const lastKnown = next.findLastIndex((row) => known.has(keyOf(row)));
  const after = next.slice(lastKnown + 1);
  // Nothing in common: all of them are new.
  if (lastKnown === -1) return { rows: patched, waiting: next.length };
  const waiting = next.slice(0, lastKnown).filter((row) => !known.has(keyOf(row))).length;
  return { rows: [...patched, ...after], waiting };
}

/** The keys from one row to another, both included. */
export function between(keys: readonly string[], from: string, to: string): string[] {
  const [a, b] = [keys.indexOf(from), keys.indexOf(to)];
  if (a === -1 || b === -1) return [to];
  return keys.slice(Math.min(a, b), Math.max(a, b) + 1);
}
