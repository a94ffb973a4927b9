import { useGetCatalogueQuery } from "../../api/overview";
import { useMe } from "../../parts/useMe";
import { useApp, useAppDispatch } from "../../store";
import { type Prefs, preferred } from "../../store/prefs";
import { Button } from "../../ui/Button";
import { Choices } from "../../ui/Field";
import { Page } from "../../ui/Page";
import { Fact, Facts, Panel } from "../../ui/Panel";
import { Text } from "../../ui/Text";
import { Clock } from "../../ui/Time";
import { words } from "../../words";
import css from "./Settings.module.css";

const texts = words.settings.preferences;

/** Preferences of this browser, and who is signed in. */
export function Preferences() {
  const dispatch = useAppDispatch();
  const prefs = useApp((state) => state.prefs);
  const { me } = useMe();
  const { data: catalogue } = useGetCatalogueQuery();
  const set = (change: Partial<Prefs>) => dispatch(preferred(change));
  const options = <T extends string>(labelled: Record<T, string>) =>
    (Object.keys(labelled) as T[]).map((value) => ({ value, label: labelled[value] }));
  return (
    <Page title={texts.title}>
      <div className={css.cols}>
        <Panel title={texts.intro} isPadded>
          <div className={css.form}>
            <Choices
              label={texts.theme}
              value={prefs.theme}
              onChange={(theme) => set({ theme })}
              options={options(words.shell.themes)}
            />
            <Choices
              label={texts.density}
              value={prefs.density}
              onChange={(density) => set({ density })}
              options={options(texts.densities)}
            />
            <Choices
              label={texts.zone}
              value={prefs.zone}
              onChange={(zone) => set({ zone })}
              options={options(texts.zones)}
            />
            <Choices
              label={texts.shortcuts}
              value={prefs.shortcuts ? "on" : "off"}
              onChange={(value) => set({ shortcuts: value === "on" })}
              options={[
                { value: "on", label: texts.shortcutsOn },
                { value: "off", label: texts.shortcutsOff },
              ]}
            />
            <div>
              <Button onClick={() => set({ hidden: {} })}>{texts.reset}</Button>
            </div>
          </div>
        </Panel>
        {me && (
          <Panel title={texts.account} isPadded>
            <Facts>
              <Fact name={texts.facts.tenant}>
                <Text>{me.tenant}</Text>
              </Fact>
              <Fact name={texts.facts.role}>{me.role}</Fact>
              <Fact name={texts.facts.key}>
                <Text>{me.key_name}</Text>
              </Fact>
              <Fact name={texts.facts.expires}>
                {me.key_expires_at ? <Clock at={me.key_expires_at} /> : texts.never}
              </Fact>
              {me.session && (
                <Fact name={texts.facts.session}>
                  <Clock at={me.session.expires_at} />
                </Fact>
              )}
              {catalogue && <Fact name={texts.facts.version}>{catalogue.version}</Fact>}
            </Facts>
          </Panel>
        )}
      </div>
    </Page>
  );
}
