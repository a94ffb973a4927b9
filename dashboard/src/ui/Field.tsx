import { Upload } from "lucide-react";
import { useId, useState } from "react";
import css from "./Field.module.css";

interface Named {
  label: string;
  help?: React.ReactNode;
  error?: string | undefined;
}

function useDescribed({ help, error }: Named) {
  const id = useId();
  const ids = [help !== undefined && `${id}-help`, error !== undefined && `${id}-error`].filter(Boolean).join(" ");
  const aria = {
    id,
    ...(ids === "" ? {} : { "aria-describedby": ids }),
    ...(error === undefined ? {} : { "aria-invalid": true }),
  };
  const below = (
    <>
      {help !== undefined && (
        <span id={`${id}-help`} className={css.help}>
          {help}
        </span>
      )}
      {error !== undefined && (
        <span id={`${id}-error`} className={css.error}>
          {error}
        </span>
      )}
    </>
  );
  return { aria, below, id };
}

type Rest<K extends "input" | "textarea" | "select"> = Omit<
  React.ComponentProps<K>,
  "onChange" | "value" | "id" | "children"
>;

export function TextField({
  label,
  help,
  error,
  value,
  onChange,
  ...rest
}: Named & Rest<"input"> & { value: string; onChange: (value: string) => void }) {
  const { aria, below, id } = useDescribed({ label, help, ...(error === undefined ? {} : { error }) });
  return (
    <div className={css.field}>
      <label className={css.label} htmlFor={id}>
        {label}
      </label>
      <input
        {...rest}
        {...aria}
        className={css.input}
        value={value}
        onChange={(event) => onChange(event.target.value)}
      />
      {below}
    </div>
  );
}

export function TextArea({
  label,
  help,
  error,
  value,
  onChange,
  ...rest
}: Named & Rest<"textarea"> & { value: string; onChange: (value: string) => void }) {
  const { aria, below, id } = useDescribed({ label, help, ...(error === undefined ? {} : { error }) });
  return (
    <div className={css.field}>
      <label className={css.label} htmlFor={id}>
        {label}
      </label>
      <textarea
        {...rest}
        {...aria}
        className={css.input}
        value={value}
        onChange={(event) => onChange(event.target.value)}
      />
      {below}
    </div>
  );
}

export function Select<T extends string>({
  label,
  help,
  value,
  onChange,
  options,
}: Named & {
  value: T;
  onChange: (value: T) => void;
  options: readonly { value: T; label: string }[];
}) {
  const { aria, below, id } = useDescribed({ label, help });
  return (
    <div className={css.field}>
      <label className={css.label} htmlFor={id}>
        {label}
      </label>
      <select {...aria} className={css.input} value={value} onChange={(event) => onChange(event.target.value as T)}>
        {options.map((option) => (
          <option key={option.value} value={option.value}>
            {option.label}
          </option>
        ))}
      </select>
      {below}
    </div>
  );
}

/** One of a few choices. A choice that cannot be made now says why. */
export function Choices<T extends string>({
  label,
  value,
  onChange,
  options,
}: {
  label: string;
  value: T | undefined;
  onChange: (value: T) => void;
  options: readonly { value: T; label: React.ReactNode; why?: string | undefined }[];
}) {
  const name = useId();
  return (
    <fieldset className={css.choices}>
      <legend>{label}</legend>
      {options.map((option) => (
        <label key={option.value} className={css.choice} title={option.why}>
          <input
            type="radio"
            name={name}
            value={option.value}
            checked={value === option.value}
            disabled={option.why !== undefined}
            onChange={() => onChange(option.value)}
          />
          {option.label}
        </label>
      ))}
    </fieldset>
  );
}

/** Takes a file of the user, dropped or chosen. */
export function FileDrop({
  label,
  help,
  onFile,
  accept,
}: {
  label: string;
  help: string;
  onFile: (file: File) => void;
  accept: string;
}) {
  const [isOver, setOver] = useState(false);
  return (
    <label
      className={css.drop}
      data-over={isOver || undefined}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        const file = event.dataTransfer.files[0];
        if (file) onFile(file);
      }}
    >
      <Upload size={18} aria-hidden="true" />
      <strong>{label}</strong>
      <span>{help}</span>
      <input
        type="file"
        className="visually-hidden"
        accept={accept}
        onChange={(event) => {
          const file = event.target.files?.[0];
          if (file) onFile(file);
          event.target.value = "";
        }}
      />
    </label>
  );
}
