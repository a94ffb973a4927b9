import { isProblem } from "../api/problem";
import { Skeleton } from "./Empty";
import { ProblemView } from "./ProblemView";

interface Asked<T> {
  data?: T | undefined;
  error?: unknown;
  isFetching: boolean;
  refetch: () => unknown;
}

/** A request on the screen: its skeleton, its problem, or its data. Data that was read before stays beside a new problem. */
export function Query<T>({
  of,
  rows,
  children,
}: {
  of: Asked<T>;
  rows?: number;
  children: (data: T) => React.ReactNode;
}) {
  const retry = () => void of.refetch();
  const problem = isProblem(of.error) && !of.isFetching ? of.error : undefined;
  if (of.data === undefined) {
    return problem ? (
      <ProblemView problem={problem} onRetry={retry} />
    ) : (
      <Skeleton {...(rows === undefined ? {} : { rows })} />
    );
  }
  return (
    <>
      {problem && <ProblemView problem={problem} onRetry={retry} isInline />}
      {children(of.data)}
    </>
  );
}
