import { X } from "lucide-react";
import { words } from "../words";
import css from "./BulkBar.module.css";
import { Button } from "./Button";

/** Actions on the selected rows. */
export function BulkBar({
  count,
  onClear,
  children,
}: {
  count: number;
  onClear: () => void;
  children: React.ReactNode;
}) {
  if (count === 0) return null;
  return (
    <div className={css.bar} role="toolbar" aria-label={words.table.selected(count)}>
      <strong>{words.table.selected(count)}</strong>
      {children}
      <Button look="quiet" label={words.table.clear} onClick={onClear}>
        <X size={16} aria-hidden="true" />
      </Button>
    </div>
  );
}
