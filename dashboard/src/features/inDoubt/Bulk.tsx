import { useRef, useState } from "react";
import { newKey } from "../../api/client";
import { type Doubt, useResolveManyInDoubtMutation } from "../../api/inDoubt";
import { isProblem, lost, type Problem } from "../../api/problem";
import { useNow } from "../../live/clock";
import { Confirm } from "../../ui/Confirm";
import { Numbers } from "../../ui/Dialog";
import { TextArea } from "../../ui/Field";
import { useSingle } from "../../ui/useSingle";
import { number, words } from "../../words";
import { isQuiet } from "./quiet";
import { Report, type Results, Working } from "./Report";

const texts = words.inDoubt.bulk;
/** The server takes this many at once. */
const AT_ONCE = 1_000;
const TYPED_FROM = 100;

export interface Chosen {
  doubt: Doubt;
  messageId?: string;
}

/** One verdict on many items: a typed confirmation, progress, and a report. */
export function Bulk({
  as,
  items,
  note: proposed = "",
  onClose,
}: {
  as: "sent" | "failed";
  items: readonly Chosen[];
  note?: string;
  onClose: (isDone: boolean) => void;
}) {
  const now = useNow();
  const [note, setNote] = useState(proposed);
  const [resolve] = useResolveManyInDoubtMutation();
  const [results, setResults] = useState<Results>();
  const [done, setDone] = useState<number>();
  const [problem, setProblem] = useState<Problem>();
  const isStopped = useRef(false);
  // A batch whose response was lost is sent again with its key.
  const batches = useRef<{ key: string; items: Chosen[] }[]>([]);

  const counted = useRef(items);
  const ready = as === "sent" ? counted.current : counted.current.filter(({ doubt }) => isQuiet(doubt, now));
  const early = counted.current.length - ready.length;

  const start = useSingle(async () => {
    if (batches.current.length === 0) {
      for (let at = 0; at < ready.length; at += AT_ONCE)
        batches.current.push({ key: newKey(), items: ready.slice(at, at + AT_ONCE) });
    }
    setProblem(undefined);
    isStopped.current = false;
    let sum: Results = results ?? { resolved: [], refused: [] };
    const total = ready.length;
    while (batches.current[0] && !isStopped.current) {
      const batch = batches.current[0];
      setDone(sum.resolved.length + sum.refused.length);
      const body = {
        as,
        note: note.trim(),
        items: batch.items.map(({ doubt, messageId }) => ({
          outbox_id: doubt.outbox_id,
          ...(messageId ? { provider_message_id: messageId } : {}),
        })),
      };
      const result = await resolve({ body, key: batch.key });
      if (!("data" in result) || !result.data) {
        setDone(undefined);
        setResults(sum);
        return setProblem(isProblem(result.error) ? result.error : lost(""));
      }
      batches.current.shift();
      sum = { resolved: [...sum.resolved, ...result.data.resolved], refused: [...sum.refused, ...result.data.refused] };
      setResults(sum);
      setDone(Math.min(total, sum.resolved.length + sum.refused.length));
    }
    setDone(undefined);
    setResults(sum);
  });

  if (done !== undefined)
    return (
      <Working
        done={done}
        of={ready.length}
        onStop={() => {
          isStopped.current = true;
        }}
      />
    );
  if (results && !problem)
    return <Report as={as} results={results} items={counted.current} onClose={() => onClose(true)} />;
  return (
    <Confirm
      title={as === "sent" ? texts.titleSent(ready.length) : texts.titleNotSent(ready.length)}
      action={texts.action(
        ready.length,
        as === "sent" ? words.inDoubt.panel.sent.toLowerCase() : words.inDoubt.panel.notSent.toLowerCase(),
      )}
      typed={as === "failed" || ready.length > TYPED_FROM ? number(ready.length) : undefined}
      isDangerous={as === "failed"}
      why={
        ready.length === 0 ? words.inDoubt.allEarly : note.trim() === "" ? words.inDoubt.panel.noteMissing : undefined
      }
      problem={problem}
      onConfirm={start}
      onClose={() => onClose(false)}
    >
      <Numbers of={[{ name: texts.items, value: number(ready.length) }]} />
      <p>{as === "sent" ? texts.textSent : texts.textNotSent}</p>
      {early > 0 && <p>{texts.early(early)}</p>}
      <TextArea
        label={texts.note}
        help={words.inDoubt.panel.noteHelp}
        value={note}
        onChange={setNote}
        maxLength={2000}
      />
    </Confirm>
  );
}
