import { useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useMemo } from "react";
import { visible } from "../model/visible";
import { useAppDispatch } from "../store";
import { toasted } from "../store/work";
import { list, words } from "../words";
import { type FilterField, type Filters, readFilters } from "./filters";

/** The filters of the URL. Unknown and invalid parameters are taken out of it, with a notice. */
export function useFilters(fields: readonly FilterField[], others: readonly string[] = []) {
  const search = useSearch({ strict: false }) as Record<string, unknown>;
  const navigate = useNavigate();
  const dispatch = useAppDispatch();
  const otherNames = others.join();
  const { filters, dropped } = useMemo(
    () => readFilters(fields, search, otherNames.split(",")),
    [fields, search, otherNames],
  );
  const kept = Object.fromEntries(Object.entries(search).filter(([name]) => others.includes(name)));
  const set = (next: Filters, replace = false) =>
    void navigate({ to: ".", search: { ...kept, ...next } as never, replace, resetScroll: false });
  const droppedNames = dropped.join();
  // biome-ignore lint/correctness/useExhaustiveDependencies: the notice is about the address, once
  useEffect(() => {
    if (droppedNames === "") return;
    const detail = words.filter.dropped(list(dropped.slice(0, 5).map(visible)));
    dispatch(toasted({ tone: "waiting", title: words.filter.label, detail, subject: "filters" }));
    set(filters, true);
  }, [droppedNames]);
  return { filters, setFilters: set, isFiltered: Object.keys(filters).length > 0 };
}

/** The tab of the URL, or the first one. */
export function useTab<T extends string>(tabs: readonly T[]): T {
  const { tab } = useSearch({ strict: false }) as { tab?: unknown };
  return tabs.find((one) => one === tab) ?? (tabs[0] as T);
}
