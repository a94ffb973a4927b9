import { useState } from "react";
import { newKey } from "../../api/client";
import { type Doubt, useResolveInDoubtMutation } from "../../api/inDoubt";
import { isProblem, isUncertain } from "../../api/problem";
import { useNow } from "../../live/clock";
import { command } from "../../model/shell";
import { useMe } from "../../parts/useMe";
import { useAppDispatch } from "../../store";
import { toasted } from "../../store/work";
import { Button } from "../../ui/Button";
import { Choices, TextArea, TextField } from "../../ui/Field";
import { ProblemView } from "../../ui/ProblemView";
import { Command } from "../../ui/Text";
import { Countdown } from "../../ui/Time";
import { useSingle } from "../../ui/useSingle";
import { words } from "../../words";
import css from "./InDoubt.module.css";
import { isQuiet } from "./quiet";

const texts = words.inDoubt.panel;

/** The verdict on one item. */
export function Resolve({ doubt, onDone }: { doubt: Doubt; onDone: () => void }) {
  const dispatch = useAppDispatch();
  const [as, setAs] = useState<"sent" | "failed">();
  const [messageId, setMessageId] = useState("");
  const [note, setNote] = useState("");
  // One intention, one key: it stays until the verdict or its answer changes.
  const [key, setKey] = useState(newKey);
  const [resolve, { isLoading, error }] = useResolveInDoubtMutation();
  const { whyNot } = useMe();
  const quiet = isQuiet(doubt, useNow());
  const problem = isProblem(error) ? error : undefined;
  const id = as === "sent" ? messageId.trim() : "";
  const why =
    whyNot("operator") ??
    (as === undefined ? texts.verdictMissing : note.trim() === "" ? texts.noteMissing : undefined);

  const submit = useSingle(async () => {
    if (why !== undefined || as === undefined) return;
    const body = { as, note: note.trim(), ...(id === "" ? {} : { provider_message_id: id }) };
    const result = await resolve({ outbox_id: doubt.outbox_id, body, key });
    if (isProblem(result.error)) {
      if (!isUncertain(result.error)) setKey(newKey());
      return;
    }
    dispatch(
      toasted({ tone: "good", title: texts.done(words.states.item[as === "sent" ? "sent" : "failed"].toLowerCase()) }),
    );
    onDone();
  });

  return (
    <>
      <Choices
        label={texts.verdict}
        value={as}
        onChange={setAs}
        options={[
          { value: "sent", label: texts.sent },
          { value: "failed", label: texts.notSent, why: quiet ? undefined : texts.notSentWait },
        ]}
      />
      {!quiet && (
        <p className={css.muted}>
          {texts.notSentWait} {texts.notSentIn} <Countdown until={doubt.quiet_until} />
        </p>
      )}
      {as === "sent" && (
        <TextField
          label={texts.messageId}
          value={messageId}
          onChange={setMessageId}
          maxLength={500}
          autoComplete="off"
          spellCheck={false}
        />
      )}
      <TextArea
        label={texts.note}
        help={texts.noteHelp}
        value={note}
        onChange={setNote}
        maxLength={2000}
        error={problem?.errors.find((one) => one.field === "note")?.detail}
        onKeyDown={(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && submit()}
      />
      {problem && <ProblemView problem={problem} isInline />}
      <Command>
        {command(
          "in-doubt",
          "resolve",
          doubt.outbox_id,
          "--as",
          as ?? "sent",
          id !== "" && "--message-id",
          id !== "" && id,
          "--note",
          note.trim() || "…",
        )}
      </Command>
      <div className={css.foot}>
        <Button look="primary" onClick={submit} isBusy={isLoading} why={why}>
          {problem && isUncertain(problem) ? words.dialog.retryRequest : texts.resolve}
        </Button>
      </div>
    </>
  );
}
