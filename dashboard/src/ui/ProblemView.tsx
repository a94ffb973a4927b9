import { useEffect, useState } from "react";
import type { Problem } from "../api/problem";
import { serverNow } from "../live/clock";
import { words } from "../words";
import { Button } from "./Button";
import { ToneSquare } from "./Chip";
import { cx } from "./cx";
import css from "./ProblemView.module.css";
import { Id, Text } from "./Text";
import { Countdown } from "./Time";

/** A problem, and the next step. */
export function ProblemView({
  problem,
  onRetry,
  isInline = false,
}: {
  problem: Problem;
  onRetry?: () => void;
  isInline?: boolean;
}) {
  const waits = problem.status === 429 || problem.status === 503;
  return (
    <div className={cx(isInline ? css.inline : css.problem)} role={isInline ? "alert" : undefined}>
      <div className={css.title}>
        <ToneSquare tone={problem.status === 403 || problem.status === 404 ? "idle" : "bad"} />
        {words.problem.title(problem)}
      </div>
      <p className={css.detail}>
        <Text>{words.problem.detail(problem)}</Text>
      </p>
      {problem.errors.length > 0 && (
        <ul className={css.fields}>
          {problem.errors.map((error) => (
            <li key={error.field + error.detail}>
              <code>
                <Text>{error.field}</Text>
              </code>{" "}
              <Text>{error.detail}</Text>
            </li>
          ))}
        </ul>
      )}
      <div className={css.row}>
        {onRetry && waits && <Waiting seconds={problem.retryAfter ?? 5} onEnd={onRetry} />}
        {onRetry && problem.status !== 403 && problem.status !== 404 && (
          <Button isSmall onClick={onRetry}>
            {words.problem.tryAgain}
          </Button>
        )}
        {problem.requestId && (
          <span>
            {words.problem.request} <Id what={words.problem.request}>{problem.requestId}</Id>
          </span>
        )}
      </div>
    </div>
  );
}

function Waiting({ seconds, onEnd }: { seconds: number; onEnd: () => void }) {
  const [until] = useState(() => serverNow() + seconds * 1000);
  useEffect(() => {
    const timer = setTimeout(onEnd, seconds * 1000);
    return () => clearTimeout(timer);
  }, [seconds, onEnd]);
  return (
    <span>
      {words.problem.retryIn} <Countdown until={until} />
    </span>
  );
}
