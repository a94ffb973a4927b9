import { useState } from "react";
import type { Problem } from "../../api/problem";
import { isProblem, lost } from "../../api/problem";
import type { RunWithProgress } from "../../api/runs";
import { type Comparison, compare, type ListedItem } from "../../model/receipts";
import { guess, type MatchBy, read, type Table } from "../../model/rows";
import { Button } from "../../ui/Button";
import { Skeleton } from "../../ui/Empty";
import { FileDrop, Select } from "../../ui/Field";
import { Panel } from "../../ui/Panel";
import { ProblemView } from "../../ui/ProblemView";
import { words } from "../../words";
import { exportedItems } from "./exportedItems";
import { ReceiptGroups } from "./ReceiptGroups";
import css from "./Run.module.css";

const texts = words.runs.receipts;

interface File_ {
  name: string;
  table: Table;
  items: ListedItem[];
}

/** Compares the run with a list of the provider, in the browser. */
export function Receipts({ run }: { run: RunWithProgress }) {
  const [file, setFile] = useState<File_>();
  const [found, setFound] = useState<Comparison>();
  const [by, setBy] = useState<{ column: string; by: MatchBy }>();
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();

  const choose = async (next: File_, how: { column: string; by: MatchBy } | undefined) => {
    setBy(how);
    setFound(undefined);
    if (!how) return;
    setBusy(true);
    setFound(await compare(next.items, next.table.rows, how));
    setBusy(false);
  };

  const open = async (chosen: File) => {
    setBusy(true);
    setProblem(undefined);
    setFile(undefined);
    try {
      const [text, items] = await Promise.all([chosen.text(), exportedItems(run.id)]);
      const next = { name: chosen.name, table: await read(text), items };
      setFile(next);
      await choose(next, guess(next.table.columns));
    } catch (error) {
      setProblem(
        isProblem(error) ? error : { ...lost(error instanceof Error ? error.message : String(error)), status: -1 },
      );
    }
    setBusy(false);
  };

  return (
    <Panel title={texts.title} isPadded className={css.noPrint}>
      {!file && !isBusy && (
        <>
          <p className={css.muted}>{texts.text}</p>
          <FileDrop
            label={texts.drop}
            help={texts.dropHelp}
            accept=".ndjson,.jsonl,.json,.csv,.txt,text/csv,application/x-ndjson"
            onFile={(chosen) => void open(chosen)}
          />
        </>
      )}
      {problem && <ProblemView problem={problem} isInline />}
      {isBusy && !found && <Skeleton rows={2} />}
      {file && (
        <>
          <div className={css.controls}>
            <Select
              label={texts.column}
              value={by?.column ?? ""}
              onChange={(column) => void choose(file, column === "" ? undefined : { column, by: by?.by ?? "key" })}
              options={[
                { value: "", label: "–" },
                ...file.table.columns.map((column) => ({ value: column, label: column })),
              ]}
            />
            <Select
              label={texts.by}
              value={by?.by ?? "key"}
              onChange={(next) => by && void choose(file, { ...by, by: next })}
              options={(["key", "message_id", "recipient"] as const).map((value) => ({
                value,
                label: texts.bys[value],
              }))}
            />
            <span className={css.muted}>
              {texts.file(file.name, file.table.rows.length)}
              {file.table.bad > 0 && ` · ${texts.bad(file.table.bad)}`}
              {found && found.ignored > 0 && ` · ${texts.ignored(found.ignored)}`}
            </span>
            <Button isSmall onClick={() => setFile(undefined)}>
              {texts.another}
            </Button>
          </div>
          {!by && <p role="alert">{texts.noColumn}</p>}
          {found && <ReceiptGroups found={found} />}
        </>
      )}
    </Panel>
  );
}
