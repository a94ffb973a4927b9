import type { PhaseTrigger } from "../../api/campaigns";
import { number, plural } from "../plural";

export const campaigns = {
  title: "Campaigns",
  one: "Campaign",
  open: "Open",
  columns: {
    name: "Campaign",
    phases: "Phases",
    progress: "Progress",
    inDoubt: "In doubt",
    advance: "Auto-advance",
    created: "Created",
  },
  filters: { q: "Name", phaseStatus: "Phase" },
  advance: { on: "On", off: "Off" },
  list: "Campaigns of this tenant",
  emptyTitle: "No campaign yet",
  emptyText:
    "A campaign has phases. A phase of kind delivery sends one asset to one list through one account, each item at most once.",
  emptyFile: "spring.toml",
  toml: `name = "spring"

[[phase]]
phase = "mail"
channel = "email"
list = "customers"
provider_account = "mailer"
content.subject = "Hello {{ first_name }}"
content.text = "Spring is here."`,

  tabs: { phases: "Phases", runs: "Runs", history: "History", audit: "Audit log" },
  sequence: (n: number) => `sequence ${number(n)}`,
  autoAdvanceOn: "Auto-advance on",
  autoAdvanceOff: "Auto-advance off",
  advancing: "The next phase starts automatically",
  notAdvanced: (reason: string) => `The next phase was not started automatically: ${reason}`,
  startsAfter: (phase: string) => `Starts when ${phase} completes`,
  startsAt: "Scheduled, starts in",
  scheduled: "Nothing is sent for another",
  ofIntended: (n: number) => `of ${number(n)}`,
  counts: {
    failed: "failed",
    skipped: "skipped",
    inDoubt: "in doubt",
    inFlight: "in flight",
    notStarted: "not started",
  },
  barLabel: (percent: string, parts: string) => `${percent} done: ${parts}`,
  waiting: (jobs: number, why: string) => `Waiting: ${plural(jobs, "send job", "send jobs")}, ${why}, next calls in`,
  waitingFor: "for",
  asOf: (time: string) => `As of ${time}`,
  missing: "Campaign not found in this tenant",
  missingText: "It may belong to another tenant, or the address is incomplete.",
  back: "All campaigns",
  runOf: "Run",
  menu: "More actions",
  copyCommand: "Copy command",
  copyLink: "Copy link",

  settings: {
    title: "Delivery settings",
    asset: "Asset",
    list: "List",
    account: "Account",
    failover: "Failover account",
    tolerance: "Failure tolerance",
    quiet: "Quiet time",
    none: "–",
    external: "Another service carries out this phase and reports its progress.",
  },

  control: {
    titles: {
      start: (phase: string) => `Start ${phase}`,
      pause: (phase: string) => `Pause ${phase}`,
      resume: (phase: string) => `Resume ${phase}`,
      retry: (phase: string) => `Retry the failed items of ${phase}`,
      rerun: (phase: string) => `Rerun ${phase} for everyone`,
      cancel: (phase: string) => `Cancel ${phase}`,
      complete: (phase: string) => `Complete ${phase}`,
      fail: (phase: string) => `Fail ${phase}`,
    } satisfies Record<PhaseTrigger, (phase: string) => string>,
    actions: {
      start: "Start",
      pause: "Pause",
      resume: "Resume",
      retry: "Retry failed items",
      rerun: "Rerun for everyone",
      cancel: "Cancel the phase",
      complete: "Complete",
      fail: "Fail",
    } satisfies Record<PhaseTrigger, string>,
    texts: {
      start: "Workers reserve and send the items of this phase.",
      pause: "",
      resume: "",
      retry: "Starts a new run of the items that certainly failed. Items in doubt are not sent again.",
      rerun: "Starts a new run of the whole list. People who got the message get it again.",
      cancel:
        "No new call begins. Calls in flight finish and are recorded, items that were not tried are skipped, and the phase fails.",
      complete: "Ends the phase with success. With auto-advance the next phase starts.",
      fail: "Ends the phase with failure. No next phase starts.",
    } satisfies Record<PhaseTrigger, string>,
    counting: "Counting on the server…",
    people: "recipients",
    items: "items in the new run",
    seconds: "second messages",
    secondText: (second: number, items: number) =>
      `${number(second)} of ${number(items)} recipients already received this message, or may have, and will receive it again.`,
    noSeconds: "No recipient of this run received the message before.",
    ended: "ended",
    notTried: "not tried, will be skipped",
    takes: "Items",
    takesFailed: "The failed items",
    takesCanceled: "The failed items, and those that were canceled",
    takesEveryone: "Everyone on the list",
    takesOnlyFailed: "Only the failed items",
    canceledReceipt: (sequence: number, inFlight: number | null) =>
      `Canceled at sequence ${number(sequence)}. ${
        inFlight === null || inFlight === 0
          ? "No call was in flight."
          : `${plural(inFlight, "call in flight finishes and is recorded", "calls in flight finish and are recorded")}.`
      }`,
    nothing: "Nothing to do: the phase is in this state already.",
    tooMany: "There are too many recipients to count them exactly. Type the name of the campaign to confirm.",
    reason: "Reason (optional)",
    reasonHelp: "Shown in the history.",
    done: (control: PhaseTrigger, phase: string) =>
      `${{ start: "Started", pause: "Paused", resume: "Resumed", retry: "Retried", rerun: "Rerun started", cancel: "Canceled", complete: "Completed", fail: "Failed" }[control]} ${phase}`,
    pausedReceipt: (sequence: number, inFlight: number | null) =>
      `Paused at sequence ${number(sequence)}. ${
        inFlight === null || inFlight === 0
          ? "No call was in flight."
          : `${plural(inFlight, "call in flight finishes and is recorded", "calls in flight finish and are recorded")}.`
      }`,
    receipt: (sequence: number) => `At sequence ${number(sequence)}.`,
    waitingForWorker: "Stopped. Waiting for a worker to finish reserving…",
    already: "Already in this state",
    replayed: "Already done",
    conflict: (state: string) => `The phase is ${state.toLowerCase()}`,
    lost: "No response. The request may have been carried out.",
    retryRequest: "Retry request",
    progress: "Report progress",
    percentage: "Progress in percent",
    reported: (percent: string) => `Reported ${percent}`,
    needsOperator: "operator",
  },

  history: {
    columns: { sequence: "Sequence", event: "Event", phase: "Phase", details: "Details", at: "Time" },
    label: "History of the campaign",
    events: {
      phase_started: "Started",
      phase_paused: "Paused",
      phase_resumed: "Resumed",
      phase_completed: "Completed",
      phase_failed: "Failed",
      campaign_progress: "Progress",
    } as Record<string, string>,
    type: "Event",
    empty: "Nothing has happened yet.",
    by: (trigger: string) => `by ${trigger}`,
    items: (n: number) => plural(n, "item", "items"),
    seconds: (n: number) => plural(n, "second message", "second messages"),
    payload: "Show payload",
  },

  audit: {
    columns: { at: "Time", actor: "Actor", action: "Action", subject: "Subject", note: "Note" },
    label: "Audit log",
    empty: "The log has no line yet.",
    needsAdmin: "The audit log",
  },
};
