import { useCallback, useEffect, useRef, useState } from "react";
import { useApp } from "../store";
import type { Pages } from "./DataTable";

interface Infinite<T> {
  data?: { pages: readonly { items: readonly T[] }[] } | undefined;
  error?: unknown;
  isFetching: boolean;
  isFetchingNextPage: boolean;
  hasNextPage: boolean;
  fetchNextPage: () => unknown;
  refetch: (options?: { refetchCachedPages?: boolean }) => unknown;
  fulfilledTimeStamp?: number | undefined;
}

const REFRESH_MS = 30_000;
const HINT_MS = 1_000;

/** Reads again when one of the topics changes, at most once a second, and twice a minute anyway. Never while the page is hidden. */
export function useTopics(topics: readonly string[], refetch: () => void, isHeld = false, readAt?: number): void {
  const touched = useApp((state) => topics.reduce((sum, topic) => sum + (state.live.touched[topic] ?? 0), 0));
  const isPaused = useApp((state) => state.live.link === "paused");
  const latest = useRef(refetch);
  latest.current = refetch;
  const isOff = isHeld || isPaused;
  const seen = useRef(touched);
  // Rows that an earlier visit left in the store may have missed changes.
  // biome-ignore lint/correctness/useExhaustiveDependencies: only when the screen opens
  useEffect(() => {
    if (readAt !== undefined && Date.now() - readAt > HINT_MS) latest.current();
  }, []);
  useEffect(() => {
    if (isOff || document.hidden || seen.current === touched) return;
    const timer = setTimeout(() => {
      seen.current = touched;
      latest.current();
    }, HINT_MS);
    return () => clearTimeout(timer);
  }, [touched, isOff]);
  useEffect(() => {
    if (isOff) return;
    const timer = setInterval(() => document.hidden || latest.current(), REFRESH_MS);
    return () => clearInterval(timer);
  }, [isOff]);
}

/** A list of the API as a table shows it. While the user reads further down or selects, it is not read again. */
export function useList<T>(result: Infinite<T>, topics: readonly string[]) {
  const [isHeld, setHeld] = useState(false);
  const { refetch, fetchNextPage, hasNextPage, isFetchingNextPage, data, error, isFetching } = result;
  useTopics(topics, () => void refetch({ refetchCachedPages: false }), isHeld, result.fulfilledTimeStamp);
  const fetchMore = useCallback(() => void fetchNextPage(), [fetchNextPage]);
  const pages: Pages<T> = {
    rows: data?.pages.flatMap((page) => page.items) ?? [],
    hasMore: hasNextPage,
    isFetchingMore: isFetchingNextPage,
    fetchMore,
  };
  const asked = { data: data === undefined ? undefined : pages, error, isFetching, refetch };
  return { pages, asked, setHeld, readAt: result.fulfilledTimeStamp };
}
