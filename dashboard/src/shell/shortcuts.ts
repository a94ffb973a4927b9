import { useNavigate } from "@tanstack/react-router";
import { useEffect, useRef } from "react";
import { useApp } from "../store";
import { isTyping } from "../ui/keys";
import { SCREENS } from "./screens";

const CHORD_MS = 1_500;

/** Keys of the whole page. None of them changes anything on the server. */
export function useShortcuts(actions: { search(): void; help(): void; theme(): void }): void {
  const isOn = useApp((state) => state.prefs.shortcuts);
  const navigate = useNavigate();
  const latest = useRef(actions);
  latest.current = actions;
  useEffect(() => {
    let chordAt = 0;
    const press = (event: KeyboardEvent) => {
      if (event.key === "k" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        return latest.current.search();
      }
      if (!isOn || isTyping(event)) return;
      if (Date.now() - chordAt < CHORD_MS) {
        chordAt = 0;
        const screen = SCREENS.find(({ key }) => key === event.key);
        if (screen) {
          event.preventDefault();
          void navigate({ to: screen.to });
        }
        return;
      }
      if (event.key === "g") chordAt = Date.now();
      else if (event.key === "t") latest.current.theme();
      else if (event.key === "?" || event.key === "/") {
        event.preventDefault();
        if (event.key === "?") latest.current.help();
        else latest.current.search();
      }
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, [isOn, navigate]);
}
