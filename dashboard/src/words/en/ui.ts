import type { Problem } from "../../api/problem";
import { number, plural } from "../plural";

export const ui = {
  time: {
    justNow: "just now",
    ago: (age: string) => `${age} ago`,
    in: (left: string) => `in ${left}`,
    later: (duration: string) => `+ ${duration}`,
    oldest: (age: string) => `oldest ${age}`,
  },

  text: {
    copy: (what: string) => `Copy ${what}`,
    copied: "Copied",
    command: "command",
    showAll: (characters: number) => `Show all ${number(characters)} characters`,
    members: (n: number) => plural(n, "entry", "entries"),
    loading: "Loading",
    reveal: "Reveal",
    hide: "Hide",
    secretOnce: "Shown only now. Store it before you close this dialog.",
    none: "None",
  },

  dialog: {
    close: "Close",
    cancel: "Cancel",
    retryRequest: "Retry request",
    type: (text: string) => `Type ${text} to confirm`,
    typeFirst: (text: string) => `Type ${text} first`,
  },

  table: {
    rows: (n: number) => plural(n, "row", "rows"),
    atLeast: (n: number) => `${number(n)}+ rows`,
    narrow: "Narrow the filter to see more",
    columns: "Columns",
    actions: "Actions",
    more: "Load more",
    select: "Select row",
    selectAll: "Select all loaded rows",
    selected: (n: number) => `${number(n)} selected`,
    clear: "Clear selection",
    fresh: (n: number) => `${number(n)} new`,
    changed: "New data",
    noResults: "No results",
    noResultsText: "No row matches these filters.",
    clearFilters: "Clear filters",
    asOf: "Read",
    refresh: "Refresh",
  },

  filter: {
    placeholder: "Add filter…",
    label: "Add a filter",
    type: "Type a value, then press Enter",
    apply: (field: string, value: string) => `${field}: ${value}`,
    remove: (field: string, value: string) => `Remove filter ${field} ${value}`,
    clear: "Clear filters",
    dropped: (names: string) => `The address had filters that this list does not know: ${names}. They were left out.`,
  },

  problem: {
    tryAgain: "Try again",
    retryIn: "Retrying in",
    request: "Request id",
    title(problem: Problem): string {
      if (problem.status === -1) return "This part of the page failed";
      if (problem.status === 0) return "No response from the server";
      if (problem.status === 401) return "Your session has ended";
      if (problem.status === 403) return "Your key does not allow this";
      if (problem.status === 404) return "Not found in this tenant";
      if (problem.status === 409) return "The current state does not allow this";
      if (problem.status === 422 || problem.status === 400) return "The request was not accepted";
      if (problem.status === 429) return "Too many requests";
      if (problem.status === 503) return "The server is not ready";
      return "The server could not do this";
    },
    detail(problem: Problem): string {
      if (problem.status === -1) return problem.detail;
      if (problem.status === 0)
        return "The request may have been carried out. Repeating it is safe: the server does it once.";
      const { needed_role: needed } = problem.members;
      if (problem.status === 403 && typeof needed === "string") return `Requires the role ${needed}. ${problem.detail}`;
      return problem.detail || `Status ${problem.status}`;
    },
    needsRole: (needed: string, given: string) => `Requires the role ${needed}; your key has ${given}`,
  },
};
