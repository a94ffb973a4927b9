// The store of the page, and the stream that feeds it.

import { configureStore } from "@reduxjs/toolkit";
import { useDispatch, useSelector } from "react-redux";
import { api, op, watchUnauthorized } from "../api/base";
import type { Status } from "../api/campaigns";
import { call, watchDates } from "../api/client";
import type { Overview } from "../api/overview";
import { campaignMissing, snapshotTaken, watched } from "../live/campaigns";
import { serverNow, setServerTime } from "../live/clock";
import { framesReceived, linkChanged, live, overviewTaken } from "../live/slice";
import { takeSlot } from "../live/slots";
import { open } from "../live/source";
import { Stream, type Taken } from "../live/stream";
import { applyPrefs, prefs } from "./prefs";
import { sessionEnded, work } from "./work";

export const store = configureStore({
  reducer: {
    [api.reducerPath]: api.reducer,
    live: live.reducer,
    phases: watched.reducer,
    prefs: prefs.reducer,
    work: work.reducer,
  },
  // The checks of every value cost more than they find with lists of thousands of rows.
  middleware: (standard) => standard({ immutableCheck: false, serializableCheck: false }).concat(api.middleware),
});

export type RootState = ReturnType<typeof store.getState>;
export const useApp = useSelector.withTypes<RootState>();
export const useAppDispatch = useDispatch.withTypes<typeof store.dispatch>();

async function take<T>(path: string): Promise<Taken<T>> {
  const outcome = await call<T>(op("GET", path));
  if (outcome.ok) return { ok: true, data: outcome.data };
  const { status, retryAfter } = outcome.problem;
  if (status === 401) store.dispatch(sessionEnded());
  return { ok: false, status, ...(retryAfter === undefined ? {} : { retryAfter }) };
}

export const stream = new Stream({
  now: serverNow,
  after(ms, run) {
    const timer = setTimeout(run, ms);
    return () => clearTimeout(timer);
  },
  random: Math.random,
  // A hidden page has no animation frames.
  nextFrame: (run) => (document.hidden ? setTimeout(run, 250) : requestAnimationFrame(run)),
  takeStatus: (id) => take<Status>(`/campaigns/${encodeURIComponent(id)}/status`),
  takeOverview: () => take<Overview>("/overview"),
  takeSlot,
  open,
  changed: (change) => store.dispatch(linkChanged(change)),
  snapshot: (id, status) => store.dispatch(snapshotTaken({ id, status })),
  missing: (id) => store.dispatch(campaignMissing(id)),
  overview: (overview) => store.dispatch(overviewTaken(overview)),
  frames(frames) {
    for (const frame of frames) if (frame.kind === "hello") setServerTime(Date.parse(frame.time), true);
    store.dispatch(framesReceived(frames));
  },
});

/** Connects the store to the browser, once. */
export function connect(): void {
  watchDates((at) => setServerTime(at, false));
  watchUnauthorized(() => store.dispatch(sessionEnded()));
  let shown = store.getState().prefs;
  applyPrefs(shown);
  store.subscribe(() => {
    const { prefs: next, work: now, live: link } = store.getState();
    if (next !== shown) applyPrefs(next);
    shown = next;
    if (now.isSessionOver && link.link !== "signed_out" && link.link !== "idle") stream.stop();
  });
  addEventListener("online", () => stream.setOnline(true));
  addEventListener("offline", () => stream.setOnline(false));
  document.addEventListener("visibilitychange", () => stream.setHidden(document.hidden));
}
