import { Dialog as AriaDialog, DialogDismiss, DialogHeading } from "@ariakit/react";
import { X } from "lucide-react";
import { visible } from "../model/visible";
import { words } from "../words";
import { buttonClass } from "./Button";
import { cx } from "./cx";
import css from "./Dialog.module.css";

/** A dialog over the page. Ctrl-Enter submits it, and Enter alone sends nothing. */
export function Dialog({
  title,
  onClose,
  onSubmit,
  foot,
  isWide = false,
  isFixed = false,
  focus,
  children,
}: {
  title: string;
  onClose: () => void;
  onSubmit?: (() => void) | undefined;
  foot: React.ReactNode;
  isWide?: boolean;
  /** Cannot be dismissed by Escape or a click outside. */
  isFixed?: boolean;
  focus?: React.RefObject<HTMLElement | null>;
  children: React.ReactNode;
}) {
  return (
    <AriaDialog
      open
      onClose={onClose}
      backdrop={<div className={css.backdrop} />}
      className={cx(css.dialog, isWide && css.isWide)}
      hideOnEscape={!isFixed}
      hideOnInteractOutside={false}
      {...(focus === undefined ? {} : { initialFocus: focus })}
      onKeyDown={(event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
          event.preventDefault();
          onSubmit?.();
        }
      }}
    >
      <div className={css.head}>
        {/* biome-ignore lint/a11y/useHeadingContent: the title becomes its content */}
        <DialogHeading render={<h2 />}>{visible(title)}</DialogHeading>
        {!isFixed && (
          <DialogDismiss className={buttonClass("plain", true)} aria-label={words.dialog.close}>
            <X size={14} aria-hidden="true" />
          </DialogDismiss>
        )}
      </div>
      <div className={css.body}>{children}</div>
      <div className={css.foot}>{foot}</div>
    </AriaDialog>
  );
}

/** The numbers that a decision is about. */
export function Numbers({ of }: { of: readonly { name: string; value: string }[] }) {
  return (
    <div className={css.numbers}>
      {of.map(({ name, value }) => (
        <div key={name}>
          <b>{value}</b>
          <span>{name}</span>
        </div>
      ))}
    </div>
  );
}
