import { type Answer, type Args, api, type Body, op, PAGE_SIZE, pages, type Row } from "./base";

export type Doubt = Row<"list_in_doubt">;
export type SettledBy = Doubt["settled_by"];
export type Verdict = Body<"resolve_in_doubt">;
export type Resolved = Answer<"resolve_many_in_doubt">;

export const inDoubt = api.injectEndpoints({
  endpoints: (build) => ({
    listInDoubt: build.infiniteQuery<Answer<"list_in_doubt">, Args<"list_in_doubt">, string | undefined>({
      ...pages,
      query: ({ queryArg, pageParam }) => op("GET", "/in-doubt", { ...queryArg, limit: PAGE_SIZE, cursor: pageParam }),
      providesTags: ["InDoubt"],
    }),
    resolveInDoubt: build.mutation<Answer<"resolve_in_doubt">, { outbox_id: string; body: Verdict; key: string }>({
      query: ({ outbox_id, body, key }) => op("POST", "/in-doubt/{outbox_id}/resolve", { outbox_id }, { body, key }),
      invalidatesTags: (_, problem, { outbox_id }) =>
        problem ? [] : ["InDoubt", "Items", { type: "Item", id: outbox_id }],
    }),
    resolveManyInDoubt: build.mutation<Resolved, { body: Body<"resolve_many_in_doubt">; key: string }>({
      query: ({ body, key }) => op("POST", "/in-doubt/resolve", {}, { body, key }),
      invalidatesTags: ["InDoubt", "Items", "Item"],
    }),
  }),
});

export const { useListInDoubtInfiniteQuery, useResolveInDoubtMutation, useResolveManyInDoubtMutation } = inDoubt;
