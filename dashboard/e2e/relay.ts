// A proxy between the browser and the server that disconnects, stalls, delays, loses responses, and answers 503.

import { createServer, type IncomingMessage, request, type Server, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";

export interface Seen {
  method: string;
  path: string;
  at: number;
}

type Trouble = "503" | "stall" | "lose" | "delay";

export class Relay {
  readonly seen: Seen[] = [];
  private readonly sockets = new Set<Socket>();
  private readonly streams = new Set<ServerResponse>();
  private readonly server: Server;
  /** Trouble for the next requests whose path matches. */
  private rules: { trouble: Trouble; path: RegExp; left: number; ms: number }[] = [];
  private isDown = false;
  url = "";

  private constructor(private target: () => string) {
    this.server = createServer((incoming, outgoing) => this.pass(incoming, outgoing));
    this.server.on("connection", (socket) => {
      if (this.isDown) {
        socket.destroy();
        return;
      }
      this.sockets.add(socket);
      socket.on("close", () => this.sockets.delete(socket));
    });
  }

  static async start(target: () => string): Promise<Relay> {
    const relay = new Relay(target);
    await new Promise<void>((resolve) => relay.server.listen(0, "127.0.0.1", resolve));
    relay.url = `http://127.0.0.1:${(relay.server.address() as AddressInfo).port}`;
    return relay;
  }

  async stop(): Promise<void> {
    for (const socket of this.sockets) socket.destroy();
    await new Promise((resolve) => this.server.close(resolve));
  }

  /** Disconnects everything that is open. */
  cut(): void {
    for (const socket of this.sockets) socket.destroy();
  }

  /** Disconnects the streams alone. */
  cutStreams(): void {
    for (const stream of this.streams) stream.destroy();
  }

  /** Refuses every connection until it is up again. */
  setDown(isDown: boolean): void {
    this.isDown = isDown;
    if (isDown) this.cut();
  }

  trouble(trouble: Trouble, path: RegExp, times = 1, ms = 300): void {
    this.rules.push({ trouble, path, left: times, ms });
  }

  calm(): void {
    this.rules = [];
  }

  /** Writes frames into every open stream, as the server would. */
  inject(event: string, data: unknown): void {
    for (const stream of this.streams) stream.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
  }

  requests(path: RegExp, method = "GET"): Seen[] {
    return this.seen.filter((one) => one.method === method && path.test(one.path));
  }

  private take(path: string): { trouble: Trouble; ms: number } | undefined {
    const rule = this.rules.find((one) => one.left > 0 && one.path.test(path));
    if (rule) rule.left -= 1;
    return rule;
  }

  private pass(incoming: IncomingMessage, outgoing: ServerResponse): void {
    const path = incoming.url ?? "/";
    this.seen.push({ method: incoming.method ?? "GET", path, at: Date.now() });
    const trouble = this.take(path);
    if (trouble?.trouble === "503") {
      incoming.resume();
      outgoing.writeHead(503, { "content-type": "application/problem+json" });
      outgoing.end(
        JSON.stringify({ type: "about:blank", title: "Service Unavailable", status: 503, detail: "not ready: a test" }),
      );
      return;
    }
    const forward = () => {
      const upstream = request(
        this.target() + path,
        { method: incoming.method, headers: incoming.headers, agent: false },
        (response) => this.answer(incoming, response, outgoing, trouble?.trouble),
      );
      upstream.on("error", () => outgoing.destroy());
      outgoing.on("close", () => upstream.destroy());
      incoming.pipe(upstream);
    };
    if (trouble?.trouble === "delay") setTimeout(forward, trouble.ms);
    else forward();
  }

  private answer(
    incoming: IncomingMessage,
    response: IncomingMessage,
    outgoing: ServerResponse,
    trouble?: Trouble,
  ): void {
    // The server has carried it out, and its response is lost after its head. Without a head Chromium sends a request again by itself, on
    // another connection, and the page never learns of the loss.
    if (trouble === "lose") {
      response.resume();
      response.on("end", () => {
        outgoing.writeHead(response.statusCode ?? 502, { ...response.headers, "content-length": "1000" });
        outgoing.write(" ", () => outgoing.destroy());
      });
      return;
    }
    outgoing.writeHead(response.statusCode ?? 502, response.headers);
    if (trouble === "stall") {
      response.resume();
      return;
    }
    if (incoming.url?.startsWith("/api/v2/stream")) {
      this.streams.add(outgoing);
      outgoing.on("close", () => this.streams.delete(outgoing));
    }
    response.pipe(outgoing);
    response.on("error", () => outgoing.destroy());
  }
}
