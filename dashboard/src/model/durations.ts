// Times as people read them.

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** How long something took, with two units at most: `32 ms`, `4 s`, `10 m 29 s`, `1 h 02 m`, `3 d 4 h`. */
export function duration(ms: number): string {
  const span = Math.max(0, ms);
  if (span < SECOND) return `${Math.round(span)} ms`;
  if (span < 10 * SECOND && span % SECOND >= 50) return `${(Math.floor(span / 100) / 10).toFixed(1)} s`;
  if (span < MINUTE) return `${Math.floor(span / SECOND)} s`;
  const two = (large: number, sign: string, small: number, smallSign: string, pad: boolean) => {
    const rest = Math.floor((span % large) / small);
    return `${Math.floor(span / large)} ${sign}${rest > 0 || pad ? ` ${pad ? String(rest).padStart(2, "0") : rest} ${smallSign}` : ""}`;
  };
  if (span < HOUR) return two(MINUTE, "m", SECOND, "s", false);
  if (span < DAY) return two(HOUR, "h", MINUTE, "m", true);
  return two(DAY, "d", HOUR, "h", false);
}

/** The age of something, in one unit. */
export function age(ms: number): string {
  const span = Math.max(0, ms);
  if (span < MINUTE) return `${Math.floor(span / SECOND)} s`;
  if (span < HOUR) return `${Math.floor(span / MINUTE)} m`;
  if (span < 2 * DAY) return `${Math.floor(span / HOUR)} h`;
  return `${Math.floor(span / DAY)} d`;
}

/** Time left, as a clock: `0:21`, `6:41`, `1:02:03`, `2 d 3 h`. A started second counts. */
export function countdown(ms: number): string {
  const left = Math.max(0, Math.ceil(ms / SECOND));
  if (left >= 86_400) return `${Math.floor(left / 86_400)} d ${Math.floor((left % 86_400) / 3600)} h`;
  const [hours, minutes, seconds] = [Math.floor(left / 3600), Math.floor((left % 3600) / 60), left % 60];
  const two = (n: number) => String(n).padStart(2, "0");
  return hours > 0 ? `${hours}:${two(minutes)}:${two(seconds)}` : `${minutes}:${two(seconds)}`;
}

export type Zone = "local" | "utc";

const formats = new Map<string, Intl.DateTimeFormat>();
function format(zone: Zone, options: Intl.DateTimeFormatOptions): Intl.DateTimeFormat {
  const key = zone + JSON.stringify(options);
  const known = formats.get(key);
  if (known) return known;
  const made = new Intl.DateTimeFormat("en-GB", { ...options, ...(zone === "utc" ? { timeZone: "UTC" } : {}) });
  formats.set(key, made);
  return made;
}

/** Time of day, with milliseconds where they are asked for. */
export function clockTime(at: number, zone: Zone, withMs = false): string {
  const fraction = withMs ? ({ fractionalSecondDigits: 3 } as const) : {};
  return format(zone, { hour: "2-digit", minute: "2-digit", second: "2-digit", ...fraction }).format(at);
}

/** Date and time of day. */
export function fullTime(at: number, zone: Zone): string {
  const date = format(zone, { year: "numeric", month: "short", day: "numeric" }).format(at);
  return `${date}, ${clockTime(at, zone)}${zone === "utc" ? " UTC" : ""}`;
}

/** Date and time of day as short as they are clear: without the date today, without the year this year. */
export function shortTime(at: number, zone: Zone, now: number): string {
  const day = format(zone, { year: "numeric", month: "short", day: "numeric" });
  if (day.format(at) === day.format(now)) return clockTime(at, zone);
  return `${format(zone, { month: "short", day: "numeric" }).format(at)}, ${format(zone, { hour: "2-digit", minute: "2-digit" }).format(at)}`;
}
