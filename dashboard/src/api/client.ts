// One request to the API of this origin. The session cookie goes along by itself.

import { parse } from "./json";
import { lost, type Problem, problemOf } from "./problem";

type Scalar = string | number | boolean | null | undefined;

export interface Call {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  path: string;
  query?: Record<string, Scalar | readonly Scalar[]>;
  body?: unknown;
  /** Idempotency key: the server carries out requests with the same key once. */
  key?: string;
  signal?: AbortSignal;
}

export type Outcome<T> = { ok: true; data: T; isReplayed: boolean } | { ok: false; problem: Problem };

const TIMEOUT_MS = 35_000;

/** Receives the server's clock with each response. */
let onDate: (serverMs: number) => void = () => {};
export function watchDates(listener: typeof onDate): void {
  onDate = listener;
}

export function address(path: string, query: Call["query"] = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") search.append(name, String(one));
    }
  }
  const text = search.toString();
  return text === "" ? path : `${path}?${text}`;
}

export async function call<T>(request: Call): Promise<Outcome<T>> {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (request.body !== undefined) headers["Content-Type"] = "application/json";
  if (request.key !== undefined) headers["Idempotency-Key"] = request.key;
  const signals = [AbortSignal.timeout(TIMEOUT_MS), ...(request.signal ? [request.signal] : [])];
  try {
    const response = await fetch(address(request.path, request.query), {
      method: request.method,
      headers,
      credentials: "same-origin",
      cache: "no-store",
      redirect: "error",
      signal: AbortSignal.any(signals),
      ...(request.body === undefined ? {} : { body: JSON.stringify(request.body) }),
    });
    const text = await response.text();
    const date = Date.parse(response.headers.get("date") ?? "");
    // The header has whole seconds.
    if (Number.isFinite(date)) onDate(date + 500);
    const body = readable(text, response.headers.get("content-type") ?? "");
    if (!response.ok) {
      return { ok: false, problem: problemOf(response.status, body, response.headers.get("retry-after")) };
    }
    return { ok: true, data: body as T, isReplayed: response.headers.get("idempotent-replayed") === "true" };
  } catch (error) {
    return { ok: false, problem: lost(error instanceof Error ? error.message : String(error)) };
  }
}

function readable(text: string, type: string): unknown {
  if (text === "" || !type.includes("json")) return text === "" ? undefined : text;
  return parse(text);
}

/** A UUID v4. `crypto.randomUUID` exists only in secure contexts, and a server on another machine without TLS is none. */
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x40;
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}
