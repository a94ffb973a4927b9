import { type Answer, type Args, api, op, PAGE_SIZE, pages, type Row } from "./base";

export type Run = Row<"list_runs">;
export type RunWithProgress = Answer<"get_run">;
export type RunStatus = Run["status"];
export type RunCause = Run["cause"];
export type Channel = Run["channel"];
export type Item = Row<"list_run_items">;
export type ItemStatus = Item["status"];
export type Certificate = Answer<"get_run_launch">;
export type Trace = Answer<"get_run_trace">;
export type SendJob = Trace["jobs"][number];
export type JobStatus = SendJob["status"];
export type Failure = Answer<"list_run_failures">[number];
export type ItemDetail = Answer<"get_item">;
export type WaitReason = NonNullable<RunWithProgress["waiting"]>["why"];

export const runs = api.injectEndpoints({
  endpoints: (build) => ({
    listRuns: build.infiniteQuery<Answer<"list_runs">, Args<"list_runs">, string | undefined>({
      ...pages,
      query: ({ queryArg, pageParam }) => op("GET", "/runs", { ...queryArg, limit: PAGE_SIZE, cursor: pageParam }),
      providesTags: ["Runs"],
    }),
    getRun: build.query<RunWithProgress, Args<"get_run">>({
      query: (args) => op("GET", "/runs/{id}", args),
      providesTags: (_, __, { id }) => [{ type: "Run", id }],
    }),
    listRunItems: build.infiniteQuery<Answer<"list_run_items">, Args<"list_run_items">, string | undefined>({
      ...pages,
      query: ({ queryArg, pageParam }) =>
        op("GET", "/runs/{id}/items", { ...queryArg, limit: PAGE_SIZE, cursor: pageParam }),
      providesTags: ["Items"],
    }),
    listRunFailures: build.query<Answer<"list_run_failures">, Args<"list_run_failures">>({
      query: (args) => op("GET", "/runs/{id}/failures", args),
      providesTags: (_, __, { id }) => [{ type: "Run", id }],
    }),
    getRunTrace: build.query<Trace, Args<"get_run_trace">>({
      query: (args) => op("GET", "/runs/{id}/trace", args),
      providesTags: (_, __, { id }) => [{ type: "Run", id }],
    }),
    getRunLaunch: build.query<Certificate, Args<"get_run_launch">>({
      query: (args) => op("GET", "/runs/{id}/launch", args),
      structuralSharing: false,
      providesTags: (_, __, { id }) => [{ type: "Run", id }],
    }),
    getItem: build.query<ItemDetail, Args<"get_item">>({
      query: (args) => op("GET", "/items/{id}", args),
      providesTags: (_, __, { id }) => [{ type: "Item", id }],
    }),
  }),
});

export const {
  useListRunsInfiniteQuery,
  useGetRunQuery,
  useLazyGetRunQuery,
  useListRunItemsInfiniteQuery,
  useListRunFailuresQuery,
  useGetRunTraceQuery,
  useGetRunLaunchQuery,
  useGetItemQuery,
  useLazyGetItemQuery,
} = runs;
