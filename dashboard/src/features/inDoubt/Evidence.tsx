import { useState } from "react";
import type { Args } from "../../api/base";
import type { Doubt } from "../../api/inDoubt";
import { isProblem, lost, type Problem } from "../../api/problem";
import { useNow } from "../../live/clock";
import { guessId, propose } from "../../model/evidence";
import { guess, type MatchBy, read, type Table } from "../../model/rows";
import { Button } from "../../ui/Button";
import { Dialog } from "../../ui/Dialog";
import { Skeleton } from "../../ui/Empty";
import { FileDrop, Select } from "../../ui/Field";
import { ProblemView } from "../../ui/ProblemView";
import { number, words } from "../../words";
import { allDoubts } from "./allDoubts";
import { Bulk, type Chosen } from "./Bulk";
import css from "./InDoubt.module.css";
import { isQuiet } from "./quiet";

const texts = words.inDoubt.import;

interface Loaded {
  name: string;
  table: Table;
  doubts: Doubt[];
}

/** Verdicts from the provider's own log: two proposals, two confirmations. */
export function Evidence({ args, onClose }: { args: Args<"list_in_doubt">; onClose: () => void }) {
  const now = useNow();
  const [loaded, setLoaded] = useState<Loaded>();
  const [column, setColumn] = useState("");
  const [by, setBy] = useState<MatchBy>("key");
  const [idColumn, setIdColumn] = useState("");
  const [isComplete, setComplete] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const [confirmed, setConfirmed] = useState<"sent" | "failed">();
  const [settled, setSettled] = useState<ReadonlySet<string>>(new Set());

  const open = async (file: File) => {
    setBusy(true);
    setProblem(undefined);
    try {
      const [text, doubts] = await Promise.all([file.text(), allDoubts(args)]);
      const table = await read(text);
      const how = guess(table.columns);
      setLoaded({ name: file.name, table, doubts });
      setColumn(how?.column ?? "");
      setBy(how?.by ?? "key");
      setIdColumn((how && guessId(table.columns, how.column)) ?? "");
    } catch (error) {
      setProblem(
        isProblem(error) ? error : { ...lost(error instanceof Error ? error.message : String(error)), status: -1 },
      );
    }
    setBusy(false);
  };

  const open_ = loaded?.doubts.filter((doubt) => !settled.has(doubt.outbox_id)) ?? [];
  const proposal =
    loaded && column !== ""
      ? propose(open_, loaded.table.rows, { column, by, ...(idColumn === "" ? {} : { idColumn }) }, (doubt) =>
          isQuiet(doubt, now),
        )
      : undefined;
  const notSent = isComplete ? (proposal?.notSent ?? []) : [];

  if (confirmed && proposal && loaded) {
    const items: Chosen[] = confirmed === "sent" ? proposal.sent : notSent.map((doubt) => ({ doubt }));
    return (
      <Bulk
        as={confirmed}
        items={items}
        note={texts.noteDefault(loaded.name)}
        onClose={(isDone) => {
          if (isDone) setSettled(new Set([...settled, ...items.map(({ doubt }) => doubt.outbox_id)]));
          setConfirmed(undefined);
        }}
      />
    );
  }
  const columns = loaded?.table.columns ?? [];
  return (
    <Dialog title={texts.title} onClose={onClose} isWide foot={<Button onClick={onClose}>{words.dialog.close}</Button>}>
      <p>{texts.text}</p>
      {!loaded && !isBusy && (
        <FileDrop
          label={texts.drop}
          help={texts.dropHelp}
          accept=".ndjson,.jsonl,.json,.csv,.log,.txt,text/csv"
          onFile={(file) => void open(file)}
        />
      )}
      {isBusy && <Skeleton rows={3} />}
      {problem && <ProblemView problem={problem} isInline />}
      {loaded && loaded.doubts.length === 0 && <p>{texts.none}</p>}
      {loaded && loaded.doubts.length > 0 && (
        <>
          <div className={css.pickers}>
            <Select
              label={texts.column}
              value={column}
              onChange={setColumn}
              options={[{ value: "", label: "–" }, ...columns.map((name) => ({ value: name, label: name }))]}
            />
            <Select
              label={texts.by}
              value={by}
              onChange={setBy}
              options={(["key", "message_id", "recipient"] as const).map((value) => ({
                value,
                label: texts.bys[value],
              }))}
            />
            <Select
              label={texts.idColumn}
              value={idColumn}
              onChange={setIdColumn}
              options={[
                { value: "", label: texts.noIdColumn },
                ...columns.map((name) => ({ value: name, label: name })),
              ]}
            />
          </div>
          <label className={css.check}>
            <input type="checkbox" checked={isComplete} onChange={(event) => setComplete(event.target.checked)} />
            {texts.complete}
            <small>{texts.completeHelp}</small>
          </label>
        </>
      )}
      {proposal && (
        <div className={css.proposals}>
          <Group name={texts.sent} count={proposal.sent.length}>
            <Button
              isSmall
              look="primary"
              why={proposal.sent.length === 0 ? texts.nothing : undefined}
              onClick={() => setConfirmed("sent")}
            >
              {texts.confirmSent(proposal.sent.length)}
            </Button>
          </Group>
          <Group name={texts.notSent} count={notSent.length}>
            <Button
              isSmall
              why={notSent.length === 0 ? texts.completeHelp : undefined}
              onClick={() => setConfirmed("failed")}
            >
              {texts.confirmNotSent(notSent.length)}
            </Button>
          </Group>
          <Group name={texts.byHand} count={proposal.byHand.length}>
            <small>{texts.byHandText}</small>
          </Group>
          <Group name={texts.tooEarly} count={proposal.tooEarly.length}>
            <small>{texts.tooEarlyText}</small>
          </Group>
        </div>
      )}
    </Dialog>
  );
}

function Group({ name, count, children }: { name: string; count: number; children: React.ReactNode }) {
  return (
    <div className={css.proposal} data-count={count}>
      <span>{name}</span>
      <strong>{number(count)}</strong>
      {children}
    </div>
  );
}
