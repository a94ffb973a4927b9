import { Link } from "@tanstack/react-router";
import { Download, Printer, RefreshCw } from "lucide-react";
import { write } from "../../api/json";
import { type Certificate as Launch, type RunWithProgress, useGetRunLaunchQuery } from "../../api/runs";
import { nameOf } from "../../parts/names";
import { Button } from "../../ui/Button";
import { ToneSquare } from "../../ui/Chip";
import { cx } from "../../ui/cx";
import { Fact, Facts, Panel } from "../../ui/Panel";
import { Query } from "../../ui/Query";
import { saveFile } from "../../ui/saveFile";
import { Id, Text } from "../../ui/Text";
import { Clock } from "../../ui/Time";
import { ToneIcon } from "../../ui/ToneIcon";
import { useTopics } from "../../ui/useList";
import { number, words } from "../../words";
import { Receipts } from "./Receipts";
import css from "./Run.module.css";

const texts = words.runs.certificate;

/** The launch certificate of a run, beside the provider's receipts. */
export function Certificate({ run }: { run: RunWithProgress }) {
  const query = useGetRunLaunchQuery({ id: run.id });
  useTopics(["runs"], () => void query.refetch());
  return (
    <>
      <Panel>
        <Query of={query} rows={6}>
          {(launch) => (
            <>
              <Verdict launch={launch} run={run} onAgain={() => void query.refetch()} isBusy={query.isFetching} />
              <Conditions launch={launch} />
            </>
          )}
        </Query>
      </Panel>
      {query.data && <Counts launch={query.data} />}
      <Receipts run={run} />
      {query.data && <Evidence launch={query.data} />}
    </>
  );
}

function Verdict({
  launch,
  run,
  onAgain,
  isBusy,
}: {
  launch: Launch;
  run: RunWithProgress;
  onAgain: () => void;
  isBusy: boolean;
}) {
  return (
    <div className={css.verdict} data-launched={launch.launched}>
      <span className={cx(css.seal, launch.launched ? css.isLaunched : css.isOpen)}>
        <ToneIcon tone={launch.launched ? "good" : "waiting"} size={22} />
      </span>
      <div>
        <strong>{launch.launched ? texts.launched : texts.notLaunched}</strong>
        <p>{launch.launched ? texts.launchedText : texts.notLaunchedText}</p>
        <p>
          <Text>{nameOf(run)}</Text> · {texts.verified} <Clock at={launch.verified_at} />
        </p>
      </div>
      <div className={css.verdictActions}>
        <Button onClick={onAgain} isBusy={isBusy}>
          {!isBusy && <RefreshCw size={14} aria-hidden="true" />}
          {texts.verifyAgain}
        </Button>
        <Button onClick={() => saveFile(`certificate-${launch.run_id}.json`, `${write(launch)}\n`, "application/json")}>
          <Download size={14} aria-hidden="true" />
          {texts.download}
        </Button>
        <Button onClick={() => print()}>
          <Printer size={14} aria-hidden="true" />
          {texts.print}
        </Button>
      </div>
    </div>
  );
}

function Conditions({ launch }: { launch: Launch }) {
  const conditions = [
    { name: texts.conditions.run, holds: launch.run_is_terminal },
    { name: texts.conditions.items, holds: launch.every_item_is_terminal },
    { name: texts.conditions.duplicates, holds: launch.duplicates_are_impossible },
  ];
  return (
    <ul className={css.conditions}>
      {conditions.map(({ name, holds }) => (
        <li key={name} className={css.condition}>
          <ToneSquare tone={holds ? "good" : "waiting"} />
          {name}
          <span className={css.muted}>{holds ? texts.holds : texts.doesNotHold}</span>
        </li>
      ))}
    </ul>
  );
}

const WITH_ITEMS = {
  sent: "sent",
  called: "called",
  posted: "posted",
  failed: "failed",
  skipped: "skipped",
  inDoubt: "in_doubt",
} as const;

function Counts({ launch }: { launch: Launch }) {
  const { sent, called, posted, failed, skipped, in_doubt: inDoubt, missing, intended } = launch;
  const parts = Object.entries({ sent, called, posted, failed, skipped, inDoubt, missing }) as [
    keyof typeof texts.words,
    number,
  ][];
  const shown = parts.filter(
    ([name, count]) => count > 0 || name === "inDoubt" || name === "missing" || name === "failed",
  );
  const sum = parts.reduce((total, [, count]) => total + count, 0);
  return (
    <Panel title={texts.counts} aside={<ToneSquare tone={sum === intended ? "good" : "bad"} />} isPadded>
      <div className={css.equation}>
        {shown.map(([name, count], n) => {
          const status = name === "missing" ? undefined : WITH_ITEMS[name];
          return (
            <span key={name}>
              {n > 0 && "+ "}
              <b>
                {status && count > 0 ? (
                  <Link to="." search={{ tab: "items", status } as never}>
                    {number(count)}
                  </Link>
                ) : (
                  number(count)
                )}
              </b>{" "}
              {texts.words[name]}
            </span>
          );
        })}
        <span>
          {sum === intended ? "=" : "≠"} <b>{number(intended)}</b> {words.runs.progress.intended.toLowerCase()}
        </span>
      </div>
    </Panel>
  );
}

function Evidence({ launch: { evidence } }: { launch: Launch }) {
  const { facts } = texts;
  return (
    <Panel title={texts.evidence} isPadded>
      <Facts>
        {evidence.installation_id && (
          <Fact name={facts.installation}>
            <Id what={facts.installation}>{evidence.installation_id}</Id>
          </Fact>
        )}
        {evidence.epoch != null && (
          <Fact name={facts.epoch}>
            <Text>{`${evidence.epoch}${evidence.cause ? `, ${evidence.cause}` : ""}`}</Text>
          </Fact>
        )}
        <Fact name={facts.began}>
          <Clock at={evidence.epoch_began_at} />
        </Fact>
        <Fact name={facts.compared}>
          {evidence.last_compared_at ? <Clock at={evidence.last_compared_at} /> : texts.never}
        </Fact>
        <Fact name={facts.system}>
          <code>{evidence.system_identifier}</code>
        </Fact>
        <Fact name={facts.database}>
          <Text>{evidence.database_name}</Text>
        </Fact>
        <Fact name={facts.copy}>{evidence.restored_copy ? texts.yes : texts.no}</Fact>
        <Fact name={facts.adopted}>{number(evidence.items_adopted)}</Fact>
      </Facts>
    </Panel>
  );
}
