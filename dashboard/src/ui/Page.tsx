import { useEffect } from "react";
import { visible } from "../model/visible";
import css from "./Page.module.css";

/** The head of a screen: its one h1, which also names the tab of the browser. */
export function Page({
  title,
  crumbs,
  beside,
  actions,
  children,
}: {
  title: string;
  crumbs?: React.ReactNode;
  beside?: React.ReactNode;
  actions?: React.ReactNode;
  children: React.ReactNode;
}) {
  const name = visible(title);
  useEffect(() => {
    document.title = `${name} · Postrider`;
  }, [name]);
  return (
    <>
      <header className={css.head}>
        {crumbs && <div className={css.crumbs}>{crumbs}</div>}
        <div className={css.title}>
          <h1>{name}</h1>
          {beside}
          {actions && <div className={css.actions}>{actions}</div>}
        </div>
      </header>
      {children}
    </>
  );
}

export function Aside({ children }: { children: React.ReactNode }) {
  return <span className={css.aside}>{children}</span>;
}

/** A tab is the current one by its own rule: its link is not active merely because the path is the same. */
export const TAB = { activeOptions: { exact: true, includeSearch: true }, resetScroll: false } as const;

/** Tabs are places: links, so that a colleague can open one. */
export function Tabs({ label, children }: { label: string; children: React.ReactNode }) {
  return (
    <nav className={css.tabs} aria-label={label}>
      {children}
    </nav>
  );
}
