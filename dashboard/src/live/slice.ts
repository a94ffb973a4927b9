// The state of the stream: its link, the overview, and how often each topic changed.

import { createSlice, type PayloadAction } from "@reduxjs/toolkit";
import type { Overview } from "../api/overview";
import type { Change, Frame, Link } from "./stream";

interface Live {
  link: Link;
  /** Since when the values are not live; null while they are. */
  staleSince: number | null;
  retryAt: number | null;
  isCrowded: boolean;
  overview: Overview | null;
  /** The server could not count in time: the overview has older numbers. */
  isLate: boolean;
  /** Topic → number of changes that were reported. */
  touched: Record<string, number>;
  /** The server's own build of the dashboard. */
  build: string | null;
  version: string | null;
  /** The server allows other controls than this page knows, or serves another build. */
  isOutdated: boolean;
}

const initialState: Live = {
  link: "idle",
  staleSince: null,
  retryAt: null,
  isCrowded: false,
  overview: null,
  isLate: false,
  touched: {},
  build: null,
  version: null,
  isOutdated: false,
};

export const live = createSlice({
  name: "live",
  initialState,
  reducers: {
    linkChanged(state, { payload }: PayloadAction<Change>) {
      Object.assign(state, payload);
    },
    overviewTaken(state, { payload }: PayloadAction<Overview>) {
      state.overview = payload;
      state.isLate = false;
    },
    outdated(state) {
      state.isOutdated = true;
    },
    framesReceived(state, { payload }: PayloadAction<Frame[]>) {
      for (const frame of payload) {
        if (frame.kind === "overview") {
          state.overview = frame.overview;
          state.isLate = frame.overview.late === true;
        }
        if (frame.kind === "changed") {
          for (const topic of frame.topics) state.touched[topic] = (state.touched[topic] ?? 0) + 1;
        }
        if (frame.kind === "hello") {
          const build = frame.build ?? null;
          if (state.build !== null && build !== null && build !== state.build) state.isOutdated = true;
          state.build = build ?? state.build;
          state.version = frame.version;
        }
      }
    },
    signedOut(state) {
      Object.assign(state, { ...initialState, link: "signed_out" });
    },
  },
});

export const { linkChanged, overviewTaken, framesReceived, outdated } = live.actions;
