import { beforeEach, describe, expect, test } from "vitest";
import type { Status } from "../api/campaigns";
import type { Overview } from "../api/overview";
import { type Change, type Frame, type Ports, Stream, type Taken } from "./stream";

const A = "0199e4a0-0000-7000-8000-00000000000a";
const B = "0199e4a0-0000-7000-8000-00000000000b";

class World implements Ports {
  time = 1_000_000;
  timers: { at: number; run: () => void }[] = [];
  log: string[] = [];
  changes: Change[] = [];
  applied: Frame[] = [];
  frameQueue: (() => void)[] = [];
  sequences = new Map<string, number>([
    [A, 10],
    [B, 20],
  ]);
  answer: Taken<null> = { ok: true, data: null };
  slots = 4;
  sources: { on: { frame(frame: Frame): void; error(): void }; isOpen: boolean; url: Map<string, number> }[] = [];

  now = () => this.time;
  random = () => 0.5;
  after(ms: number, run: () => void) {
    const timer = { at: this.time + ms, run };
    this.timers.push(timer);
    return () => {
      this.timers = this.timers.filter((other) => other !== timer);
    };
  }
  nextFrame(run: () => void) {
    this.frameQueue.push(run);
  }
  async takeStatus(campaign: string): Promise<Taken<Status>> {
    this.log.push(`status ${campaign.at(-1)}`);
    const sequence = this.sequences.get(campaign);
    if (sequence === undefined) return { ok: false, status: 404 };
    return this.answer.ok ? { ok: true, data: { campaignId: campaign, sequence } as Status } : this.answer;
  }
  async takeOverview(): Promise<Taken<Overview>> {
    this.log.push("overview");
    return this.answer.ok ? { ok: true, data: {} as Overview } : this.answer;
  }
  async takeSlot() {
    if (this.slots === 0) return undefined;
    this.slots -= 1;
    return () => {
      this.slots += 1;
    };
  }
  open(url: ReadonlyMap<string, number>, on: { frame(frame: Frame): void; error(): void }) {
    const source = { on, isOpen: true, url: new Map(url) };
    this.sources.push(source);
    this.log.push(`open ${[...url].map(([id, at]) => `${id.at(-1)}:${at}`).join()}`);
    return {
      close: () => {
        source.isOpen = false;
      },
    };
  }
  changed(change: Change) {
    this.changes.push(change);
    this.log.push(change.link);
  }
  snapshot(campaign: string, status: Status) {
    this.log.push(`snapshot ${campaign.at(-1)}:${status.sequence}`);
  }
  missing(campaign: string) {
    this.log.push(`missing ${campaign.at(-1)}`);
  }
  overview() {}
  frames(frames: Frame[]) {
    this.applied.push(...frames);
  }

  /** Lets time pass, with every timer and promise that becomes due. */
  async pass(ms: number) {
    const until = this.time + ms;
    await settle();
    for (;;) {
      const next = this.timers.filter((timer) => timer.at <= until).sort((a, b) => a.at - b.at)[0];
      if (next === undefined) break;
      this.time = Math.max(this.time, next.at);
      this.timers = this.timers.filter((timer) => timer !== next);
      next.run();
      await settle();
    }
    this.time = until;
    for (const run of this.frameQueue.splice(0)) run();
    await settle();
  }
  get last() {
    return this.sources.at(-1) as World["sources"][number];
  }
  get openSources() {
    return this.sources.filter((source) => source.isOpen).length;
  }
  send(frame: Frame) {
    this.last.on.frame(frame);
  }
  hello() {
    this.send({ kind: "hello", time: "2026-03-01T12:00:00Z", version: "0.2.0" });
  }
  event(campaignId: string, sequence: number) {
    const event = { type: "campaign_progress", campaignId, phase: "mail", sequence, timestamp: "", payload: {} };
    this.send({ kind: "campaign", event });
  }
}

const settle = async () => {
  for (let n = 0; n < 12; n++) await Promise.resolve();
};

let world: World;
let stream: Stream;
const link = () => world.changes.at(-1)?.link;

async function live(...campaigns: string[]) {
  for (const campaign of campaigns) stream.watch(campaign);
  stream.start();
  await world.pass(50);
  world.hello();
  await world.pass(1);
  expect(link()).toBe("live");
}

beforeEach(() => {
  world = new World();
  stream = new Stream(world);
});

describe("the stream", () => {
  test("takes the snapshot first and opens behind its sequence", async () => {
    await live(A);
    expect(world.log).toEqual(["snapshotting", "status a", "snapshot a:10", "opening", "open a:10", "live"]);
    expect(world.changes.at(-1)).toMatchObject({ staleSince: null });
  });

  test("reads the overview first where no campaign is on screen", async () => {
    await live();
    expect(world.log).toEqual(["snapshotting", "overview", "opening", "open ", "live"]);
  });

  test("applies no event after a disconnect before a snapshot", async () => {
    await live(A);
    const old = world.last;
    old.on.error();
    expect([link(), old.isOpen]).toEqual(["stale", false]);
    old.on.frame({
      kind: "campaign",
      event: { type: "x", campaignId: A, phase: "mail", sequence: 11, timestamp: "", payload: {} },
    });
    world.log = [];
    world.sequences.set(A, 14);
    await world.pass(2_000);
    expect(world.applied.filter((frame) => frame.kind === "campaign")).toEqual([]);
    expect(world.log.slice(0, 5)).toEqual(["snapshotting", "status a", "snapshot a:14", "opening", "open a:14"]);
  });

  test("marks values as stale at the moment of the disconnect and keeps that moment", async () => {
    await live(A);
    world.last.on.error();
    const since = world.time;
    expect(world.changes.at(-1)).toMatchObject({ link: "stale", staleSince: since });
    world.answer = { ok: false, status: 503 };
    await world.pass(10_000);
    expect(world.changes.filter((change) => change.staleSince !== undefined).at(-1)?.staleSince).toBe(since);
  });

  test("waits longer after each failure, at most 30 s and half of it more", async () => {
    world.answer = { ok: false, status: 503 };
    stream.start();
    const waits: number[] = [];
    for (let n = 0; n < 8; n++) {
      await world.pass(0);
      const { retryAt } = world.changes.at(-1) as Change;
      waits.push((retryAt ?? 0) - world.time);
      await world.pass((retryAt ?? 0) - world.time);
    }
    expect(waits).toEqual([1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
  });

  test("adds the server's Retry-After to its own wait", async () => {
    world.answer = { ok: false, status: 429, retryAfter: 7 };
    stream.start();
    await world.pass(0);
    expect((world.changes.at(-1)?.retryAt ?? 0) - world.time).toBe(8_000);
  });

  test("counts a short life as a failure and a long one not", async () => {
    await live(A);
    world.last.on.error();
    await world.pass(1_500);
    world.hello();
    await world.pass(1_000);
    world.last.on.error();
    expect((world.changes.at(-1)?.retryAt ?? 0) - world.time).toBe(2_000);
    await world.pass(3_000);
    world.hello();
    await world.pass(6_000);
    world.last.on.error();
    expect((world.changes.at(-1)?.retryAt ?? 0) - world.time).toBe(1_000);
  });

  test("notices silence after 40 s, within 45 s", async () => {
    await live(A);
    await world.pass(39_000);
    expect(link()).toBe("live");
    await world.pass(6_000);
    expect(world.log).toContain("stale");
  });

  test("takes a snapshot at once when an event is missing, and then waits", async () => {
    await live(A);
    world.event(A, 12);
    expect(link()).toBe("stale");
    world.log = [];
    await world.pass(0);
    expect(world.log.slice(0, 2)).toEqual(["snapshotting", "status a"]);
    world.hello();
    world.event(A, 99);
    await world.pass(100);
    expect(link()).toBe("stale");
  });

  test("begins again when the server asks for a snapshot or closes the stream", async () => {
    await live(A);
    world.send({ kind: "snapshot_required", campaignId: A, reason: "ahead" });
    world.sequences.set(A, 3);
    await world.pass(0);
    expect(world.log.slice(-3)).toEqual(["snapshot a:3", "opening", "open a:3"]);
    world.hello();
    await world.pass(6_000);
    world.send({ kind: "bye", reason: "shutdown" });
    expect(link()).toBe("stale");
  });

  test("does not apply an event of before, and forwards the next ones in one batch per animation frame", async () => {
    await live(A);
    world.applied = [];
    for (const sequence of [9, 11, 12, 13]) world.event(A, sequence);
    expect(world.applied).toEqual([]);
    await world.pass(16);
    expect(world.applied.map((frame) => frame.kind === "campaign" && frame.event.sequence)).toEqual([9, 11, 12, 13]);
  });

  test("a campaign that comes on screen costs its snapshot and one planned reconnect, which is not shown as stale", async () => {
    await live(A);
    world.event(A, 11);
    world.log = [];
    const before = world.changes.length;
    stream.watch(B);
    await world.pass(40);
    expect(world.log).toEqual(["status b", "snapshot b:20", "open a:11,b:20"]);
    expect(world.sources[0]?.isOpen).toBe(false);
    expect(world.openSources).toBe(1);
    world.hello();
    await world.pass(2_000);
    expect(world.changes.slice(before).some((change) => typeof change.staleSince === "number")).toBe(false);
  });

  test("a stream that was closed changes nothing any more", async () => {
    await live(A);
    const old = world.last;
    stream.watch(B);
    await world.pass(40);
    world.hello();
    await world.pass(1);
    world.applied = [];
    const event = { type: "x", campaignId: A, phase: "mail", sequence: 11, timestamp: "", payload: {} };
    old.on.frame({ kind: "campaign", event });
    old.on.frame({ kind: "bye", reason: "shutdown" });
    old.on.error();
    await world.pass(16);
    expect([link(), world.openSources, world.applied]).toEqual(["live", 1, []]);
  });

  test("a planned reconnect that takes long is shown as stale within a second", async () => {
    await live(A);
    stream.watch(B);
    await world.pass(1_000);
    expect(world.changes.at(-1)).toMatchObject({ link: "opening" });
    expect(typeof world.changes.at(-1)?.staleSince).toBe("number");
  });

  test("a campaign that does not exist is reported as missing, and the others go on", async () => {
    world.sequences.delete(B);
    await live(A, B);
    expect(world.log).toContain("missing b");
    expect([...world.last.url.keys()]).toEqual([A]);
  });

  test("the end of the session ends the stream, and signing in begins it again", async () => {
    await live(A);
    world.answer = { ok: false, status: 401 };
    world.send({ kind: "bye", reason: "key" });
    await world.pass(2_000);
    expect(link()).toBe("signed_out");
    await world.pass(120_000);
    expect(link()).toBe("signed_out");
    world.answer = { ok: true, data: null };
    stream.start();
    await world.pass(10);
    world.hello();
    expect(link()).toBe("live");
  });

  test("a tab that is hidden for 30 s closes its stream, and opens it with a snapshot when it is shown", async () => {
    await live(A);
    stream.setHidden(true);
    await world.pass(29_000);
    world.send({ kind: "changed", topics: [] });
    await world.pass(2_000);
    expect([link(), world.openSources]).toEqual(["hidden", 0]);
    world.log = [];
    stream.setHidden(false);
    await world.pass(0);
    expect(world.log.slice(0, 2)).toEqual(["snapshotting", "status a"]);
  });

  test("a tab that is shown again soon keeps its stream", async () => {
    await live(A);
    stream.setHidden(true);
    await world.pass(10_000);
    stream.setHidden(false);
    await world.pass(25_000);
    expect(link()).toBe("live");
  });

  test("after a sleep of the computer, silence is noticed as soon as the tab is shown", async () => {
    await live(A);
    world.time += 3_600_000;
    stream.setHidden(false);
    expect(link()).toBe("stale");
  });

  test("offline is stale without retries, and online connects at once", async () => {
    await live(A);
    stream.setOnline(false);
    expect(world.changes.at(-1)).toMatchObject({ link: "stale", retryAt: null });
    await world.pass(300_000);
    expect(link()).toBe("stale");
    stream.setOnline(true);
    expect(link()).toBe("snapshotting");
  });

  test("without a place for a stream it takes snapshots every 5 s, and streams as soon as a place is free", async () => {
    world.slots = 0;
    stream.watch(A);
    stream.start();
    await world.pass(50);
    expect(world.changes.at(-1)).toMatchObject({ link: "polling", isCrowded: true });
    world.log = [];
    await world.pass(5_000);
    expect(world.log.slice(0, 2)).toEqual(["overview", "status a"]);
    world.slots = 1;
    await world.pass(5_000);
    world.hello();
    expect(world.changes.at(-1)).toMatchObject({ link: "live", isCrowded: false });
  });

  test("a user may pause updates, and nothing is requested until they go on", async () => {
    await live(A);
    stream.setPaused(true);
    world.log = [];
    stream.setOnline(true);
    stream.setHidden(false);
    await world.pass(60_000);
    expect(world.log).toEqual([]);
    stream.setPaused(false);
    await world.pass(0);
    expect(world.log[0]).toBe("snapshotting");
  });

  test("gives its place back whenever it disconnects", async () => {
    await live(A);
    expect(world.slots).toBe(3);
    world.last.on.error();
    expect(world.slots).toBe(4);
    await world.pass(2_000);
    expect(world.slots).toBe(3);
    stream.stop();
    expect(world.slots).toBe(4);
  });

  test("retries at once when the user asks for it", async () => {
    await live(A);
    world.last.on.error();
    world.log = [];
    stream.retryNow();
    await world.pass(0);
    expect(world.log.slice(0, 2)).toEqual(["snapshotting", "status a"]);
  });
});
