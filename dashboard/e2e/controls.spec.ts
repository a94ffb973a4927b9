import { expect, isLive, open, phaseRow, signIn, test, until } from "./test";

test.describe("a button that is pressed ten times while responses are lost", () => {
  for (const by of ["pause", "resume"] as const) {
    test(`${by} is one change and one line in the log`, async ({ desk, relay, tenant }) => {
      const campaign = await tenant.external("letters", ["print"]);
      await tenant.control(campaign, "print", "start");
      if (by === "resume") await tenant.control(campaign, "print", "pause");
      await open(desk, relay, `/campaigns/${campaign}`);
      const before = (await tenant.status(campaign)).sequence;
      relay.trouble("lose", new RegExp(`/phases/print/${by}$`), 3);
      const button = desk.locator(`[data-control="${by}"]`);
      await button.evaluate((element) => {
        for (let n = 0; n < 10; n++) (element as HTMLElement).click();
      });
      // The response is lost: the same request, with the same key, is offered.
      const retry = phaseRow(desk, "print").getByRole("button", { name: "Retry request" });
      for (
        let n = 0;
        n < 10 && (relay.requests(new RegExp(`/${by}$`), "POST").length < 4 || (await retry.isVisible()));
        n++
      ) {
        await retry.click({ timeout: 5_000 }).catch(() => undefined);
      }
      // The server repeats its answer to the same request; to another one with this key it would answer 422.
      await expect(desk.locator("[data-toasts]")).toContainText(
        by === "pause" ? `Paused at sequence ${before + 1}` : "Already done",
      );
      await expect(phaseRow(desk, "print")).toHaveAttribute("data-status", by === "pause" ? "paused" : "in_progress");
      expect((await tenant.status(campaign)).sequence).toBe(before + 1);
      const log = await tenant.get<{ items: { action: string; note: string | null }[] }>(
        `/audit?source=campaigns&campaign_id=${campaign}`,
      );
      expect(log.items.filter((line) => line.note?.includes(`(${by})`))).toHaveLength(1);
    });
  }

  test("rerun, retry and start are one change each", async ({ desk, relay, tenant, world }) => {
    await tenant.accounts();
    await tenant.people("customers", 5);
    const campaign = await tenant.mailing("letters", { failure_tolerance: 0 });
    await world.rules([{ provider: "sim", to: tenant.person(0), fault: "refuse" }]);
    await open(desk, relay, `/campaigns/${campaign}`);
    const mail = phaseRow(desk, "mail");
    for (const [opener, action, ends, typed] of [
      ["Start…", "Start", "failed", undefined],
      ["Retry failed…", "Retry failed items", "completed", undefined],
      ["Rerun for everyone…", "Rerun for everyone", "completed", "5"],
    ] as const) {
      relay.trouble("lose", /\/phases\/mail\/(start|retry|rerun)$/, 2);
      await mail.getByRole("button", { name: opener }).click();
      const dialog = desk.getByRole("dialog");
      if (typed) await dialog.getByLabel(`Type ${typed} to confirm`).fill(typed);
      await dialog.getByRole("button", { name: action, exact: true }).click();
      while (await dialog.isVisible()) {
        const again = dialog.getByRole("button", { name: "Retry request" });
        await Promise.race([again.click({ timeout: 10_000 }), dialog.waitFor({ state: "hidden" })]).catch(
          () => undefined,
        );
      }
      await tenant.phaseIs(campaign, "mail", ends);
      await world.rules([]);
      await expect(mail).toHaveAttribute("data-status", ends);
    }
    const started = (await tenant.history(campaign)).filter((event) => event.type === "phase_started");
    expect(started.map((event) => event.payload.trigger)).toEqual(["rerun", "retry", "start"]);
    const receipts = (await world.receipts())
      .split("\n")
      .filter((line) => line.includes(tenant.name) && line.includes('"acted":true'));
    expect(receipts).toHaveLength(10);
  });

  test("a verdict on an item in doubt is one line in the log", async ({ desk, relay, tenant }) => {
    await tenant.accounts();
    const campaign = await tenant.doubts("vip", 1, 1);
    await open(desk, relay, "/in-doubt");
    await desk.locator("tr[data-key]").getByRole("button").first().click();
    const panel = desk.locator("[data-doubt]");
    await panel.getByLabel("Sent", { exact: true }).check();
    await panel.getByLabel("How do you know?").fill("in the log");
    relay.trouble("lose", /\/resolve$/, 1);
    await panel.getByRole("button", { name: "Resolve" }).evaluate((element) => {
      for (let n = 0; n < 10; n++) (element as HTMLElement).click();
    });
    // The stream may report the verdict before the page offers to repeat the request. Then the item leaves the list, and its panel closes.
    const again = panel.getByRole("button", { name: "Retry request" });
    await Promise.race([again.click({ timeout: 15_000 }), panel.waitFor({ state: "hidden" })]).catch(() => undefined);
    await expect(panel).toBeHidden();
    // The lines about items name their run.
    const [mail] = (await tenant.status(campaign)).phases;
    const log = await tenant.get<{ items: { action: string }[] }>(`/audit?source=campaigns&run_id=${mail?.run?.id}`);
    expect(log.items.filter((line) => line.action.startsWith("item.resolved_as_"))).toHaveLength(1);
  });
});

test("a control that another operator preceded shows the current state", async ({ desk, relay, tenant }) => {
  const campaign = await tenant.external("letters", ["print"]);
  await tenant.control(campaign, "print", "start");
  await open(desk, relay, `/campaigns/${campaign}`);
  // The page does not learn of the change before it presses.
  relay.setDown(true);
  await expect(desk.locator("main [data-stale]").first()).toBeVisible();
  await tenant.control(campaign, "print", "complete");
  relay.setDown(false);
  await desk.locator('[data-control="pause"]').click();
  await expect(desk.locator("[data-toasts]")).toContainText("The phase is completed");
  await expect(phaseRow(desk, "print")).toHaveAttribute("data-status", "completed");
});

test("a pressed state is shown at once and never survives a snapshot", async ({ desk, relay, tenant }) => {
  const campaign = await tenant.external("letters", ["print"]);
  await tenant.control(campaign, "print", "start");
  await open(desk, relay, `/campaigns/${campaign}`);
  relay.trouble("delay", /\/phases\/print\/pause$/, 1, 2_500);
  await desk.locator('[data-control="pause"]').click();
  const row = phaseRow(desk, "print");
  await expect(row).toHaveAttribute("data-shown", "paused");
  await expect(row).toHaveAttribute("data-status", "in_progress");
  await expect(row.locator("[data-pending]")).toContainText("Pausing…");
  relay.cutStreams();
  await desk.evaluate(() => dispatchEvent(new Event("online")));
  await expect(row).toHaveAttribute("data-shown", "in_progress");
  await expect(row).toHaveAttribute("data-status", "paused");
});

test("a viewer sees every control with the reason why it is off", async ({ page, relay, tenant }) => {
  const campaign = await tenant.external("letters", ["print"]);
  const viewer = await tenant.makeKey("viewer");
  await signIn(page.context(), relay.url, viewer.secret);
  await open(page, relay, `/campaigns/${campaign}`);
  const start = page.locator('[data-control="start"]');
  await expect(start).toHaveAttribute("aria-disabled", "true");
  await expect(start).toHaveAttribute("aria-description", "Requires the role operator; your key has viewer");
  await start.click({ force: true });
  await expect(page.getByRole("dialog")).toBeHidden();
  await page.goto(`${relay.url}/ui/campaigns/${campaign}?tab=audit`);
  await expect(page.getByText("Requires the role admin; your key has viewer")).toBeVisible();
  await page.goto(`${relay.url}/ui/sessions`);
  await expect(page.getByText("Requires the role admin; your key has viewer")).toBeVisible();
});

test("a key that is revoked under an open page ends its stream, and another sign-in goes on where it was", async ({
  page,
  relay,
  tenant,
}) => {
  test.setTimeout(120_000);
  const campaign = await tenant.external("letters", ["print"]);
  const operator = await tenant.makeKey("operator");
  await signIn(page.context(), relay.url, operator.secret);
  await open(page, relay, `/campaigns/${campaign}?tab=history`);
  await tenant.request("DELETE", `/keys/${operator.id}`);
  const dialog = page.getByRole("dialog", { name: "Your session has ended" });
  await expect(dialog).toBeVisible({ timeout: 40_000 });
  await tenant.control(campaign, "print", "start");
  await dialog.getByLabel("API key").fill(tenant.key);
  await dialog.getByRole("button", { name: "Sign in" }).click();
  await expect(dialog).toBeHidden();
  await isLive(page);
  await expect(page).toHaveURL(/tab=history/);
  await expect(page.getByRole("cell", { name: "Started" })).toBeVisible();
});

test("a campaign of another tenant, a wrong id and a broken parameter each have a clear page", async ({
  desk,
  relay,
  tenant,
  world,
}) => {
  const other = await world.tenant();
  const foreign = await other.external("secret plan", ["print"]);
  await open(desk, relay, `/campaigns/${foreign}`);
  await expect(desk.getByText("Campaign not found in this tenant")).toBeVisible();
  await expect(desk.getByText("secret plan")).toHaveCount(0);
  await desk.goto(`${relay.url}/ui/runs/${foreign}`);
  await expect(desk.getByText("Not found in this tenant")).toBeVisible();
  await desk.goto(`${relay.url}/ui/items/not-an-id`);
  await expect(desk.locator("main")).toContainText(/not accepted|Not found/);
  await tenant.external("letters", ["print"]);
  await desk.goto(`${relay.url}/ui/campaigns?phase_status=gone&phase_status=failed&evil=%3Cscript%3E&q=`);
  await expect(desk.locator("[data-toasts]")).toContainText("phase_status");
  await expect(desk).toHaveURL(/\/ui\/campaigns\?phase_status=failed$/);
  await expect(desk.getByText("No row matches these filters.")).toBeVisible();
  await desk.getByRole("button", { name: "Clear filters" }).first().click();
  await expect(desk.getByRole("link", { name: "letters" })).toBeVisible();
});

test("a database or server that is away is announced, and lists stay readable", async ({ desk, relay, tenant }) => {
  await tenant.external("letters", ["print"]);
  await open(desk, relay, "/campaigns");
  await expect(desk.getByRole("link", { name: "letters" })).toBeVisible();
  relay.trouble("503", /\/api\/v2\//, 1_000);
  relay.cutStreams();
  await expect(desk.locator("[data-link]")).toHaveAttribute("data-link", "stale");
  await expect(desk.getByText("The server does not answer.")).toBeVisible({ timeout: 20_000 });
  await expect(desk.getByRole("link", { name: "letters" })).toBeVisible();
  relay.calm();
  await until("the stream is live", async () => {
    await desk.evaluate(() => dispatchEvent(new Event("online")));
    return (await desk.locator("[data-link]").getAttribute("data-link")) === "live";
  });
  await expect(desk.getByText("The server does not answer.")).toBeHidden();
});
