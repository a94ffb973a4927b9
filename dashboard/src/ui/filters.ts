// Filters of a list: chips on the screen, search parameters in the URL.

export interface FilterField {
  name: string;
  label: string;
  /** Known values; without them any text counts. */
  values?: readonly { value: string; label: string }[];
  /** Several values of this field may be chosen. */
  isMany?: boolean;
  /** Reads a text of the user; undefined if it is none. */
  check?: (text: string) => string | undefined;
  help?: string;
}

export type Filters = Record<string, string | string[] | undefined>;

export interface Read {
  filters: Filters;
  /** Parameters that were left out, because they are unknown or invalid. */
  dropped: string[];
}

/** Reads filters from search parameters. Unknown and invalid ones are left out and named. */
export function readFilters(
  fields: readonly FilterField[],
  search: Record<string, unknown>,
  others: readonly string[] = [],
): Read {
  const filters: Filters = {};
  const dropped: string[] = [];
  for (const [name, given] of Object.entries(search)) {
    if (given === undefined || others.includes(name)) continue;
    const field = fields.find((one) => one.name === name);
    const texts = (Array.isArray(given) ? given : [given]).filter((text) =>
      ["string", "number", "boolean"].includes(typeof text),
    );
    const values = field ? texts.map((text) => valid(field, String(text))).filter((text) => text !== undefined) : [];
    if (values.length === 0 || values.length < texts.length) dropped.push(name);
    if (values.length === 0) continue;
    filters[name] = field?.isMany ? [...new Set(values)] : values[0];
  }
  return { filters, dropped };
}

export function valid(field: FilterField, text: string): string | undefined {
  const trimmed = text.trim();
  if (trimmed === "" || trimmed.length > 255) return undefined;
  if (field.values) return field.values.find(({ value }) => value === trimmed)?.value;
  return field.check ? field.check(trimmed) : trimmed;
}

/** Adds a value. */
export function withFilter(field: FilterField, filters: Filters, value: string): Filters {
  if (!field.isMany) return { ...filters, [field.name]: value };
  return { ...filters, [field.name]: [...new Set([...[filters[field.name] ?? []].flat(), value])] };
}

/** Takes a value away. */
export function withoutFilter(filters: Filters, name: string, value: string): Filters {
  const left = [filters[name] ?? []].flat().filter((one) => one !== value);
  const { [name]: was, ...rest } = filters;
  return left.length === 0 ? rest : { ...rest, [name]: Array.isArray(was) ? left : left[0] };
}

const UUID = /^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$/i;

/** A UUID, as the API takes it. */
export const uuid = (text: string): string | undefined => (UUID.test(text) ? text.toLowerCase() : undefined);

/** A point in time; a date alone is midnight here. */
export function time(text: string): string | undefined {
  const ms = Date.parse(/^\d{4}-\d{2}-\d{2}$/.test(text) ? `${text}T00:00` : text);
  return Number.isFinite(ms) && /^\d{4}-\d{2}-\d{2}/.test(text) ? new Date(ms).toISOString() : undefined;
}

/** Filters as the API takes them: several values with commas between them. */
export function toArgs(filters: Filters): Record<string, string | undefined> {
  return Object.fromEntries(
    Object.entries(filters).map(([name, value]) => [name, Array.isArray(value) ? value.join() : value]),
  );
}
