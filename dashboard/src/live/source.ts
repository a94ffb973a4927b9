// The browser's side of the stream: an EventSource and its frames.

import type { Frame, Ports } from "./stream";

const NAMES = ["hello", "overview", "changed", "campaign", "snapshot_required", "bye"] as const;

/** Reads a message of the server. One that this version does not know is left out. */
export function frameOf(name: (typeof NAMES)[number], data: string): Frame | undefined {
  try {
    const read = JSON.parse(data);
    if (name === "overview") return { kind: name, overview: read };
    if (name === "campaign") return { kind: name, event: read };
    return { kind: name, ...read };
  } catch {
    return undefined;
  }
}

export const open: Ports["open"] = (campaigns, on) => {
  const query = new URLSearchParams();
  for (const [campaign, after] of campaigns) query.append("campaign", `${campaign}:${after}`);
  const source = new EventSource(`/api/v2/stream?${query}`);
  for (const name of NAMES) {
    source.addEventListener(name, (message) => {
      const frame = frameOf(name, message.data);
      if (frame) on.frame(frame);
    });
  }
  // The first error closes it: it would come back with the old positions.
  source.onerror = () => {
    source.close();
    on.error();
  };
  return { close: () => source.close() };
};
