// A daemon that is played: the page of this tree, and answers in the daemon's shapes, in states that are hard
// to bring a real one to. No dependency.
//
//   node mock.mjs [--port N] [--scene calm|storm|wedge|quarantine|empty] [--token T]    a person looks at it
//   await startMock({port, scene, token})                                               a test uses it
//
// Scenes: `calm` some rooms a second; `storm` 1,000 rooms a second, sampled; `wedge` a lane that does not
// answer; `quarantine` rooms past their drain deadline, a peer that is down, an owner that died; `empty`.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const PAGE = new URL("../../src/daemon/dashboard/", import.meta.url);
const file = (name) => readFileSync(new URL(name, PAGE), "utf8");
const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

/** The page as the daemon joins it: its files and their order are read from there. */
function page() {
  const names = [...file("page.rs").matchAll(/include_str!\("(page\/\w+\.js)"\)/g)].map((m) => m[1]);
  const script = names.map(file).join("");
  const style = file("page/style.css");
  const html = file("page/index.html").replace("/*style*/", () => style).replace("/*script*/", () => script);
  const policy = `default-src 'none'; script-src ${hash(script)}; style-src ${hash(style)}; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'`;
  return { html, policy };
}

export const HOSTILE = '<img src=x onerror="window.struck = true"><script>window.struck = true</script>';

// Numbers that look like chance and are the same in every run.
function chance(seed) {
  let a = seed;
  return () => {
    a = (a + 0x6d2b79f5) | 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

const PEERS = ["prefill-0", "prefill-1", "prefill-2"];

class Daemon {
  constructor({ scene, incarnation }) {
    this.scene = scene;
    this.incarnation = String(incarnation ?? Date.now());
    this.born = Date.now();
    this.rooms = new Map();
    this.log = []; // Events with an id, for who comes back.
    this.seq = 0;
    this.told = []; // What only the recording has.
    this.streams = new Set();
    this.chance = chance(7);
    this.next = 1000;
    this.done = 0;
    this.aborted = 0;
    if (scene !== "empty") {
      for (let n = 0; n < (scene === "storm" ? 400 : 130); n += 1) this.start();
      this.start({ id: 42, tag: "batch-7", state: "transferring" });
      this.start({ id: 43, tag: HOSTILE, state: "transferring" });
    }
    if (scene === "quarantine") {
      for (let n = 0; n < 7; n += 1) this.hold(this.start({ id: 900 + n, state: "draining", age: 600_000 + n * 61_000 }));
    }
    this.timer = setInterval(() => this.second(), 1000);
  }

  start({ id = this.next++, tag = null, state, age = 0 } = {}) {
    const at = this.chance();
    const peer = PEERS[Math.floor(at * 3)];
    const room = {
      id: String(id), attempt: 0, role: "receive", state: state ?? ["registered", "transferring", "transferring", "draining"][Math.floor(this.chance() * 4)],
      outcome: null, released: false, proofs: [], landed: null, peers: [peer],
      legs: [{ peer, state: "open", posted_bytes: 8 << 20, written_bytes: Math.floor(at * (8 << 20)) }],
      tag, pages: 8, pool_pages: [{ pool: "kv", pages: [3, 4, 5, 6, 9, 10, 14, 15] }], quarantined: false, held_because: null,
      chunks: { pushed: 3, landed: 2 }, traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", born: Date.now() - age,
    };
    if (room.state === "draining") this.end(room, { end: "aborted", code: "Requested", side: "local", detail: "the client went away" }, false);
    this.rooms.set(room.id, room);
    return room;
  }

  hold(room) {
    Object.assign(room, { quarantined: true, held_because: "lane 1 of prefill-2 is inside the gate of page 9, and prefill-2 has not answered for 9 min 2 s" });
  }

  end(room, outcome, tell = true) {
    const from = room.state;
    room.outcome = outcome;
    room.state = "draining";
    room.held_because = "1 of 1 legs is not drained: waiting for prefill's answer to the abort";
    if (tell) this.tellRoom(room, from, "draining", outcome.end === "done" ? "Finished" : "Abort", outcome.end === "done" ? null : outcome);
  }

  shown(room) {
    const { born, ...rest } = room;
    return { ...rest, age_ms: Date.now() - born };
  }

  now() {
    return (Date.now() - this.born) * 1000;
  }

  tell(type, data) {
    this.seq += 1;
    const text = `id: ${this.incarnation}-${this.seq}\nevent: ${type}\ndata: ${JSON.stringify({ seq: this.seq, ...data })}\n\n`;
    this.log.push({ seq: this.seq, type, text, data: { seq: this.seq, ...data } });
    if (this.log.length > 5000) this.log.shift();
    for (const stream of this.streams) stream.write(text);
  }

  /** An entry that the recording has and the stream has not. */
  note(room, what, more) {
    this.seq += 1;
    this.told.push({ seq: this.seq, at_us: this.now(), part: "shard 0", what, room: room.id, attempt: room.attempt, life: "7", ...more });
    if (this.told.length > 1000) this.told.shift();
  }

  tellRoom(room, from, to, event, reason = null) {
    this.tell("room", { at_us: this.now(), shard: 0, room: room.id, attempt: room.attempt, role: room.role, from, to, event, reason, peer: room.peers[0] });
  }

  second() {
    const storm = this.scene === "storm";
    const many = this.scene === "empty" ? 0 : storm ? 40 : 4; // Of 3,000 transitions a second, the daemon sends few.
    for (let n = 0; n < many; n += 1) {
      const room = this.start({ state: "registered" });
      this.tellRoom(room, "registered", "transferring", "Bound");
      room.state = "transferring";
    }
    const old = [...this.rooms.values()].filter((r) => !r.quarantined && r.id !== "42" && r.id !== "43");
    for (const room of old.slice(0, many)) this.rooms.delete(room.id);
    const wave = Math.sin((Date.now() - this.born) / 20_000);
    const count = (state) => [...this.rooms.values()].filter((r) => r.state === state).length;
    const scale = storm ? 9 : 1;
    const wedged = this.scene === "wedge";
    const flows = this.scene === "empty" ? [] : PEERS.flatMap((peer, at) => [
      { peer, fabric: at === 0 ? "shm" : "tcp", direction: "received", per_s: Math.round((wedged ? 0.1 : 1) * (3 - at) * 4e8 * (1.2 + wave + this.chance() * 0.2)) },
    ]);
    if (storm) for (let n = 0; n < 5; n += 1) flows.push({ peer: `prefill-${n + 3}`, fabric: "tcp", direction: "received", per_s: 5e7 * (n + 1) });
    const peers = this.peers();
    this.tell("sample", {
      at_ms: Date.now(),
      rooms: { registered: count("registered") * scale, transferring: count("transferring") * scale, draining: count("draining") * scale },
      done_per_s: this.scene === "empty" ? null : storm ? Math.round(900 + 60 * wave) : 3, aborted_per_s: storm ? Math.round(80 + 20 * wave) : this.scene === "calm" ? 1 : 0,
      sampled: storm, shown_of: storm ? 2940 : many,
      bytes: flows, abort_to_reusable_us: this.scene === "empty" ? { p50: null, p90: null, p99: null } : { p50: 180 + 40 * wave, p90: 900 + 200 * wave, p99: (wedged ? 2e6 : 4200) + 900 * wave },
      quarantined_pages: this.scene === "quarantine" ? 56 : 0,
      lanes: [0, 1, 2, 3].map((lane) => ({ lane: `lane ${lane}`, queued: wedged && lane === 1 ? 4096 : Math.round(storm ? 40 + 30 * this.chance() : 2 * this.chance()), wait_us: this.scene === "empty" ? null : wedged && lane === 1 ? 12e6 : Math.round(30 + 60 * this.chance()) })),
      peers: peers.map(({ name, state }) => ({ name, state })),
    });
  }

  peers() {
    if (this.scene === "empty") return [];
    return PEERS.map((name, at) => {
      const down = this.scene === "quarantine" && at === 2;
      return { name, incarnation: String(17 + at), state: down ? "down" : "up", why: down ? "no answer for 30 s; the session ended" : null, fabric: at === 0 ? "shm" : "tcp", quarantined_pages: down ? 56 : 0, address: `tcp://10.0.0.${7 + at}:7400` };
    });
  }

  pools() {
    if (this.scene === "empty") return [];
    const bad = this.scene === "quarantine";
    return [
      { id: "kv", name: "kv", kind: "kv", order: "layers_first", layers: 32, pages: 65536, page_bytes: 131072, page_tokens: 16, path: "/dev/shm/kv", leased_pages: 1040, quarantined_pages: bad ? [{ pages: [9, 10, 11, 12, 40], why: "its owner, process 4711, died with the pages lent" }] : [], owner: { pid: 4711, alive: !bad }, state: bad ? "owner-died" : "serving" },
      { id: "aux", name: "aux", kind: "aux", order: "layers_first", layers: 1, pages: 1024, page_bytes: 512, page_tokens: 16, path: "/dev/shm/aux", leased_pages: 130, quarantined_pages: [], owner: null, state: "serving" },
    ];
  }

  checks() {
    // As the daemon: `since_ms` is a moment, in milliseconds since 1970, and only a check that fails has it.
    const good = ["node", "shard 0", "shard 1", "lane 0", "lane 1", "canary tcp lane 0", "canary tcp lane 1", "pool kv"].map((name) => ({ name, ok: true }));
    if (this.scene === "wedge") {
      const [lane] = good.splice(4, 1);
      good.unshift({ ...lane, ok: false, since_ms: Date.now() - 12_000, why: "it has 4,096 jobs and has not taken a turn for 12 s", do: "take a recording (kvroom record), then restart the daemon; its pools keep what is lent" });
    }
    return good;
  }
}

/** Serves until `stop()`. `restart()` is another life at the same address. */
export async function startMock({ port = 0, scene = "calm", token = null } = {}) {
  let daemon = new Daemon({ scene });
  const server = createServer((ask, answer) => {
    const url = new URL(ask.url, "http://mock");
    const json = (status, body) => {
      answer.writeHead(status, { "content-type": status < 400 || status === 503 ? "application/json" : "application/problem+json" });
      answer.end(JSON.stringify(body));
    };
    const problem = (status, code, detail) => json(status, { type: `/problems/${code}`, title: code, status, detail, code });
    if (url.pathname === "/") {
      const { html, policy } = page();
      answer.writeHead(200, { "content-type": "text/html; charset=utf-8", "content-security-policy": policy, "x-content-type-options": "nosniff", "cache-control": "no-cache" });
      return answer.end(html);
    }
    if (token && ask.headers.authorization !== `Bearer ${token}`) return problem(401, "unauthorized", "A token is needed.");
    route(daemon, ask, answer, url, json, problem);
  });
  await new Promise((done, failed) => server.on("error", failed).listen(port, "127.0.0.1", done));
  const address = `http://127.0.0.1:${server.address().port}`;
  const end = async () => {
    clearInterval(daemon.timer);
    server.closeAllConnections();
    await new Promise((done) => server.close(done));
    server.closeAllConnections();
  };
  return {
    address,
    get daemon() { return daemon; },
    stop: end,
    /** Drops all connections without an end of the life. */
    cut: () => server.closeAllConnections(),
    down: end,
    async up(again = {}) {
      daemon = new Daemon({ scene: again.scene ?? scene, incarnation: again.incarnation });
      await new Promise((done, failed) => server.once("error", failed).listen(Number(new URL(address).port), "127.0.0.1", done));
    },
  };
}

function route(daemon, ask, answer, url, json, problem) {
  const room = /^\/v1\/rooms\/(\d+)$/.exec(url.pathname);
  const query = url.searchParams;
  if (url.pathname === "/v1/events") {
    answer.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
    answer.write(": hello\n\n");
    const last = /^(\d+)-(\d+)$/.exec(ask.headers["last-event-id"] ?? "");
    daemon.resumed = last?.[0] ?? null;
    if (last && last[1] === daemon.incarnation) {
      const missed = daemon.log.filter((e) => e.seq > Number(last[2]));
      const lost = daemon.seq - Number(last[2]) - missed.length;
      if (lost > 0) answer.write(`event: gap\ndata: {"lost":${lost}}\n\n`);
      for (const event of missed) answer.write(event.text);
    }
    daemon.streams.add(answer);
    answer.on("close", () => daemon.streams.delete(answer));
  } else if (url.pathname === "/v1/node") {
    json(200, { name: "decode-0", incarnation: daemon.incarnation, version: "0.1.0", addresses: ["tcp://127.0.0.1:7400"], uptime_ms: Date.now() - daemon.born, stats: {} });
  } else if (url.pathname === "/readyz" || url.pathname === "/livez") {
    const checks = url.pathname === "/livez" ? [] : daemon.checks();
    const ok = checks.every((c) => c.ok);
    json(ok ? 200 : 503, { ok, checks, at_ms: Date.now(), peers: [] });
  } else if (url.pathname === "/v1/peers") {
    json(200, { peers: daemon.peers() });
  } else if (url.pathname === "/v1/pools") {
    json(200, { pools: daemon.pools() });
  } else if (url.pathname === "/v1/rooms") {
    const all = [...daemon.rooms.values()].filter((r) => ["state", "role", "tag"].every((f) => !query.get(f) || r[f] === query.get(f))
      && (!query.get("peer") || r.peers.includes(query.get("peer"))) && (!query.get("quarantined") || String(r.quarantined) === query.get("quarantined")));
    const from = Number(query.get("after") ?? 0);
    const limit = Number(query.get("limit") ?? 100);
    const rooms = all.slice(from, from + limit).map((r) => daemon.shown(r));
    json(200, { rooms, next: from + limit < all.length ? String(from + limit) : null });
  } else if (room) {
    const found = daemon.rooms.get(room[1]);
    const fits = found && (!query.get("role") || query.get("role") === found.role) && (!query.get("attempt") || Number(query.get("attempt")) === found.attempt);
    if (!fits) return problem(404, "no-such-room", `No room ${room[1]} is known here.`);
    if (ask.method === "DELETE") {
      if (!found.outcome) {
        daemon.end(found, { end: "aborted", code: "Requested", side: "local", detail: query.get("reason") });
        daemon.note(found, "sent", { peer: found.peers[0], peer_no: 1, message: "Abort", frame: 9, claim: "12" });
        daemon.note(found, "gate", { leg: 0, claim: "12", is: "occupied" });
        setTimeout(() => {
          daemon.note(found, "received", { peer: found.peers[0], peer_no: 1, message: "Drained", frame: 4, claim: "12" });
          daemon.note(found, "gate", { leg: 0, claim: "12", is: "closed" });
          daemon.note(found, "lease", { proofs: ["PeerDrained"] });
          Object.assign(found, { released: true, state: "aborted", held_because: null, proofs: ["PeerDrained"] });
          daemon.tellRoom(found, "draining", "aborted", "Drained");
        }, 1500);
      }
      return json(202, daemon.shown(found));
    }
    json(200, daemon.shown(found));
  } else if (url.pathname === "/v1/recording") {
    answer.writeHead(200, { "content-type": "application/jsonl" });
    const since = Number(query.get("since") ?? 0);
    const lines = [{ kvroom_recording: 1, node: "decode-0", incarnation: { started_ns: daemon.incarnation, nonce: "1" }, started_us: daemon.born * 1000, lost: 0, why: "http" }];
    for (const { type, data } of daemon.log) {
      if (type !== "room" || data.room !== query.get("room") || data.seq < since) continue;
      const { shard, peer, ...entry } = data;
      lines.push({ ...entry, part: `shard ${shard}`, what: "room", life: "7" });
    }
    for (const entry of daemon.told.filter((e) => e.room === query.get("room") && e.seq >= since)) lines.push(entry);
    lines.sort((one, other) => (one.seq ?? 0) - (other.seq ?? 0));
    answer.end(lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
  } else problem(404, "no-such-route", `There is no ${url.pathname}.`);
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const given = (name) => (process.argv.includes(`--${name}`) ? process.argv[process.argv.indexOf(`--${name}`) + 1] : undefined);
  const mock = await startMock({ port: Number(given("port") ?? 7481), scene: given("scene") ?? "calm", token: given("token") ?? null });
  console.log(mock.address);
}
