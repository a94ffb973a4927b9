// Chips of the states of the API.

import type { PhaseStatus, PhaseTrigger } from "../api/campaigns";
import type { ItemStatus, JobStatus, RunStatus } from "../api/runs";
import { itemState, itemTone, JOB_TONES, PHASE_TONES, RUN_TONES } from "../model/tones";
import { Chip } from "../ui/Chip";
import { words } from "../words";

/** `pending` is the control that the user pressed and the server has not confirmed. */
export function PhaseChip({
  status,
  pending,
  isCanceled = false,
}: {
  status: PhaseStatus;
  pending?: PhaseTrigger | undefined;
  /** The phase failed because it was canceled. */
  isCanceled?: boolean;
}) {
  const settled = isCanceled && status === "failed" ? words.states.canceled : words.states.phase[status];
  return (
    <Chip tone={PHASE_TONES[status]} isPending={pending !== undefined}>
      {pending === undefined ? settled : words.states.pending[pending]}
    </Chip>
  );
}

export function RunChip({ status }: { status: RunStatus }) {
  return <Chip tone={RUN_TONES[status]}>{words.states.run[status]}</Chip>;
}

export function JobChip({ status }: { status: JobStatus }) {
  return <Chip tone={JOB_TONES[status]}>{words.states.job[status]}</Chip>;
}

export function ItemChip({ item }: { item: { status: ItemStatus; doubted_since?: string | null } }) {
  const state = itemState(item);
  return <Chip tone={itemTone(state)}>{words.states.item[state]}</Chip>;
}
