import type { Page } from "@playwright/test";
import { findings } from "./axe";
import { EMPTY, type Filled, fill, type Screen, screens } from "./screens";
import { expect, open, test } from "./test";

const SIZES = [
  { width: 1280, height: 860 },
  { width: 360, height: 740 },
];

async function check(page: Page, { name, shows }: Screen): Promise<void> {
  await expect(page.locator("main").getByText(shows).first(), name).toBeVisible();
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    for (const size of SIZES) {
      await page.setViewportSize(size);
      const where = `${name}, ${colorScheme}, ${size.width} px`;
      await expect
        .poll(() => page.evaluate(() => document.documentElement.scrollWidth - innerWidth), {
          message: `${where}: horizontal scrolling`,
        })
        .toBeLessThanOrEqual(0);
      expect.soft(await findings(page), where).toEqual([]);
      expect(await page.locator("h1").count(), where).toBe(1);
    }
  }
  await page.setViewportSize(SIZES[0] ?? { width: 1280, height: 860 });
}

test("axe finds nothing on any screen with data, in both themes and at 360 px", async ({ desk, relay, tenant }) => {
  test.setTimeout(240_000);
  const filled: Filled = await fill(tenant, { people: 30 });
  for (const screen of screens(filled)) {
    await desk.goto(`${relay.url}/ui${screen.path}`);
    await check(desk, screen);
  }
});

test("axe finds nothing on empty screens and on sign-in", async ({ desk, relay, browser }) => {
  test.setTimeout(120_000);
  for (const screen of EMPTY) {
    await desk.goto(`${relay.url}/ui${screen.path}`);
    await check(desk, screen);
  }
  const visitor = await browser.newContext();
  const page = await visitor.newPage();
  await page.goto(`${relay.url}/ui/login`);
  await check(page, { name: "login", path: "/login", shows: "Sign in with an API key" });
  await visitor.close();
});

test("axe finds nothing on stale screens, problems, dialogs and menus", async ({ desk, relay, tenant }) => {
  test.setTimeout(120_000);
  const campaign = await tenant.external("letters", ["print"]);
  await tenant.control(campaign, "print", "start");
  await open(desk, relay, `/campaigns/${campaign}`);
  const states: [string, () => Promise<void>][] = [
    ["dialog", () => desk.locator('[data-control="fail"]').click()],
    [
      "help",
      async () => {
        await desk.keyboard.press("Escape");
        await desk.keyboard.press("?");
      },
    ],
    [
      "menu",
      async () => {
        await desk.keyboard.press("Escape");
        await desk.getByRole("button", { name: /Theme/ }).click();
      },
    ],
    [
      "stale",
      async () => {
        await desk.keyboard.press("Escape");
        relay.setDown(true);
        await expect(desk.locator("main [data-stale]").first()).toBeVisible();
      },
    ],
  ];
  for (const [name, enter] of states) {
    await enter();
    for (const colorScheme of ["light", "dark"] as const) {
      await desk.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      expect(await findings(desk, name === "menu"), `${name}, ${colorScheme}`).toEqual([]);
    }
  }
  relay.setDown(false);
  relay.trouble("503", /\/api\/v2\/runs\?/, 50);
  await desk.goto(`${relay.url}/ui/runs`);
  await expect(desk.getByText("The server is not ready")).toBeVisible();
  expect(await findings(desk), "problem").toEqual([]);
});

test("a keyboard alone reaches and leaves everything, and a dialog gives the focus back", async ({
  desk,
  relay,
  tenant,
}) => {
  const campaign = await tenant.external("letters", ["print"]);
  await open(desk, relay, `/campaigns/${campaign}`);
  await desk.keyboard.press("Tab");
  await expect(desk.getByRole("link", { name: "Skip to content" })).toBeFocused();
  const start = desk.locator('[data-control="start"]');
  for (let n = 0; n < 60 && !(await start.evaluate((element) => element === document.activeElement)); n++)
    await desk.keyboard.press("Tab");
  await expect(start).toBeFocused();
  await desk.keyboard.press("Enter");
  await expect(desk.getByRole("dialog")).toBeVisible();
  await desk.keyboard.press("Escape");
  await expect(desk.getByRole("dialog")).toBeHidden();
  await expect(start).toBeFocused();
  // Enter alone confirms nothing in a dialog that has a text field.
  await desk.keyboard.press("Enter");
  await desk.getByLabel("Reason (optional)").fill("test");
  await desk.keyboard.press("Enter");
  expect((await tenant.status(campaign)).phases[0]?.status).toBe("not_started");
  await desk.keyboard.press("Control+Enter");
  await tenant.phaseIs(campaign, "print", "in_progress");
});

test("a disconnect is announced once, politely", async ({ desk, relay, tenant }) => {
  await tenant.external("letters", ["print"]);
  await open(desk, relay, "/");
  const region = desk.getByRole("status").filter({ hasText: "Connection lost." });
  relay.setDown(true);
  await expect(region).toHaveCount(1);
  relay.setDown(false);
  await expect(desk.getByRole("status").filter({ hasText: "Connected." })).toHaveCount(1, { timeout: 40_000 });
});
