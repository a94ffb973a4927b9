// Reads the rows of a file of the user: NDJSON, a JSON array, or CSV. The file never leaves the browser.

/** A row: column → text. */
export type Row = Record<string, string>;

export interface Table {
  columns: string[];
  rows: Row[];
  /** Lines that could not be read. */
  bad: number;
}

/** The time of one slice: the page stays usable, whatever the size of the file. */
const SLICE_MS = 8;

export type Pause = () => Promise<void>;
const nextTask: Pause = () => new Promise((resolve) => setTimeout(resolve));

/** Works through a list in slices, so that no task is long. */
export async function inSlices<T>(list: Iterable<T>, work: (entry: T) => void, pause: Pause = nextTask): Promise<void> {
  let until = performance.now() + SLICE_MS;
  for (const entry of list) {
    work(entry);
    if (performance.now() >= until) {
      await pause();
      until = performance.now() + SLICE_MS;
    }
  }
}

export async function read(text: string, pause?: Pause): Promise<Table> {
  const start = text.replace(/^\ufeff/, "").trimStart();
  const table: Table = { columns: [], rows: [], bad: 0 };
  const columns = new Set<string>();
  if (start.startsWith("{") || start.startsWith("[")) await readJson(start, table, columns, pause);
  else await readCsv(start, table, columns, pause);
  table.columns = [...columns];
  return table;
}

async function readJson(text: string, table: Table, columns: Set<string>, pause?: Pause): Promise<void> {
  const add = (entry: unknown) => {
    if (typeof entry !== "object" || entry === null || Array.isArray(entry)) {
      table.bad += 1;
      return;
    }
    const row: Row = {};
    for (const [name, value] of Object.entries(entry)) {
      if (value === null || value === undefined) continue;
      row[name] = typeof value === "object" ? JSON.stringify(value) : String(value);
      columns.add(name);
    }
    table.rows.push(row);
  };
  if (text.startsWith("[")) {
    const list: unknown = JSON.parse(text);
    return inSlices(Array.isArray(list) ? list : [], add, pause);
  }
  return inSlices(
    text.split(/\r?\n/),
    (line) => {
      if (line.trim() === "") return;
      try {
        add(JSON.parse(line));
      } catch {
        table.bad += 1;
      }
    },
    pause,
  );
}

async function readCsv(text: string, table: Table, columns: Set<string>, pause?: Pause): Promise<void> {
  const head = text.slice(0, text.search(/\r?\n|$/));
  const delimiter = [",", ";", "\t"].sort((a, b) => head.split(b).length - head.split(a).length)[0] ?? ",";
  let names: string[] | undefined;
  await inSlices(
    records(text, delimiter),
    (cells) => {
      if (names === undefined) {
        names = cells.map((name, n) => name.trim() || `column ${n + 1}`);
        for (const name of names) columns.add(name);
      } else if (cells.length === names.length) {
        table.rows.push(Object.fromEntries(names.map((name, n) => [name, cells[n] ?? ""])));
      } else if (cells.length > 1 || cells[0] !== "") table.bad += 1;
    },
    pause,
  );
}

/** The records of a CSV, where quoted cells may hold delimiters, quotes and line breaks. */
function* records(text: string, delimiter: string): Generator<string[]> {
  let cells: string[] = [];
  let at = 0;
  while (at <= text.length) {
    let cell = "";
    if (text[at] === '"') {
      at += 1;
      for (;;) {
        const end = text.indexOf('"', at);
        cell += text.slice(at, end === -1 ? text.length : end);
        at = end === -1 ? text.length : end + 1;
        if (end === -1 || text[at] !== '"') break;
        cell += '"';
        at += 1;
      }
    }
    const from = at;
    while (at < text.length && text[at] !== delimiter && text[at] !== "\n") at += 1;
    cells.push(cell + text.slice(from, at).replace(/\r$/, ""));
    if (text[at] !== delimiter) {
      yield cells;
      cells = [];
    }
    at += 1;
  }
}

const HINTS = {
  key: ["key", "idempotency_key", "idempotency-key"],
  message_id: ["provider_message_id", "message_id", "message-id", "messageid", "id", "sid"],
  recipient: ["recipient", "to", "email", "phone", "address"],
} as const;

export type MatchBy = keyof typeof HINTS;

/** The column that probably has the key, the provider's id or the recipient, in this order of trust. */
export function guess(columns: readonly string[]): { column: string; by: MatchBy } | undefined {
  for (const by of ["key", "message_id", "recipient"] as const) {
    const column = columns.find((name) => (HINTS[by] as readonly string[]).includes(name.trim().toLowerCase()));
    if (column !== undefined) return { column, by };
  }
  return undefined;
}
