import { Link, useParams } from "@tanstack/react-router";
import { MoreHorizontal } from "lucide-react";
import { type PhaseStatus, useGetCampaignQuery } from "../../api/campaigns";
import { type Campaign as Mirror, shown } from "../../model/phases";
import { AuditTable } from "../../parts/AuditTable";
import { PhaseChip } from "../../parts/chips";
import { Forbidden } from "../../parts/Forbidden";
import { RunsTable } from "../../parts/RunsTable";
import { useCampaign } from "../../parts/useCampaign";
import { useMe } from "../../parts/useMe";
import { useAppDispatch } from "../../store";
import { toasted } from "../../store/work";
import { buttonClass } from "../../ui/Button";
import { Empty, Skeleton } from "../../ui/Empty";
import { Live } from "../../ui/Live";
import { Menu } from "../../ui/Menu";
import { Aside, Page, TAB, Tabs } from "../../ui/Page";
import { Panel } from "../../ui/Panel";
import { useTab } from "../../ui/useFilters";
import { words } from "../../words";
import { History } from "./History";
import { Phases } from "./Phases";

const TABS = ["phases", "runs", "history", "audit"] as const;

export function Campaign() {
  const { id } = useParams({ strict: false }) as { id: string };
  const tab = useTab(TABS);
  const { campaign, isMissing } = useCampaign(id);
  const { data } = useGetCampaignQuery({ id });
  const { whyNot } = useMe();
  if (isMissing) return <Missing />;
  if (campaign === undefined) {
    return (
      <Page title={data?.name ?? words.campaigns.one} crumbs={<Crumbs />}>
        <Panel>
          <Skeleton rows={6} />
        </Panel>
      </Page>
    );
  }
  const forbidden = whyNot("admin");
  return (
    <Page
      title={campaign.name}
      crumbs={<Crumbs />}
      beside={<Beside campaign={campaign} />}
      actions={<Actions name={campaign.name} />}
    >
      <Tabs label={campaign.name}>
        {TABS.map((one) => (
          <Link
            key={one}
            to="."
            search={(one === TABS[0] ? {} : { tab: one }) as never}
            aria-current={tab === one ? "page" : undefined}
            {...TAB}
          >
            {words.campaigns.tabs[one]}
          </Link>
        ))}
      </Tabs>
      {tab === "phases" && <Phases id={id} campaign={campaign} settings={data} />}
      {tab === "runs" && (
        <Panel>
          <RunsTable args={{ campaign_id: id }} />
        </Panel>
      )}
      {tab === "history" && <History id={id} sequence={campaign.lastApplied} />}
      {tab === "audit" && (
        <Panel>
          {forbidden ? (
            <Forbidden name={words.campaigns.audit.needsAdmin} why={forbidden} />
          ) : (
            <AuditTable campaignId={id} />
          )}
        </Panel>
      )}
    </Page>
  );
}

const WORST_FIRST: readonly PhaseStatus[] = ["failed", "in_progress", "paused"];

function Beside({ campaign }: { campaign: Mirror }) {
  const states = campaign.order.map((name) => shown(campaign, name));
  const overall =
    WORST_FIRST.find((status) => states.includes(status)) ??
    (states.every((status) => status === "completed") ? "completed" : "not_started");
  return (
    <Live>
      <span
        style={{ display: "flex", flexWrap: "wrap", gap: "4px 12px", alignItems: "center" }}
        data-sequence={campaign.lastApplied}
      >
        <PhaseChip status={overall} />
        <Aside>
          {campaign.autoAdvance ? words.campaigns.autoAdvanceOn : words.campaigns.autoAdvanceOff} ·{" "}
          {words.campaigns.sequence(campaign.lastApplied)}
        </Aside>
      </span>
    </Live>
  );
}

function Actions({ name }: { name: string }) {
  const dispatch = useAppDispatch();
  const copy = async (text: string) => {
    await navigator.clipboard?.writeText(text);
    dispatch(toasted({ tone: "good", title: words.text.copied, subject: "copied" }));
  };
  return (
    <Menu
      label={words.campaigns.menu}
      entries={[
        {
          label: words.campaigns.copyCommand,
          onSelect: () => void copy(`postrider campaign status '${name.replaceAll("'", `'\\''`)}'`),
        },
        { label: words.campaigns.copyLink, onSelect: () => void copy(location.href) },
      ]}
    >
      <MoreHorizontal size={16} aria-hidden="true" />
    </Menu>
  );
}

function Crumbs() {
  return (
    <>
      <Link to="/campaigns">{words.campaigns.title}</Link> /
    </>
  );
}

function Missing() {
  return (
    <Page title={words.campaigns.one} crumbs={<Crumbs />}>
      <Panel>
        <Empty
          title={words.campaigns.missing}
          actions={
            <Link to="/campaigns" className={buttonClass("primary")}>
              {words.campaigns.back}
            </Link>
          }
        >
          {words.campaigns.missingText}
        </Empty>
      </Panel>
    </Page>
  );
}
