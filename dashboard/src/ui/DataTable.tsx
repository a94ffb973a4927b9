// A table in the server's order: pages by cursor, rows drawn only where they are seen, selection by key.

import { useWindowVirtualizer } from "@tanstack/react-virtual";
import { Columns3 } from "lucide-react";
import { useEffect, useLayoutEffect, useRef, useState } from "react";
import { useApp, useAppDispatch } from "../store";
import { columnToggled } from "../store/prefs";
import { words } from "../words";
import { Button } from "./Button";
import { cx } from "./cx";
import css from "./DataTable.module.css";
import { Menu } from "./Menu";
import { between, hold } from "./rows";
import { useNarrow, useTableKeys } from "./tableKeys";

export interface Column<T> {
  id: string;
  name: string;
  /** A CSS width; columns without one share the rest. */
  width?: string;
  isEnd?: boolean;
  /** Holds a button, and is never cut. */
  isAction?: boolean;
  /** Shown on a card on small screens. The first column always is. */
  isMain?: boolean;
  render(row: T): React.ReactNode;
}

export interface Pages<T> {
  rows: readonly T[];
  hasMore: boolean;
  isFetchingMore: boolean;
  fetchMore(): void;
}

export const ROWS_MAX = 10_000;
const CARD = 96;

export function DataTable<T>({
  name,
  label,
  columns,
  pages,
  keyOf,
  selected,
  onSelect,
  canSelect,
  opened,
  aside,
  onHeld,
}: {
  /** Under this name the hidden columns are stored. */
  name: string;
  label: string;
  columns: readonly Column<T>[];
  pages: Pages<T>;
  keyOf: (row: T) => string;
  selected?: ReadonlySet<string>;
  onSelect?: (keys: Set<string>) => void;
  canSelect?: (row: T) => boolean;
  /** Key of the row whose details are shown. */
  opened?: string | undefined;
  aside?: React.ReactNode;
  /** Whether the rows are held, because the user reads or selects. */
  onHeld?: (isHeld: boolean) => void;
}) {
  const dispatch = useAppDispatch();
  const isNarrow = useNarrow();
  const hidden = useApp((state) => state.prefs.hidden[name]) ?? [];
  const isCompact = useApp((state) => state.prefs.density === "compact");
  const shownColumns = columns.filter((column, n) => n === 0 || !hidden.includes(column.id));
  const height = isNarrow ? CARD : isCompact ? 32 : 40;

  const body = useRef<HTMLTableSectionElement>(null);
  const [margin, setMargin] = useState(0);
  useLayoutEffect(() => {
    const top = (body.current?.getBoundingClientRect().top ?? 0) + window.scrollY;
    if (Math.abs(top - margin) > 1) setMargin(top);
  });

  const [isScrolled, setScrolled] = useState(false);
  const isHeld = isScrolled || (selected?.size ?? 0) > 0;
  const held = useRef<readonly T[]>([]);
  const view = isHeld ? hold(held.current, pages.rows, keyOf) : { rows: [...pages.rows], waiting: 0 };
  const rows = view.rows.slice(0, ROWS_MAX);
  useEffect(() => {
    held.current = rows;
    onHeld?.(isHeld);
  });

  const virtual = useWindowVirtualizer({
    count: rows.length,
    estimateSize: () => height,
    scrollMargin: margin,
    overscan: 8,
    onChange: (now) => setScrolled((now.scrollOffset ?? 0) > Math.max(240, margin - 200)),
  });
  useEffect(() => {
    if (height) virtual.measure();
  }, [height, virtual]);
  const seen = virtual.getVirtualItems();
  const first = seen[0];
  const last = seen.at(-1);
  const before = first ? first.start - margin : 0;
  const behind = last ? Math.max(0, virtual.getTotalSize() - (last.end - margin)) : 0;

  const isNearEnd = last === undefined || last.index >= rows.length - 40;
  const { hasMore, isFetchingMore, fetchMore } = pages;
  useEffect(() => {
    if (isNearEnd && hasMore && !isFetchingMore && rows.length < ROWS_MAX) fetchMore();
  }, [isNearEnd, hasMore, isFetchingMore, rows.length, fetchMore]);

  const keys = rows.filter((row) => canSelect?.(row) ?? true).map(keyOf);
  const anchor = useRef<string | undefined>(undefined);
  const toggle = (key: string, isRange: boolean) => {
    if (!selected || !onSelect) return;
    const next = new Set(selected);
    const range = isRange && anchor.current ? between(keys, anchor.current, key) : [key];
    const adds = !selected.has(key);
    for (const one of range) adds ? next.add(one) : next.delete(one);
    anchor.current = key;
    onSelect(next);
  };
  const current = useTableKeys(body, rows.map(keyOf), virtual.scrollToIndex, onSelect ? toggle : undefined);
  const isAll = selected !== undefined && keys.length > 0 && keys.every((key) => selected.has(key));
  const count = shownColumns.length + (onSelect ? 1 : 0);

  return (
    <div className={css.wrap} data-table={name}>
      <div className={css.bar}>
        <span>
          {hasMore ? words.table.atLeast(rows.length) : words.table.rows(rows.length)}
          {rows.length >= ROWS_MAX && ` · ${words.table.narrow}`}
        </span>
        {aside}
        <span style={{ marginInlineStart: "auto" }}>
          {!isNarrow && (
            <Menu
              label={words.table.columns}
              isSmall
              isQuiet
              entries={columns.slice(1).map((column) => ({
                label: column.name,
                keepsOpen: true,
                mark: hidden.includes(column.id) ? "" : "✓",
                onSelect: () => dispatch(columnToggled({ table: name, column: column.id })),
              }))}
            >
              <Columns3 size={14} aria-hidden="true" />
            </Menu>
          )}
        </span>
      </div>
      {view.waiting > 0 && (
        <div className={css.pill}>
          <button
            type="button"
            onClick={() => {
              held.current = [];
              onSelect?.(new Set());
              window.scrollTo({ top: 0 });
              setScrolled(false);
            }}
          >
            {words.table.fresh(view.waiting)}
          </button>
        </div>
      )}
      <div className={css.scroll}>
        <table
          className={css.table}
          style={isNarrow ? {} : { minInlineSize: count * 96 }}
          aria-label={label}
          aria-rowcount={hasMore ? -1 : rows.length + 1}
        >
          <colgroup>
            {onSelect && <col style={{ width: 44 }} />}
            {shownColumns.map((column) => (
              <col key={column.id} style={column.width === undefined ? {} : { width: column.width }} />
            ))}
          </colgroup>
          <thead>
            <tr aria-rowindex={1}>
              {onSelect && (
                <th className={css.check} scope="col">
                  <label>
                    <input
                      type="checkbox"
                      checked={isAll}
                      aria-label={words.table.selectAll}
                      onChange={() => onSelect(isAll ? new Set() : new Set(keys))}
                    />
                  </label>
                </th>
              )}
              {shownColumns.map((column) => (
                <th key={column.id} scope="col" className={cx(column.isEnd && css.isEnd)}>
                  {column.name || <span className="visually-hidden">{words.table.actions}</span>}
                </th>
              ))}
            </tr>
          </thead>
          <tbody ref={body}>
            <Spacer height={before} span={count} />
            {seen.map((at) => {
              const row = rows[at.index];
              if (row === undefined) return null;
              const key = keyOf(row);
              const isSelected = selected?.has(key) ?? false;
              return (
                <tr
                  key={key}
                  className={css.row}
                  data-key={key}
                  data-open={opened === key || undefined}
                  data-current={current === key || undefined}
                  aria-rowindex={at.index + 2}
                  data-selected={isSelected || undefined}
                >
                  {onSelect && (
                    <td className={css.check}>
                      {(canSelect?.(row) ?? true) && (
                        <label>
                          <input
                            type="checkbox"
                            checked={isSelected}
                            aria-label={words.table.select}
                            onChange={(event) => toggle(key, (event.nativeEvent as MouseEvent).shiftKey)}
                          />
                        </label>
                      )}
                    </td>
                  )}
                  {shownColumns.map((column, n) => (
                    <td
                      key={column.id}
                      className={cx(column.isEnd && css.isEnd, column.isAction && css.isAction)}
                      data-main={n === 0 || column.isMain || undefined}
                    >
                      {n > 0 && column.isMain && <span className={css.label}>{column.name}</span>}
                      {column.render(row)}
                    </td>
                  ))}
                </tr>
              );
            })}
            <Spacer height={behind} span={count} />
          </tbody>
        </table>
      </div>
      {hasMore && rows.length < ROWS_MAX && (
        <div className={css.bar}>
          <Button isSmall look="quiet" onClick={fetchMore} isBusy={isFetchingMore}>
            {words.table.more}
          </Button>
        </div>
      )}
    </div>
  );
}

function Spacer({ height, span }: { height: number; span: number }) {
  return (
    // biome-ignore lint/a11y/noAriaHiddenOnFocusable: it has no content and takes no focus
    <tr className={css.spacer} aria-hidden="true">
      <td colSpan={span} style={{ height }} />
    </tr>
  );
}
