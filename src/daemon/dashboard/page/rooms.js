// The list of rooms: filters that are part of the address, pages, and a renewal every two seconds that stops
// while a person is in the table.

const PAGE = 50;
const FILTERS = ["id", "tag", "peer", "state", "role", "quarantined"];

class Rooms {
  constructor(query) {
    this.title = "Rooms";
    this.cursors = [null];
    this.problem = null;
    this.answer = null;
    const field = (name, label, input) => {
      input.id = `filter-${name}`;
      input.name = name;
      return el("label", {}, label, input);
    };
    const text = (more) => el("input", { type: "search", autocomplete: "off", spellcheck: "false", ...more });
    const choice = (...options) => el("select", {}, el("option", { value: "" }, "any"), options.map((o) => el("option", { value: o }, o)));
    this.form = el("form", { class: "filters", role: "search", "aria-label": "Rooms" },
      field("id", "Room id", text({ inputmode: "numeric", placeholder: "42 or 42.1" })),
      field("tag", "Tag", text({ placeholder: "the whole tag" })),
      field("peer", "Peer", text({ list: "peer-names" })),
      field("state", "State", choice("registered", "transferring", "draining", "done", "aborted")),
      field("role", "Role", choice("send", "receive")),
      el("label", { class: "check" }, el("input", { type: "checkbox", id: "filter-quarantined", name: "quarantined" }), "In quarantine"),
      el("button", { type: "submit" }, "Search"));
    this.names = el("datalist", { id: "peer-names" });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.search(true);
    });
    this.form.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.search(), 250);
    });
    this.table = new Table({ caption: "Rooms", cards: true, empty: "", key: (r) => `${keyOf(r)} ${r.role}`, columns: [
      { label: "Room", fill: (cell, r) => roomLink(cell, r.id, r.attempt) },
      { label: "Role", text: (r) => r.role },
      { label: "State", fill: (cell, r) => stateChip(cell, r.state, r.quarantined ? `${r.state}, quarantined` : r.state) },
      { label: "Peers", text: (r) => (r.peers ?? []).join(", ") },
      { label: "Tag", kind: "long", text: (r) => r.tag ?? "" },
      { label: "Pages", kind: "n", text: (r) => number(r.pages) },
      { label: "Age", kind: "n", text: (r) => span(r.age_ms) },
      { label: "Ended / held because", kind: "long wide", text: (r) => [endOf(r.outcome), r.held_because && `held: ${r.held_because}`].filter(Boolean).join("; ") },
    ] });
    this.status = el("p", { class: "note", id: "rooms-status" });
    this.back = el("button", { type: "button", onclick: () => this.turn(-1) }, "Previous page");
    this.on = el("button", { type: "button", onclick: () => this.turn(1) }, "Next page");
    this.node = [
      el("h1", { tabindex: "-1" }, "Rooms"),
      el("section", { class: "panel", "aria-label": "Filters" }, this.form, this.names),
      el("section", { class: "panel", "aria-label": "List" }, this.status, this.table.node,
        el("div", { class: "pager" }, this.back, this.on)),
    ];
    this.inside = false;
    for (const [type, inside] of [["pointerenter", true], ["pointerleave", false]]) {
      this.table.node.addEventListener(type, () => (this.inside = inside));
    }
    this.moved(query);
  }

  /** The address has changed: the form follows. */
  moved(query) {
    this.query = query;
    for (const name of FILTERS) {
      const input = $(`filter-${name}`) ?? this.form.elements[name];
      const value = query.get(name) ?? "";
      if (input.type === "checkbox") input.checked = value === "true";
      else if (input !== document.activeElement && input.value !== value) input.value = value;
    }
    this.cursors = [null];
    this.load();
  }

  search(enter = false) {
    clearTimeout(this.typing);
    const query = new URLSearchParams();
    for (const name of FILTERS) {
      const input = this.form.elements[name];
      const value = input.type === "checkbox" ? (input.checked ? "true" : "") : input.value.trim();
      if (value !== "") query.set(name, value);
    }
    if (enter && /^\d+(\.\d+)?$/.test(query.get("id") ?? "")) return this.visit(query.get("id"));
    const hash = query.size > 0 ? `#/rooms?${query}` : "#/rooms";
    history.replaceState(null, "", hash);
    this.moved(query);
  }

  /** Goes to the room itself, if there is one: who ends a number with Enter wants to see it. */
  async visit(text) {
    const [id, attempt] = text.split(".");
    const found = await roomsOf(id, attempt ?? null).catch(() => []);
    if (view !== this) return;
    if (attempt !== undefined || found.length > 0) location.hash = roomHash(id, attempt ?? Math.max(...found.map((r) => r.attempt)));
    else this.search();
  }

  turn(by) {
    if (by > 0 && this.answer?.next) this.cursors.push(this.answer.next);
    else if (by < 0 && this.cursors.length > 1) this.cursors.pop();
    this.load();
  }

  async load() {
    const turn = (this.turned = (this.turned ?? 0) + 1);
    this.asked = Date.now();
    let answer = null;
    let problem = null;
    try {
      answer = await this.find();
    } catch (error) {
      problem = error instanceof Problem ? error.message : "The daemon does not answer.";
    }
    if (turn !== this.turned) return; // Another search has begun.
    this.problem = problem;
    if (answer) this.answer = answer;
    this.render(true);
  }

  async find() {
    const id = this.query.get("id");
    if (id) return this.one(id);
    const query = new URLSearchParams([...this.query].filter(([name]) => name !== "id"));
    query.set("limit", PAGE);
    const cursor = this.cursors.at(-1);
    if (cursor) query.set("after", cursor);
    return ask(`v1/rooms?${query}`);
  }

  /** The rooms with this id: one for each role, of the attempt that is named or the newest. */
  async one(text) {
    const [id, attempt] = text.split(".");
    if (!/^\d+$/.test(id) || (attempt !== undefined && !/^\d*$/.test(attempt))) {
      throw new Problem(400, `"${text}" is no room id: a number, or a number, a dot and the attempt.`);
    }
    const found = await roomsOf(id, attempt || null);
    const fits = (r) => ["state", "role", "tag"].every((f) => !this.query.get(f) || r[f] === this.query.get(f))
      && (!this.query.get("peer") || (r.peers ?? []).includes(this.query.get("peer")))
      && (!this.query.get("quarantined") || r.quarantined);
    return { rooms: found.filter(fits), next: null };
  }

  tick() {
    const paused = this.inside || this.table.node.contains(document.activeElement);
    this.paused = paused;
    if (!paused && live.state === "live" && Date.now() - this.asked > 2_000) this.load();
    else this.render();
  }

  render(fresh = false) {
    reconcile(this.names, known.peers ?? [], (p) => p.name, (p) => el("option", { value: p.name }), () => {});
    if (fresh) {
      const filtered = this.query.size > 0;
      this.table.show(this.answer?.rooms ?? [], filtered ? "No room fits." : "No room is alive, and none that ended is remembered.");
      this.back.disabled = this.cursors.length === 1;
      this.on.disabled = !this.answer?.next;
    }
    const many = this.answer?.rooms.length ?? 0;
    const page = this.cursors.length > 1 || this.answer?.next ? `Page ${this.cursors.length}, ${plural(many, "room")}.` : `${plural(many, "room")}.`;
    const renewal = live.state !== "live" ? "Not renewed: disconnected." : this.paused ? "Not renewed while you are in the table." : "Renewed every 2 seconds.";
    setText(this.status, this.problem ?? (this.answer ? `${page} ${renewal}` : "Asking…"));
    this.status.classList.toggle("problem", this.problem !== null);
  }
}

function endOf(outcome) {
  if (!outcome) return "";
  if (outcome.end === "done") return "done";
  return [`aborted: ${outcome.code ?? "no code"}`, sideOf(outcome.side), outcome.detail].filter(Boolean).join(", ");
}

const sideOf = (side) => ({ local: "here", peer: "at the peer" })[side] ?? side;

/** The rooms with this id in both roles; empty if the daemon knows none. `attempt` null: the newest. */
async function roomsOf(id, attempt) {
  const of = async (role) => {
    const query = new URLSearchParams({ role, ...(attempt === null ? {} : { attempt }) });
    try {
      return [await ask(`v1/rooms/${encodeURIComponent(id)}?${query}`)];
    } catch (problem) {
      if (problem instanceof Problem && problem.status === 404) return [];
      throw problem;
    }
  };
  return (await Promise.all([of("receive"), of("send")])).flat();
}
