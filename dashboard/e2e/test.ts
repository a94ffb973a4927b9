// Fixtures. Every test also fails on a violation of the policy, an error of the page, a dialog, or a request to another host.

import { type BrowserContext, test as base, expect, type Page } from "@playwright/test";
import { Relay } from "./relay";
import { type Tenant, World } from "./world";

export { expect, type Page } from "@playwright/test";
export { until } from "./world";

export interface Fixtures {
  tenant: Tenant;
  relay: Relay;
  /** A page of an admin of the tenant, through the relay. */
  desk: Page;
  guard: Guard;
}

/** Collects faults of pages: violations, errors, dialogs, and requests to other hosts. */
export class Guard {
  readonly faults: string[] = [];
  /** Set by a test that expects such errors. */
  allowed: RegExp[] = [];

  async watch(context: BrowserContext): Promise<void> {
    context.on("page", (page) => this.watchPage(page));
    for (const page of context.pages()) this.watchPage(page);
    context.on("request", (request) => {
      const { protocol, hostname } = new URL(request.url());
      if (protocol.startsWith("http") && hostname !== "127.0.0.1") this.faults.push(`request to ${request.url()}`);
    });
    await context.exposeBinding("reportViolation", (_, text: string) => this.faults.push(`policy: ${text}`));
    await context.addInitScript(() => {
      addEventListener("securitypolicyviolation", (event) => {
        const report = (window as unknown as { reportViolation: (text: string) => void }).reportViolation;
        report(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
      });
    });
  }

  private watchPage(page: Page): void {
    page.on("pageerror", (error) => this.faults.push(`error: ${error.message}`));
    page.on("dialog", (dialog) => {
      // Leaving a page with a secret asks; anything else is markup that ran.
      if (dialog.type() !== "beforeunload") this.faults.push(`dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
  }
}

/** Signs a context in, as the login form does. */
export async function signIn(context: BrowserContext, origin: string, key: string, name = "ada"): Promise<void> {
  const response = await context.request.post(`${origin}/api/v2/session`, { data: { key, name }, headers: { origin } });
  expect(response.status(), await response.text()).toBe(200);
}

export const test = base.extend<Fixtures, { world: World }>({
  world: [
    // biome-ignore lint/correctness/noEmptyPattern: Playwright reads the names of the fixtures from it
    async ({}, use) => {
      const world = await World.start();
      await use(world);
      await world.stop();
    },
    { scope: "worker", timeout: 120_000 },
  ],
  tenant: async ({ world }, use) => {
    await use(await world.tenant());
    await Promise.all([world.rules([]), world.faults({})]);
  },
  relay: async ({ world }, use) => {
    const relay = await Relay.start(() => world.url);
    await use(relay);
    await relay.stop();
  },
  guard: [
    async ({ context }, use) => {
      const guard = new Guard();
      await guard.watch(context);
      await use(guard);
      const faults = guard.faults.filter((fault) => !guard.allowed.some((pattern) => pattern.test(fault)));
      expect(faults).toEqual([]);
    },
    { auto: true },
  ],
  desk: async ({ page, tenant, relay }, use) => {
    await signIn(page.context(), relay.url, tenant.key);
    await use(page);
  },
});

/** Opens a screen and waits until its stream is live. */
export async function open(page: Page, relay: Relay, path: string): Promise<void> {
  await page.goto(`${relay.url}/ui${path}`);
  await isLive(page);
}

export async function isLive(page: Page): Promise<void> {
  await expect(page.locator("[data-link]")).toHaveAttribute("data-link", "live");
}

/** The row of a phase. */
export const phaseRow = (page: Page, phase: string) => page.locator(`[data-phase="${phase}"]`);
