import type { Campaign as Settings } from "../../api/campaigns";
import { duration } from "../../model/durations";
import type { Campaign } from "../../model/phases";
import { visible } from "../../model/visible";
import { useIsStale } from "../../ui/Live";
import { Fact, Facts, Panel } from "../../ui/Panel";
import { Text } from "../../ui/Text";
import { percent, words } from "../../words";
import css from "./Campaign.module.css";
import { PhaseRow } from "./PhaseRow";

const texts = words.campaigns.settings;

/** The phases of a campaign in order, live, with their settings. */
export function Phases({ id, campaign, settings }: { id: string; campaign: Campaign; settings: Settings | undefined }) {
  const isStale = useIsStale();
  return (
    <>
      {campaign.advancing && <Notice>{words.campaigns.advancing}</Notice>}
      {campaign.notAdvanced && <Notice>{words.campaigns.notAdvanced(visible(campaign.notAdvanced))}</Notice>}
      <Panel>
        <ol data-stale={isStale || undefined} className={isStale ? css.stale : undefined}>
          {campaign.order.map((name, n) => {
            const standing = campaign.known[name];
            const before = campaign.order[n - 1];
            return (
              standing && (
                <PhaseRow
                  key={name}
                  id={id}
                  place={n + 1}
                  standing={standing}
                  campaign={campaign}
                  settings={settings?.phases.find((phase) => phase.phase === name)}
                  startsAfter={campaign.autoAdvance ? before : undefined}
                />
              )
            );
          })}
        </ol>
      </Panel>
      {settings && (
        <Panel title={texts.title}>
          <div className={css.settings}>
            {settings.phases.map((phase) => (
              <div key={phase.phase}>
                <h3>
                  <Text>{phase.phase}</Text>
                </h3>
                {phase.kind === "external" ? (
                  <p className={css.muted}>{texts.external}</p>
                ) : (
                  <Facts>
                    <Fact name={texts.asset}>
                      <Text>{phase.asset}</Text>
                    </Fact>
                    <Fact name={texts.list}>
                      <Text>{phase.list}</Text>
                    </Fact>
                    <Fact name={texts.account}>
                      <Text>{phase.provider_account}</Text>
                    </Fact>
                    <Fact name={texts.failover}>
                      <Text>{phase.failover_account}</Text>
                    </Fact>
                    <Fact name={texts.tolerance}>{percent(phase.failure_tolerance * 100)}</Fact>
                    <Fact name={texts.quiet}>{duration(phase.quiet_time_seconds * 1000)}</Fact>
                  </Facts>
                )}
              </div>
            ))}
          </div>
        </Panel>
      )}
    </>
  );
}

function Notice({ children }: { children: string }) {
  return (
    <p className={css.alert} role="status">
      {children}
    </p>
  );
}
