// What the page knows of the daemon, and who keeps it up to date: the stream for what happens, and a few small
// questions, seconds apart, for what only an answer has. Bounded: five minutes of samples, 200 events.

const live = new Live();
const KEPT_EVENTS = 200;

const known = {
  node: null,
  samples: [],
  breaks: [],
  events: [], // The newest first.
  arrived: 0, // Room events since the last sample.
  rate: { shown: 0, of: null, sampled: false },
  lost: 0,
  ready: null,
  alive: null,
  peers: null,
  pools: null,
  quarantined: null,
  problems: new Map(),
};

/** A moment of the daemon's clock in ours: by the smallest distance seen, which is the least delayed. */
let ahead = null;
function ours(atMs) {
  const now = Date.now();
  ahead = ahead === null ? now - atMs : Math.min(ahead, now - atMs);
  return atMs + ahead;
}
/** How long ago a moment of the daemon's clock is, in milliseconds. */
const ago = (atMs) => Math.max(0, Date.now() - atMs - (ahead ?? 0));

live.on("sample", (sample) => {
  const ended = { done: sample.done_per_s, aborted: sample.aborted_per_s };
  const point = { at: ours(sample.at_ms), ...sample.rooms, ...ended, ...percentiles(sample.abort_to_reusable_us) };
  for (const flow of sample.bytes ?? []) {
    const name = `${flow.direction === "in" || flow.direction === "received" ? "from" : "to"} ${flow.peer}, ${flow.fabric}`;
    point[`flow ${name}`] = (point[`flow ${name}`] ?? 0) + flow.per_s;
  }
  // A node that counts its bytes in one sum.
  if (!Array.isArray(sample.bytes) && sample.bytes_per_s !== undefined) point["flow all peers"] = sample.bytes_per_s ?? 0;
  known.samples.push(point);
  const oldest = Date.now() - WINDOW - 5_000;
  while (known.samples.length > 0 && (known.samples[0].at < oldest || known.samples.length > 700)) known.samples.shift();
  known.sample = sample;
  known.rate = { shown: sample.shown ?? known.arrived, of: sample.shown_of ?? null, sampled: Boolean(sample.sampled) };
  known.arrived = 0;
  dirty();
});

function percentiles(us) {
  return us ? { p50: us.p50, p90: us.p90, p99: us.p99 } : {};
}

live.on("room", (event) => {
  known.arrived += 1;
  known.events.unshift(event);
  if (known.events.length > KEPT_EVENTS) known.events.length = KEPT_EVENTS;
});
live.on("gap", (gap) => (known.lost += gap.lost ?? 0));
live.on("peer", (event) => {
  const peer = known.peers?.find((p) => p.name === event.peer);
  if (peer) Object.assign(peer, { state: event.state, why: event.why ?? null });
  soonAgain(peersOf);
  dirty();
});
live.on("restart", () => {
  known.breaks.push(Date.now());
  ahead = null;
  known.events = [];
  known.lost = 0;
  say("The daemon was started anew. What is drawn before the mark is of its life before.");
  toast("The daemon was started anew.");
  refresh();
  dirty();
});
live.on("state", (state) => {
  if (state === "lost") say(`Disconnected since ${clock(live.since)}.`);
  if (state === "live") {
    say("Connected.");
    refresh();
  }
  dirty();
});

// The small questions.

async function told(name, path, take, options) {
  try {
    take(await ask(path, options));
    known.problems.delete(name);
  } catch (problem) {
    known.problems.set(name, problem instanceof Problem ? problem.message : "The daemon does not answer.");
  }
  dirty();
}

const nodeOf = () => told("node", "v1/node", (node) => {
  known.node = node;
  live.lives(node.incarnation);
});
const peersOf = () => told("peers", "v1/peers", (said) => (known.peers = said.peers ?? said));
const poolsOf = () => told("pools", "v1/pools", (said) => (known.pools = said.pools ?? said));
const quarantinedOf = () => told("quarantined", "v1/rooms?quarantined=true&limit=100", (said) => (known.quarantined = said));
const aliveOf = () => told("alive", "livez", (said) => (known.alive = said), { also: [503] });
async function readyOf() {
  const before = known.ready?.ok;
  await told("ready", "readyz", (said) => (known.ready = said), { also: [503] });
  const now = known.ready?.ok;
  if (before !== undefined && now !== before) say(now ? "The node is ready again." : "The node is not ready: a check fails.");
}

const QUESTIONS = [
  [nodeOf, 30_000],
  [readyOf, 2_000],
  [aliveOf, 5_000],
  [peersOf, 3_000],
  [poolsOf, 3_000],
  [quarantinedOf, 3_000],
];
const due = new Map();

/** Asks everything at the next turn. */
function refresh() {
  due.clear();
}
function soonAgain(question) {
  due.delete(question);
}

/** Asks what is due; nothing while nobody looks, and no question twice at a time. */
function askWhatIsDue() {
  if (document.hidden || live.state === "connecting") return;
  for (const [question, every] of QUESTIONS) {
    if ((due.get(question) ?? 0) > Date.now()) continue;
    due.set(question, Infinity);
    question().finally(() => {
      if (due.has(question)) due.set(question, Date.now() + every);
    });
  }
}
