import { useRef } from "react";

/** Runs one at a time: a second press before the page shows that the first one is under way does nothing. */
export function useSingle(run: () => Promise<void>): () => void {
  const isRunning = useRef(false);
  return () => {
    if (isRunning.current) return;
    isRunning.current = true;
    void run().finally(() => {
      isRunning.current = false;
    });
  };
}
