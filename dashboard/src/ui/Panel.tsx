import { Component } from "react";
import { lost } from "../api/problem";
import { cx } from "./cx";
import css from "./Panel.module.css";
import { ProblemView } from "./ProblemView";

/** A part of a screen. Its failure takes nothing else down. */
export function Panel({
  title,
  aside,
  foot,
  isPadded = false,
  children,
  className,
}: {
  title?: React.ReactNode;
  aside?: React.ReactNode;
  foot?: React.ReactNode;
  isPadded?: boolean;
  children: React.ReactNode;
  className?: string | undefined;
}) {
  return (
    <section className={cx(css.panel, className)}>
      {title !== undefined && (
        <div className={css.head}>
          <h2>{title}</h2>
          {aside !== undefined && <span className={css.aside}>{aside}</span>}
        </div>
      )}
      <Boundary>{isPadded ? <div className={css.pad}>{children}</div> : children}</Boundary>
      {foot !== undefined && <div className={css.foot}>{foot}</div>}
    </section>
  );
}

/** Names and values. */
export function Facts({ children }: { children: React.ReactNode }) {
  return <dl className={css.facts}>{children}</dl>;
}

export function Fact({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </>
  );
}

export class Boundary extends Component<{ children: React.ReactNode }, { error?: Error }> {
  override state: { error?: Error } = {};

  static getDerivedStateFromError(error: Error) {
    return { error };
  }

  override render() {
    const { error } = this.state;
    if (error === undefined) return this.props.children;
    return <ProblemView problem={{ ...lost(error.message), status: -1 }} onRetry={() => this.setState({})} />;
  }
}
