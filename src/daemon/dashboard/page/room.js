// One room: what it is, why its memory is still held, and what happened to it.

const STEPS = ["registered", "transferring", "draining"];
const KEPT_ENTRIES = 2_000;

class Room {
  constructor(id, attempt) {
    Object.assign(this, { id, attempt });
    this.title = `Room ${id}.${attempt}`;
    this.rooms = null;
    this.problem = null;
    this.entries = new Map();
    this.since = 0;
    this.cards = el("div", { class: "grid" });
    this.message = el("p", { class: "note" });
    this.list = el("ol", { class: "timeline" });
    this.listNote = el("p", { class: "note" });
    this.node = [
      el("p", {}, el("a", { href: "#/rooms" }, "All rooms")),
      el("h1", { tabindex: "-1" }, `Room ${id}, attempt ${attempt}`),
      this.message,
      this.cards,
      panel("Timeline", this.listNote, this.list),
    ];
    this.parts = new Map();
    for (const event of known.events) this.heard(event);
    this.load();
  }

  /** An event of the stream; those of other rooms are not for this view. */
  heard(event) {
    if (String(event.room) !== this.id || Number(event.attempt ?? 0) !== Number(this.attempt)) return;
    this.put({ ...event, live: true });
    this.asked = 0; // What it changed is asked for at the next turn.
  }

  put(entry) {
    const name = entry.seq === undefined ? `${entry.at_us} ${entry.event}` : String(entry.seq);
    const before = this.entries.get(name);
    if (before && entry.live) return; // The recording says more.
    if (!before && this.entries.size >= KEPT_ENTRIES) return;
    this.entries.set(name, entry);
    this.changed = true;
  }

  async load() {
    if (this.loading) return;
    this.loading = true;
    this.asked = Date.now();
    try {
      this.rooms = await roomsOf(this.id, this.attempt);
      this.problem = null;
    } catch (problem) {
      this.problem = problem instanceof Problem ? problem.message : "The daemon does not answer.";
    }
    try {
      await this.record();
      this.recordProblem = null;
    } catch (problem) {
      this.recordProblem = problem instanceof Problem ? problem.message : "The daemon does not answer.";
    }
    this.loading = false;
    this.render();
  }

  /** What the flight recorder has of the room since the last time. */
  async record() {
    const answer = await request(`v1/recording?${new URLSearchParams({ room: this.id, since: this.since, limit: 2000 })}`, { signal: soon() });
    if (!answer.ok) throw await problemOf(answer);
    const next = Number(answer.headers.get("kvroom-next") ?? 0);
    for (const line of (await answer.text()).split("\n")) {
      if (line.trim() === "") continue;
      const entry = JSON.parse(line);
      if (entry.seq === undefined) continue; // The header.
      this.since = Math.max(this.since, entry.seq + 1);
      if (entry.attempt === undefined || Number(entry.attempt) === Number(this.attempt)) this.put(entry);
    }
    // What was looked at and is of other rooms is not looked at again.
    this.since = Math.max(this.since, next);
  }

  tick() {
    const over = this.rooms?.length > 0 && this.rooms.every((r) => r.released);
    if (live.state === "live" && Date.now() - (this.asked ?? 0) > (over ? 10_000 : 1_000)) this.load();
    else this.render();
  }

  /** The daemon has another life: its recorder begins anew. */
  restarted() {
    this.entries.clear();
    this.since = 0;
    this.changed = true;
    this.asked = 0;
  }

  render() {
    const none = this.rooms?.length === 0;
    setText(this.message, this.problem ?? (this.rooms === null ? "Asking…"
      : none ? "The daemon knows no such room: it was never started here, or it ended and is not remembered any more." : ""));
    this.message.classList.toggle("problem", this.problem !== null);
    this.message.hidden = this.message.textContent === "";
    reconcile(this.cards, this.rooms ?? [], (r) => r.role, (r) => {
      const part = new RoomCard(r.role);
      this.parts.set(r.role, part);
      return part.node;
    }, (_, r) => this.parts.get(r.role).show(r));
    if (this.changed) this.renderTimeline();
    setText(this.listNote, this.recordProblem ? `From the stream of events alone, which may be sampled. The recording: ${this.recordProblem}`
      : this.entries.size === 0 ? "The flight recorder has nothing of this room (any more)."
        : `${plural(this.entries.size, "entry", "entries")}, from the flight recorder and the stream of events. Times are since the start of the node.`);
  }

  renderTimeline() {
    this.changed = false;
    const entries = [...this.entries.values()].sort((a, b) => (a.at_us ?? 0) - (b.at_us ?? 0) || (a.seq ?? 0) - (b.seq ?? 0));
    const first = entries[0]?.at_us ?? 0;
    reconcile(this.list, entries, (e) => `${e.seq} ${e.at_us} ${e.live ? 1 : 0}`,
      () => el("li", {}, el("time"), el("div")),
      (item, e) => {
        item.dataset.kind = kindOf(e);
        setText(item.firstElementChild, e.at_us === first ? seconds(e.at_us) : `+${micros(e.at_us - first)}`);
        setText(item.lastElementChild, wordsOf(e));
      });
  }
}

const seconds = (us) => `${((us ?? 0) / 1e6).toFixed(3)} s`;

/** What an entry says, in one line: of the stream, or of the recording (docs/recording.md). */
function wordsOf(e) {
  const leg = e.leg === undefined || e.leg === null ? "" : `leg ${e.leg}`;
  const peer = e.peer ? `peer ${e.peer}` : "";
  switch (e.what) {
    case "sent": return `sent to ${e.peer}: ${[e.message, e.claim && `claim ${e.claim}`].filter(Boolean).join(", ")}`;
    case "received": return `received from ${e.peer}: ${[e.message, e.claim && `claim ${e.claim}`].filter(Boolean).join(", ")}`;
    case "leg": return `${leg} is claim ${e.claim} of ${e.peer}`;
    case "gate": return `the gate of ${leg} is ${e.is}`;
    case "job": return `job ${e.job} of ${leg}: ${bytes(e.bytes)}, ${/^lane/.test(e.road) ? `to ${e.road}` : e.road}`;
    case "lease": return e.proofs ? `its memory went back, proven by ${[e.proofs].flat().join(", ")}` : `the lease of chunk ${e.chunk} went back`;
    case "refused": return `a start as ${e.role} was refused: ${reasonOf(e.reason)}`;
    case "note": return e.note;
    default: break;
  }
  if (!e.to && !e.event) return [e.what, restOf(e)].filter(Boolean).join(": ");
  const change = e.from && e.from !== e.to ? `${e.from} → ${e.to}` : e.to;
  return [`${e.role ? `${e.role}: ` : ""}${[change, e.event && `by ${e.event}`].filter(Boolean).join(" ")}`,
    leg, peer, reasonOf(e.because), reasonOf(e.reason), restOf(e)].filter(Boolean).join(", ");
}

function reasonOf(reason) {
  if (!reason || typeof reason === "string") return reason ?? "";
  return [`because ${reason.code}`, sideOf(reason.side), reason.detail].filter(Boolean).join(", ");
}

const TOLD = new Set(["seq", "at_us", "part", "what", "room", "attempt", "life", "role", "from", "to", "event", "reason", "because",
  "leg", "peer", "peer_no", "frame", "shard", "live", "cells", "terms", "layers", "first", "last", "page_tokens", "pool_layers"]);

/** The other fields of an entry, by their names. */
function restOf(e) {
  return Object.entries(e).filter(([key, value]) => !TOLD.has(key) && value !== null && value !== undefined)
    .map(([key, value]) => `${key.replaceAll("_", " ")} ${key === "tokens" ? value.join("–") : typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
}

function kindOf(e) {
  if (e.reason || e.because || e.what === "refused") return "end";
  if (e.to === "done" && e.from !== e.to) return "done";
  if (e.what === "lease" && e.proofs) return "done";
  return e.to && e.from !== e.to ? "room" : "other";
}

/** What is known of a room in one role. */
class RoomCard {
  constructor(role) {
    this.role = role;
    this.steps = el("ol", { class: "steps", "aria-label": "State" });
    this.held = el("p", { class: "held" });
    this.facts = el("dl", { class: "facts" });
    this.legs = new Table({ caption: "Legs", empty: "None now: a leg comes with its claim, and goes when its memory is proven quiet.", key: (l) => `${l.peer} ${l.leg ?? ""}`, columns: [
      { label: "Peer", text: (l) => l.peer },
      { label: "State", text: (l) => l.state },
      { label: "Posted", kind: "n", text: (l) => bytes(l.posted_bytes) },
      { label: "Written", kind: "n", text: (l) => bytes(l.written_bytes) },
      { label: "Landed", fill: (cell, l) => bar(cell, l.posted_bytes > 0 ? (l.written_bytes ?? 0) / l.posted_bytes : 0) },
    ] });
    this.abort = el("button", { type: "button", class: "danger", onclick: () => askToAbort(this.room) }, "Abort…");
    this.name = el("h2", {}, role === "send" ? "Sender" : "Receiver");
    this.node = el("section", { class: "panel", "aria-label": role === "send" ? "As sender" : "As receiver" },
      el("header", {}, this.name, this.abort), this.steps, this.held, this.facts, el("h3", {}, "Legs"), this.legs.node);
  }

  show(room) {
    this.room = room;
    const end = room.outcome?.end ?? (room.state === "done" || room.state === "aborted" ? room.state : null);
    const steps = [...STEPS, end ?? "done or aborted"];
    const at = end && room.released ? 3 : Math.max(0, steps.indexOf(room.state));
    reconcile(this.steps, steps.map((name, i) => ({ name, i })), (s) => String(s.i), () => el("li"), (item, s) => {
      setText(item, s.name);
      item.className = s.i < at ? "was" : "";
      if (s.i === at) item.setAttribute("aria-current", "step");
      else item.removeAttribute("aria-current");
    });
    this.held.className = room.held_because ? "held" : room.released ? "held free" : "";
    this.held.hidden = !room.held_because && !room.released && !end;
    setText(this.held, room.held_because ? `Why its memory is still held: ${room.held_because}`
      : room.released ? `Its memory is back in its pools${room.proofs?.length ? `; proven by ${room.proofs.join(", ")}` : ""}.`
        : end ? "It has ended; its memory is on its way back." : "");
    const facts = [
      ["Outcome", endOf(room.outcome) || "none yet"],
      ["Age", span(room.age_ms)],
      ["Pages", number(room.pages)],
      ["In quarantine", room.quarantined ? "yes" : "no"],
      ["Peers", (room.peers ?? []).join(", ") || "none yet"],
      ["Chunks", room.chunks ? `${number(room.chunks.pushed)} pushed, ${number(room.chunks.landed)} landed` : null],
      ["Landed", landedOf(room.landed)],
      ["Pages by pool", (room.pool_pages ?? []).map((p) => `${p.pool}: ${pageList(p.pages ?? [])}`).join("; ") || null],
      ["Tag", room.tag],
      ["Trace", room.traceparent],
    ].filter(([, value]) => value !== null && value !== undefined && value !== "");
    reconcile(this.facts, facts, ([name]) => name, ([name]) => el("div", {}, el("dt", {}, name), el("dd")), (item, [, value]) => setText(item.lastElementChild, value));
    this.legs.show(room.legs ?? []);
    this.abort.disabled = Boolean(room.outcome);
    setText(this.abort, room.outcome ? "It has ended" : "Abort…");
  }
}

function landedOf(landed) {
  if (!landed) return null;
  if (typeof landed !== "object") return String(landed);
  return Array.isArray(landed) ? (landed.length === 0 ? "nothing" : landed.map((l) => (typeof l === "object" ? JSON.stringify(l) : l)).join(", "))
    : Object.entries(landed).map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
}

// The question before an abort.

function askToAbort(room) {
  const dialog = $("ask-abort");
  setText($("ask-abort-title"), `Abort room ${keyOf(room)} (${room.role})?`);
  setText($("ask-abort-text"), [
    room.tag ? `Tag: ${room.tag}.` : "",
    `Its peers are told at once${room.peers?.length ? `: ${room.peers.join(", ")}` : ""}.`,
    `Its ${plural(room.pages, "page")} ${room.pages === 1 ? "comes" : "come"} back when every lane is proven out, not before.`,
    "This cannot be undone; a retry is another attempt.",
  ].filter(Boolean).join(" "));
  const problem = $("ask-abort-problem");
  const yes = $("ask-abort-yes");
  problem.hidden = true;
  yes.disabled = false;
  $("ask-abort-no").onclick = () => dialog.close();
  $("ask-abort-form").onsubmit = async (event) => {
    event.preventDefault();
    yes.disabled = true;
    try {
      const query = new URLSearchParams({ attempt: room.attempt, role: room.role, reason: "by hand, from the dashboard" });
      await ask(`v1/rooms/${encodeURIComponent(room.id)}?${query}`, { method: "DELETE" });
      dialog.close();
      toast(`Room ${keyOf(room)} (${room.role}) is aborted.`);
      view.asked = 0;
      view.tick?.();
    } catch (error) {
      problem.hidden = false;
      setText(problem, error instanceof Problem ? error.message : "The daemon does not answer; nothing was aborted for all this page knows.");
      yes.disabled = false;
    }
  };
  dialog.showModal();
}
