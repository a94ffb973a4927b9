import { expect, isLive, open, type Page, phaseRow, signIn, test, until } from "./test";

const toast = (page: Page, text: string | RegExp) =>
  expect(page.locator("[data-toasts]").getByText(text)).toBeVisible();
const dialog = (page: Page) => page.getByRole("dialog");

test.describe("signing in", () => {
  test("with a key, to the page that was asked for, and out again", async ({ page, tenant, relay }) => {
    await page.goto(`${relay.url}/ui/runs?status=failed`);
    await expect(page.getByRole("heading", { name: "Sign in" })).toBeVisible();
    await page.getByLabel("API key").fill("pr_wrong");
    await page.getByRole("button", { name: "Sign in" }).click();
    await expect(page.getByRole("alert")).toBeVisible();
    await expect(page.getByLabel("API key")).toHaveValue("");
    await page.getByLabel("API key").fill(tenant.key);
    await page.getByLabel("Your name (optional)").fill("Ada");
    await page.getByRole("button", { name: "Sign in" }).click();
    await expect(page).toHaveURL(/\/ui\/runs\?status=failed$/);
    await isLive(page);
    await page.getByRole("button", { name: "Account" }).click();
    await page.getByRole("menuitem", { name: "Sign out" }).click();
    await expect(page.getByRole("heading", { name: "Sign in" })).toBeVisible();
    // The page loads itself again when it signs out, which may interrupt this.
    await expect(async () => void (await page.goto(`${relay.url}/ui/`))).toPass();
    await expect(page.getByRole("heading", { name: "Sign in" })).toBeVisible();
  });

  test("with a one-time link, which no history keeps and which works once", async ({ page, tenant, world }) => {
    const entrance = await world.command<{ url: string }>("dashboard", "--tenant", tenant.name, "--role", "operator");
    await page.goto(entrance.url);
    await expect(page.getByRole("heading", { name: "Overview" })).toBeVisible();
    expect(page.url()).not.toContain("code");
    await expect(page.getByRole("button", { name: "Account" })).toContainText("operator");
    await page.context().clearCookies();
    await page.goto("about:blank");
    await page.goto(entrance.url);
    await expect(page.getByRole("alert")).toContainText("not valid any more");
  });
});

test("a new tenant sees its first steps, and the overview follows them", async ({ desk, relay, tenant }) => {
  await open(desk, relay, "/");
  await expect(desk.getByText("Start here")).toBeVisible();
  await expect(desk.getByText("Nothing needs attention.")).toBeVisible();
  const campaign = await tenant.external("letters", ["print"]);
  await tenant.control(campaign, "print", "start");
  await expect(desk.getByRole("link", { name: "letters" })).toBeVisible();
  await tenant.control(campaign, "print", "fail");
  await expect(desk.locator('[data-need="phases.failed"]')).toContainText("1 failed phase");
});

test("a campaign is started, paused with a receipt and without a refetch, resumed, certified, and compared with the receipts", async ({
  desk,
  relay,
  tenant,
  world,
}) => {
  await tenant.accounts();
  await tenant.people("customers", 120);
  await world.faults({ latency: 1 });
  const campaign = await tenant.mailing("Spring launch");
  await open(desk, relay, `/campaigns/${campaign}`);
  const mail = phaseRow(desk, "mail");

  await mail.getByRole("button", { name: "Start…" }).click();
  await expect(dialog(desk)).toContainText("120");
  await expect(dialog(desk)).toContainText("postrider campaign start 'Spring launch' --phase mail");
  await expect(dialog(desk).getByRole("button", { name: "Cancel" })).toBeFocused();
  await dialog(desk).getByRole("button", { name: "Start" }).click();
  await expect(mail).toHaveAttribute("data-status", "in_progress");

  const before = relay.requests(/\/status$/).length;
  await mail.getByRole("button", { name: "Pause" }).click();
  await toast(desk, /^Paused at sequence \d+\./);
  await expect(mail).toHaveAttribute("data-status", "paused");
  await mail.getByRole("button", { name: "Resume" }).click();
  await expect(mail).toHaveAttribute("data-status", "in_progress");
  // The stream has delivered both changes.
  expect(relay.requests(/\/status$/).length).toBe(before);

  await world.faults({});
  await expect(mail).toHaveAttribute("data-status", "completed", { timeout: 45_000 });
  await expect(mail).toContainText("120 sent");

  await mail.getByRole("link", { name: /120\s*sent/ }).click();
  await expect(desk.getByRole("heading", { name: "Run of mail" })).toBeVisible();
  await desk.getByRole("link", { name: "Certificate" }).click();
  await expect(desk.locator("[data-launched]")).toHaveAttribute("data-launched", "true");
  await desk.locator("input[type=file]").setInputFiles({
    name: "receipts.ndjson",
    mimeType: "application/x-ndjson",
    buffer: Buffer.from(await world.receipts()),
  });
  await expect(desk.locator('[data-group="matched"]')).toHaveAttribute("data-count", "120");
  await expect(desk.locator('[data-group="duplicated"]')).toHaveAttribute("data-count", "0");
  await expect(desk.locator('[data-group="onlyHere"]')).toHaveAttribute("data-count", "0");
  await expect(desk.locator("[data-agrees]")).toHaveAttribute("data-agrees", "true");

  const download = desk.waitForEvent("download");
  await desk.getByRole("button", { name: "Download JSON" }).click();
  const text = await (await (await download).createReadStream()).toArray();
  expect(JSON.parse(Buffer.concat(text).toString())).toMatchObject({ launched: true, intended: 120, sent: 120 });
});

test("failed items are retried, and a rerun needs the typed number of second messages", async ({
  desk,
  relay,
  tenant,
  world,
}) => {
  await tenant.accounts();
  await tenant.people("customers", 12);
  const campaign = await tenant.mailing("letters", { failure_tolerance: 0 });
  await world.rules([0, 1, 2].map((n) => ({ provider: "sim", to: tenant.person(n), fault: "refuse" })));
  await tenant.control(campaign, "mail", "start");
  await tenant.phaseIs(campaign, "mail", "failed");
  await world.rules([]);
  await open(desk, relay, `/campaigns/${campaign}`);
  const mail = phaseRow(desk, "mail");
  await mail.getByRole("link", { name: /3\s*failed/ }).click();
  await desk.getByRole("link", { name: "Failures" }).click();
  await expect(desk.getByRole("row").nth(1)).toContainText("3");
  await desk.getByRole("link", { name: "Retry failed items on the campaign" }).click();

  await mail.getByRole("button", { name: "Retry failed…" }).click();
  await expect(dialog(desk)).toContainText("items in the new run");
  await expect(dialog(desk).locator("b").first()).toHaveText("3");
  await dialog(desk).getByRole("button", { name: "Retry failed items" }).click();
  await expect(mail).toHaveAttribute("data-status", "completed");

  await mail.getByRole("button", { name: "Rerun for everyone…" }).click();
  await expect(dialog(desk)).toContainText("12 of 12 recipients already received this message");
  const rerun = dialog(desk).getByRole("button", { name: "Rerun for everyone" });
  await expect(rerun).toHaveAttribute("aria-disabled", "true");
  await dialog(desk).getByLabel("Type 12 to confirm").fill("11");
  await expect(rerun).toHaveAttribute("aria-disabled", "true");
  await dialog(desk).getByLabel("Type 12 to confirm").fill("12");
  await rerun.click();
  await expect(dialog(desk)).toBeHidden();
  await expect(mail).toHaveAttribute("data-status", "completed");
  const started = (await tenant.history(campaign)).filter((event) => event.type === "phase_started");
  expect(started.map((event) => event.payload.trigger)).toEqual(["rerun", "retry", "start"]);
});

test("an external phase is reported, completed and failed, and the next one starts by itself", async ({
  desk,
  relay,
  tenant,
}) => {
  const campaign = await tenant.external("letters", ["print", "ship"], true);
  await open(desk, relay, `/campaigns/${campaign}`);
  const [print, ship] = [phaseRow(desk, "print"), phaseRow(desk, "ship")];
  await print.getByRole("button", { name: "Start…" }).click();
  await dialog(desk).getByRole("button", { name: "Start" }).click();
  await print.getByLabel("Progress in percent").fill("42.5");
  await print.getByRole("button", { name: "Report progress" }).click();
  await expect(print).toContainText("42.5 %");
  await expect(print).toHaveAttribute("data-status", "in_progress");
  await print.getByRole("button", { name: "Complete…" }).click();
  await dialog(desk).getByRole("button", { name: "Complete" }).click();
  await expect(print).toHaveAttribute("data-status", "completed");
  await expect(ship).toHaveAttribute("data-status", "in_progress");
  await ship.getByRole("button", { name: "Fail…" }).click();
  await dialog(desk).getByLabel("Reason (optional)").fill("out of paper");
  await dialog(desk).getByRole("button", { name: "Fail" }).click();
  await expect(ship).toHaveAttribute("data-status", "failed");
  await desk.getByRole("link", { name: "History" }).click();
  await expect(desk.getByText("“out of paper”")).toBeVisible();
});

test("of the items in doubt one is resolved as sent, and one as not sent after the quiet time", async ({
  desk,
  relay,
  tenant,
}) => {
  await tenant.accounts();
  await tenant.doubts("vip", 3, 2, { quiet_time_seconds: 12 });
  await open(desk, relay, "/in-doubt");
  await expect(desk.getByRole("link", { name: /In doubt/ }).first()).toContainText("2");
  const rows = desk.locator("tr[data-key]");
  await expect(rows).toHaveCount(2);

  await rows.first().getByRole("button").first().click();
  const panel = desk.locator("[data-doubt]");
  await expect(panel).toContainText("Message-ID");
  // Before the end of the quiet time "not sent" cannot be chosen, and the server would reject it.
  const early = panel.getByLabel("Not sent");
  if (await early.isDisabled()) {
    const id = await panel.getAttribute("data-doubt");
    await expect(tenant.post(`/in-doubt/${id}/resolve`, { as: "failed", note: "too early" })).rejects.toThrow(/409/);
  }
  await panel.getByLabel("Sent", { exact: true }).check();
  await panel.getByLabel("Provider's message id (optional)").fill("m-7");
  await panel.getByLabel("How do you know?").fill("in their log at 10:02");
  await expect(panel).toContainText("--as sent --message-id m-7 --note 'in their log at 10:02'");
  await panel.getByRole("button", { name: "Resolve" }).click();
  await toast(desk, "Resolved as sent");
  await expect(rows).toHaveCount(1);

  await rows.first().getByRole("button").first().click();
  await expect(early).toBeEnabled({ timeout: 20_000 });
  await early.check();
  await panel.getByLabel("How do you know?").fill("not in their log");
  await panel.getByRole("button", { name: "Resolve" }).click();
  await toast(desk, "Resolved as failed");
  await expect(desk.getByText("No item needs review.")).toBeVisible();
});

test("50 items in doubt are settled with the provider's own list", async ({ desk, relay, tenant, world }) => {
  await tenant.accounts();
  const campaign = await tenant.doubts("vip", 50, 50, { quiet_time_seconds: 1 });
  // The list of the relay: the mails of the sim's receipts, without the first ten.
  const lines = (await world.receipts())
    .split("\n")
    .filter((line) => line.includes(tenant.name) && line.includes('"smtp"'));
  const kept = lines.slice(10);
  await open(desk, relay, `/in-doubt?campaign_id=${campaign}`);
  await desk.getByRole("button", { name: "Import evidence…" }).click();
  await desk
    .locator("input[type=file]")
    .setInputFiles({ name: "relay.ndjson", mimeType: "application/x-ndjson", buffer: Buffer.from(kept.join("\n")) });
  await dialog(desk).getByRole("button", { name: "Mark 40 as sent…" }).click();
  await dialog(desk).getByRole("button", { name: "Mark 40 as sent" }).click();
  await expect(dialog(desk)).toContainText("40");
  await dialog(desk).getByRole("button", { name: "Done" }).click();
  // Without a complete list a missing mail proves nothing.
  await expect(dialog(desk).getByRole("button", { name: "Mark 0 as not sent…" })).toHaveAttribute(
    "aria-disabled",
    "true",
  );
  await dialog(desk).getByRole("checkbox").check();
  await dialog(desk).getByRole("button", { name: "Mark 10 as not sent…" }).click();
  await dialog(desk).getByLabel("Type 10 to confirm").fill("10");
  await dialog(desk).getByRole("button", { name: "Mark 10 as not sent" }).click();
  await dialog(desk).getByRole("button", { name: "Done" }).click();
  await dialog(desk).getByRole("button", { name: "Close" }).last().click();
  await expect(
    desk.getByText("No item needs review.").or(desk.getByText("No row matches these filters.")),
  ).toBeVisible();
  const { run } = await until("the run has ended", async () => {
    const phase = (await tenant.status(campaign)).phases[0];
    return phase?.run?.inDoubt === 0 && phase;
  });
  expect(run).toMatchObject({ succeeded: 40, failed: 10 });
});

test("selected items are marked together, with one note", async ({ desk, relay, tenant }) => {
  await tenant.accounts();
  await tenant.doubts("vip", 4, 4, { quiet_time_seconds: 600 });
  await open(desk, relay, "/in-doubt");
  await desk.getByLabel("Select all loaded rows").check();
  const bar = desk.getByRole("toolbar", { name: "4 selected" });
  await expect(bar.getByRole("button", { name: "Mark as not sent… (4 not yet allowed)" })).toHaveAttribute(
    "aria-disabled",
    "true",
  );
  await bar.getByRole("button", { name: "Mark as sent…" }).click();
  await dialog(desk).getByLabel("How do you know?").fill("all in the log");
  await dialog(desk).getByRole("button", { name: "Mark 4 as sent" }).click();
  await expect(dialog(desk)).toContainText("resolved");
  await dialog(desk).getByRole("button", { name: "Done" }).click();
  await expect(desk.getByText("No item needs review.")).toBeVisible();
});

test("an item shows its lifecycle as a timeline", async ({ desk, relay, tenant }) => {
  await tenant.accounts();
  const campaign = await tenant.doubts("vip", 2, 1);
  const { run } = await tenant.phaseIs(campaign, "mail", "in_progress", "failed", "completed");
  const items = await tenant.get<{ items: { id: string }[] }>(`/runs/${run?.id}/items?status=in_doubt`);
  await open(desk, relay, `/items/${items.items[0]?.id}`);
  const steps = desk.getByRole("list", { name: "Steps of the item, oldest first" }).getByRole("listitem");
  await expect(steps.filter({ hasText: "Reserved" })).toContainText("the key was committed before the call");
  const texts = await steps.allTextContents();
  const order = ["Intended", "Claimed", "Reserved", "Called", "In doubt", "“Not sent” can be recorded"].map((name) =>
    texts.findIndex((text) => text.includes(name)),
  );
  expect(order).toEqual([...order].sort((a, b) => a - b));
  expect(order).not.toContain(-1);
  await desk.getByRole("link", { name: "Resolve" }).click();
  await expect(desk.locator("[data-doubt]")).toBeVisible();
});

test("a session is ended by an admin, and its page asks to sign in again", async ({
  desk,
  relay,
  tenant,
  browser,
  world,
}) => {
  const other = await browser.newContext();
  const operator = await tenant.makeKey("operator");
  await signIn(other, world.url, operator.secret, "bo");
  await open(desk, relay, "/sessions");
  const row = desk.getByRole("row").filter({ hasText: "bo" });
  await row.getByRole("button", { name: "End session" }).click();
  await dialog(desk).getByRole("button", { name: "End session" }).click();
  await expect(row).toBeHidden();
  expect((await other.request.get(`${world.url}/api/v2/whoami`)).status()).toBe(401);
  await other.close();
});

test("every screen is reached by keyboard, and no single key changes the server", async ({ desk, relay, tenant }) => {
  const campaign = await tenant.external("letters", ["print"]);
  await tenant.control(campaign, "print", "start");
  await open(desk, relay, "/");
  const before = relay.seen.length;
  for (const [key, heading] of [
    ["c", "Campaigns"],
    ["r", "Runs"],
    ["d", "In doubt"],
    ["s", "Sessions"],
    ["o", "Overview"],
  ] as const) {
    await desk.keyboard.press("g");
    await desk.keyboard.press(key);
    await expect(desk.getByRole("heading", { level: 1, name: heading })).toBeVisible();
  }
  await desk.keyboard.press("/");
  await desk.getByRole("combobox", { name: "Search" }).fill("lett");
  await expect(desk.getByRole("option", { name: /letters/ })).toBeVisible();
  await desk.keyboard.press("Enter");
  await expect(desk.getByRole("heading", { level: 1, name: "letters" })).toBeVisible();
  for (const key of "abcdefghijklmnopqrstuvwxyz.,x?") {
    await desk.keyboard.press(key);
    await desk.keyboard.press("Escape");
  }
  expect(relay.seen.slice(before).filter((seen) => seen.method !== "GET")).toEqual([]);
});
