import { useApp } from "../store";

/** Whether the values of the stream are stale. */
export function useIsStale(): boolean {
  return useApp((state) => state.live.staleSince !== null);
}

/** Whether the numbers of the overview are stale: also when the server could not count in time. */
export function useIsOverviewStale(): boolean {
  return useApp((state) => state.live.staleSince !== null || state.live.isLate);
}

/** Values that the stream feeds. While it is not live they look stale. */
export function Live({
  children,
  className,
  isOverview = false,
}: {
  children: React.ReactNode;
  className?: string | undefined;
  isOverview?: boolean;
}) {
  const isOld = useIsOverviewStale();
  const isStale = useIsStale() || (isOverview && isOld);
  return (
    <div className={className} data-stale={isStale || undefined}>
      {children}
    </div>
  );
}
