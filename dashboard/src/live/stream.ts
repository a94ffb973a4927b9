// The one stream of a tab.
//
//  signed_out ◄─401─ snapshotting ─200─► opening ─hello─► live ─error · bye · silence · gap · hidden · offline─► stale
//                         ▲                                                                                        │
//                         └── wait: the server's `retry`, else 1 s × 2ⁿ ≤ 30 s, ± 50 %; at once on online, visible ◄┘
//
// After a disconnect no event is applied before a snapshot. An `EventSource` would reconnect with its old URL, so its first error closes
// it, and the stream makes another one. All timers and requests come from outside, so that tests control them.

import type { Status } from "../api/campaigns";
import type { Overview } from "../api/overview";
import type { CampaignEvent } from "../model/phases";

export type Link =
  | "idle"
  | "snapshotting"
  | "opening"
  | "live"
  | "stale"
  | "polling"
  | "hidden"
  | "paused"
  | "signed_out";

export type Frame =
  | { kind: "hello"; time: string; version: string; build?: string | null; retry?: number }
  | { kind: "overview"; overview: Overview & { late?: boolean } }
  | { kind: "changed"; topics: string[] }
  | { kind: "campaign"; event: CampaignEvent }
  | { kind: "snapshot_required"; campaignId: string; reason: string }
  | { kind: "bye"; reason: string };

export type Taken<T> = { ok: true; data: T } | { ok: false; status: number; retryAfter?: number };

export interface Change {
  link: Link;
  /** Since when the values are not live. A planned reconnect counts only after a moment. */
  staleSince?: number | null;
  retryAt?: number | null;
  /** The limit of streams per browser is used up. */
  isCrowded?: boolean;
}

export interface Ports {
  now(): number;
  /** Runs later, and returns how to cancel it. */
  after(ms: number, run: () => void): () => void;
  random(): number;
  /** Runs with the next animation frame. */
  nextFrame(run: () => void): void;
  takeStatus(campaign: string): Promise<Taken<Status>>;
  takeOverview(): Promise<Taken<Overview>>;
  /** Takes one of the places for streams, or none. */
  takeSlot(): Promise<(() => void) | undefined>;
  open(campaigns: ReadonlyMap<string, number>, on: { frame(frame: Frame): void; error(): void }): { close(): void };
  changed(change: Change): void;
  snapshot(campaign: string, status: Status): void;
  missing(campaign: string): void;
  overview(overview: Overview): void;
  frames(frames: Frame[]): void;
}

/** The server takes this many campaigns per stream. */
export const WATCHED_MAX = 20;
const RETRY_MS = 1_000;
const RETRY_MS_MAX = 30_000;
const SILENCE_MS = 40_000;
const CHECK_MS = 4_000;
const OPENING_MS = 15_000;
const POLL_MS = 5_000;
const HIDDEN_MS = 30_000;
/** A stream that lived shorter than this counts as a failed attempt. */
const STEADY_MS = 5_000;
/** A planned reconnect shows no value as stale before this. */
const PLANNED_MS = 800;

export class Stream {
  private link: Link = "idle";
  private readonly watched = new Map<string, number>();
  /** Campaign → number of screens that show it. */
  private readonly wanted = new Map<string, number>();
  private source: { close(): void } | undefined;
  private release: (() => void) | undefined;
  /** Counts reconnects: the answer of an older one is not applied. */
  private generation = 0;
  /** Counts streams: frames of a closed one are ignored. */
  private sources = 0;
  private attempts = 0;
  private liveSince = 0;
  private lastFrameAt = 0;
  private serverRetryMs: number | undefined;
  private isStale = false;
  private queue: Frame[] = [];
  private cancels = new Map<string, () => void>();
  private isPaused = false;
  private isHidden = false;
  private isOnline = true;

  constructor(private readonly ports: Ports) {}

  /** Begins after sign-in. */
  start(): void {
    this.link = "snapshotting";
    this.attempts = 0;
    this.reconnect();
  }

  /** Ends at sign-out, or when the session has ended. */
  stop(): void {
    this.leave("signed_out");
  }

  /** Keeps a campaign up to date until the returned function is called. */
  watch(campaign: string): () => void {
    const count = this.wanted.get(campaign) ?? 0;
    this.wanted.set(campaign, count + 1);
    if (count === 0) this.later("watch", 30, () => this.extend());
    let isOver = false;
    return () => {
      if (isOver) return;
      isOver = true;
      const left = (this.wanted.get(campaign) ?? 1) - 1;
      if (left > 0) this.wanted.set(campaign, left);
      else this.wanted.delete(campaign);
    };
  }

  /** Takes a snapshot of one campaign, without a new stream. */
  async refresh(campaign: string): Promise<void> {
    const generation = this.generation;
    const taken = await this.ports.takeStatus(campaign);
    if (generation !== this.generation) return;
    this.accept(campaign, taken);
  }

  retryNow(): void {
    if (this.link === "stale") this.reconnect();
  }

  setPaused(isPaused: boolean): void {
    this.isPaused = isPaused;
    if (this.link === "signed_out" || this.link === "idle") return;
    if (isPaused) this.leave("paused");
    else this.reconnect();
  }

  setOnline(isOnline: boolean): void {
    this.isOnline = isOnline;
    if (isOnline && this.link === "stale") this.reconnect();
    else if (!isOnline && this.isConnected()) this.lost();
  }

  setHidden(isHidden: boolean): void {
    this.isHidden = isHidden;
    this.cancel("hidden");
    if (isHidden) {
      this.later("hidden", HIDDEN_MS, () => {
        if (this.link !== "signed_out" && this.link !== "idle" && this.link !== "paused") this.leave("hidden");
      });
    } else if (this.link === "hidden" || this.link === "stale") this.reconnect();
    // Timers sleep with the computer, so silence is checked at once.
    else if (this.link === "live") this.checkSilence();
  }

  private isConnected(): boolean {
    return ["snapshotting", "opening", "live", "polling"].includes(this.link);
  }

  /** Everything anew: first the snapshots, then the stream behind them. */
  private reconnect(): void {
    this.close();
    if (this.isPaused || (this.isHidden && this.link === "hidden")) return;
    this.set("snapshotting", { retryAt: null });
    this.watched.clear();
    void this.begin([...this.wanted.keys()].slice(0, WATCHED_MAX));
  }

  /** A screen shows another campaign: only its snapshot is missing, and the old stream delivers until the new one opens. */
  private extend(): void {
    const added = [...this.wanted.keys()].filter((campaign) => !this.watched.has(campaign));
    if (added.length === 0 || !["live", "opening", "polling"].includes(this.link)) return;
    for (const campaign of this.watched.keys()) {
      if (!this.wanted.has(campaign)) this.watched.delete(campaign);
    }
    const room = Math.max(0, WATCHED_MAX - this.watched.size);
    void this.begin(added.slice(0, room));
  }

  private async begin(campaigns: string[]): Promise<void> {
    this.generation += 1;
    const generation = this.generation;
    // Without a campaign the overview shows whether the session is valid and the server ready.
    const first = campaigns.length === 0 && this.watched.size === 0 ? [this.takeOverview()] : [];
    const results = await Promise.all([...first, ...campaigns.map((campaign) => this.take(campaign))]);
    if (generation !== this.generation) return;
    const failed = results.find((result) => !result.ok);
    if (failed && !failed.ok) {
      if (failed.status === 401) return this.leave("signed_out");
      if (failed.status !== 404) return this.lost(failed.retryAfter);
    }
    if (this.release === undefined) {
      const release = await this.ports.takeSlot();
      if (generation !== this.generation) return release?.();
      if (release === undefined) return this.poll();
      this.release = release;
    }
    this.open();
  }

  private async takeOverview(): Promise<Taken<unknown>> {
    const taken = await this.ports.takeOverview();
    if (taken.ok) this.ports.overview(taken.data);
    return taken;
  }

  private async take(campaign: string): Promise<Taken<unknown>> {
    const generation = this.generation;
    const taken = await this.ports.takeStatus(campaign);
    if (generation === this.generation) this.accept(campaign, taken);
    return taken;
  }

  private accept(campaign: string, taken: Taken<Status>): void {
    if (taken.ok) {
      this.watched.set(campaign, taken.data.sequence);
      // Frames that wait for the next animation frame are older than the snapshot or follow it; the reducer knows which.
      this.flush();
      this.ports.snapshot(campaign, taken.data);
    } else if (taken.status === 404) {
      this.watched.delete(campaign);
      this.ports.missing(campaign);
    }
  }

  private open(): void {
    this.flush();
    this.source?.close();
    if (this.link !== "live" && this.link !== "polling") this.set("opening");
    else {
      // A planned reconnect is not shown as stale unless it takes long.
      this.link = "opening";
      this.later("planned", PLANNED_MS, () => this.set("opening", { staleSince: this.ports.now() }));
    }
    this.lastFrameAt = this.ports.now();
    this.sources += 1;
    const mine = this.sources;
    this.source = this.ports.open(new Map(this.watched), {
      frame: (frame) => mine === this.sources && this.receive(frame),
      error: () => mine === this.sources && this.lost(),
    });
    this.later("opening", OPENING_MS, () => this.link === "opening" && this.lost());
    this.watchSilence();
  }

  private receive(frame: Frame): void {
    this.lastFrameAt = this.ports.now();
    if (frame.kind === "hello") {
      this.cancel("opening");
      this.cancel("planned");
      this.liveSince = this.ports.now();
      if (frame.retry !== undefined && frame.retry > 0) this.serverRetryMs = frame.retry;
      this.set("live", { staleSince: null, retryAt: null, isCrowded: false });
    } else if (frame.kind === "bye") {
      this.lost();
      return;
    } else if (frame.kind === "snapshot_required") {
      this.lost(0);
      return;
    } else if (frame.kind === "campaign") {
      const { campaignId, sequence } = frame.event;
      const at = this.watched.get(campaignId);
      if (at === undefined || this.link !== "live") return;
      if (sequence > at + 1) {
        this.lost(0);
        return;
      }
      if (sequence === at + 1) this.watched.set(campaignId, sequence);
    }
    this.queue.push(frame);
    if (this.queue.length === 1) this.ports.nextFrame(() => this.flush());
  }

  /** One change of the store per animation frame, however many frames came. */
  private flush(): void {
    if (this.queue.length === 0) return;
    const frames = this.queue;
    this.queue = [];
    this.ports.frames(frames);
  }

  private watchSilence(): void {
    this.later("silence", CHECK_MS, () => {
      this.checkSilence();
      if (this.link === "live" || this.link === "opening") this.watchSilence();
    });
  }

  private checkSilence(): void {
    if (this.link === "live" && this.ports.now() - this.lastFrameAt >= SILENCE_MS) this.lost();
  }

  /** The connection is gone. Everything that it feeds is stale from now on. */
  private lost(retryAfterSeconds?: number): void {
    const wasSteady = this.link === "live" && this.ports.now() - this.liveSince >= STEADY_MS;
    this.close();
    if (wasSteady) this.attempts = 0;
    const base = Math.min(RETRY_MS_MAX, (this.serverRetryMs ?? RETRY_MS) * 2 ** this.attempts);
    // A missing event is no failure of the server: the first time, the snapshot is taken at once.
    const isAtOnce = retryAfterSeconds === 0 && this.attempts === 0;
    const wait = isAtOnce ? 0 : (retryAfterSeconds || 0) * 1000 + base * (0.5 + this.ports.random());
    this.attempts = Math.min(this.attempts + 1, 10);
    this.set("stale", { staleSince: this.ports.now(), retryAt: this.isOnline ? this.ports.now() + wait : null });
    if (this.isOnline) this.later("retry", wait, () => this.reconnect());
  }

  /** Without a place for a stream: snapshots every few seconds. */
  private poll(): void {
    this.set("polling", { staleSince: null, retryAt: null, isCrowded: true });
    this.later("poll", POLL_MS, () => {
      if (this.isHidden) return this.poll();
      this.watched.clear();
      void this.takeOverview().then((taken) => {
        if (this.link !== "polling") return;
        if (!taken.ok) return taken.status === 401 ? this.leave("signed_out") : this.lost(taken.retryAfter);
        void this.begin([...this.wanted.keys()].slice(0, WATCHED_MAX));
      });
    });
  }

  private leave(link: "signed_out" | "hidden" | "paused"): void {
    this.close();
    this.set(link, { staleSince: this.ports.now(), retryAt: null });
  }

  private close(): void {
    this.generation += 1;
    this.sources += 1;
    this.flush();
    this.source?.close();
    this.source = undefined;
    this.release?.();
    this.release = undefined;
    for (const timer of ["retry", "opening", "planned", "silence", "poll"]) this.cancel(timer);
  }

  private set(link: Link, change: Omit<Change, "link"> = {}): void {
    this.link = link;
    if (change.staleSince !== undefined && change.staleSince !== null) {
      // The first moment counts: the values are as old as then.
      if (this.isStale) delete change.staleSince;
      this.isStale = true;
    } else if (change.staleSince === null) this.isStale = false;
    this.ports.changed({ link, ...change });
  }

  private later(name: string, ms: number, run: () => void): void {
    this.cancel(name);
    this.cancels.set(name, this.ports.after(ms, run));
  }

  private cancel(name: string): void {
    this.cancels.get(name)?.();
    this.cancels.delete(name);
  }
}
