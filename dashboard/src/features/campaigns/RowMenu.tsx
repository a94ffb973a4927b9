import { useNavigate } from "@tanstack/react-router";
import { MoreHorizontal } from "lucide-react";
import { useState } from "react";
import type { CampaignRow, PhaseTrigger } from "../../api/campaigns";
import { allowed } from "../../model/machine";
import { useMe } from "../../parts/useMe";
import { type Entry, Menu } from "../../ui/Menu";
import { words } from "../../words";
import { ControlDialog } from "./ControlDialog";
import { useControl } from "./useControl";

/** Opens a campaign, starts its next phase, or pauses the one at work. */
export function RowMenu({ row }: { row: CampaignRow }) {
  const navigate = useNavigate();
  const { whyNot } = useMe();
  const find = (by: PhaseTrigger) => row.phases.find((phase) => allowed(phase.status, phase.kind).includes(by));
  const [next, atWork] = [find("start"), find("pause")];
  const [isStarting, setStarting] = useState(false);
  const pausing = useControl(row.id, atWork?.phase ?? "", atWork?.status);
  const why = whyNot("operator");
  const open = () => void navigate({ to: "/campaigns/$id", params: { id: row.id } });
  const entries: Entry[] = [{ label: words.campaigns.open, onSelect: open }];
  if (next)
    entries.push({
      label: `${words.campaigns.control.titles.start(next.phase)}…`,
      why,
      onSelect: () => setStarting(true),
    });
  if (atWork) {
    entries.push({
      label: words.campaigns.control.titles.pause(atWork.phase),
      why,
      onSelect: () => void pausing.send("pause"),
    });
  }
  return (
    <>
      <Menu label={words.campaigns.menu} isSmall isQuiet entries={entries}>
        <MoreHorizontal size={16} aria-hidden="true" />
      </Menu>
      {isStarting && next && (
        <ControlDialog
          id={row.id}
          campaign={row.name}
          phase={next.phase}
          status={next.status}
          by="start"
          onClose={() => setStarting(false)}
        />
      )}
    </>
  );
}
