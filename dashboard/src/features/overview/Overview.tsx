import { useFindCampaignsQuery } from "../../api/campaigns";
import { useApp } from "../../store";
import { Skeleton } from "../../ui/Empty";
import { Live } from "../../ui/Live";
import { Page } from "../../ui/Page";
import { Panel } from "../../ui/Panel";
import { useTopics } from "../../ui/useList";
import { words } from "../../words";
import { Active } from "./Active";
import { Attention } from "./Attention";
import { Checklist } from "./Checklist";
import { Numbers } from "./Numbers";
import css from "./Overview.module.css";

/** Is anything wrong, and what needs a decision? */
export function Overview() {
  const overview = useApp((state) => state.live.overview);
  const { data: any, refetch } = useFindCampaignsQuery({ limit: 1 });
  const isNew = any?.items.length === 0;
  // A tenant with a campaign stays one with a campaign.
  useTopics(["campaigns"], () => void refetch(), !isNew);
  return (
    <Page title={words.overview.title}>
      {isNew && <Checklist accounts={overview?.accounts.total ?? 0} />}
      <div className={css.cols}>
        <Panel title={words.overview.attention}>
          {overview ? (
            <Live isOverview>
              <Attention overview={overview} />
            </Live>
          ) : (
            <Skeleton rows={3} />
          )}
        </Panel>
        <Panel title={words.overview.now}>
          {overview ? (
            <Live className={css.numbers} isOverview>
              <Numbers overview={overview} />
            </Live>
          ) : (
            <Skeleton rows={6} />
          )}
        </Panel>
      </div>
      {!isNew && <Active />}
    </Page>
  );
}
