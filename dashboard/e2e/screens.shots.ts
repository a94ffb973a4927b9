import { copyFileSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { EMPTY, fill, limited, screens } from "./screens";
import { expect, isLive, signIn, test } from "./test";

const folder = new URL("../test-results/screens/", import.meta.url).pathname;
/** The pictures of the README. */
const images = new URL("../../docs/images/", import.meta.url).pathname;
const IN_README: Record<string, string> = {
  "overview-light-1280.png": "overview.png",
  "campaign-in-progress-light-1280.png": "campaign.png",
};
const SIZES = [
  { width: 1280, height: 860 },
  { width: 360, height: 740 },
];

test("every screen, to be looked at", async ({ page: desk, relay, world, browser }) => {
  test.setTimeout(300_000);
  mkdirSync(folder, { recursive: true });
  mkdirSync(images, { recursive: true });
  const tenant = await world.tenant("acme");
  await signIn(desk.context(), relay.url, tenant.key);
  const inProgress = await limited(tenant, "Autumn offer", 640, 420);
  const filled = await fill(tenant);
  const live = { name: "campaign-in-progress", path: `/campaigns/${inProgress}`, shows: "Waiting" };
  const empty = await world.tenant();
  const visitor = await browser.newContext();
  await visitor.request.post(`${relay.url}/api/v2/session`, {
    data: { key: empty.key },
    headers: { origin: relay.url },
  });
  const emptyPage = await visitor.newPage();
  const cards: string[] = [];
  for (const [page, list] of [
    [desk, [...screens(filled), live]],
    [emptyPage, EMPTY],
  ] as const) {
    for (const { name, path, shows } of list) {
      for (const colorScheme of ["light", "dark"] as const) {
        await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
        for (const size of SIZES) {
          await page.setViewportSize(size);
          await page.goto(`${relay.url}/ui${path}`);
          const text = page.locator("main, [role=dialog]").getByText(shows).first();
          // On a small screen a table shows three columns, and the text may be in another one.
          if (size.width > 720) await expect(text, name).toBeVisible();
          else await expect(text, name).toBeAttached();
          if (name !== "not-found") await isLive(page);
          await expect(page.locator("main [aria-busy=true]")).toHaveCount(0);
          const file = `${name}-${colorScheme}-${size.width}.png`;
          await page.screenshot({ path: join(folder, file) });
          if (IN_README[file]) copyFileSync(join(folder, file), join(images, IN_README[file]));
          cards.push(`<figure><img src="${file}" loading="lazy"><figcaption>${file}</figcaption></figure>`);
        }
      }
    }
  }
  await visitor.close();
  const style =
    "body{font:14px system-ui;display:grid;grid-template-columns:repeat(auto-fill,minmax(480px,1fr));gap:16px}img{max-width:100%;border:1px solid #ccc}figure{margin:0}";
  writeFileSync(
    join(folder, "index.html"),
    `<!doctype html><meta charset="utf-8"><title>Screens</title><style>${style}</style>${cards.join("\n")}\n`,
  );
});
