import { type Answer, type Args, api, type Body, op, PAGE_SIZE, pages, type Row } from "./base";

export type Status = Answer<"campaign_status">;
export type PhaseStanding = Status["phases"][number];
export type RunStanding = NonNullable<PhaseStanding["run"]>;
export type PhaseStatus = PhaseStanding["status"];
export type PhaseKind = PhaseStanding["kind"];
export type PhaseTrigger = PhaseStanding["allowed"][number];
export type Campaign = Answer<"get_campaign">;
export type CampaignRow = Row<"list_campaigns">;
export type HistoryRow = Row<"list_campaign_history">;
export type ControlAnswer = Answer<"control_phase"> & { isReplayed: boolean };

export interface ControlArgs {
  id: string;
  phase: string;
  control: PhaseTrigger;
  body: Body<"control_phase">;
  key?: string;
  /** Carries the control out and takes it back, to learn its numbers. */
  isTrial?: boolean;
}

export const campaigns = api.injectEndpoints({
  endpoints: (build) => ({
    listCampaigns: build.infiniteQuery<Answer<"list_campaigns">, Args<"list_campaigns">, string | undefined>({
      ...pages,
      query: ({ queryArg, pageParam }) => op("GET", "/campaigns", { limit: PAGE_SIZE, ...queryArg, cursor: pageParam }),
      providesTags: ["Campaigns"],
    }),
    findCampaigns: build.query<Answer<"list_campaigns">, Args<"list_campaigns">>({
      query: (args) => op("GET", "/campaigns", args),
      providesTags: ["Campaigns"],
    }),
    getCampaign: build.query<Campaign, Args<"get_campaign">>({
      query: (args) => op("GET", "/campaigns/{id}", args),
      providesTags: (_, __, { id }) => [{ type: "Campaign", id }],
    }),
    controlPhase: build.mutation<ControlAnswer, ControlArgs>({
      query: ({ body, key, isTrial, ...path }) =>
        op("POST", "/campaigns/{id}/phases/{phase}/{control}", isTrial ? { ...path, dry_run: true } : path, {
          body,
          ...(key === undefined ? {} : { key }),
        }),
      transformResponse: (answer: Answer<"control_phase">, meta) => ({
        ...answer,
        isReplayed: meta?.isReplayed === true,
      }),
      // The stream delivers the state; only lists of runs and the newest run's id are read anew.
      invalidatesTags: (answer, _, { id, isTrial }) =>
        answer?.changed === true && !isTrial && answer.status === "in_progress"
          ? [{ type: "Campaign", id }, "Runs"]
          : [],
    }),
    reportProgress: build.mutation<
      Answer<"report_progress">,
      Args<"report_progress"> & { body: Body<"report_progress"> }
    >({
      query: ({ body, ...path }) => op("POST", "/campaigns/{id}/phases/{phase}/progress", path, { body }),
    }),
    listCampaignHistory: build.infiniteQuery<
      Answer<"list_campaign_history">,
      Args<"list_campaign_history">,
      string | undefined
    >({
      ...pages,
      query: ({ queryArg, pageParam }) =>
        op("GET", "/campaigns/{id}/history", { ...queryArg, limit: PAGE_SIZE, cursor: pageParam }),
      structuralSharing: false,
      providesTags: ["History"],
    }),
  }),
});

export const {
  useListCampaignsInfiniteQuery,
  useFindCampaignsQuery,
  useLazyFindCampaignsQuery,
  useGetCampaignQuery,
  useLazyGetCampaignQuery,
  useControlPhaseMutation,
  useReportProgressMutation,
  useListCampaignHistoryInfiniteQuery,
} = campaigns;
