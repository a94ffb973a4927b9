import type { Resolved } from "../../api/inDoubt";
import { Bar } from "../../ui/Bar";
import { Button } from "../../ui/Button";
import { Dialog, Numbers } from "../../ui/Dialog";
import { saveFile } from "../../ui/saveFile";
import { Text } from "../../ui/Text";
import { number, words } from "../../words";
import type { Chosen } from "./Bulk";
import css from "./InDoubt.module.css";

const texts = words.inDoubt.bulk;

export type Results = Resolved;

export function Working({ done, of, onStop }: { done: number; of: number; onStop: () => void }) {
  return (
    <Dialog
      title={texts.working(done, of)}
      onClose={() => {}}
      isFixed
      foot={<Button onClick={onStop}>{texts.stop}</Button>}
    >
      <div className={css.meter} role="status">
        <Bar segments={[{ name: "done", tone: "busy", count: done }]} total={of} label={texts.working(done, of)} />
      </div>
    </Dialog>
  );
}

/** The result of each item, to read and to keep. */
export function Report({
  as,
  results,
  items,
  onClose,
}: {
  as: string;
  results: Results;
  items: readonly Chosen[];
  onClose: () => void;
}) {
  const recipients = new Map(items.map(({ doubt }) => [doubt.outbox_id, doubt.recipient ?? ""]));
  const download = () => saveFile(`in-doubt-${as}.json`, `${JSON.stringify(results, null, 2)}\n`, "application/json");
  return (
    <Dialog
      title={texts.report}
      onClose={onClose}
      foot={
        <>
          <Button onClick={download}>{texts.download}</Button>
          <Button look="primary" onClick={onClose}>
            {texts.close}
          </Button>
        </>
      }
    >
      <Numbers
        of={[
          { name: texts.resolved, value: number(results.resolved.length) },
          { name: texts.refused, value: number(results.refused.length) },
        ]}
      />
      {results.refused.length > 0 && (
        <>
          <h3>{texts.reasons}</h3>
          {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls */}
          <ul className={css.refused} tabIndex={0}>
            {results.refused.slice(0, 200).map(({ outbox_id: id, reason }) => (
              <li key={id}>
                <b>
                  <Text>{recipients.get(id) || id}</Text>
                </b>{" "}
                <span className={css.muted}>
                  <Text>{reason}</Text>
                </span>
              </li>
            ))}
          </ul>
        </>
      )}
    </Dialog>
  );
}
