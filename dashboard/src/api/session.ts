import { type Answer, type Args, api, type Body, op, PAGE_SIZE, pages } from "./base";

export type WhoAmI = Answer<"whoami">;
export type Role = WhoAmI["role"];

export const session = api.injectEndpoints({
  endpoints: (build) => ({
    whoami: build.query<WhoAmI, void>({ query: () => op("GET", "/whoami"), providesTags: ["Me"] }),
    createSession: build.mutation<WhoAmI, Body<"create_session">>({
      query: (body) => op("POST", "/session", {}, { body }),
    }),
    endSession: build.mutation<null, void>({ query: () => op("DELETE", "/session") }),
    listSessions: build.infiniteQuery<Answer<"list_sessions">, Args<"list_sessions">, string | undefined>({
      ...pages,
      query: ({ queryArg, pageParam }) => op("GET", "/sessions", { ...queryArg, limit: PAGE_SIZE, cursor: pageParam }),
      providesTags: ["Sessions"],
    }),
    revokeSession: build.mutation<null, Args<"revoke_session">>({
      query: (args) => op("DELETE", "/sessions/{id}", args),
      invalidatesTags: ["Sessions"],
    }),
  }),
});

export const { useWhoamiQuery, useCreateSessionMutation, useEndSessionMutation, useRevokeSessionMutation } = session;
export const { useListSessionsInfiniteQuery } = session;
