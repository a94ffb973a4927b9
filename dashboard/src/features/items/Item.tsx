import { Link, useParams } from "@tanstack/react-router";
import { type ItemDetail, useGetItemQuery } from "../../api/runs";
import { useDeadline } from "../../live/clock";
import { itemState } from "../../model/tones";
import { AuditLines } from "../../parts/AuditTable";
import { ItemChip } from "../../parts/chips";
import { nameOf } from "../../parts/names";
import { buttonClass } from "../../ui/Button";
import { Page } from "../../ui/Page";
import { Fact, Facts, Panel } from "../../ui/Panel";
import { Query } from "../../ui/Query";
import { Id, Text } from "../../ui/Text";
import { Timeline } from "../../ui/Timeline";
import { useTopics } from "../../ui/useList";
import { words } from "../../words";
import css from "./Item.module.css";
import { stepsOf } from "./steps";

const texts = words.items;

/** One item, from its intention to its end. */
export function Item() {
  const { id } = useParams({ strict: false }) as { id: string };
  const query = useGetItemQuery({ id });
  useTopics(["in_doubt", "runs"], () => void query.refetch());
  useDeadline(query.data?.doubt?.next_look_at, () => void query.refetch());
  useDeadline(query.data?.doubt?.quiet_until, () => void query.refetch());
  const detail = query.data;
  return (
    <Page
      title={detail ? (detail.item.recipient ?? words.runs.items.noRecipient) : texts.title}
      crumbs={<Crumbs detail={detail} />}
      beside={detail && <ItemChip item={detail.item} />}
      actions={
        detail &&
        itemState(detail.item) === "in_doubt" && (
          <Link
            to="/in-doubt"
            search={{ run_id: detail.run.id, item: detail.item.id } as never}
            className={buttonClass("primary")}
          >
            {texts.resolve}
          </Link>
        )
      }
    >
      {detail === undefined ? (
        <Panel>
          <Query of={query} rows={8}>
            {() => null}
          </Query>
        </Panel>
      ) : (
        <Detail detail={detail} />
      )}
    </Page>
  );
}

function Crumbs({ detail }: { detail: ItemDetail | undefined }) {
  return (
    <>
      <Link to="/runs">{words.runs.title}</Link> /{" "}
      {detail && (
        <>
          <Link to="/runs/$id" params={{ id: detail.run.id }} search={{ tab: "items" } as never}>
            <Text>{nameOf(detail.run)}</Text>
          </Link>{" "}
          /
        </>
      )}
    </>
  );
}

function Detail({ detail }: { detail: ItemDetail }) {
  const { item, lead, run, job } = detail;
  const { facts } = texts;
  return (
    <div className={css.cols}>
      <div className={css.stack}>
        <Panel title={texts.timeline}>
          <Timeline label={texts.label} steps={stepsOf(detail)} />
        </Panel>
        <Panel title={texts.audit}>
          <AuditLines lines={[...detail.audit].reverse()} />
        </Panel>
      </div>
      <div className={css.stack}>
        <Panel title={facts.title} isPadded>
          <Facts>
            <Fact name={facts.recipient}>
              <Text>{item.recipient}</Text>
            </Fact>
            <Fact name={facts.key}>
              <Id what={facts.key}>{item.idempotency_key}</Id>
            </Fact>
            <Fact name={facts.provider}>
              <Text>{item.provider}</Text>
            </Fact>
            <Fact name={facts.account}>
              <Text>{item.account?.name}</Text>
            </Fact>
            {item.moved_to_account && (
              <Fact name={facts.movedTo}>
                <Text>{item.moved_to_account.name}</Text>
              </Fact>
            )}
            <Fact name={facts.message}>
              {item.message_matches == null ? facts.unknownMatch : item.message_matches ? facts.matches : facts.differs}
            </Fact>
            <Fact name={facts.id}>
              <Text>{item.provider_message_id}</Text>
            </Fact>
            {item.error && (
              <Fact name={facts.error}>
                <Text>{item.error}</Text>
              </Fact>
            )}
            <Fact name={facts.run}>
              <Link to="/runs/$id" params={{ id: run.id }}>
                <Text>{nameOf(run)}</Text>
              </Link>
            </Fact>
            <Fact name={facts.job}>
              <Link to="/runs/$id" params={{ id: run.id }} search={{ tab: "items", job_id: job.id } as never}>
                #{job.position}
              </Link>
            </Fact>
            <Fact name={facts.worker}>
              <Text>{item.reserved_by}</Text>
            </Fact>
          </Facts>
        </Panel>
        <Sent item={item} />
        <Panel title={texts.lead.title} isPadded>
          {lead ? (
            <Facts>
              <Fact name={texts.lead.email}>
                <Text>{lead.email}</Text>
              </Fact>
              <Fact name={texts.lead.phone}>
                <Text>{lead.phone}</Text>
              </Fact>
              <Fact name={texts.lead.externalId}>
                <Text>{lead.external_id}</Text>
              </Fact>
              <Fact name={texts.lead.zone}>
                <Text>{lead.timezone}</Text>
              </Fact>
              {lead.suppressed_at && (
                <Fact name={texts.lead.suppressed}>
                  <Text>{lead.suppression_reason}</Text>
                </Fact>
              )}
            </Facts>
          ) : (
            <p className={css.muted}>{texts.lead.none}</p>
          )}
        </Panel>
        <Panel title={texts.crash.title} isPadded>
          <Facts>
            {texts.crash.rows.map((row) => (
              <Fact key={row.step} name={row.step}>
                {row.state}
              </Fact>
            ))}
          </Facts>
        </Panel>
      </div>
    </div>
  );
}

/** The message as the provider got it, what it was made of, and the provider's answer. */
function Sent({ item }: { item: ItemDetail["item"] }) {
  const { sent } = texts;
  const { asset, message, payload, result } = item;
  const parts = [
    [sent.subject, message?.subject],
    [sent.text, message?.text],
    [sent.html, message?.html],
    [sent.script, message?.script],
    [sent.asset, asset && `${asset.name}@${asset.version}`],
    [sent.variables, payload && JSON.stringify(payload)],
    [sent.response, result && JSON.stringify(result)],
  ] as const;
  return (
    <Panel title={sent.title} isPadded>
      {message || payload || result ? (
        <Facts>
          {parts.map(
            ([name, value]) =>
              value && (
                <Fact key={name} name={name}>
                  <Text>{value}</Text>
                </Fact>
              ),
          )}
        </Facts>
      ) : (
        <p className={css.muted}>{sent.none}</p>
      )}
    </Panel>
  );
}
