import { useEffect, useRef, useState } from "react";
import { clockTime } from "../model/durations";
import { useApp } from "../store";
import { words } from "../words";

const QUIET_MS = 5_000;

/** Tells screen readers when values become stale and live again, at most once in five seconds. */
export function Announcer() {
  const since = useApp((state) => state.live.staleSince);
  const zone = useApp((state) => state.prefs.zone);
  const [said, setSaid] = useState("");
  const lastAt = useRef(0);
  const wasStale = useRef(false);
  useEffect(() => {
    if (since === null && !wasStale.current) return;
    const wait = Math.max(500, lastAt.current + QUIET_MS - Date.now());
    const timer = setTimeout(() => {
      if ((since !== null) === wasStale.current) return;
      wasStale.current = since !== null;
      lastAt.current = Date.now();
      setSaid(since === null ? words.shell.live.announceLive : words.shell.live.announceStale(clockTime(since, zone)));
    }, wait);
    return () => clearTimeout(timer);
  }, [since, zone]);
  return (
    <div className="visually-hidden" role="status" aria-live="polite">
      {said}
    </div>
  );
}
