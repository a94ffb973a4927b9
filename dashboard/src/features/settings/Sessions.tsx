import { useState } from "react";
import type { Row } from "../../api/base";
import { isProblem } from "../../api/problem";
import { useListSessionsInfiniteQuery, useRevokeSessionMutation } from "../../api/session";
import { Forbidden } from "../../parts/Forbidden";
import { useMe } from "../../parts/useMe";
import { useAppDispatch } from "../../store";
import { toasted } from "../../store/work";
import { Button } from "../../ui/Button";
import { Chip } from "../../ui/Chip";
import { Confirm } from "../../ui/Confirm";
import type { Column } from "../../ui/DataTable";
import { Empty } from "../../ui/Empty";
import { ListView } from "../../ui/ListView";
import { Page } from "../../ui/Page";
import { Panel } from "../../ui/Panel";
import { Text } from "../../ui/Text";
import { Ago, Clock } from "../../ui/Time";
import { useList } from "../../ui/useList";
import { useSingle } from "../../ui/useSingle";
import { words } from "../../words";
import css from "./Settings.module.css";

const texts = words.settings.sessions;
type Session = Row<"list_sessions">;

/** The open sessions of the tenant, for admins. */
export function Sessions() {
  const { whyNot, me } = useMe();
  const why = whyNot("admin");
  return (
    <Page title={texts.title}>
      <p className={css.muted}>{texts.intro}</p>
      <Panel foot={texts.selfReported}>{why ? <Forbidden name={texts.needsAdmin} why={why} /> : me && <List />}</Panel>
    </Page>
  );
}

function List() {
  const [asked, setAsked] = useState<Session>();
  const list = useList(useListSessionsInfiniteQuery({}), []);
  const columns: readonly Column<Session>[] = [
    {
      id: "name",
      name: texts.columns.name,
      render: (row) => (
        <span>
          {row.name ? <Text>{row.name}</Text> : <span className={css.muted}>{texts.noName}</span>}{" "}
          {row.is_current && <Chip tone="good">{texts.current}</Chip>}
        </span>
      ),
    },
    { id: "key", name: texts.columns.key, width: "18%", isMain: true, render: (row) => <Text>{row.key_name}</Text> },
    { id: "role", name: texts.columns.role, width: "110px", render: (row) => row.role },
    {
      id: "created",
      name: texts.columns.created,
      width: "120px",
      isEnd: true,
      render: (row) => <Ago at={row.created_at} />,
    },
    {
      id: "seen",
      name: texts.columns.seen,
      width: "120px",
      isEnd: true,
      render: (row) => <Ago at={row.last_seen_at} />,
    },
    {
      id: "expires",
      name: texts.columns.expires,
      width: "150px",
      isEnd: true,
      render: (row) => <Clock at={row.expires_at} />,
    },
    {
      id: "actions",
      name: texts.columns.actions,
      width: "140px",
      isEnd: true,
      isAction: true,
      isMain: true,
      render: (row) => (
        <Button isSmall onClick={() => setAsked(row)}>
          {texts.revoke}
        </Button>
      ),
    },
  ];
  return (
    <>
      <ListView
        name="sessions"
        label={texts.list}
        list={list}
        columns={columns}
        keyOf={(row) => row.id}
        empty={<Empty title={texts.empty} />}
      />
      {asked && <Revoke session={asked} onClose={() => setAsked(undefined)} />}
    </>
  );
}

function Revoke({ session, onClose }: { session: Session; onClose: () => void }) {
  const dispatch = useAppDispatch();
  const [revoke, { isLoading, error }] = useRevokeSessionMutation();
  const end = useSingle(async () => {
    const result = await revoke({ id: session.id });
    if (isProblem(result.error)) return;
    dispatch(toasted({ tone: "good", title: texts.ended }));
    onClose();
  });
  return (
    <Confirm
      title={texts.revokeTitle}
      action={texts.revoke}
      isDangerous
      isBusy={isLoading}
      problem={isProblem(error) ? error : undefined}
      onConfirm={end}
      onClose={onClose}
    >
      <p>
        <Text>{texts.revokeText(session.name ?? session.key_name)}</Text>
      </p>
    </Confirm>
  );
}
