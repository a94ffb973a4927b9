import { Link } from "@tanstack/react-router";
import { type CampaignRow, useFindCampaignsQuery } from "../../api/campaigns";
import { type Campaign, shown } from "../../model/phases";
import { visible } from "../../model/visible";
import { PhaseChip } from "../../parts/chips";
import { segments } from "../../parts/counts";
import { useCampaign } from "../../parts/useCampaign";
import { Bar } from "../../ui/Bar";
import { Empty } from "../../ui/Empty";
import { Live } from "../../ui/Live";
import { Panel } from "../../ui/Panel";
import { Query } from "../../ui/Query";
import { Text } from "../../ui/Text";
import { Countdown } from "../../ui/Time";
import { useTopics } from "../../ui/useList";
import { percent, words } from "../../words";
import css from "./Overview.module.css";

const SHOWN = 8;

/** Campaigns with a phase that is in progress or paused, live. */
export function Active() {
  const query = useFindCampaignsQuery({ phase_status: "in_progress,paused", limit: SHOWN });
  useTopics(["campaigns"], () => void query.refetch(), false, query.fulfilledTimeStamp);
  return (
    <Panel title={words.overview.active} aside={<Link to="/campaigns">{words.overview.all}</Link>}>
      <Query of={query}>
        {({ items }) =>
          items.length === 0 ? (
            <Empty title={words.overview.noActive} />
          ) : (
            <Live>
              {items.map((row) => (
                <One key={row.id} row={row} />
              ))}
            </Live>
          )
        }
      </Query>
    </Panel>
  );
}

/** The phase at work: the first one in progress or paused. Before the first snapshot, the list says so. */
function phaseAtWork(row: CampaignRow, campaign: Campaign | undefined) {
  const phases = row.phases.map((listed) => ({
    name: listed.phase,
    channel: listed.channel,
    status: campaign?.known[listed.phase] ? shown(campaign, listed.phase) : listed.status,
    percentage: campaign?.known[listed.phase]?.progressPercentage ?? listed.progress_percentage,
    run: campaign?.known[listed.phase]?.run,
  }));
  return (
    phases.find(({ status }) => status === "in_progress") ??
    phases.find(({ status }) => status === "paused") ??
    phases.at(-1)
  );
}

function One({ row }: { row: CampaignRow }) {
  const { campaign } = useCampaign(row.id);
  const { name, channel, status, percentage = 0, run } = phaseAtWork(row, campaign) ?? {};
  return (
    <div className={css.campaign} data-campaign={row.id} data-sequence={campaign?.lastApplied}>
      <span className={css.name}>
        <Link to="/campaigns/$id" params={{ id: row.id }}>
          <Text>{row.name}</Text>
        </Link>
        <span className={css.muted}>
          {[name, channel && words.states.channel[channel]].filter(Boolean).join(" · ") || " "}
        </span>
      </span>
      {status ? <PhaseChip status={status} /> : <span />}
      {run ? (
        <Bar segments={segments(run)} total={run.intended} />
      ) : (
        <Bar segments={[{ name: "done", tone: "good", count: percentage }]} total={100} />
      )}
      <span className={css.counts}>
        {run
          ? words.overview.progress({
              reached: run.succeeded,
              of: run.intended,
              word: channel ? words.states.reached[channel] : words.runs.progress.succeeded.toLowerCase(),
              failed: run.failed,
              inDoubt: run.inDoubt,
              inFlight: run.inFlight,
            })
          : percent(percentage)}
      </span>
      {run?.waiting && (
        <span className={css.waits}>
          {words.campaigns.waiting(run.waiting.jobs, run.waiting.why)} <Countdown until={run.waiting.until} />
        </span>
      )}
      {campaign?.notAdvanced && (
        <span className={css.waits}>{words.campaigns.notAdvanced(visible(campaign.notAdvanced))}</span>
      )}
    </div>
  );
}
