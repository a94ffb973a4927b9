import css from "./Button.module.css";
import { cx } from "./cx";
import { Hint } from "./Hint";

type Props = Omit<React.ComponentProps<"button">, "disabled"> & {
  look?: "plain" | "primary" | "danger" | "quiet";
  isSmall?: boolean;
  /** Only an icon: the label names the button. */
  label?: string;
  /** A request of this button is under way. */
  isBusy?: boolean;
  /** Why the button cannot be used now. The button stays visible and reachable. */
  why?: string | undefined;
};

export function Button({
  look = "plain",
  isSmall = false,
  label,
  isBusy = false,
  why,
  onClick,
  className,
  children,
  ...rest
}: Props) {
  const isOff = why !== undefined || isBusy;
  const button = (
    <button
      type="button"
      {...rest}
      {...(label === undefined ? {} : { "aria-label": label })}
      aria-disabled={isOff || undefined}
      aria-busy={isBusy || undefined}
      className={cx(
        css.button,
        look !== "plain" && css[look],
        isSmall && css.isSmall,
        label !== undefined && css.isIcon,
        isBusy && css.isBusy,
        className,
      )}
      onClick={(event) => {
        if (isOff) event.preventDefault();
        else onClick?.(event);
      }}
    >
      {isBusy && <span className={css.spinner} aria-hidden="true" />}
      {children}
    </button>
  );
  const hint = why ?? label;
  return hint === undefined ? (
    button
  ) : (
    <Hint text={hint} isDescription={why !== undefined}>
      {button}
    </Hint>
  );
}

/** The look of a button, for links. */
export function buttonClass(look: "plain" | "primary" = "plain", isSmall = false): string {
  return cx(css.button, look === "primary" && css.primary, isSmall && css.isSmall);
}
