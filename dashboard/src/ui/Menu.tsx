import { Menu as AriaMenu, MenuButton, MenuItem, MenuProvider } from "@ariakit/react";
import { buttonClass } from "./Button";
import { cx } from "./cx";
import css from "./Menu.module.css";

export interface Entry {
  label: string;
  /** Shown at the end, such as a check mark. */
  mark?: React.ReactNode;
  onSelect(): void;
  why?: string | undefined;
  keepsOpen?: boolean;
}

export function Menu({
  label,
  children,
  entries,
  isSmall = false,
  isQuiet = false,
}: {
  /** Where the content of the button does not name it. */
  label?: string;
  children: React.ReactNode;
  entries: readonly Entry[];
  isSmall?: boolean;
  isQuiet?: boolean;
}) {
  return (
    <MenuProvider placement="bottom-end">
      <MenuButton
        className={cx(buttonClass("plain", isSmall), css.button, isQuiet && css.isQuiet)}
        {...(label === undefined ? {} : { "aria-label": label })}
      >
        {children}
      </MenuButton>
      <AriaMenu className={css.menu} gutter={4} portal>
        {entries.map((entry) => (
          <MenuItem
            key={entry.label}
            className={css.item}
            onClick={() => entry.onSelect()}
            disabled={entry.why !== undefined}
            accessibleWhenDisabled
            hideOnClick={!entry.keepsOpen}
            {...(entry.why === undefined ? {} : { "aria-description": entry.why, title: entry.why })}
          >
            <span>{entry.label}</span>
            {entry.mark}
          </MenuItem>
        ))}
      </AriaMenu>
    </MenuProvider>
  );
}
