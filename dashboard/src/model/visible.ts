// Text of other people, made safe to read: controls that change the direction or hide text are shown as their code points.

/** Bidirectional controls, zero-width characters, other invisible ones, and control characters except tab and newline. */
const HIDDEN =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what it looks for
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|\p{Surrogate}/gu;

export interface Piece {
  text: string;
  isCodePoint: boolean;
}

export function pieces(text: string): Piece[] {
  const found: Piece[] = [];
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > from) found.push({ text: text.slice(from, match.index), isCodePoint: false });
    const code = match[0].codePointAt(0) ?? 0;
    found.push({ text: `U+${code.toString(16).toUpperCase().padStart(4, "0")}`, isCodePoint: true });
    from = match.index + match[0].length;
  }
  if (from < text.length) found.push({ text: text.slice(from), isCodePoint: false });
  return found;
}

/** The same as one text, for attributes and titles. */
export function visible(text: string): string {
  return pieces(text)
    .map(({ text: part, isCodePoint }) => (isCodePoint ? `‹${part}›` : part))
    .join("");
}

/** The address, if it is one of the web. */
export function webAddress(text: string): string | undefined {
  if (!/^https?:\/\//i.test(text) || visible(text) !== text) return undefined;
  try {
    return new URL(text).href;
  } catch {
    return undefined;
  }
}
