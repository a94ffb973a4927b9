import { number, plural } from "../plural";

export const overview = {
  title: "Overview",
  attention: "Needs attention",
  calm: "Nothing needs attention.",
  calmText: "Items in doubt, dead replies, dead letters, failed phases and open circuits are listed here.",
  active: "Active campaigns",
  all: "All campaigns",
  noActive: "No campaign is in progress.",
  now: "Right now",
  as: (count: number, isCapped: boolean) => (isCapped ? `${number(count)}+` : number(count)),

  kinds: {
    inDoubtForPerson: (n: number, shown: string) => `${shown} ${n === 1 ? "item needs review" : "items need review"}`,
    inDoubtForPersonText: "The message may have been sent",
    decisionCards: (n: number, shown: string) => `${shown} ${n === 1 ? "decision card" : "decision cards"}`,
    deadLetters: (n: number, shown: string) => `${shown} ${n === 1 ? "dead letter" : "dead letters"}`,
    deadLettersText: "Job runs that failed for good",
    deadReplies: (n: number, shown: string) => `${shown} ${n === 1 ? "dead reply" : "dead replies"}`,
    deadRepliesText: "Chat replies that could not be sent",
    dispatchFailed: (n: number, shown: string) =>
      `${shown} ${n === 1 ? "message failed" : "messages failed"} to execute`,
    stuckEvents: (n: number, shown: string) => `${shown} stuck ${n === 1 ? "event" : "events"}`,
    stuckEventsText: "Domain events that fail again and again",
    failedPhases: (n: number, shown: string) => `${shown} failed ${n === 1 ? "phase" : "phases"}`,
    circuits: (n: number, shown: string) => `${shown} ${n === 1 ? "circuit breaker" : "circuit breakers"} open`,
    circuitsText: "Providers that fail; their items wait",
  },
  actions: { resolve: "Resolve", view: "View" },

  numbers: {
    inFlight: "Items in flight",
    inDoubt: "Items in doubt",
    inDoubtAuto: "of them resolving by themselves",
    jobs: "Send jobs at work",
    jobsText: (waiting: string, putOff: string) => `${waiting} waiting · ${putOff} put off`,
    jobRuns: "Job runs now",
    jobRunsText: (failed: string) => `${failed} failed in 24 h`,
    replies: "Replies pending",
    repliesText: (retrying: string) => `${retrying} retrying`,
    events: "Events pending",
    phases: "Phases in progress",
    phasesText: (paused: string) => `${paused} paused`,
  },

  progress: (parts: { reached: number; of: number; word: string; failed: number; inDoubt: number; inFlight: number }) =>
    [
      `${number(parts.reached)} of ${number(parts.of)} ${parts.word}`,
      parts.failed > 0 ? `${number(parts.failed)} failed` : "",
      parts.inDoubt > 0 ? `${number(parts.inDoubt)} in doubt` : "",
      parts.inFlight > 0 ? `${number(parts.inFlight)} in flight` : "",
    ]
      .filter(Boolean)
      .join(" · "),

  start: {
    title: "Start here",
    text: "This tenant has no campaign yet. Each step is one command; the dashboard follows along.",
    steps: [
      { title: "Add a provider account", text: "The account that messages are sent through." },
      { title: "Import people to a list", text: "A CSV or NDJSON file with addresses." },
      { title: "Create a campaign", text: "A file with its phases and content." },
      { title: "Start the first phase", text: "The items are sent, each at most once." },
      {
        title: "Read the launch certificate",
        text: "It counts every item, and compares with the provider's receipts.",
      },
    ],
  },
  items: (n: number) => plural(n, "item", "items"),
};
