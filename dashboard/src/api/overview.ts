import { type Answer, type Args, api, op, PAGE_SIZE, pages, type Row } from "./base";

export type Overview = Answer<"get_overview">;
export type Catalogue = Answer<"get_catalogue">;
export type AuditRow = Row<"list_audit">;

export const overview = api.injectEndpoints({
  endpoints: (build) => ({
    getCatalogue: build.query<Catalogue, void>({ query: () => op("GET", "/catalogue"), keepUnusedDataFor: 3600 }),
    listAudit: build.infiniteQuery<Answer<"list_audit">, Args<"list_audit">, string | undefined>({
      ...pages,
      query: ({ queryArg, pageParam }) => op("GET", "/audit", { ...queryArg, limit: PAGE_SIZE, cursor: pageParam }),
      providesTags: ["Audit"],
    }),
  }),
});

export const { useGetCatalogueQuery, useListAuditInfiniteQuery } = overview;
