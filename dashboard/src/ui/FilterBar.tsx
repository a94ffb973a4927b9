import { Combobox, ComboboxItem, ComboboxPopover, ComboboxProvider } from "@ariakit/react";
import { X } from "lucide-react";
import { useState } from "react";
import { visible } from "../model/visible";
import { words } from "../words";
import { Button } from "./Button";
import css from "./FilterBar.module.css";
import { type FilterField, type Filters, valid, withFilter, withoutFilter } from "./filters";

/** Chips of the filters that apply, and a combobox for fields and their values. */
export function FilterBar({
  fields,
  filters,
  onChange,
  children,
}: {
  fields: readonly FilterField[];
  filters: Filters;
  onChange: (filters: Filters) => void;
  children?: React.ReactNode;
}) {
  const [text, setText] = useState("");
  const [isOpen, setOpen] = useState(false);
  const [name, rest] = text.includes(":")
    ? [text.slice(0, text.indexOf(":")), text.slice(text.indexOf(":") + 1).trim()]
    : [text, undefined];
  const field = rest === undefined ? undefined : fields.find((one) => one.label === name);
  const choose = (value: string) => {
    if (!field) return;
    onChange(withFilter(field, filters, value));
    setText("");
    setOpen(false);
  };
  const typed = field && !field.values && rest ? valid(field, rest) : undefined;
  const chips = fields.flatMap((one) => [filters[one.name] ?? []].flat().map((value) => ({ one, value })));
  return (
    <div className={css.bar}>
      <ComboboxProvider value={text} setValue={setText} open={isOpen} setOpen={setOpen}>
        <Combobox
          className={css.input}
          placeholder={words.filter.placeholder}
          aria-label={words.filter.label}
          autoSelect="always"
          onKeyDown={(event) => {
            if (event.key === "Enter" && typed !== undefined) {
              event.preventDefault();
              choose(typed);
            }
          }}
        />
        <ComboboxPopover className={css.popover} gutter={4} portal>
          {field === undefined
            ? fields
                .filter((one) => one.label.toLowerCase().includes(name.trim().toLowerCase()))
                .map((one) => (
                  <ComboboxItem
                    key={one.name}
                    className={css.item}
                    value={`${one.label}: `}
                    hideOnClick={false}
                    setValueOnClick
                  >
                    {one.label}
                    {one.help && <small>{one.help}</small>}
                  </ComboboxItem>
                ))
            : (field.values ?? [])
                .filter(({ label }) => label.toLowerCase().includes((rest ?? "").toLowerCase()))
                .map(({ value, label }) => (
                  <ComboboxItem
                    key={value}
                    className={css.item}
                    value={value}
                    setValueOnClick={false}
                    onClick={() => choose(value)}
                  >
                    {label}
                  </ComboboxItem>
                ))}
          {typed !== undefined && (
            <ComboboxItem className={css.item} value={typed} setValueOnClick={false} onClick={() => choose(typed)}>
              {words.filter.apply(field?.label ?? "", visible(rest ?? ""))}
            </ComboboxItem>
          )}
          {field && !field.values && typed === undefined && (
            <div className={css.item}>{field.help ?? words.filter.type}</div>
          )}
        </ComboboxPopover>
      </ComboboxProvider>
      {chips.map(({ one, value }) => {
        const shown = one.values?.find((known) => known.value === value)?.label ?? visible(value);
        return (
          <span key={`${one.name}:${value}`} className={css.chip}>
            <span>
              {one.label} <b>{shown}</b>
            </span>
            <button
              type="button"
              aria-label={words.filter.remove(one.label, shown)}
              onClick={() => onChange(withoutFilter(filters, one.name, value))}
            >
              <X size={14} aria-hidden="true" />
            </button>
          </span>
        );
      })}
      {chips.length > 1 && (
        <Button look="quiet" isSmall onClick={() => onChange({})}>
          {words.filter.clear}
        </Button>
      )}
      {children}
    </div>
  );
}
