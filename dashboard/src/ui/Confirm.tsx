import { useRef, useState } from "react";
import type { Problem } from "../api/problem";
import { isUncertain } from "../api/problem";
import { words } from "../words";
import { Button } from "./Button";
import { Dialog } from "./Dialog";
import { TextField } from "./Field";
import { ProblemView } from "./ProblemView";
import { Command } from "./Text";

/** Asks before something happens. With `typed`, the user must write the name or the number. */
export function Confirm({
  title,
  action,
  typed,
  command,
  why,
  problem,
  isBusy = false,
  isDangerous = false,
  onConfirm,
  onClose,
  children,
}: {
  title: string;
  action: string;
  typed?: string | undefined;
  command?: string | undefined;
  /** Why it cannot be confirmed yet. */
  why?: string | undefined;
  problem?: Problem | undefined;
  isBusy?: boolean;
  isDangerous?: boolean;
  onConfirm: () => void;
  onClose: () => void;
  children: React.ReactNode;
}) {
  const [text, setText] = useState("");
  const cancel = useRef<HTMLButtonElement>(null);
  const field = useRef<HTMLInputElement>(null);
  // A number may be typed with or without its separators.
  const plain = (value: string) => value.replace(/[,\s]/g, "");
  const isTyped = typed === undefined || plain(text) === plain(typed);
  const reason = why ?? (isTyped ? undefined : words.dialog.typeFirst(typed ?? ""));
  const submit = () => {
    if (reason === undefined && !isBusy) onConfirm();
  };
  return (
    <Dialog
      title={title}
      onClose={onClose}
      onSubmit={submit}
      focus={typed === undefined ? cancel : field}
      foot={
        <>
          <Button ref={cancel} onClick={onClose}>
            {words.dialog.cancel}
          </Button>
          <Button look={isDangerous ? "danger" : "primary"} onClick={submit} isBusy={isBusy} why={reason}>
            {problem && isUncertain(problem) ? words.dialog.retryRequest : action}
          </Button>
        </>
      }
    >
      {children}
      {typed !== undefined && (
        <TextField ref={field} label={words.dialog.type(typed)} value={text} onChange={setText} autoComplete="off" />
      )}
      {problem && <ProblemView problem={problem} isInline />}
      {command !== undefined && <Command>{command}</Command>}
    </Dialog>
  );
}
