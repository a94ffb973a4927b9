// Sends a control of a phase. The pressed state shows at once and never outlives the server's answer.

import { useEffect, useRef, useState } from "react";
import { type ControlAnswer, type PhaseStatus, type PhaseTrigger, useControlPhaseMutation } from "../../api/campaigns";
import { newKey } from "../../api/client";
import { isProblem, isUncertain, lost, type Problem } from "../../api/problem";
import { dropped, pressed } from "../../live/campaigns";
import { outdated } from "../../live/slice";
import { agrees } from "../../model/machine";
import { store, stream, useAppDispatch } from "../../store";
import { toasted } from "../../store/work";
import { words } from "../../words";

const texts = words.campaigns.control;

/** The event of a change arrives within this time, or a snapshot is taken. */
const EVENT_MS = 3_000;
/** Without any answer, the pressed state is dropped after this time. */
const ANSWER_MS = 10_000;
const PAUSE_TRIES = 40;

/** The items of a retry or a rerun: the usual ones, also the canceled ones, or only the failed ones. */
export type Takes = "usual" | "canceled" | "failed";

/** The members of the request that say so. */
export function takesBody(takes: Takes): { include_canceled?: true; only?: "failed" } {
  if (takes === "canceled") return { include_canceled: true };
  return takes === "failed" ? { only: "failed" } : {};
}

export interface Controls {
  /** The control that is being sent. */
  busy: PhaseTrigger | undefined;
  /** The response was lost: the same request, with the same key, is safe. */
  unanswered: { by: PhaseTrigger; reason?: string; takes?: Takes } | undefined;
  send(by: PhaseTrigger, reason?: string, takes?: Takes): Promise<Problem | undefined>;
}

/** `listed` is the state that a list shows, for campaigns that are not watched. */
export function useControl(id: string, phase: string, listed?: PhaseStatus): Controls {
  const dispatch = useAppDispatch();
  const [control] = useControlPhaseMutation();
  const [busy, setBusy] = useState<PhaseTrigger>();
  const [unanswered, setUnanswered] = useState<Controls["unanswered"]>();
  // A key belongs to one request: both stay until the response is there, although the state may have changed meanwhile. The server refuses
  // the key of another request.
  const requests = useRef(new Map<string, { key: string; body: object }>());
  const isBusy = useRef(false);
  const isGone = useRef(false);
  useEffect(() => {
    isGone.current = false;
    return () => {
      isGone.current = true;
    };
  }, []);

  const settle = () => {
    dispatch(dropped({ id, phase }));
    if (store.getState().phases.byId[id]) void stream.refresh(id);
  };

  async function ask(by: PhaseTrigger, reason: string | undefined, takes: Takes): Promise<ControlAnswer | Problem> {
    const known = store.getState().phases.byId[id]?.known[phase];
    const expected = known?.status ?? listed;
    const body = {
      ...(expected ? { expected_state: expected } : {}),
      ...(reason ? { reason } : {}),
      ...takesBody(takes),
    };
    const request = requests.current.get(by + takes) ?? { key: newKey(), body };
    requests.current.set(by + takes, request);
    for (let tries = 1; ; tries++) {
      const result = await control({ id, phase, control: by, ...request });
      if ("data" in result && result.data) return result.data;
      const problem = isProblem(result.error) ? result.error : lost("");
      // The phase is paused or canceled, and a worker has not finished reserving: the same request waits for it.
      if ((by !== "pause" && by !== "cancel") || problem.status !== 503 || tries >= PAUSE_TRIES) return problem;
      dispatch(toasted({ tone: "waiting", title: texts.waitingForWorker, subject: `${id}/${phase}` }));
      await new Promise((resolve) => setTimeout(resolve, (problem.retryAfter ?? 1) * 1000));
    }
  }

  async function send(by: PhaseTrigger, reason?: string, takes: Takes = "usual"): Promise<Problem | undefined> {
    if (isBusy.current) return undefined;
    isBusy.current = true;
    setBusy(by);
    setUnanswered(undefined);
    dispatch(pressed({ id, phase, by }));
    const timer = setTimeout(settle, ANSWER_MS);
    const answer = await ask(by, reason, takes);
    clearTimeout(timer);
    isBusy.current = false;
    if (!isGone.current) setBusy(undefined);
    if (isProblem(answer)) {
      settle();
      if (isUncertain(answer)) {
        if (!isGone.current) setUnanswered(reason === undefined ? { by, takes } : { by, takes, reason });
      } else {
        requests.current.delete(by + takes);
        dispatch(toasted({ ...refusal(answer), subject: `${id}/${phase}` }));
      }
      return answer;
    }
    requests.current.delete(by + takes);
    dispatch(toasted({ ...receipt(by, phase, answer), subject: `${id}/${phase}` }));
    const kind = store.getState().phases.byId[id]?.known[phase]?.kind;
    if (kind && !agrees(answer.status, kind, answer.allowed)) dispatch(outdated());
    if (!answer.changed) settle();
    else setTimeout(() => store.getState().phases.byId[id]?.optimistic[phase] && settle(), EVENT_MS);
    return undefined;
  }

  return { busy, unanswered, send };
}

function receipt(by: PhaseTrigger, phase: string, answer: ControlAnswer) {
  if (!answer.changed) return { tone: "idle" as const, title: texts.already };
  if (by === "pause")
    return { tone: "good" as const, title: texts.pausedReceipt(answer.sequence, answer.inFlight ?? null) };
  if (by === "cancel")
    return { tone: "good" as const, title: texts.canceledReceipt(answer.sequence, answer.inFlight ?? null) };
  return {
    tone: "good" as const,
    title: answer.isReplayed ? texts.replayed : texts.done(by, phase),
    detail: texts.receipt(answer.sequence),
  };
}

function refusal(problem: Problem) {
  const { currentState } = problem.members;
  const state = typeof currentState === "string" ? words.states.phase[currentState as PhaseStatus] : undefined;
  return {
    tone: "bad" as const,
    title: problem.status === 409 && state ? texts.conflict(state) : words.problem.title(problem),
    detail: words.problem.detail(problem),
  };
}
