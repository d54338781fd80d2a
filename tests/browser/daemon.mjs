// A real daemon in a process of its own, for tests of the page. KVROOM_BIN names the program.

import { spawn } from "node:child_process";
import { readdirSync, rmSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { createInterface } from "node:readline";

export const KVROOM = process.env.KVROOM_BIN;

export class Daemon {
  /** Starts it and waits until it is ready. `http`: where; a free port if it is not said. */
  static async start(args = [], http = "127.0.0.1:0") {
    if (!KVROOM) throw new Error("KVROOM_BIN is not set: it names the program, for example target/debug/kvroom");
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("KVROOM_") && name !== "NOTIFY_SOCKET"));
    const child = spawn(KVROOM, ["serve", "--http", http, ...args], { env, stdio: ["ignore", "pipe", "inherit"] });
    const lines = createInterface({ input: child.stdout });
    const first = await new Promise((done, failed) => {
      lines.once("line", done);
      child.once("error", failed);
      child.once("exit", (code) => failed(new Error(`kvroom serve ended with ${code} before it was ready`)));
    });
    return new Daemon(child, JSON.parse(first));
  }

  constructor(child, ready) {
    Object.assign(this, { child, ready, http: ready.http[0], address: `http://${ready.http[0]}` });
    this.ended = new Promise((done) => child.once("exit", done));
    const kill = () => child.kill("SIGKILL");
    process.once("exit", kill);
    child.once("exit", () => process.off("exit", kill));
  }

  async ask(method, path, body, token) {
    const headers = { ...(body ? { "content-type": "application/json" } : {}), ...(token ? { authorization: `Bearer ${token}` } : {}) };
    const answer = await fetch(`${this.address}${path}`, { method, headers, body: body && JSON.stringify(body) });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    return text === "" ? null : JSON.parse(text);
  }

  get(path) { return this.ask("GET", path); }
  post(path, body) { return this.ask("POST", path, body); }

  async kill(signal = "SIGKILL") {
    this.child.kill(signal);
    await this.ended;
  }
}

/** A pool of 16 pages in memory that the daemon makes; the file goes with the pool's last user. */
export async function pool(daemon, path) {
  await daemon.post("/v1/pools", {
    name: "kv", kind: "kv", order: "layers_first", layers: 2, pages: 16, page_bytes: 4096, page_tokens: 16, memory: { create: true, path },
  });
}

/** A prefill and a decode daemon with a session and pools. */
export async function pair(name) {
  const prefill = await Daemon.start(["--name", "prefill", "--node-listen", "tcp://127.0.0.1:0"]);
  const decode = await Daemon.start(["--name", "decode"]);
  await decode.post("/v1/peers", { address: prefill.ready.addresses[0] });
  const files = [`/dev/shm/kvroom-browser-${process.pid}-${name}-p`, `/dev/shm/kvroom-browser-${process.pid}-${name}-d`];
  await pool(prefill, files[0]);
  await pool(decode, files[1]);
  return { prefill, decode, files };
}

/** Removes a pool's file, and what its daemon had beside it. */
export function forget(file) {
  const folder = dirname(file);
  for (const name of readdirSync(folder)) {
    if (name === basename(file) || name.startsWith(`${basename(file)}.kvroom`)) rmSync(join(folder, name), { force: true });
  }
}

export const receive = (id, pages, more) => ({ role: "receive", id, from: ["prefill"], pages: [{ pool: "kv", pages }], ...more });

/** Moves one page from prefill to decode, and waits until decode has it. */
export async function transfer({ prefill, decode }, id, more) {
  await decode.post("/v1/rooms", receive(id, [3], more));
  await prefill.post("/v1/rooms", { role: "send", id });
  await prefill.post(`/v1/rooms/${id}/chunks`, { tokens: [0, 16], pool: "kv", pages: [0] });
  await prefill.post(`/v1/rooms/${id}/finish`, { total: 16 });
  return decode.get(`/v1/rooms/${id}?wait=20s&for=released`);
}
