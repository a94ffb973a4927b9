// Lossless JSON: a number that a double cannot hold stays text, and is written as a number again.

/** Holders of numbers that stayed text: object or array → its members. */
const kept = new WeakMap<object, Set<string>>();

const LONG = /\d{16}|[eE]|\d\.\d{15}/;

/** Whether a double prints the number with the digits of its source. */
function holds(value: number, source: string): boolean {
  if (String(value) === source) return true;
  if (!Number.isFinite(value)) return false;
  const digits = (text: string) => {
    const [mantissa = "", exponent = "0"] = text.replace("-", "").toLowerCase().split("e");
    const [whole = "", fraction = ""] = mantissa.split(".");
    const all = (whole + fraction).replace(/^0+/, "");
    const significant = all.replace(/0+$/, "");
    return significant === ""
      ? "0"
      : `${significant}e${Number(exponent) - fraction.length + all.length - significant.length}`;
  };
  return digits(String(value)) === digits(source);
}

type Reviver = (this: object, key: string, value: unknown, context?: { source?: string }) => unknown;

export function parse(text: string): unknown {
  // Without long numbers nothing can be lost, and the reviver costs time.
  if (!LONG.test(text)) return JSON.parse(text);
  const revive: Reviver = function (key, value, context) {
    if (typeof value !== "number" || context?.source === undefined || holds(value, context.source)) return value;
    const members = kept.get(this) ?? new Set();
    kept.set(this, members.add(key));
    return context.source;
  };
  return JSON.parse(text, revive as (this: unknown, key: string, value: unknown) => unknown);
}

/** Whether this member was a number in the response. */
export function isNumber(holder: object, key: string): boolean {
  return kept.get(holder)?.has(key) === true;
}

/** Writes a value with every digit of its source. */
export function write(value: unknown, indent = 2): string {
  return written(value, "", " ".repeat(indent));
}

function written(value: unknown, margin: string, indent: string): string {
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const inner = margin + indent;
  const gap = indent === "" ? "" : "\n";
  const member = (key: string, at: unknown) => (isNumber(value, key) ? String(at) : written(at, inner, indent));
  const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  const parts = Array.isArray(value)
    ? value.map((at, index) => inner + member(String(index), at))
    : Object.entries(value)
        .filter(([, at]) => at !== undefined)
        .map(([key, at]) => `${inner}${JSON.stringify(key)}:${gap && " "}${member(key, at)}`);
  return parts.length === 0 ? open + close : `${open}${gap}${parts.join(`,${gap}`)}${gap}${margin}${close}`;
}
