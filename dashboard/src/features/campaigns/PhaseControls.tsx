import { useState } from "react";
import {
  type PhaseKind,
  type PhaseStatus,
  type PhaseTrigger,
  type RunStanding,
  useReportProgressMutation,
} from "../../api/campaigns";
import { isProblem } from "../../api/problem";
import { useMe } from "../../parts/useMe";
import { useAppDispatch } from "../../store";
import { toasted } from "../../store/work";
import { Button } from "../../ui/Button";
import { TextField } from "../../ui/Field";
import { useSingle } from "../../ui/useSingle";
import { percent, words } from "../../words";
import css from "./Campaign.module.css";
import { ControlDialog } from "./ControlDialog";
import { useControl } from "./useControl";

const texts = words.campaigns.control;

/** Reversible controls run on click; the others ask first. */
const AT_ONCE: readonly PhaseTrigger[] = ["pause", "resume"];

export function PhaseControls({
  id,
  campaign,
  phase,
  status,
  kind,
  run,
  isCanceled,
  allowed,
  isNext,
}: {
  id: string;
  campaign: string;
  phase: string;
  status: PhaseStatus;
  kind: PhaseKind;
  run: RunStanding | null | undefined;
  isCanceled: boolean;
  /** The controls that the shown state allows. */
  allowed: PhaseTrigger[];
  /** Whether this phase is the one to control next. */
  isNext: boolean;
}) {
  const [asked, setAsked] = useState<PhaseTrigger>();
  const controls = useControl(id, phase);
  const { whyNot } = useMe();
  const why = whyNot("operator");
  // The main control comes last, where the eye and the pointer end.
  const shown = [...allowed].reverse();
  return (
    <>
      <div className={css.buttons}>
        {shown.map((by, n) => (
          <Button
            key={by}
            look={n === shown.length - 1 && isNext && by !== "rerun" && by !== "cancel" ? "primary" : "plain"}
            isBusy={controls.busy === by}
            why={why}
            data-control={by}
            onClick={() => (AT_ONCE.includes(by) ? void controls.send(by) : setAsked(by))}
          >
            {by === "start" ? `${words.states.trigger[by]}…` : words.states.trigger[by]}
          </Button>
        ))}
      </div>
      {controls.unanswered && (
        <div className={css.alert} role="alert">
          {texts.lost}
          <Button
            isSmall
            onClick={() =>
              controls.unanswered &&
              void controls.send(controls.unanswered.by, controls.unanswered.reason, controls.unanswered.takes)
            }
          >
            {texts.retryRequest}
          </Button>
        </div>
      )}
      {kind === "external" && status === "in_progress" && why === undefined && <Report id={id} phase={phase} />}
      {asked && (
        <ControlDialog
          id={id}
          campaign={campaign}
          phase={phase}
          status={status}
          by={asked}
          run={run}
          isCanceled={isCanceled}
          onClose={() => setAsked(undefined)}
        />
      )}
    </>
  );
}

/** Reports the progress of a phase that another service carries out. */
function Report({ id, phase }: { id: string; phase: string }) {
  const dispatch = useAppDispatch();
  const [text, setText] = useState("");
  const [report, { isLoading }] = useReportProgressMutation();
  const value = Number(text.replace(",", "."));
  const isValid = text.trim() !== "" && value >= 0 && value <= 100;
  const send = useSingle(async () => {
    if (!isValid) return;
    const result = await report({ id, phase, body: { progressPercentage: value } });
    if (isProblem(result.error))
      dispatch(
        toasted({ tone: "bad", title: words.problem.title(result.error), detail: words.problem.detail(result.error) }),
      );
    else {
      dispatch(toasted({ tone: "good", title: texts.reported(percent(value)) }));
      setText("");
    }
  });
  return (
    <div className={css.state} style={{ gridColumn: "3 / -1" }}>
      <div className={css.progress}>
        <TextField
          label={texts.percentage}
          value={text}
          onChange={setText}
          inputMode="decimal"
          autoComplete="off"
          onKeyDown={(event) => event.key === "Enter" && send()}
        />
        <Button onClick={send} isBusy={isLoading} why={isValid ? undefined : texts.percentage}>
          {texts.progress}
        </Button>
      </div>
    </div>
  );
}
