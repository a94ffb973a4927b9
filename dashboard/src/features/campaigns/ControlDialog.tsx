import { useEffect, useRef, useState } from "react";
import { type PhaseStatus, type PhaseTrigger, type RunStanding, useControlPhaseMutation } from "../../api/campaigns";
import { isProblem, type Problem } from "../../api/problem";
import { command } from "../../model/shell";
import { notStarted } from "../../parts/counts";
import { Confirm } from "../../ui/Confirm";
import { Numbers } from "../../ui/Dialog";
import { Skeleton } from "../../ui/Empty";
import { Choices, TextField } from "../../ui/Field";
import { ProblemView } from "../../ui/ProblemView";
import { number, words } from "../../words";
import { type Takes, takesBody, useControl } from "./useControl";

const texts = words.campaigns.control;

interface Trial {
  items?: number | null | undefined;
  seconds?: number | null | undefined;
  problem?: Problem;
}

/** Asks before a control, with the numbers that the server counted. */
export function ControlDialog({
  id,
  campaign,
  phase,
  status,
  by,
  run,
  isCanceled = false,
  onClose,
}: {
  id: string;
  campaign: string;
  phase: string;
  status: PhaseStatus;
  by: PhaseTrigger;
  /** The newest run of the phase, whose counts a cancel shows. */
  run?: RunStanding | null | undefined;
  /** The phase was canceled: a retry may take the canceled items. */
  isCanceled?: boolean;
  onClose: () => void;
}) {
  const [reason, setReason] = useState("");
  const [takes, setTakes] = useState<Takes>("usual");
  const [problem, setProblem] = useState<Problem>();
  const controls = useControl(id, phase, status);
  const needsTrial = by === "start" || by === "retry" || by === "rerun";
  const trial = useTrial(id, phase, status, needsTrial ? by : undefined, takes);
  // Too many to count: the name of the campaign stands for the number.
  const isUncounted = trial?.problem?.errors.some((error) => error.field === "dry_run") === true;
  const refused = trial?.problem && !isUncounted ? trial.problem : undefined;
  const seconds = trial?.seconds ?? 0;
  const typed = isUncounted ? campaign : by === "rerun" && seconds > 0 ? number(seconds) : undefined;
  const confirm = async () => {
    const failed = await controls.send(by, reason.trim() || undefined, takes);
    if (failed) setProblem(failed);
    else onClose();
  };
  return (
    <Confirm
      title={texts.titles[by](phase)}
      action={texts.actions[by]}
      typed={typed}
      isDangerous={by === "rerun" || by === "fail" || by === "cancel"}
      isBusy={controls.busy !== undefined}
      why={needsTrial && trial === undefined ? texts.counting : refused ? words.problem.title(refused) : undefined}
      problem={problem}
      command={command(
        "campaign",
        by,
        campaign,
        "--phase",
        phase,
        reason.trim() !== "" && "--reason",
        reason.trim() !== "" && reason.trim(),
        takes === "canceled" && "--include-canceled",
        takes === "failed" && "--only",
        takes === "failed" && "failed",
        ((by === "rerun" && seconds > 0) || by === "cancel") && "--yes",
      )}
      onConfirm={() => void confirm()}
      onClose={onClose}
    >
      <p>{texts.texts[by]}</p>
      {by === "cancel" && run && (
        <Numbers
          of={[
            { name: texts.ended, value: number(run.succeeded + run.failed + run.skipped) },
            { name: words.campaigns.counts.inFlight, value: number(run.inFlight) },
            { name: words.campaigns.counts.inDoubt, value: number(run.inDoubt) },
            { name: texts.notTried, value: number(notStarted(run)) },
          ]}
        />
      )}
      {((by === "retry" && isCanceled) || by === "rerun") && (
        <Choices
          label={texts.takes}
          value={takes}
          onChange={setTakes}
          options={
            by === "retry"
              ? [
                  { value: "usual", label: texts.takesFailed },
                  { value: "canceled", label: texts.takesCanceled },
                ]
              : [
                  { value: "usual", label: texts.takesEveryone },
                  { value: "failed", label: texts.takesOnlyFailed },
                ]
          }
        />
      )}
      {needsTrial && trial === undefined && <Skeleton rows={2} />}
      {isUncounted && <p>{texts.tooMany}</p>}
      {refused && <ProblemView problem={refused} isInline />}
      {trial && !trial.problem && <Counted by={by} trial={trial} />}
      <TextField
        label={texts.reason}
        help={texts.reasonHelp}
        value={reason}
        onChange={setReason}
        maxLength={2000}
        autoComplete="off"
      />
    </Confirm>
  );
}

function Counted({ by, trial }: { by: PhaseTrigger; trial: Trial }) {
  if (trial.items === null || trial.items === undefined) return null;
  const numbers = [{ name: by === "retry" ? texts.items : texts.people, value: number(trial.items) }];
  const seconds = trial.seconds ?? 0;
  if (by !== "rerun" && seconds === 0) return <Numbers of={numbers} />;
  return (
    <>
      <Numbers of={[...numbers, { name: texts.seconds, value: number(seconds) }]} />
      <p>{seconds > 0 ? texts.secondText(seconds, trial.items) : texts.noSeconds}</p>
    </>
  );
}

/** Carries the control out and takes it back on the server, to learn its numbers. */
function useTrial(
  id: string,
  phase: string,
  status: PhaseStatus,
  by: PhaseTrigger | undefined,
  takes: Takes,
): Trial | undefined {
  const [control] = useControlPhaseMutation();
  const [trial, setTrial] = useState<Trial>();
  const expected = useRef(status);
  useEffect(() => {
    if (by === undefined) return;
    let isOver = false;
    setTrial(undefined);
    const body = { expected_state: expected.current, ...takesBody(takes) };
    void control({ id, phase, control: by, body, isTrial: true }).then((result) => {
      if (isOver) return;
      if ("data" in result && result.data) setTrial({ items: result.data.items, seconds: result.data.secondMessages });
      else if (isProblem(result.error)) setTrial({ problem: result.error });
    });
    return () => {
      isOver = true;
    };
  }, [by, id, phase, control, takes]);
  return trial;
}
