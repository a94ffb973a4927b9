import { words } from "../words";
import { Button } from "./Button";
import { type Column, DataTable, type Pages } from "./DataTable";
import { Empty } from "./Empty";
import { Query } from "./Query";
import { Ago } from "./Time";

/** A list on a screen: loading, problem, empty, filtered to nothing, or its table. */
export function ListView<T>({
  list,
  isFiltered,
  onClear,
  empty,
  ...table
}: {
  list: {
    asked: { data?: Pages<T> | undefined; error?: unknown; isFetching: boolean; refetch: () => unknown };
    setHeld: (isHeld: boolean) => void;
    readAt?: number | undefined;
  };
  isFiltered?: boolean;
  onClear?: () => void;
  empty: React.ReactNode;
} & Omit<React.ComponentProps<typeof DataTable<T>>, "pages" | "onHeld" | "aside">) {
  const { asked, setHeld, readAt } = list;
  return (
    <Query of={asked} rows={8}>
      {(pages) =>
        pages.rows.length === 0 ? (
          isFiltered && onClear ? (
            <Empty
              title={words.table.noResults}
              actions={<Button onClick={onClear}>{words.table.clearFilters}</Button>}
            >
              {words.table.noResultsText}
            </Empty>
          ) : (
            empty
          )
        ) : (
          <DataTable
            {...table}
            columns={table.columns as readonly Column<T>[]}
            pages={pages}
            onHeld={setHeld}
            aside={
              readAt !== undefined && (
                <span>
                  {words.table.asOf} <Ago at={readAt} />
                </span>
              )
            }
          />
        )
      }
    </Query>
  );
}
