// The steps of an item, from its row, its send job, the resolver and the log.

import type { ItemDetail } from "../../api/runs";
import { itemTone, type Tone } from "../../model/tones";
import { Id, Text } from "../../ui/Text";
import { Countdown } from "../../ui/Time";
import type { Step } from "../../ui/Timeline";
import { words } from "../../words";

const texts = words.items.steps;

/** Lines of the log that are steps of their own: action → tone. */
const LOGGED: Record<string, Tone> = {
  "item.moved": "waiting",
  "item.contradicted": "bad",
  "item.resolved_as_sent": "good",
  "item.resolved_as_called": "good",
  "item.resolved_as_posted": "good",
  "item.resolved_as_failed": "bad",
};

export function stepsOf({ item, run, job, list, doubt, callbacks, audit }: ItemDetail): Step[] {
  const wasCalled =
    item.status !== "skipped" &&
    (item.provider_message_id != null ||
      item.doubted_since != null ||
      item.status !== "failed" ||
      item.attempt != null);
  const steps: Step[] = [
    {
      key: "intended",
      at: run.created_at,
      tone: "idle",
      title: (
        <>
          <b>{texts.intended}</b> {<Text>{texts.intendedText(job.position, list ?? null)}</Text>}
        </>
      ),
    },
  ];
  const claim = audit.filter((line) => line.action === "job.locked" && line.at <= item.created_at).at(-1);
  if (item.reserved_by) {
    steps.push({
      key: "claimed",
      at: claim?.at ?? null,
      tone: "idle",
      title: (
        <>
          <b>{texts.claimed}</b> <Text>{texts.claimedBy(item.reserved_by, item.attempt ?? 1)}</Text>
        </>
      ),
    });
  }
  if (item.status === "skipped") {
    steps.push({
      key: "skipped",
      at: item.finalized_at ?? item.created_at,
      tone: "idle",
      title: <b>{texts.skipped}</b>,
      detail: <Text>{item.error}</Text>,
    });
    return steps;
  }
  steps.push({
    key: "reserved",
    at: item.created_at,
    tone: "good",
    title: (
      <>
        <b>{texts.reserved}</b> <Id what={words.items.facts.key}>{item.idempotency_key}</Id>
      </>
    ),
    detail: texts.reservedText,
  });
  if (wasCalled) {
    steps.push({
      key: "called",
      at: null,
      tone: "busy",
      title: (
        <>
          <b>{texts.called}</b>{" "}
          <Text>{texts.calledText(item.provider, item.moved_to_account?.name ?? item.account?.name ?? null)}</Text>
        </>
      ),
    });
  }
  const isResolved = audit.some((line) => line.action.startsWith("item.resolved_as_"));
  const doubted = audit.find((line) => line.action === "item.in_doubt")?.at ?? item.doubted_since;
  if (doubted || isResolved) {
    steps.push({
      key: "doubted",
      at: doubted ?? null,
      tone: "doubt",
      title: <b>{texts.doubted}</b>,
      detail: <Text>{item.doubted_since ? (item.error ?? texts.doubtText) : texts.doubtText}</Text>,
    });
  }
  if (doubt && doubt.looks > 0) {
    steps.push({
      key: "looks",
      at: null,
      tone: "idle",
      title: texts.looks(doubt.looks),
      ...(doubt.note ? { detail: <Text>{doubt.note}</Text> } : {}),
      ...(doubt.next_look_at ? { aside: <Countdown until={doubt.next_look_at} ended={texts.open} /> } : {}),
    });
  }
  for (const [n, callback] of callbacks.entries()) {
    steps.push({
      key: `callback-${n}`,
      at: callback.received_at,
      tone: callback.proves_action ? "good" : "idle",
      title: <Text>{texts.callback(callback.status)}</Text>,
      detail: callback.proves_action ? texts.proves : texts.provesNothing,
    });
  }
  for (const line of audit) {
    const tone = LOGGED[line.action];
    if (!tone) continue;
    const name =
      line.action === "item.moved"
        ? texts.moved
        : line.action === "item.contradicted"
          ? texts.contradicted
          : texts.resolved(line.action.replace("item.resolved_as_", ""));
    steps.push({
      key: `log-${line.id}`,
      at: line.at,
      tone,
      title: (
        <>
          <b>{name}</b> <Text>{texts.by(line.actor)}</Text>
        </>
      ),
      ...(line.note ? { detail: <Text>{line.note}</Text> } : {}),
    });
  }
  if (item.finalized_at && !isResolved) {
    steps.push({
      key: "answered",
      at: item.finalized_at,
      tone: itemTone(item.status),
      title: (
        <>
          <b>{words.states.item[item.status]}</b>{" "}
          {item.provider_message_id && <Text>{texts.withId(item.provider_message_id)}</Text>}
        </>
      ),
      ...(item.error ? { detail: <Text>{item.error}</Text> } : {}),
    });
  }
  if (doubt && item.status === "queued") {
    steps.push({
      key: "quiet",
      at: doubt.quiet_until,
      tone: "waiting",
      title: texts.quiet,
      aside: <Countdown until={doubt.quiet_until} ended={texts.open} />,
    });
  }
  return inOrder(steps);
}

/** Oldest first. A step without a time stays behind the step before it. */
function inOrder(steps: Step[]): Step[] {
  let last = Number.NEGATIVE_INFINITY;
  return steps
    .map((step, n) => {
      last = step.at ? Date.parse(step.at) : last;
      return { step, at: last, n };
    })
    .sort((a, b) => a.at - b.at || a.n - b.n)
    .map(({ step }) => step);
}
