import { useEffect, useState } from "react";
import { useNow } from "../live/clock";
import { useApp } from "../store";
import { Button } from "../ui/Button";
import { cx } from "../ui/cx";
import { words } from "../words";
import css from "./Shell.module.css";

/** A disconnect that lasts longer than this gets a bar. */
const LONG_MS = 10_000;

export function Banner() {
  const { link, staleSince, isOutdated } = useApp((state) => state.live);
  const isOnline = useOnline();
  const now = useNow();
  const isLong = link === "stale" && staleSince !== null && now - staleSince > LONG_MS;
  return (
    <>
      {isOutdated && (
        <div className={cx(css.banner, css.isNews)} role="status">
          {words.shell.newVersion}
          <Button isSmall onClick={() => location.reload()}>
            {words.shell.reload}
          </Button>
        </div>
      )}
      {(!isOnline || isLong) && (
        <div className={css.banner} role="status">
          {isOnline ? words.shell.notReady : words.shell.offline}
        </div>
      )}
    </>
  );
}

function useOnline(): boolean {
  const [isOnline, setOnline] = useState(navigator.onLine);
  useEffect(() => {
    const read = () => setOnline(navigator.onLine);
    addEventListener("online", read);
    addEventListener("offline", read);
    return () => {
      removeEventListener("online", read);
      removeEventListener("offline", read);
    };
  }, []);
  return isOnline;
}
