// The server's clock: one tick per second for the whole page, and none while it is hidden.

import { useEffect, useRef, useSyncExternalStore } from "react";

/** How far the server's clock is ahead of this one. */
let offset = 0;
let isExact = false;

/** Sets the clock. The stream's hello is exact; the header of a response has whole seconds. */
export function setServerTime(at: number, exact: boolean): void {
  if (!Number.isFinite(at) || (isExact && !exact)) return;
  const next = at - Date.now();
  // Small differences are the network's.
  if (exact || Math.abs(next - offset) > 1_500) offset = next;
  isExact ||= exact;
}

export function serverNow(): number {
  return Date.now() + offset;
}

const listeners = new Set<() => void>();
let second = Date.now();
let timer: ReturnType<typeof setInterval> | undefined;

function tick(): void {
  second = serverNow();
  for (const listener of listeners) listener();
}

function run(): void {
  clearInterval(timer);
  timer = undefined;
  if (listeners.size === 0 || document.hidden) return;
  tick();
  timer = setInterval(tick, 1_000);
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  if (listeners.size === 1) {
    document.addEventListener("visibilitychange", run);
    second = serverNow();
    timer = setInterval(tick, 1_000);
  }
  return () => {
    listeners.delete(listener);
    if (listeners.size > 0) return;
    document.removeEventListener("visibilitychange", run);
    clearInterval(timer);
    timer = undefined;
  };
}

/** The server's time, once a second. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => second);
}

/** Calls once when a countdown ends, up to a second later, so that many pages do not ask at the same moment. */
export function useDeadline(at: string | number | null | undefined, then: () => void): void {
  const latest = useRef(then);
  latest.current = then;
  const ms = at === null || at === undefined ? Number.NaN : new Date(at).getTime();
  useEffect(() => {
    const left = ms - serverNow();
    // A browser cannot wait longer than this.
    if (!(left > 0) || left > 2 ** 31 - 2_000) return;
    const waiting = setTimeout(() => latest.current(), left + 100 + Math.random() * 900);
    return () => clearTimeout(waiting);
  }, [ms]);
}
