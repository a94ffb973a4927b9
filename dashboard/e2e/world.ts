// A server of the real program with its own database, the sim, and tenants. One world per worker; each test has its own tenant.

import { type ChildProcess, execFile, spawn } from "node:child_process";
import { chmodSync, existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";

const run = promisify(execFile);

/** Waits until a question has an answer. Nothing sleeps for a guessed time. */
export async function until<T>(
  what: string,
  ask: () => Promise<T | undefined | false> | T | undefined | false,
  ms = 60_000,
): Promise<T> {
  const end = Date.now() + ms;
  for (;;) {
    const answer = await ask();
    if (answer !== undefined && answer !== false) return answer;
    if (Date.now() > end) throw new Error(`gave up waiting: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 40));
  }
}

function binary(): string {
  const path = process.env.DASHBOARD_TEST_BINARY ?? new URL("../../target/debug/postrider", import.meta.url).pathname;
  if (!existsSync(path)) throw new Error(`there is no ${path}; build it, or name it in DASHBOARD_TEST_BINARY`);
  return path;
}

export class World {
  private server: ChildProcess | undefined;
  private simulator: ChildProcess | undefined;
  private count = 0;
  url = "";
  sim = "";
  smtp = "";
  readonly home = mkdtempSync(join(tmpdir(), "postrider-e2e-"));
  private readonly environment = {
    ...process.env,
    POSTRIDER_DATA_DIR: join(this.home, "data"),
    POSTRIDER_OUTBOUND__ALLOW_PRIVATE: "true",
    // A burst of tests is no attack.
    POSTRIDER_API__RATE_PER_SECOND: "0",
    POSTRIDER_LOG__FILTER: undefined,
  };

  static async start(): Promise<World> {
    const world = new World();
    // Where the tests run as root, Postgres runs as another user, who must be able to reach its folder.
    chmodSync(world.home, 0o711);
    const started = await Promise.allSettled([world.startServer("127.0.0.1:0"), world.startSim()]);
    const failed = started.find((one) => one.status === "rejected");
    if (!failed) return world;
    // Nothing that the failed start left behind stays.
    await world.stop();
    throw failed.reason;
  }

  /** Starts the server again at its address, as after a crash. */
  async restart(): Promise<void> {
    const address = new URL(this.url).host;
    await this.kill();
    await this.startServer(address);
  }

  /** Kills the server as a crash would. */
  async kill(): Promise<void> {
    await ended(this.server, "SIGKILL");
    rmSync(join(this.environment.POSTRIDER_DATA_DIR, "run.json"), { force: true });
  }

  async stop(): Promise<void> {
    await Promise.all([ended(this.server, "SIGTERM"), ended(this.simulator, "SIGKILL")]);
    rmSync(this.home, { recursive: true, force: true });
  }

  /** A command of the program, with `--json`. */
  async command<T>(...args: string[]): Promise<T> {
    const { stdout } = await run(binary(), [...args, "--json"], { env: this.environment, maxBuffer: 64 << 20 });
    return JSON.parse(stdout) as T;
  }

  async tenant(name?: string): Promise<Tenant> {
    this.count += 1;
    name ??= `t${process.pid}-${this.count}`;
    const made = await this.command<{ tenant_id: string; admin_key: string }>("tenants", "create", name);
    return new Tenant(this, name, made.tenant_id, made.admin_key);
  }

  /** Faults of the sim: `[]` removes them. */
  async rules(rules: object[]): Promise<void> {
    await fetch(`${this.sim}/faults/rules`, {
      method: "PUT",
      body: JSON.stringify(rules),
      headers: { "content-type": "application/json" },
    });
  }

  async faults(rates: Record<string, number>): Promise<void> {
    await fetch(`${this.sim}/faults`, {
      method: "PUT",
      body: JSON.stringify(rates),
      headers: { "content-type": "application/json" },
    });
  }

  async receipts(): Promise<string> {
    return (await fetch(`${this.sim}/receipts/all`)).text();
  }

  private async startServer(listen: string): Promise<void> {
    const file = join(this.environment.POSTRIDER_DATA_DIR, "run.json");
    const child = spawn(binary(), ["serve", "--listen", listen], {
      env: this.environment,
      stdio: ["ignore", "ignore", "pipe"],
    });
    this.server = child;
    let log = "";
    child.stderr?.on("data", (part: Buffer) => {
      log = (log + part.toString()).slice(-4_000);
    });
    this.url = await until("the server listens", async () => {
      if (child.exitCode !== null) throw new Error(`the server ended:\n${log}`);
      if (!existsSync(file)) return undefined;
      const text = readFileSync(file, "utf8");
      const url: string | undefined =
        text.endsWith("}\n") || text.endsWith("}") ? JSON.parse(text).http_url : undefined;
      const ready = url ? await fetch(`${url}/readyz`).catch(() => undefined) : undefined;
      return ready?.ok ? url : undefined;
    });
  }

  private async startSim(): Promise<void> {
    const args = ["sim", "--receipts", join(this.home, "receipts.ndjson"), "--latency-ms", "400"];
    const child = spawn(binary(), args, { env: this.environment, stdio: ["ignore", "pipe", "ignore"] });
    this.simulator = child;
    const lines = createInterface({ input: child.stdout as NodeJS.ReadableStream });
    const first: string = await new Promise((resolve) => lines.once("line", resolve));
    const { http_url, smtp_address } = JSON.parse(first);
    this.sim = http_url;
    this.smtp = smtp_address;
  }
}

async function ended(child: ChildProcess | undefined, signal: NodeJS.Signals): Promise<void> {
  if (!child || child.exitCode !== null || child.signalCode !== null) return;
  const over = new Promise((resolve) => child.once("exit", resolve));
  child.kill(signal);
  await over;
}

type Json = Record<string, unknown>;

export interface Status {
  campaignId: string;
  sequence: number;
  phases: { phase: string; status: string; progressPercentage: number; run: Json | null }[];
}

/** A tenant, and its API with its admin key. */
export class Tenant {
  constructor(
    readonly world: World,
    readonly name: string,
    readonly id: string,
    readonly key: string,
  ) {}

  async request<T = Json>(
    method: string,
    path: string,
    body?: unknown,
    headers: Record<string, string> = {},
  ): Promise<T> {
    const isText = typeof body === "string";
    const response = await fetch(`${this.world.url}/api/v2${path}`, {
      method,
      headers: {
        authorization: `Bearer ${this.key}`,
        ...(body === undefined ? {} : { "content-type": isText ? "text/csv" : "application/json" }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: isText ? body : JSON.stringify(body) }),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return (text === "" ? {} : JSON.parse(text)) as T;
  }

  get = <T = Json>(path: string) => this.request<T>("GET", path);
  post = <T = Json>(path: string, body: unknown = {}) => this.request<T>("POST", path, body);

  async makeKey(role: string): Promise<{ id: string; secret: string }> {
    return this.post("/keys", { name: `${role} of a test`, role });
  }

  /** Accounts at the sim: `mailer` by HTTP, `relay` by SMTP. */
  async accounts(): Promise<void> {
    const [host, port] = this.world.smtp.split(":");
    await this.post("/provider-accounts", { name: "mailer", provider: "sim", settings: { url: this.world.sim } });
    await this.post("/provider-accounts", {
      name: "relay",
      provider: "smtp",
      settings: { host, port: Number(port), security: "none", from: "News <news@example.com>" },
    });
  }

  /** People with addresses `a0.TENANT@example.org`, `a1.…`. */
  async people(list: string, count: number): Promise<void> {
    const lines = Array.from({ length: count }, (_, n) => `${this.person(n)},Ann ${n}`);
    await this.request("POST", `/leads/import?list=${list}`, `email,first_name\n${lines.join("\n")}\n`);
  }

  person(n: number): string {
    return `a${n}.${this.name}@example.org`;
  }

  /** A campaign with one phase `mail`. */
  async mailing(
    name: string,
    { list = "customers", account = "mailer", ...phase }: Json & { list?: string; account?: string } = {},
  ): Promise<string> {
    const content = { subject: "Hello {{ first_name }}", text: "Spring is here." };
    const asset = await this.post<{ id: string }>("/assets", {
      name: `${name.slice(0, 200)}/mail`,
      channel: "email",
      content,
    });
    const made = await this.post<{ id: string }>("/campaigns", {
      name,
      auto_advance: false,
      phases: [{ phase: "mail", channel: "email", list, provider_account: account, asset_id: asset.id, ...phase }],
    });
    return made.id;
  }

  /** A campaign whose phases other services carry out. */
  async external(name: string, phases = ["one", "two", "three"], autoAdvance = false): Promise<string> {
    const made = await this.post<{ id: string }>("/campaigns", {
      name,
      auto_advance: autoAdvance,
      phases: phases.map((phase) => ({ phase, kind: "external" })),
    });
    return made.id;
  }

  control = (campaign: string, phase: string, by: string, body: Json = {}) =>
    this.post<Json>(`/campaigns/${campaign}/phases/${phase}/${by}`, body);

  status = (campaign: string) => this.get<Status>(`/campaigns/${campaign}/status`);

  async phaseIs(campaign: string, phase: string, ...states: string[]): Promise<Status["phases"][number]> {
    return until(`${phase} is ${states.join(" or ")}`, async () => {
      const found = (await this.status(campaign)).phases.find((one) => one.phase === phase);
      return found && states.includes(found.status) && found;
    });
  }

  async history(campaign: string): Promise<{ type: string; sequence: number; payload: Json }[]> {
    return (
      await this.get<{ items: { type: string; sequence: number; payload: Json }[] }>(
        `/campaigns/${campaign}/history?limit=200`,
      )
    ).items;
  }

  /** A run of the campaign's mailing with this many items in doubt at the relay, and the others sent. */
  async doubts(name: string, count: number, inDoubt: number, phase: Json = {}): Promise<string> {
    await this.people(name, count);
    const campaign = await this.mailing(name, { list: name, account: "relay", ...phase });
    await this.world.rules([{ provider: "smtp", fault: "fail_after", times: inDoubt }]);
    await this.control(campaign, "mail", "start");
    await until(`${inDoubt} items are in doubt`, async () => {
      const found = await this.get<{ items: unknown[] }>(`/in-doubt?campaign_id=${campaign}&limit=200`);
      return found.items.length === inDoubt;
    });
    await this.world.rules([]);
    return campaign;
  }
}
