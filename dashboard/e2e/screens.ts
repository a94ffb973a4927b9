// Every screen, and a tenant with something to show on each.

import { type Tenant, until } from "./world";

export interface Screen {
  name: string;
  path: string;
  /** Text that is there when the screen is. */
  shows: string | RegExp;
}

export interface Filled {
  campaign: string;
  run: string;
  item: string;
  doubt: string;
}

/** A campaign that was sent, one in progress, and one with items in doubt. */
export async function fill(tenant: Tenant, { name = "Spring launch", people = 60 } = {}): Promise<Filled> {
  await tenant.accounts();
  await tenant.people("customers", people);
  const campaign = await tenant.mailing(name, { failure_tolerance: 1 });
  await tenant.world.rules([{ provider: "sim", to: tenant.person(3), fault: "refuse" }]);
  await tenant.control(campaign, "mail", "start");
  const { run } = await tenant.phaseIs(campaign, "mail", "completed");
  const external = await tenant.external("Renewal letters", ["print", "ship"]);
  await tenant.control(external, "print", "start");
  await tenant.post(`/campaigns/${external}/phases/print/progress`, { progressPercentage: 40 });
  await tenant.doubts("vip", 6, 3);
  const items = await tenant.get<{ items: { id: string }[] }>(`/runs/${run?.id}/items?limit=1`);
  const doubts = await until("items in doubt", async () => {
    const page = await tenant.get<{ items: { outbox_id: string }[] }>("/in-doubt");
    return page.items.length > 0 && page.items;
  });
  return {
    campaign,
    run: String(run?.id),
    item: items.items[0]?.id ?? "",
    doubt: doubts[0]?.outbox_id ?? "",
  };
}

/** A campaign in progress whose account may call so many of the people today. */
export async function limited(tenant: Tenant, name: string, people: number, daily: number): Promise<string> {
  await tenant.post("/provider-accounts", {
    name: "newsletter",
    provider: "sim",
    settings: { url: tenant.world.sim },
    limits: { daily },
  });
  await tenant.people("subscribers", people);
  const campaign = await tenant.mailing(name, { list: "subscribers", account: "newsletter", failure_tolerance: 1 });
  const refused = [5, 60, 120].map((n) => ({ provider: "sim", to: tenant.person(n), fault: "refuse" }));
  await tenant.world.rules(refused);
  await tenant.control(campaign, "mail", "start");
  await until("the account has reached its limit", async () => {
    const [mail] = (await tenant.status(campaign)).phases;
    const run = mail?.run as { succeeded: number; failed: number } | null;
    return run !== null && run !== undefined && run.succeeded + run.failed === daily;
  });
  await tenant.world.rules([]);
  return campaign;
}

export function screens({ campaign, run, item, doubt }: Filled): Screen[] {
  return [
    { name: "overview", path: "/", shows: "Needs attention" },
    { name: "campaigns", path: "/campaigns", shows: "Renewal letters" },
    { name: "campaign", path: `/campaigns/${campaign}`, shows: "Delivery settings" },
    { name: "campaign-runs", path: `/campaigns/${campaign}?tab=runs`, shows: /completed/i },
    { name: "campaign-history", path: `/campaigns/${campaign}?tab=history`, shows: "Progress" },
    { name: "campaign-audit", path: `/campaigns/${campaign}?tab=audit`, shows: "phase.completed" },
    { name: "runs", path: "/runs", shows: "vip / mail" },
    { name: "run", path: `/runs/${run}`, shows: "Every intended item is in exactly one group" },
    { name: "run-items", path: `/runs/${run}?tab=items`, shows: "Sent" },
    { name: "run-failures", path: `/runs/${run}?tab=failures`, shows: "Example 1" },
    { name: "run-jobs", path: `/runs/${run}?tab=jobs`, shows: "1 of" },
    { name: "run-certificate", path: `/runs/${run}?tab=certificate`, shows: "Launched" },
    { name: "run-audit", path: `/runs/${run}?tab=audit`, shows: "job.locked" },
    { name: "item", path: `/items/${item}`, shows: "State after a crash at each step" },
    { name: "item-in-doubt", path: `/items/${doubt}`, shows: "In doubt" },
    { name: "in-doubt", path: "/in-doubt", shows: "vip / mail" },
    { name: "in-doubt-panel", path: `/in-doubt?item=${doubt}`, shows: "How do you know?" },
    { name: "sessions", path: "/sessions", shows: "End session" },
    { name: "preferences", path: "/preferences", shows: "Density of tables" },
    { name: "not-found", path: "/nothing", shows: "There is no such page" },
  ];
}

/** Screens of a tenant without data. */
export const EMPTY: readonly Screen[] = [
  { name: "overview-empty", path: "/", shows: "Start here" },
  { name: "campaigns-empty", path: "/campaigns", shows: "No campaign yet" },
  { name: "runs-empty", path: "/runs", shows: "No run yet" },
  { name: "in-doubt-empty", path: "/in-doubt", shows: "No item needs review" },
];
