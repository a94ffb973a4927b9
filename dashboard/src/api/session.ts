import { type Answer, type Args, api, type Body, op, PAGE_SIZE, pages } from "./base";
import { call, type Outcome } from "./client";

/** Signs in. It is no endpoint of the store, so that the key is in no store. */
export function signIn(body: Body<"create_session">): Promise<Outcome<WhoAmI>> {
  return call(op("POST", "/session", {}, { body }));
}

export type WhoAmI = Answer<"whoami">;
export type Role = WhoAmI["role"];

export const session = api.injectEndpoints({
  endpoints: (build) => ({
    whoami: build.query<WhoAmI, void>({ query: () => op("GET", "/whoami"), providesTags: ["Me"] }),
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

export const { useWhoamiQuery, useEndSessionMutation, useRevokeSessionMutation } = session;
export const { useListSessionsInfiniteQuery } = session;
