// Every route in one list. Each screen is a chunk of its own; screens read their search parameters with ui/useFilters.

import { createRootRoute, createRoute, createRouter, lazyRouteComponent } from "@tanstack/react-router";
import { parseSearch, type Search, stringifySearch } from "./search";
import { NotFound } from "./shell/NotFound";
import { Root } from "./shell/Root";
import { Shell } from "./shell/Shell";
import { Skeleton } from "./ui/Empty";
import { Boundary } from "./ui/Panel";

const validateSearch = (search: Record<string, unknown>): Search => search as Search;

const root = createRootRoute({ component: Root, notFoundComponent: NotFound, validateSearch });
const inside = createRoute({ getParentRoute: () => root, id: "inside", component: Shell });

const overview = createRoute({
  getParentRoute: () => inside,
  path: "/",
  component: lazyRouteComponent(() => import("./features/overview/Overview"), "Overview"),
});
const campaigns = createRoute({
  getParentRoute: () => inside,
  path: "/campaigns",
  component: lazyRouteComponent(() => import("./features/campaigns/Campaigns"), "Campaigns"),
});
const campaign = createRoute({
  getParentRoute: () => inside,
  path: "/campaigns/$id",
  component: lazyRouteComponent(() => import("./features/campaigns/Campaign"), "Campaign"),
});
const runs = createRoute({
  getParentRoute: () => inside,
  path: "/runs",
  component: lazyRouteComponent(() => import("./features/runs/Runs"), "Runs"),
});
const run = createRoute({
  getParentRoute: () => inside,
  path: "/runs/$id",
  component: lazyRouteComponent(() => import("./features/runs/Run"), "Run"),
});
const item = createRoute({
  getParentRoute: () => inside,
  path: "/items/$id",
  component: lazyRouteComponent(() => import("./features/items/Item"), "Item"),
});
const inDoubt = createRoute({
  getParentRoute: () => inside,
  path: "/in-doubt",
  component: lazyRouteComponent(() => import("./features/inDoubt/InDoubt"), "InDoubt"),
});
const sessions = createRoute({
  getParentRoute: () => inside,
  path: "/sessions",
  component: lazyRouteComponent(() => import("./features/settings/Sessions"), "Sessions"),
});
const preferences = createRoute({
  getParentRoute: () => inside,
  path: "/preferences",
  component: lazyRouteComponent(() => import("./features/settings/Preferences"), "Preferences"),
});
const login = createRoute({
  getParentRoute: () => root,
  path: "/login",
  component: lazyRouteComponent(() => import("./features/login/Login"), "Login"),
});
const enter = createRoute({
  getParentRoute: () => root,
  path: "/enter",
  component: lazyRouteComponent(() => import("./features/login/Enter"), "Enter"),
});

export const router = createRouter({
  routeTree: root.addChildren([
    inside.addChildren([overview, campaigns, campaign, runs, run, item, inDoubt, sessions, preferences]),
    login,
    enter,
  ]),
  basepath: "/ui",
  parseSearch,
  stringifySearch,
  defaultPreload: "intent",
  defaultPendingComponent: () => <Skeleton />,
  defaultErrorComponent: ({ error }) => (
    <Boundary>
      <Thrown error={error} />
    </Boundary>
  ),
  scrollRestoration: true,
});

/** Shows an error of a screen as a panel shows it. */
function Thrown({ error }: { error: unknown }): never {
  throw error;
}

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
