// The command that does the same as a dialog.

/** Quotes an argument for a POSIX shell. */
export function quoted(argument: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(argument) ? argument : `'${argument.replaceAll("'", `'\\''`)}'`;
}

/** `postrider` with these arguments. An argument that is false or undefined is left out. */
export function command(...parts: (string | false | undefined)[]): string {
  return ["postrider", ...parts.filter((part) => typeof part === "string").map(quoted)].join(" ");
}
