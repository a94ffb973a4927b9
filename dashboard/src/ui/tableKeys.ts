// Keys of a table: j and k move, x selects, Shift-x selects a range, Enter opens.

import { useEffect, useRef, useState, useSyncExternalStore } from "react";
import { useApp } from "../store";
import { isTyping } from "./keys";

const NARROW = "(width < 720px)";

export function useNarrow(): boolean {
  return useSyncExternalStore(
    (listener) => {
      const query = matchMedia(NARROW);
      query.addEventListener("change", listener);
      return () => query.removeEventListener("change", listener);
    },
    () => matchMedia(NARROW).matches,
  );
}

export function useTableKeys(
  body: React.RefObject<HTMLTableSectionElement | null>,
  keys: readonly string[],
  scrollTo: (index: number) => void,
  toggle: ((key: string, isRange: boolean) => void) | undefined,
): string | undefined {
  const isOn = useApp((state) => state.prefs.shortcuts);
  const [current, setCurrent] = useState<string>();
  const latest = useRef({ keys, scrollTo, toggle, current });
  latest.current = { keys, scrollTo, toggle, current };
  useEffect(() => {
    if (!isOn) return;
    const press = (event: KeyboardEvent) => {
      const now = latest.current;
      if (isTyping(event)) return;
      const at = now.current === undefined ? -1 : now.keys.indexOf(now.current);
      if (event.key === "j" || event.key === "k") {
        const next = Math.min(now.keys.length - 1, Math.max(0, at + (event.key === "j" ? 1 : -1)));
        setCurrent(now.keys[next]);
        now.scrollTo(next);
      } else if (now.current === undefined) return;
      else if (event.key.toLowerCase() === "x") now.toggle?.(now.current, event.shiftKey);
      else if (event.key === "Enter" && document.activeElement === document.body) {
        body.current
          ?.querySelector<HTMLElement>(
            `[data-key="${CSS.escape(now.current)}"] a, [data-key="${CSS.escape(now.current)}"] button`,
          )
          ?.click();
      }
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, [isOn, body]);
  return current;
}
