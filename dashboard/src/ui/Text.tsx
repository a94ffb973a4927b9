import { Check, Copy } from "lucide-react";
import { useEffect, useState } from "react";
import { pieces, visible, webAddress } from "../model/visible";
import { words } from "../words";
import css from "./Text.module.css";

const LONG = 4096;

/** Text of other people: only text nodes, with hidden characters shown and long text cut. */
export function Text({ children }: { children: string | null | undefined }) {
  const [isWhole, setWhole] = useState(false);
  if (children === null || children === undefined || children === "") return <>–</>;
  const isLong = children.length > LONG && !isWhole;
  const shown = isLong ? children.slice(0, LONG) : children;
  let at = 0;
  return (
    <>
      {pieces(shown).map((piece) => {
        const key = at;
        at += piece.text.length + 1;
        return piece.isCodePoint ? (
          <span key={key} className={css.code}>
            {piece.text}
          </span>
        ) : (
          piece.text
        );
      })}
      {isLong && (
        <>
          …{" "}
          <button type="button" className={css.all} onClick={() => setWhole(true)}>
            {words.text.showAll(children.length)}
          </button>
        </>
      )}
    </>
  );
}

/** Text that is a link if it is an address of the web. */
export function MaybeLink({ children }: { children: string }) {
  const href = webAddress(children);
  if (href === undefined) return <Text>{children}</Text>;
  return (
    <a href={href} target="_blank" rel="noopener noreferrer">
      {visible(children)}
    </a>
  );
}

/** Writes to the clipboard, also where the page is no secure context. */
async function copy(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  (document.querySelector("dialog[open], [role=dialog]") ?? document.body).append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [isCopied, setCopied] = useState(false);
  useEffect(() => {
    if (!isCopied) return;
    const timer = setTimeout(() => setCopied(false), 1_500);
    return () => clearTimeout(timer);
  }, [isCopied]);
  const said = isCopied ? words.text.copied : label;
  return (
    <button
      type="button"
      className={css.copy}
      aria-label={said}
      title={said}
      onClick={() => copy(text).then(() => setCopied(true))}
    >
      {isCopied ? <Check size={13} aria-hidden="true" /> : <Copy size={13} aria-hidden="true" />}
    </button>
  );
}

/** An id or key, shortened, with a button that copies it. */
export function Id({ children, what, isWhole = false }: { children: string; what: string; isWhole?: boolean }) {
  const short = !isWhole && children.length > 13 ? `${children.slice(0, 6)}…${children.slice(-4)}` : children;
  return (
    <span className={css.id}>
      <code title={visible(children)}>
        <Text>{short}</Text>
      </code>
      <CopyButton text={children} label={words.text.copy(what)} />
    </span>
  );
}

/** The command that does the same. */
export function Command({ children }: { children: string }) {
  return (
    <div className={css.command}>
      <code>{children}</code>
      <CopyButton text={children} label={words.text.copy(words.text.command)} />
    </div>
  );
}
