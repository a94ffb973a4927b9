import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { fill, screens } from "./screens";
import { expect, open, signIn, test } from "./test";

const dist = new URL("../dist/", import.meta.url).pathname;

test("the cookie is for the browser alone, and for pages of this server", async ({ context, tenant, relay }) => {
  await signIn(context, relay.url, tenant.key);
  const [cookie] = await context.cookies();
  expect(cookie).toMatchObject({
    name: "postrider_session",
    httpOnly: true,
    sameSite: "Strict",
    path: "/",
    secure: false,
  });
  const secure = await context.request.post(`${relay.url}/api/v2/session`, {
    data: { key: tenant.key },
    headers: { origin: relay.url.replace("http:", "https:") },
  });
  expect(secure.headers()["set-cookie"] ?? "").toMatch(/^__Host-postrider_session=.*; Secure/);
});

test("a request of another origin is rejected with the cookie, whatever it says", async ({
  context,
  tenant,
  relay,
}) => {
  await signIn(context, relay.url, tenant.key);
  const campaign = await tenant.external("letters", ["print"]);
  const [cookie] = await context.cookies();
  const path = `${relay.url}/api/v2/campaigns/${campaign}/phases/print/start`;
  const post = (headers: Record<string, string>) =>
    fetch(path, {
      method: "POST",
      body: "{}",
      headers: { cookie: `${cookie?.name}=${cookie?.value}`, "content-type": "application/json", ...headers },
    });
  for (const headers of [
    {},
    { origin: "https://evil.example" },
    { origin: "null" },
    { "sec-fetch-site": "cross-site" },
    { "sec-fetch-site": "same-site", origin: relay.url },
    { origin: `${relay.url}.evil.example` },
  ]) {
    expect((await post(headers as Record<string, string>)).status, JSON.stringify(headers)).toBe(403);
  }
  expect((await post({ origin: relay.url, authorization: `Bearer ${tenant.key}` })).status).toBe(401);
  expect((await tenant.status(campaign)).phases[0]?.status).toBe("not_started");
  expect((await post({ origin: relay.url })).status).toBe(200);
});

test("a page of another origin can neither read nor change anything", async ({ desk, relay, tenant, browser }) => {
  await open(desk, relay, "/");
  // The same host at another port is the same site, and another origin.
  const other = await browser.newContext({ storageState: await desk.context().storageState() });
  const page = await other.newPage();
  await page.goto(`${tenant.world.sim}/receipts`);
  const results = await page.evaluate(async (target) => {
    const ask = (init: RequestInit) =>
      fetch(`${target}/api/v2/whoami`, { credentials: "include", ...init }).then(
        (response) => response.status,
        () => "blocked",
      );
    return [await ask({}), await ask({ method: "POST", body: "{}" })];
  }, relay.url);
  expect(results).toEqual(["blocked", "blocked"]);
  await other.close();
});

test("every file has the headers that keep other pages out", async ({ request, world }) => {
  const files = readdirSync(dist, { recursive: true, encoding: "utf8" }).filter(
    (name) => statSync(join(dist, name)).isFile() && !name.endsWith(".br") && !name.startsWith(".vite"),
  );
  expect(files.length).toBeGreaterThan(10);
  for (const name of ["", "campaigns", ...files]) {
    const response = await request.get(`${world.url}/ui/${name}`, { headers: { accept: "text/html,*/*" } });
    const headers = response.headers();
    const policy = headers["content-security-policy"] ?? "";
    expect(response.status(), name).toBe(200);
    expect(headers["x-content-type-options"], name).toBe("nosniff");
    expect(headers["referrer-policy"], name).toBe("no-referrer");
    expect(headers["cross-origin-opener-policy"], name).toBe("same-origin");
    expect(policy, name).toContain("default-src 'none'");
    if (name === "frame.html") {
      expect(policy).toContain("sandbox allow-scripts");
      continue;
    }
    expect(policy, name).toContain("require-trusted-types-for 'script'");
    expect(policy, name).not.toMatch(/unsafe-inline|unsafe-eval|https:/);
    const cache = headers["cache-control"] ?? "";
    if (name.startsWith("assets/")) expect(cache, name).toContain("immutable");
    else expect(cache, name).toMatch(/no-store|no-cache/);
  }
});

test("nothing that a page keeps looks like a secret, and the key is in no memory after sign-in", async ({
  page,
  relay,
  tenant,
}) => {
  test.setTimeout(120_000);
  await page.goto(`${relay.url}/ui/login`);
  await page.getByLabel("API key").fill(tenant.key);
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page.getByRole("heading", { name: "Overview" })).toBeVisible();
  const filled = await fill(tenant, { people: 5 });
  for (const { path } of screens(filled)) {
    await page.goto(`${relay.url}/ui${path}`);
    await expect(page.locator("h1")).toBeVisible();
    expect(page.url()).not.toContain("pr_");
  }
  const kept = await page.evaluate(() => ({
    local: { ...localStorage },
    session: { ...sessionStorage },
    cookies: document.cookie,
  }));
  expect(Object.keys(kept.local)).toEqual(["postrider.prefs"]);
  expect(Object.keys(JSON.parse(kept.local["postrider.prefs"] ?? "{}")).sort()).toEqual([
    "density",
    "hidden",
    "shortcuts",
    "theme",
    "zone",
  ]);
  expect(kept.cookies).toBe("");
  expect(Object.keys(kept.session).filter((name) => !name.startsWith("tsr-"))).toEqual([]);
  expect(JSON.stringify(kept.session)).not.toContain("pr_");
});

test("the key that was typed is not in the heap of the page", async ({ page, relay, tenant }) => {
  test.setTimeout(120_000);
  await page.goto(`${relay.url}/ui/login`);
  await page.getByLabel("API key").fill(tenant.key);
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page.locator("[data-link]")).toHaveAttribute("data-link", "live");
  const client = await page.context().newCDPSession(page);
  await client.send("HeapProfiler.enable");
  await client.send("HeapProfiler.collectGarbage");
  let isFound = false;
  let tail = "";
  client.on("HeapProfiler.addHeapSnapshotChunk", ({ chunk }) => {
    isFound ||= (tail + chunk).includes(tenant.key.slice(-40));
    tail = chunk.slice(-100);
  });
  await client.send("HeapProfiler.takeHeapSnapshot", { reportProgress: false });
  expect(isFound).toBe(false);
});

test("the preview frame shows styles, runs nothing and requests nothing", async ({ desk, relay, guard }) => {
  // The policy of the frame refuses what the attacks try; that is what it is for.
  guard.allowed = [/^policy: /];
  await open(desk, relay, "/");
  const asked: string[] = [];
  desk.on("request", (request) => asked.push(request.url()));
  await desk.evaluate(async () => {
    const frame = document.createElement("iframe");
    frame.sandbox.add("allow-scripts");
    frame.src = "/ui/frame.html";
    document.body.append(frame);
    await new Promise((resolve) => frame.addEventListener("load", resolve));
    const html = `<style>p { color: rgb(1, 2, 3) }</style><p id="p" style="margin:0">Hello</p><script>parent.postMessage("ran","*")</script>
      <img src="https://evil.example/x.png" onerror="parent.postMessage('ran','*')"><a href="javascript:parent.postMessage('ran','*')">x</a>
      <iframe src="https://evil.example"></iframe><form action="https://evil.example"><button>go</button></form>
      <meta http-equiv="refresh" content="0;url=https://evil.example"><link rel="stylesheet" href="https://evil.example/a.css"><base href="https://evil.example">`;
    Object.assign(window, { messages: [] as string[] });
    addEventListener("message", (event) =>
      (window as unknown as { messages: string[] }).messages.push(String(event.data)),
    );
    frame.contentWindow?.postMessage({ html }, "*");
  });
  const frame = desk.frameLocator("iframe");
  await expect(frame.locator("#p")).toHaveCSS("color", "rgb(1, 2, 3)");
  await expect(frame.getByText("[image: https://evil.example/x.png]")).toBeVisible();
  await expect(frame.locator("script[src=''], iframe, form, meta[http-equiv], link, base, a[href]")).toHaveCount(0);
  expect(await desk.evaluate(() => (window as unknown as { messages: string[] }).messages)).toEqual([]);
  expect(asked.filter((url) => url.includes("evil.example"))).toEqual([]);
});
