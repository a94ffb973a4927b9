import { Link, useParams } from "@tanstack/react-router";
import { isProblem } from "../../api/problem";
import { type RunWithProgress, useGetRunQuery, useGetRunTraceQuery } from "../../api/runs";
import { AuditLines } from "../../parts/AuditTable";
import { RunChip } from "../../parts/chips";
import { Aside, Page, TAB, Tabs } from "../../ui/Page";
import { Panel } from "../../ui/Panel";
import { Query } from "../../ui/Query";
import { Text } from "../../ui/Text";
import { Ago } from "../../ui/Time";
import { useTab } from "../../ui/useFilters";
import { useTopics } from "../../ui/useList";
import { words } from "../../words";
import { Certificate } from "./Certificate";
import { Failures } from "./Failures";
import { Items } from "./Items";
import { Jobs } from "./Jobs";
import { Progress } from "./Progress";

const TABS = ["progress", "items", "failures", "jobs", "certificate", "audit"] as const;

export function Run() {
  const { id } = useParams({ strict: false }) as { id: string };
  const tab = useTab(TABS);
  const query = useGetRunQuery({ id });
  useTopics(["runs"], () => void query.refetch(), tab === "items");
  const run = query.data;
  const title = run?.phase ? words.runs.one(run.phase) : run ? words.runs.messages : words.runs.title;
  return (
    <Page title={title} crumbs={<Crumbs run={run} />} beside={run && <Beside run={run} />}>
      {run === undefined && isProblem(query.error) && query.error.status === 404 ? (
        <Panel>
          <Query of={{ ...query, data: undefined, error: { ...query.error, title: words.runs.notFound } }}>
            {() => null}
          </Query>
        </Panel>
      ) : (
        <>
          <Tabs label={title}>
            {TABS.map((one) => (
              <Link
                key={one}
                to="."
                search={(one === TABS[0] ? {} : { tab: one }) as never}
                aria-current={tab === one ? "page" : undefined}
                {...TAB}
              >
                {words.runs.tabs[one]}
              </Link>
            ))}
          </Tabs>
          {tab === "items" ? (
            <Items id={id} name={run?.campaign ? `${run.campaign}-${run.phase}` : id} />
          ) : tab === "jobs" || tab === "audit" ? (
            <Traced id={id} tab={tab} />
          ) : (
            <Query of={query}>
              {(found) =>
                tab === "progress" ? (
                  <Progress run={found} />
                ) : tab === "failures" ? (
                  <Failures run={found} />
                ) : (
                  <Certificate run={found} />
                )
              }
            </Query>
          )}
        </>
      )}
    </Page>
  );
}

function Crumbs({ run }: { run: RunWithProgress | undefined }) {
  return (
    <>
      <Link to="/runs">{words.runs.title}</Link> /{" "}
      {run?.campaign_id && (
        <>
          <Link to="/campaigns/$id" params={{ id: run.campaign_id }}>
            <Text>{run.campaign}</Text>
          </Link>{" "}
          /
        </>
      )}
    </>
  );
}

function Beside({ run }: { run: RunWithProgress }) {
  return (
    <>
      <RunChip status={run.status} />
      <Aside>
        {words.runs.by(words.states.cause[run.cause])} · <Ago at={run.created_at} />
      </Aside>
    </>
  );
}

/** The trace has the send jobs and the log. */
function Traced({ id, tab }: { id: string; tab: "jobs" | "audit" }) {
  const query = useGetRunTraceQuery({ id });
  useTopics(["runs"], () => void query.refetch());
  return (
    <Panel>
      <Query of={query} rows={8}>
        {(trace) => (tab === "jobs" ? <Jobs trace={trace} /> : <AuditLines lines={[...trace.audit].reverse()} />)}
      </Query>
    </Panel>
  );
}
