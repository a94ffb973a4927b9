import { Dialog } from "@ariakit/react";
import { Link, useNavigate } from "@tanstack/react-router";
import { CircleHelp, Menu as MenuIcon, Monitor, Moon, Search, Sun } from "lucide-react";
import { lazy, Suspense, useState } from "react";
import { api } from "../api/base";
import { useEndSessionMutation, type WhoAmI } from "../api/session";
import { visible } from "../model/visible";
import { stream, useApp, useAppDispatch } from "../store";
import { type Prefs, preferred } from "../store/prefs";
import { Button } from "../ui/Button";
import { Menu } from "../ui/Menu";
import { words } from "../words";
import { LiveIndicator } from "./LiveIndicator";
import { Nav } from "./Nav";
import css from "./Shell.module.css";
import { useShortcuts } from "./shortcuts";

const GoTo = lazy(() => import("./GoTo").then((module) => ({ default: module.GoTo })));
const Help = lazy(() => import("./Help").then((module) => ({ default: module.Help })));

const THEME_ICONS = { system: Monitor, light: Sun, dark: Moon };
const THEMES = ["system", "light", "dark"] as const;

export function TopBar({ me }: { me: WhoAmI }) {
  const dispatch = useAppDispatch();
  const { theme, zone } = useApp((state) => state.prefs);
  const [isSearching, setSearching] = useState(false);
  const [isHelping, setHelping] = useState(false);
  const [isOpen, setOpen] = useState(false);
  const setTheme = (next: Prefs["theme"]) => dispatch(preferred({ theme: next }));
  useShortcuts({
    search: () => setSearching(true),
    help: () => setHelping(true),
    theme: () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "system"),
  });
  const ThemeIcon = THEME_ICONS[theme];
  return (
    <header className={css.bar}>
      <Button look="quiet" className={css.menu} label={words.shell.menu} onClick={() => setOpen(true)}>
        <MenuIcon size={18} aria-hidden="true" />
      </Button>
      <Link to="/" className={css.brand} aria-label="Postrider">
        <i aria-hidden="true" />
        <span>{words.shell.product}</span>
      </Link>
      <button type="button" className={css.search} onClick={() => setSearching(true)} aria-label={words.shell.search}>
        <Search size={14} aria-hidden="true" />
        <span>{words.shell.search}</span>
        <i aria-hidden="true">{words.shell.searchKey}</i>
      </button>
      <span className={css.grow} />
      <LiveIndicator />
      <Menu
        label={`${words.shell.zone}: ${words.shell.zones[zone]}`}
        isQuiet
        entries={(["local", "utc"] as const).map((value) => ({
          label: words.shell.zones[value],
          mark: zone === value ? "✓" : "",
          onSelect: () => dispatch(preferred({ zone: value })),
        }))}
      >
        <span className={css.optional}>{words.shell.zones[zone]}</span>
        <span className="visually-hidden">{words.shell.zone}</span>
      </Menu>
      <Menu
        label={`${words.shell.theme}: ${words.shell.themes[theme]}`}
        isQuiet
        entries={THEMES.map((value) => ({
          label: words.shell.themes[value],
          mark: theme === value ? "✓" : "",
          onSelect: () => setTheme(value),
        }))}
      >
        <ThemeIcon size={16} aria-hidden="true" />
      </Menu>
      <Button look="quiet" className={css.optional} label={words.shell.help} onClick={() => setHelping(true)}>
        <CircleHelp size={16} aria-hidden="true" />
      </Button>
      <Account me={me} onHelp={() => setHelping(true)} />
      <Suspense>
        {isSearching && <GoTo onClose={() => setSearching(false)} />}
        {isHelping && <Help onClose={() => setHelping(false)} />}
      </Suspense>
      <Dialog
        open={isOpen}
        onClose={() => setOpen(false)}
        className={css.drawer}
        backdrop={<div className={css.backdrop} />}
        aria-label={words.shell.navigation}
      >
        <Nav onMove={() => setOpen(false)} />
      </Dialog>
    </header>
  );
}

function Account({ me, onHelp }: { me: WhoAmI; onHelp: () => void }) {
  const dispatch = useAppDispatch();
  const navigate = useNavigate();
  const [end] = useEndSessionMutation();
  const signOut = async () => {
    await end();
    stream.stop();
    await navigate({ to: "/login" });
    dispatch(api.util.resetApiState());
    // Nothing of the tenant stays in memory.
    location.reload();
  };
  const name = me.session?.name ?? me.role;
  const someone = words.shell.someone(visible(me.tenant), me.role);
  return (
    <Menu
      isQuiet
      entries={[
        { label: words.shell.screens.preferences, onSelect: () => void navigate({ to: "/preferences" }) },
        { label: words.shell.help, onSelect: onHelp },
        { label: words.shell.signOut, onSelect: () => void signOut() },
      ]}
    >
      <span className="visually-hidden">{words.shell.account}</span>
      <span className={css.who}>
        <span className={css.avatar} aria-hidden="true">
          {visible(name).slice(0, 2).toUpperCase()}
        </span>
        <span>{someone}</span>
      </span>
    </Menu>
  );
}
