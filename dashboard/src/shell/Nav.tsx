import { Link } from "@tanstack/react-router";
import { useApp } from "../store";
import { useIsOverviewStale } from "../ui/Live";
import { number, words } from "../words";
import css from "./Shell.module.css";
import { SCREENS, type Screen } from "./screens";

const GROUPS = [...new Set(SCREENS.map((screen) => screen.group))];

export function Nav({ onMove }: { onMove?: () => void }) {
  return (
    <nav className={css.nav} aria-label={words.shell.navigation}>
      {GROUPS.map((group) => (
        <div key={group ?? ""}>
          {group && <h2>{group}</h2>}
          <ul>
            {SCREENS.filter((screen) => screen.group === group).map((screen) => (
              <li key={screen.to}>
                <Link
                  to={screen.to}
                  activeOptions={{ exact: screen.to === "/", includeSearch: false }}
                  {...(onMove ? { onClick: onMove } : {})}
                >
                  <screen.icon size={16} aria-hidden="true" />
                  {screen.name}
                  <Badge screen={screen} />
                </Link>
              </li>
            ))}
          </ul>
        </div>
      ))}
    </nav>
  );
}

function Badge({ screen: { badge } }: { screen: Screen }) {
  const overview = useApp((state) => state.live.overview);
  const isStale = useIsOverviewStale();
  const count = overview && badge ? badge.count(overview) : 0;
  if (!badge || !overview || count === 0) return null;
  const shown = number(count) + (overview.capped.includes(badge.field) ? "+" : "");
  return (
    <span className={`${css.badge} ${css[badge.tone]}`} data-stale={isStale || undefined}>
      {shown}
      <span className="visually-hidden"> {words.shell.needAttention}</span>
    </span>
  );
}
