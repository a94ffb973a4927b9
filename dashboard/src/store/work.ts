// Work in progress of this tab: toasts, and whether the session has ended.

import { createSlice, nanoid, type PayloadAction } from "@reduxjs/toolkit";
import type { Tone } from "../model/tones";

export interface Toast {
  id: string;
  tone: Tone;
  title: string;
  detail?: string;
  /** Stays until it is closed. */
  isSticky?: boolean;
  /** Replaces an older toast of the same subject. */
  subject?: string;
}

interface Work {
  toasts: Toast[];
  isSessionOver: boolean;
}

const initialState: Work = { toasts: [], isSessionOver: false };
const TOASTS_MAX = 4;

export const work = createSlice({
  name: "work",
  initialState,
  reducers: {
    toasted: {
      prepare: (toast: Omit<Toast, "id">) => ({ payload: { ...toast, id: nanoid(8) } }),
      reducer(state, { payload }: PayloadAction<Toast>) {
        const others = state.toasts.filter((toast) => !payload.subject || toast.subject !== payload.subject);
        state.toasts = [...others, payload].slice(-TOASTS_MAX);
      },
    },
    toastClosed(state, { payload }: PayloadAction<string>) {
      state.toasts = state.toasts.filter((toast) => toast.id !== payload);
    },
    sessionEnded(state) {
      state.isSessionOver = true;
    },
    sessionResumed(state) {
      state.isSessionOver = false;
    },
  },
});

export const { toasted, toastClosed, sessionEnded, sessionResumed } = work.actions;
