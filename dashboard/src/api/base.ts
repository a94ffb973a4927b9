// The API as RTK Query sees it. An endpoint is named after its operation and takes its types from the OpenAPI document.

import { type BaseQueryFn, createApi } from "@reduxjs/toolkit/query/react";
import { type Call, call } from "./client";
import type { Problem } from "./problem";
import type { operations } from "./schema.gen";

export type Operation = keyof operations;

/** Optional members may also be undefined, as React code writes them. */
type Loose<T> = { [K in keyof T]: Record<string, never> extends Pick<T, K> ? T[K] | undefined : T[K] };
type Given<P, K extends "path" | "query"> = P extends { [N in K]?: infer V }
  ? [NonNullable<V>] extends [never]
    ? unknown
    : Loose<NonNullable<V>>
  : unknown;
type Json<R, S extends number> = R extends { [N in S]: { content: { "application/json": infer B } } } ? B : never;
type Sent<O> = O extends { requestBody?: { content: { "application/json": infer B } } } ? NonNullable<B> : never;

/** Path and query parameters of an operation, in one object. */
export type Args<O extends Operation> = Given<operations[O]["parameters"], "path"> &
  Given<operations[O]["parameters"], "query">;
/** The answer of an operation. */
export type Answer<O extends Operation> = Json<operations[O]["responses"], 200> | Json<operations[O]["responses"], 201>;
/** The body of an operation. */
export type Body<O extends Operation> = Sent<operations[O]>;
/** A row of a list. */
export type Row<O extends Operation> = Answer<O> extends { items: (infer R)[] } ? R : never;

/** Builds the request: members named in the path go there, the others into the query. */
export function op(method: Call["method"], path: string, args: object = {}, rest: Partial<Call> = {}): Call {
  const query: Record<string, string | readonly string[]> = {};
  let filled = path;
  for (const [name, value] of Object.entries(args)) {
    if (path.includes(`{${name}}`)) filled = filled.replace(`{${name}}`, encodeURIComponent(String(value)));
    else query[name] = value;
  }
  return { method, path: `/api/v2${filled}`, query, ...rest };
}

export interface Meta {
  isReplayed: boolean;
}

/** Called when the session has ended. The store sets it, because the store depends on this file. */
let onUnauthorized: () => void = () => {};
export function watchUnauthorized(listener: () => void): void {
  onUnauthorized = listener;
}

const request: BaseQueryFn<Call, unknown, Problem, object, Meta> = async (args, { signal }) => {
  const outcome = await call(args.method === "GET" ? { ...args, signal } : args);
  if (outcome.ok) return { data: outcome.data ?? null, meta: { isReplayed: outcome.isReplayed } };
  if (outcome.problem.status === 401 && args.path !== "/api/v2/session") onUnauthorized();
  return { error: outcome.problem };
};

export const PAGE_SIZE = 200;

export const api = createApi({
  reducerPath: "api",
  baseQuery: request,
  tagTypes: ["Me", "Campaign", "Campaigns", "Run", "Runs", "Items", "Item", "InDoubt", "Audit", "Sessions", "History"],
  keepUnusedDataFor: 60,
  endpoints: () => ({}),
});

/** The pages of a list, for `build.infiniteQuery`. */
export const pages = {
  infiniteQueryOptions: {
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (last: { next_cursor?: string | null }) => last.next_cursor ?? undefined,
  },
};
