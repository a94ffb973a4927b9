const rules = new Intl.PluralRules("en");
const numbers = new Intl.NumberFormat("en");
const percents = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export function number(n: number): string {
  return numbers.format(n);
}

/** A number with its noun: `plural(2, "item", "items")` is `2 items`. */
export function plural(n: number, one: string, other: string): string {
  return `${number(n)} ${rules.select(n) === "one" ? one : other}`;
}

/** A percentage. 100 % is shown only when nothing is left. */
export function percent(share: number): string {
  const shown = share < 100 ? Math.min(99.9, Math.floor(share * 10) / 10) : 100;
  return `${percents.format(shown)} %`;
}

export function list(parts: readonly string[]): string {
  return new Intl.ListFormat("en").format(parts);
}
