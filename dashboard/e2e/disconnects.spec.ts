import { expect, isLive, open, phaseRow, test, until } from "./test";

const NAMES = ["one", "two", "three"];
const DISCONNECTS = 200;

/** A random number generator, so that a failure can be repeated: E2E_SEED. */
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

const NEXT: Record<string, string[]> = {
  not_started: ["start"],
  in_progress: ["pause", "complete", "fail", "progress", "progress"],
  paused: ["resume"],
  completed: ["rerun"],
  failed: ["retry"],
};

test(`after ${DISCONNECTS} disconnects, stalls, delays and 503s the screen shows the server's state`, async ({
  desk,
  relay,
  tenant,
}) => {
  test.setTimeout(240_000);
  const seed = Number(process.env.E2E_SEED ?? Date.now() % 100_000);
  const next = random(seed);
  test.info().annotations.push({ type: "seed", description: String(seed) });
  const campaign = await tenant.external("letters", NAMES);
  await open(desk, relay, `/campaigns/${campaign}`);

  // Every sequence that the page shows, in order.
  await desk.evaluate(() => {
    const shown: number[] = [];
    Object.assign(window, { shown });
    const read = () => {
      for (const element of document.querySelectorAll("[data-phase]"))
        shown.push(Number((element as HTMLElement).dataset.sequence));
    };
    new MutationObserver(read).observe(document.body, {
      subtree: true,
      attributes: true,
      childList: true,
      attributeFilter: ["data-sequence"],
    });
  });

  let changes = 0;
  /** Changes one phase, as another operator does while the page is away. */
  const change = async () => {
    const { phases } = await tenant.status(campaign);
    const phase = phases[Math.floor(next() * phases.length)];
    if (!phase) return;
    const may = NEXT[phase.status] ?? [];
    const by = may[Math.floor(next() * may.length)] ?? "start";
    if (by === "progress")
      await tenant.post(`/campaigns/${campaign}/phases/${phase.phase}/progress`, {
        progressPercentage: Math.floor(next() * 100),
      });
    else await tenant.control(campaign, phase.phase, by);
    changes += 1;
  };

  const link = desk.locator("[data-link]");
  for (let n = 0; n < DISCONNECTS; n++) {
    const kind = Math.floor(next() * 4);
    const from = relay.seen.length;
    // Each disconnect happens in the middle of two changes.
    const both = change().then(change);
    if (kind === 1) relay.trouble("503", /\/status$/, 1);
    if (kind === 2) relay.trouble("delay", /\/(status|stream)/, 2, 60);
    if (kind === 3) relay.trouble("lose", /\/status$/, 1);
    if (kind === 0) relay.cut();
    else relay.cutStreams();
    await expect(link).not.toHaveAttribute("data-link", "live");
    // The browser says that it is online again, so that the page does not wait.
    await until("the stream is live again", async () => {
      await desk.evaluate(() => dispatchEvent(new Event("online")));
      return (await link.getAttribute("data-link")) === "live";
    });
    const requests = relay.seen
      .slice(from)
      .filter(({ path }) => path.startsWith("/api/v2/stream") || path.includes(`/campaigns/${campaign}/status`));
    const first = requests[0]?.path ?? "";
    expect(first, `after disconnect ${n} (seed ${seed})`).toContain("/status");
    await both;
  }
  expect(changes).toBe(2 * DISCONNECTS);

  const truth = await tenant.status(campaign);
  for (const phase of truth.phases) {
    await expect(phaseRow(desk, phase.phase), `seed ${seed}`).toHaveAttribute(
      "data-sequence",
      String((await tenant.status(campaign)).sequence),
    );
    await expect(phaseRow(desk, phase.phase)).toHaveAttribute("data-status", phase.status);
    await expect(phaseRow(desk, phase.phase)).toHaveAttribute("data-shown", phase.status);
  }
  // The server's sequence never decreases, so neither may the shown one.
  const shown = await desk.evaluate(() => (window as unknown as { shown: number[] }).shown);
  expect(shown.length).toBeGreaterThan(50);
  expect(
    shown.findIndex((sequence, at) => at > 0 && sequence < (shown[at - 1] ?? 0)),
    `seed ${seed}`,
  ).toBe(-1);
});

test("values are marked as stale within a second of a disconnect, and the marks go when the stream is back", async ({
  desk,
  relay,
  tenant,
}) => {
  const campaign = await tenant.external("letters", NAMES);
  await open(desk, relay, `/campaigns/${campaign}`);
  await expect(desk.locator("[data-stale]")).toHaveCount(0);
  relay.setDown(true);
  await expect(desk.locator("main [data-stale]").first()).toBeVisible({ timeout: 1_000 });
  await expect(phaseRow(desk, "one")).toContainText("As of");
  // Buttons stay usable: they carry the expected state.
  await expect(phaseRow(desk, "one").getByRole("button", { name: "Start…" })).toBeEnabled();
  await tenant.control(campaign, "one", "start");
  relay.setDown(false);
  await desk.getByRole("button", { name: /Live updates/ }).click();
  await desk.getByRole("menuitem", { name: "Retry now" }).click();
  await isLive(desk);
  await expect(phaseRow(desk, "one")).toHaveAttribute("data-status", "in_progress");
  await expect(desk.locator("[data-stale]")).toHaveCount(0);
});

test("a killed server is waited for, and the page goes on without a reload", async ({ desk, relay, tenant, world }) => {
  test.setTimeout(120_000);
  const campaign = await tenant.external("letters", NAMES);
  await open(desk, relay, `/campaigns/${campaign}`);
  await desk.evaluate(() => Object.assign(window, { isSamePage: true }));
  await world.restart();
  await tenant.control(campaign, "two", "start");
  await isLive(desk);
  await expect(phaseRow(desk, "two")).toHaveAttribute("data-status", "in_progress", { timeout: 40_000 });
  expect(await desk.evaluate(() => (window as unknown as { isSamePage?: boolean }).isSamePage)).toBe(true);
});

test("a page that is ahead of the server, as after a restore, takes the server's state", async ({
  desk,
  relay,
  tenant,
}) => {
  const campaign = await tenant.external("letters", NAMES);
  await open(desk, relay, `/campaigns/${campaign}`);
  // A page that saw events which the restored database does not have.
  relay.inject("campaign", {
    type: "phase_started",
    campaignId: campaign,
    phase: "one",
    sequence: 1,
    timestamp: new Date().toISOString(),
    payload: {},
  });
  await expect(phaseRow(desk, "one")).toHaveAttribute("data-status", "in_progress");
  relay.inject("snapshot_required", { campaignId: campaign, reason: "ahead" });
  await expect(phaseRow(desk, "one")).toHaveAttribute("data-status", "not_started");
  await expect(phaseRow(desk, "one")).toHaveAttribute("data-sequence", "0");
});

test("a missing event and repeated ones do not change the page before a snapshot", async ({ desk, relay, tenant }) => {
  const campaign = await tenant.external("letters", NAMES);
  await tenant.control(campaign, "one", "start");
  await open(desk, relay, `/campaigns/${campaign}`);
  const event = (sequence: number, type: string) => ({
    type,
    campaignId: campaign,
    phase: "one",
    sequence,
    timestamp: new Date().toISOString(),
    payload: {},
  });
  relay.inject("campaign", event(1, "phase_failed"));
  const before = relay.requests(/\/status$/).length;
  relay.inject("campaign", event(7, "phase_completed"));
  await until("a snapshot is taken", () => relay.requests(/\/status$/).length > before);
  await isLive(desk);
  await expect(phaseRow(desk, "one")).toHaveAttribute("data-status", "in_progress");
});

test("six tabs of one browser hold at most four streams, and all of them follow", async ({
  desk,
  relay,
  tenant,
  context,
}) => {
  const campaign = await tenant.external("letters", NAMES);
  const pages = [desk, ...(await Promise.all(Array.from({ length: 5 }, () => context.newPage())))];
  for (const page of pages) await page.goto(`${relay.url}/ui/campaigns/${campaign}`);
  const links = async () => Promise.all(pages.map((page) => page.locator("[data-link]").getAttribute("data-link")));
  await until("four stream and two poll", async () => {
    const all = await links();
    return all.filter((link) => link === "live").length === 4 && all.filter((link) => link === "polling").length === 2;
  });
  await tenant.control(campaign, "three", "start");
  for (const page of pages) await expect(phaseRow(page, "three")).toHaveAttribute("data-status", "in_progress");
});

test("an hour of sleep is noticed when the page is shown again", async ({ desk, relay, tenant }) => {
  const campaign = await tenant.external("letters", NAMES);
  await open(desk, relay, `/campaigns/${campaign}`);
  const before = relay.requests(/\/status$/).length;
  await desk.evaluate(() => {
    const real = Date.now.bind(Date);
    Date.now = () => real() + 3_600_000;
    document.dispatchEvent(new Event("visibilitychange"));
  });
  await until("a snapshot is taken", () => relay.requests(/\/status$/).length > before);
  await isLive(desk);
});
