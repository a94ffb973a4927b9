import { Combobox, ComboboxItem, ComboboxList, ComboboxProvider } from "@ariakit/react";
import { useNavigate } from "@tanstack/react-router";
import { useDeferredValue, useEffect, useState } from "react";
import { useFindCampaignsQuery, useLazyGetCampaignQuery } from "../api/campaigns";
import { useLazyGetItemQuery, useLazyGetRunQuery } from "../api/runs";
import { visible } from "../model/visible";
import { Dialog } from "../ui/Dialog";
import filter from "../ui/FilterBar.module.css";
import { uuid } from "../ui/filters";
import { words } from "../words";
import { SCREENS } from "./screens";

interface Match {
  id: string;
  kind: string;
  title: string;
  go(): void;
}

const { found } = words.shell;

/** Jumps to a screen, to a campaign by its name, or to a campaign, run or item by its id. */
export function GoTo({ onClose }: { onClose: () => void }) {
  const navigate = useNavigate();
  const [text, setText] = useState("");
  const asked = useDeferredValue(text.trim());
  const id = uuid(asked);
  const { data, isFetching } = useFindCampaignsQuery(
    { q: asked, limit: 8 },
    { skip: asked === "" || id !== undefined },
  );
  const byId = useById(id);
  const close = (go: () => void) => () => {
    onClose();
    go();
  };
  const screens: Match[] = SCREENS.filter((screen) => screen.name.toLowerCase().includes(asked.toLowerCase())).map(
    (screen) => ({
      id: screen.to,
      kind: found.screen,
      title: screen.name,
      go: () => void navigate({ to: screen.to }),
    }),
  );
  const campaigns: Match[] = (asked === "" ? [] : (data?.items ?? [])).map((campaign) => ({
    id: campaign.id,
    kind: found.campaign,
    title: visible(campaign.name),
    go: () => void navigate({ to: "/campaigns/$id", params: { id: campaign.id } }),
  }));
  const matches = id === undefined ? [...campaigns, ...screens] : byId.matches;
  const isEmpty = matches.length === 0 && !isFetching && !byId.isBusy;
  return (
    <Dialog title={words.shell.searchLabel} onClose={onClose} foot={null}>
      <ComboboxProvider value={text} setValue={setText} defaultOpen>
        <Combobox
          className={filter.input}
          style={{ inlineSize: "100%" }}
          placeholder={words.shell.search}
          aria-label={words.shell.searchLabel}
          autoSelect="always"
          autoFocus
        />
        <ComboboxList alwaysVisible aria-label={words.shell.searchLabel}>
          {matches.map((match) => (
            <ComboboxItem
              key={match.id + match.kind}
              className={filter.item}
              value={match.id}
              setValueOnClick={false}
              focusOnHover
              onClick={close(match.go)}
            >
              {match.title}
              <small>{match.kind}</small>
            </ComboboxItem>
          ))}
        </ComboboxList>
        {isEmpty && <p role="status">{words.shell.noMatch}</p>}
      </ComboboxProvider>
    </Dialog>
  );
}

/** An id says not of which kind it is, so each kind is asked. */
function useById(id: string | undefined): { matches: Match[]; isBusy: boolean } {
  const navigate = useNavigate();
  const [getCampaign, campaign] = useLazyGetCampaignQuery();
  const [getRun, run] = useLazyGetRunQuery();
  const [getItem, item] = useLazyGetItemQuery();
  useEffect(() => {
    if (id === undefined) return;
    void getCampaign({ id }, true);
    void getRun({ id }, true);
    void getItem({ id }, true);
  }, [id, getCampaign, getRun, getItem]);
  if (id === undefined) return { matches: [], isBusy: false };
  const matches: Match[] = [];
  if (campaign.currentData?.id === id) {
    matches.push({
      id,
      kind: found.campaign,
      title: visible(campaign.currentData.name),
      go: () => void navigate({ to: "/campaigns/$id", params: { id } }),
    });
  }
  if (run.currentData?.id === id) {
    const { campaign: name, phase } = run.currentData;
    matches.push({
      id,
      kind: found.run,
      title: visible(`${name} / ${phase}`),
      go: () => void navigate({ to: "/runs/$id", params: { id } }),
    });
  }
  if (item.currentData?.item.id === id) {
    const title = visible(item.currentData.item.recipient ?? words.runs.items.noRecipient);
    matches.push({ id, kind: found.item, title, go: () => void navigate({ to: "/items/$id", params: { id } }) });
  }
  return { matches, isBusy: campaign.isFetching || run.isFetching || item.isFetching };
}
