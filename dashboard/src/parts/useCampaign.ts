import { useEffect } from "react";
import type { Campaign } from "../model/phases";
import { stream, useApp } from "../store";

/** The live state of a campaign. While a screen shows it, the stream keeps it up to date. */
export function useCampaign(id: string): { campaign: Campaign | undefined; isMissing: boolean } {
  useEffect(() => stream.watch(id), [id]);
  const campaign = useApp((state) => state.phases.byId[id]);
  const isMissing = useApp((state) => state.phases.missing[id] === true);
  const hasGap = campaign?.hasGap === true;
  useEffect(() => {
    if (hasGap) void stream.refresh(id);
  }, [hasGap, id]);
  return { campaign, isMissing };
}
