import { Link } from "@tanstack/react-router";
import { X } from "lucide-react";
import { useSyncExternalStore } from "react";
import type { Doubt } from "../../api/inDoubt";
import { useGetCatalogueQuery } from "../../api/overview";
import { Button } from "../../ui/Button";
import { Chip } from "../../ui/Chip";
import { Dialog } from "../../ui/Dialog";
import { Fact, Facts, Panel } from "../../ui/Panel";
import { Id, Text } from "../../ui/Text";
import { Clock } from "../../ui/Time";
import { words } from "../../words";
import css from "./InDoubt.module.css";
import { Resolve } from "./Resolve";

const texts = words.inDoubt.panel;
const WIDE = "(width >= 1180px)";

/** The evidence and the verdict on one item: beside the list, or over it on small screens. */
export function SidePanel({ doubt, onClose }: { doubt: Doubt; onClose: () => void }) {
  const isWide = useSyncExternalStore(
    (listener) => {
      const query = matchMedia(WIDE);
      query.addEventListener("change", listener);
      return () => query.removeEventListener("change", listener);
    },
    () => matchMedia(WIDE).matches,
  );
  const name = doubt.recipient ?? words.runs.items.noRecipient;
  const content = (
    <div className={css.panel} data-doubt={doubt.outbox_id}>
      <Details doubt={doubt} />
      <Resolve doubt={doubt} onDone={onClose} />
    </div>
  );
  if (!isWide) {
    return (
      <Dialog title={name} onClose={onClose} foot={null}>
        {content}
      </Dialog>
    );
  }
  return (
    <aside className={css.side} aria-label={name}>
      <Panel
        title={<Text>{name}</Text>}
        isPadded
        aside={
          <span className={css.window}>
            <Chip tone="doubt">{words.states.item.in_doubt}</Chip>
            <Button look="quiet" isSmall label={texts.close} onClick={onClose}>
              <X size={14} aria-hidden="true" />
            </Button>
          </span>
        }
      >
        {content}
      </Panel>
    </aside>
  );
}

/** The evidence to look for at this provider, and its place. */
function Details({ doubt }: { doubt: Doubt }) {
  const { data: catalogue } = useGetCatalogueQuery();
  const provider = catalogue?.providers.find((one) => one.name === doubt.provider);
  return (
    <>
      <p className={css.hint}>{hintOf(doubt, provider?.doubt)}</p>
      <Facts>
        <Fact name={texts.key}>
          <Id what={texts.key}>{doubt.idempotency_key}</Id>
        </Fact>
        <Fact name={texts.recipient}>
          <Text>{doubt.recipient}</Text>
        </Fact>
        <Fact name={texts.window}>
          <span className={css.window}>
            <Clock at={doubt.reserved_at} /> {texts.and} <Clock at={doubt.doubted_since} />
          </span>
        </Fact>
        <Fact name={texts.reason}>
          <Text>{doubt.reason}</Text>
        </Fact>
        <Fact name={texts.reservedBy}>
          <Text>{doubt.reserved_by}</Text>
        </Fact>
        {doubt.note && (
          <Fact name={texts.lastCheck}>
            <Text>{doubt.note}</Text>
          </Fact>
        )}
      </Facts>
      <Link to="/items/$id" params={{ id: doubt.outbox_id }}>
        {texts.open}
      </Link>
    </>
  );
}

function hintOf(doubt: Doubt, doubtClass: string | undefined): string {
  if (doubt.provider === "smtp") return texts.hints.smtp;
  if (doubt.channel === "voice") return texts.hints.number;
  if (doubt.channel === "social" && doubtClass === "key") return texts.hints.text;
  return doubtClass === undefined || doubtClass === "person" ? texts.hints.other : texts.hints.key;
}
