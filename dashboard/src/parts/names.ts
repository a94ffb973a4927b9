import { words } from "../words";

/** The campaign and the phase of a run or an item. A run of single messages has none. */
export function nameOf(of: { campaign?: string | null | undefined; phase?: string | null | undefined }): string {
  return of.campaign ? `${of.campaign} / ${of.phase}` : words.runs.messages;
}
