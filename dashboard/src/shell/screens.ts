// The screens of the navigation, in order. A screen is listed when it exists.

import type { LucideIcon } from "lucide-react";
import { CircleDashed, Gauge, KeyRound, Megaphone, Play, SlidersHorizontal } from "lucide-react";
import type { Overview } from "../api/overview";
import type { Tone } from "../model/tones";
import { words } from "../words";

export interface Screen {
  to: "/" | "/campaigns" | "/runs" | "/in-doubt" | "/sessions" | "/preferences";
  name: string;
  icon: LucideIcon;
  group?: string;
  /** The key after `g`. */
  key: string;
  badge?: { tone: Tone; field: string; count: (overview: Overview) => number };
}

const { screens, groups } = words.shell;

export const SCREENS: readonly Screen[] = [
  { to: "/", name: screens.overview, icon: Gauge, key: "o" },
  {
    to: "/campaigns",
    name: screens.campaigns,
    icon: Megaphone,
    group: groups.campaigns,
    key: "c",
    badge: { tone: "bad", field: "phases.failed", count: (overview) => overview.phases.failed },
  },
  { to: "/runs", name: screens.runs, icon: Play, group: groups.campaigns, key: "r" },
  {
    to: "/in-doubt",
    name: screens.inDoubt,
    icon: CircleDashed,
    group: groups.campaigns,
    key: "d",
    badge: {
      tone: "doubt",
      field: "items.in_doubt_for_person",
      count: (overview) => overview.items.in_doubt_for_person,
    },
  },
  { to: "/sessions", name: screens.sessions, icon: KeyRound, group: groups.settings, key: "s" },
  { to: "/preferences", name: screens.preferences, icon: SlidersHorizontal, group: groups.settings, key: "p" },
];
