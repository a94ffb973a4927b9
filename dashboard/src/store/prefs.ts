// Preferences of this browser. Nothing else is kept in localStorage.

import { createSlice, type PayloadAction } from "@reduxjs/toolkit";
import type { Zone } from "../model/durations";

export interface Prefs {
  theme: "system" | "light" | "dark";
  density: "comfortable" | "compact";
  zone: Zone;
  /** Whether single keys are shortcuts. */
  shortcuts: boolean;
  /** Table → hidden columns. */
  hidden: Record<string, string[]>;
}

const NAME = "postrider.prefs";
const DEFAULTS: Prefs = { theme: "system", density: "comfortable", zone: "local", shortcuts: true, hidden: {} };

/** Reads stored preferences. A member that is not as expected has its default. */
export function readPrefs(text: string | null): Prefs {
  try {
    const stored = JSON.parse(text ?? "{}") as Partial<Prefs>;
    const one = <T>(value: unknown, known: readonly T[], otherwise: T) =>
      known.includes(value as T) ? (value as T) : otherwise;
    const isHidden = typeof stored.hidden === "object" && stored.hidden !== null && !Array.isArray(stored.hidden);
    return {
      theme: one(stored.theme, ["system", "light", "dark"], DEFAULTS.theme),
      density: one(stored.density, ["comfortable", "compact"], DEFAULTS.density),
      zone: one(stored.zone, ["local", "utc"], DEFAULTS.zone),
      shortcuts: stored.shortcuts !== false,
      hidden: isHidden
        ? Object.fromEntries(Object.entries(stored.hidden ?? {}).filter(([, names]) => Array.isArray(names)))
        : {},
    };
  } catch {
    return DEFAULTS;
  }
}

function stored(): string | null {
  try {
    return localStorage.getItem(NAME);
  } catch {
    return null;
  }
}

export const prefs = createSlice({
  name: "prefs",
  initialState: () => readPrefs(typeof localStorage === "undefined" ? null : stored()),
  reducers: {
    preferred: (state, { payload }: PayloadAction<Partial<Prefs>>) => ({ ...state, ...payload }),
    columnToggled(state, { payload }: PayloadAction<{ table: string; column: string }>) {
      const hidden = state.hidden[payload.table] ?? [];
      state.hidden[payload.table] = hidden.includes(payload.column)
        ? hidden.filter((name) => name !== payload.column)
        : [...hidden, payload.column];
    },
  },
});

export const { preferred, columnToggled } = prefs.actions;

/** Stores the preferences and sets theme and density of the page. */
export function applyPrefs(values: Prefs): void {
  const root = document.documentElement;
  if (values.theme === "system") delete root.dataset.theme;
  else root.dataset.theme = values.theme;
  root.dataset.density = values.density;
  try {
    localStorage.setItem(NAME, JSON.stringify(values));
  } catch {
    // Without storage the preferences live as long as the page.
  }
}
