import { fill, screens } from "./screens";
import { expect, open, test } from "./test";

/** Markup, handlers, addresses, templates, direction controls, formulas. Each would leave a mark if it ran. */
const ATTACKS = [
  `<img src=x onerror="window.attacked=1">`,
  `"><script>window.attacked=1</script>`,
  `<svg onload=window.attacked=1>`,
  `javascript:window.attacked=1`,
  `{{constructor.constructor('window.attacked=1')()}}\${7*7}`,
  `=cmd|' /C calc'!A1`,
  `abc\u202Ecod.exe\u2066\u200B`,
  `https://evil.example/"onmouseover="window.attacked=1`,
];
/** As long as a name may be: 255 bytes. */
const NAME = ATTACKS.join(" ").slice(0, 240);

for (const theme of ["light", "dark"] as const) {
  test(`attacks in every text stay text, ${theme}`, async ({ desk, relay, tenant }) => {
    test.setTimeout(180_000);
    await desk.emulateMedia({ colorScheme: theme });
    const filled = await fill(tenant, { name: NAME, people: 8 });
    // Reasons, actors and notes reach the history and the logs.
    const campaign = await tenant.external(`${ATTACKS[1]} letters`, ["print"]);
    await tenant.control(campaign, "print", "start", { reason: ATTACKS.join(" ") });
    await tenant.control(campaign, "print", "fail", { reason: `${ATTACKS[0]}${"x".repeat(1_500)}` });
    await tenant.post(`/in-doubt/${filled.doubt}/resolve`, {
      as: "sent",
      provider_message_id: ATTACKS[0],
      note: ATTACKS.join(" "),
    });
    const ofTexts = screens({ ...filled, campaign }).filter(({ path }) => path.includes(campaign));
    const all = [...screens(filled), ...ofTexts].filter(({ name }) => name !== "in-doubt-panel");
    for (const { name, path } of all) {
      if (name === "not-found") await desk.goto(`${relay.url}/ui${path}`);
      else await open(desk, relay, path);
      await expect(desk.locator("h1"), name).toBeVisible();
      expect(await desk.evaluate(() => "attacked" in window), name).toBe(false);
      // No element of the attacks exists, and no address runs code.
      expect(
        await desk.locator('img[src="x"], svg[onload], script:not([src]), a[href^="javascript:" i]').count(),
        name,
      ).toBe(0);
    }
    await open(desk, relay, `/campaigns/${filled.campaign}`);
    await expect(desk.locator("h1")).toContainText("<img src=x onerror=");
    await expect(desk.locator("h1")).toContainText("‹U+202E›");
    expect(await desk.title()).toContain("‹U+202E›");
  });
}

test("text over 4 KB is cut, and an export disarms formulas", async ({ desk, relay, tenant }) => {
  await tenant.accounts();
  await tenant.request("POST", "/leads/import?list=customers", `email,first_name\n${tenant.person(0)},"=1+1"\n`);
  const campaign = await tenant.mailing("letters", { failure_tolerance: 1 });
  await tenant.world.rules([{ provider: "sim", fault: "refuse" }]);
  await tenant.control(campaign, "mail", "start");
  const { run } = await tenant.phaseIs(campaign, "mail", "completed", "failed");
  await open(desk, relay, `/runs/${run?.id}?tab=items`);
  const download = desk.waitForEvent("download");
  await desk.getByRole("button", { name: "Export" }).click();
  await desk.getByRole("menuitem", { name: "Export CSV" }).click();
  const lines = Buffer.concat(await (await (await download).createReadStream()).toArray())
    .toString()
    .split("\n");
  expect(lines.length).toBeGreaterThan(1);
  for (const cell of lines.slice(1).flatMap((line) => line.split(","))) expect(cell).not.toMatch(/^"?[=+@]/);
  await tenant.control(await tenant.external("long", ["print"]), "print", "start", { reason: "y".repeat(2_000) });
});
