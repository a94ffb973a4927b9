import type { Link } from "../live/stream";
import { clockTime } from "../model/durations";
import { stream, useApp } from "../store";
import { cx } from "../ui/cx";
import { type Entry, Menu } from "../ui/Menu";
import { Countdown } from "../ui/Time";
import { words } from "../words";
import css from "./Shell.module.css";

const { live } = words.shell;
const NAMES: Record<Link, string> = {
  idle: live.idle,
  snapshotting: live.catchingUp,
  opening: live.catchingUp,
  live: live.live,
  stale: live.stale,
  polling: live.polling,
  hidden: live.hidden,
  paused: live.paused,
  signed_out: live.stale,
};

/** Says whether the values are live, and lets the user pause or retry. */
export function LiveIndicator() {
  const { link, staleSince, retryAt } = useApp((state) => state.live);
  const zone = useApp((state) => state.prefs.zone);
  const isStale = staleSince !== null;
  const entries: Entry[] = [
    link === "paused"
      ? { label: live.resume, onSelect: () => stream.setPaused(false) }
      : { label: live.pause, onSelect: () => stream.setPaused(true) },
  ];
  if (link === "stale") entries.unshift({ label: live.retryNow, onSelect: () => stream.retryNow() });
  const look = cx(
    css.live,
    link === "live" && css.isLive,
    (link === "snapshotting" || link === "opening") && css.isCatching,
    isStale && css.isStale,
  );
  return (
    <Menu isQuiet entries={entries}>
      <span className="visually-hidden">{live.label}: </span>
      <span
        className={look}
        data-link={link}
        title={isStale ? live.since(clockTime(staleSince, zone)) : link === "polling" ? live.pollingText : undefined}
      >
        <i aria-hidden="true" />
        {NAMES[link]}
        {isStale && (
          <small>
            {clockTime(staleSince, zone)}
            {link === "stale" && retryAt !== null && (
              <>
                {" · "}
                <Countdown until={retryAt} />
              </>
            )}
          </small>
        )}
      </span>
    </Menu>
  );
}
