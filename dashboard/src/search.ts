// Search parameters of the URL: every parameter is text, and a repeated one is a list.

export type Search = Record<string, string | string[] | undefined>;

export function parseSearch(text: string): Search {
  const search: Search = {};
  for (const [name, value] of new URLSearchParams(text)) {
    const before = search[name];
    search[name] = before === undefined ? value : [...[before].flat(), value];
  }
  return search;
}

export function stringifySearch(search: Record<string, unknown>): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(search)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") params.append(name, String(one));
    }
  }
  const text = params.toString();
  return text === "" ? "" : `?${text}`;
}
