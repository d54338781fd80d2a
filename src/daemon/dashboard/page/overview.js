// The first view: how the node is.

const STATES = ["registered", "transferring", "draining"];

function panel(title, ...children) {
  return el("section", { class: "panel", "aria-label": title }, el("header", {}, el("h2", {}, title)), children);
}

class Tile {
  constructor(name) {
    this.value = el("dd", {}, "–");
    this.small = el("dd", { class: "small" });
    this.node = el("dl", { class: "tile" }, el("dt", {}, name), this.value, this.small);
  }
  show(value, small = "", kind = "") {
    setText(this.value, value);
    setText(this.small, small);
    this.node.className = `tile ${kind}`;
  }
}

class Overview {
  constructor() {
    this.title = "Overview";
    this.tiles = {
      health: new Tile("Health"), rooms: new Tile("Live rooms"), done: new Tile("Done"), aborted: new Tile("Aborted"),
      bytes: new Tile("Throughput"), reuse: new Tile("Abort to reusable"), quarantine: new Tile("Quarantined"),
    };
    this.charts = {
      rooms: new Chart({ title: "Rooms by state", shape: "area", words: number,
        series: STATES.map((s) => ({ name: s, key: s, color: s })) }),
      ended: new Chart({ title: "Rooms that ended", unit: "per second", shape: "line", words: number,
        series: [{ name: "done", key: "done", color: "done" }, { name: "aborted", key: "aborted", color: "aborted" }] }),
      bytes: new Chart({ title: "Throughput by peer and fabric", shape: "area", words: rate, series: [] }),
      reuse: new Chart({ title: "From abort to reusable memory", shape: "log", words: micros,
        note: "From the abort of a room until every lane is proven out of its pages. Logarithmic.",
        series: [["median", "p50", "0"], ["90 %", "p90", "1"], ["99 %", "p99", "3"]].map(([name, key, color]) => ({ name, key, color })) }),
    };
    this.health = this.healthPanel();
    this.quarantine = this.quarantinePanel();
    this.lanes = new Table({ caption: "Lanes", empty: "No lane was reported yet.", key: (l) => String(l.lane), columns: [
      { label: "Lane", text: (l) => l.lane },
      { label: "Queued", kind: "n", text: (l) => number(l.queued) },
      { label: "Wait", kind: "n", text: (l) => micros(l.wait_us) },
      { label: "Share", kind: "wide", fill: (cell, l) => bar(cell, l.share) },
    ] });
    this.peers = new Table({ caption: "Peers", cards: true, empty: "No peer is connected.", key: (p) => p.name, columns: [
      { label: "Peer", text: (p) => p.name },
      { label: "State", fill: (cell, p) => stateChip(cell, p.state) },
      { label: "Fabric", text: (p) => p.fabric ?? "" },
      { label: "Quarantined", kind: "n", text: (p) => number(p.quarantined_pages ?? 0) },
      { label: "Why", kind: "long", text: (p) => p.why ?? "" },
    ] });
    this.pools = new Table({ caption: "Pools", cards: true, empty: "No pool is registered.", key: (p) => String(p.id), columns: [
      { label: "Pool", text: (p) => `${p.name ?? p.id}` },
      { label: "State", fill: (cell, p) => stateChip(cell, p.owner && p.owner.alive === false ? "owner-died" : p.state ?? "serving") },
      { label: "Pages", kind: "n", text: (p) => number(p.pages) },
      { label: "Leased", kind: "n", text: (p) => number(p.leased_pages) },
      { label: "Quarantined", kind: "n", text: (p) => number(pagesOf(p)) },
    ] });
    this.recent = new Table({ caption: "The last transitions", empty: "No room changed its state since this page was opened.",
      key: (e) => `${e.shard ?? 0}.${e.seq}`, columns: [
        { label: "Room", fill: (cell, e) => roomLink(cell, e.room, e.attempt) },
        { label: "To", fill: (cell, e) => stateChip(cell, e.to ?? "") },
        { label: "From", text: (e) => e.from ?? "" },
        { label: "Role", text: (e) => e.role ?? "" },
        { label: "By", kind: "long", text: (e) => [e.event, e.reason?.code, e.peer].filter(Boolean).join(", ") },
      ] });
    this.recentNote = el("p", { class: "note" });
    this.node = [
      el("h1", { tabindex: "-1" }, "Overview"),
      el("div", { class: "tiles" }, Object.values(this.tiles).map((t) => t.node)),
      el("div", { class: "grid" },
        this.health.node, this.quarantine.node, Object.values(this.charts).map((c) => c.node),
        panel("Peers", this.peers.node), panel("Lanes", this.lanes.node), panel("Pools", this.pools.node)),
      panel("What happens", this.recentNote, this.recent.node),
    ];
  }

  healthPanel() {
    const list = el("ul", { class: "checks" });
    const passed = el("ul", { class: "passed", "aria-label": "Checks that pass" });
    const note = el("p", { class: "note" });
    return { node: panel("Health", list, passed, note), list, passed, note };
  }

  quarantinePanel() {
    const note = el("p", {});
    const rooms = new Table({ caption: "Rooms in quarantine", cards: true, empty: "", key: (r) => `${keyOf(r)} ${r.role}`, columns: [
      { label: "Room", fill: (cell, r) => roomLink(cell, r.id, r.attempt) },
      { label: "Pages", kind: "n", text: (r) => number(r.pages) },
      { label: "Started", kind: "n", text: (r) => `${span(r.age_ms)} ago` },
      { label: "Held because", kind: "long", text: (r) => r.held_because ?? "" },
    ] });
    const pools = el("ul", { class: "checks" });
    const more = el("p", { class: "note", hidden: true }, el("a", { href: "#/rooms?quarantined=true" }, "All rooms in quarantine"));
    return { node: panel("Quarantine", note, rooms.node, pools, more), note, rooms, pools, more };
  }

  render() {
    const sample = known.sample;
    this.renderHealth();
    this.renderQuarantine();
    if (sample) this.renderSample(sample);
    const cause = (name) => known.problems.get(name);
    this.peers.show(known.peers ?? [], cause("peers") ?? "No peer is connected.");
    this.pools.show(known.pools ?? [], cause("pools") ?? "No pool is registered.");
    this.recent.show(known.events.slice(0, 12));
    const { shown, of, sampled } = known.rate;
    setText(this.recentNote, [
      sampled ? `Sampled: ${number(shown)} of ${of === null ? "more" : number(of)} transitions in the last second came to this page; the newest 12 are here.`
        : `${plural(shown, "transition")} in the last second; the newest 12 are here.`,
      known.lost > 0 ? `${plural(known.lost, "event")} went by while this page was disconnected or too slow.` : "",
    ].filter(Boolean).join(" "));
  }

  renderSample(sample) {
    const { tiles, charts } = this;
    const rooms = STATES.reduce((sum, s) => sum + (sample.rooms?.[s] ?? 0), 0);
    tiles.rooms.show(number(rooms), `${number(sample.rooms?.draining ?? 0)} draining`);
    // The first sample has nothing to be compared with.
    const perSecond = (n) => (n === null || n === undefined ? "–" : `${number(n)}/s`);
    tiles.done.show(perSecond(sample.done_per_s));
    tiles.aborted.show(perSecond(sample.aborted_per_s));
    const flows = sample.bytes ?? [];
    tiles.bytes.show(rate(flows.length > 0 ? flows.reduce((sum, f) => sum + f.per_s, 0) : sample.bytes_per_s ?? 0), plural(new Set(flows.map((f) => f.peer)).size, "peer"));
    const us = sample.abort_to_reusable_us;
    const some = us && us.p99 !== null && us.p99 !== undefined;
    tiles.reuse.show(some ? micros(us.p99) : "–", some ? `99 %; median ${micros(us.p50)}` : "no abort lately");
    const { samples, breaks } = known;
    charts.bytes.series = flowSeries(samples);
    const points = charts.bytes.series.some((s) => s.key === "others") ? samples.map(withOthers(charts.bytes.series)) : samples;
    charts.rooms.show(samples, breaks);
    charts.ended.show(samples, breaks);
    charts.reuse.show(samples, breaks);
    charts.bytes.show(points, breaks);
    // Below 16 a bar would be drawn as long as a real queue.
    const longest = Math.max(16, ...(sample.lanes ?? []).map((l) => l.queued));
    this.lanes.show((sample.lanes ?? []).map((l) => ({ ...l, share: l.queued / longest })));
  }

  renderHealth() {
    const { list, passed, note, node } = this.health;
    const failing = (answer, about) => (answer?.checks ?? []).filter((c) => !c.ok).map((c) => ({ ...c, about }));
    const checks = [...failing(known.alive, "not alive"), ...failing(known.ready, "not ready")];
    const problem = known.problems.get("ready");
    node.className = checks.length > 0 ? "panel bad" : "panel";
    reconcile(list, checks, (c) => `${c.about} ${c.name}`,
      () => el("li", {}, el("span", { class: "state", "data-state": "failing" }), " ", el("span", { class: "muted" }), el("p"), el("p", { class: "do" })),
      (item, c) => {
        const [name, since, why, what] = item.children;
        setText(name, c.name);
        setText(since, `${c.about}, failing for ${span(ago(c.since_ms))}`);
        setText(why, c.why ?? "");
        setText(what, c.do ? `What to do: ${c.do}` : "");
      });
    const good = (known.ready?.checks ?? []).filter((c) => c.ok).slice(0, 24);
    passed.hidden = good.length === 0;
    list.hidden = checks.length === 0;
    reconcile(passed, good, (c) => c.name, () => el("li", { class: "state", "data-state": "ok" }), (item, c) => setText(item, c.name));
    const all = (known.ready?.checks ?? []).length;
    setText(note, problem ?? (known.ready === null ? "Not known yet." : checks.length > 0
      ? `${plural(checks.length, "check fails", "checks fail")} of ${all + (known.alive?.checks ?? []).length}.`
      : `All ${plural(all, "check")} pass. A bad peer does not make this node unready; it is shown with the peers.`));
    if (problem) this.tiles.health.show("Not known", "", "warn");
    else if (known.ready === null) this.tiles.health.show("–");
    else if (checks.length === 0 && known.ready.ok) this.tiles.health.show("Ready", plural(all, "check"));
    else this.tiles.health.show(known.alive?.ok === false ? "Not alive" : "Not ready", plural(checks.length, "check fails", "checks fail"), "bad");
  }

  renderQuarantine() {
    const { note, rooms, pools, more, node } = this.quarantine;
    const held = known.quarantined?.rooms ?? [];
    const entries = (known.pools ?? []).flatMap((p) => (Array.isArray(p.quarantined_pages) ? p.quarantined_pages : [])
      .map((q) => ({ pool: p.name ?? p.id, pages: q.pages, why: q.why })));
    const pages = Math.max(known.sample?.quarantined_pages ?? 0, held.reduce((sum, r) => sum + r.pages, 0), entries.reduce((sum, q) => sum + (q.pages?.length ?? 0), 0));
    const oldest = held.reduce((age, r) => Math.max(age, r.age_ms), 0);
    node.className = pages > 0 || held.length > 0 ? "panel bad" : "panel";
    setText(note, pages === 0 && held.length === 0
      ? "Nothing is in quarantine: all memory of rooms that ended came back within its deadline."
      : `${plural(pages, "page")} of ${plural(held.length, "room")}${known.quarantined?.next ? " and more" : ""} passed the drain deadline and ${pages === 1 ? "is" : "are"} not proven quiet yet.`
        + (held.length > 0 ? ` The oldest room was started ${span(oldest)} ago.` : "") + " No timer gives them back; a proof does.");
    rooms.node.hidden = held.length === 0;
    rooms.show([...held].sort((a, b) => b.age_ms - a.age_ms).slice(0, 5));
    reconcile(pools, entries.slice(0, 5), (q) => `${q.pool} ${q.pages?.[0]}`, () => el("li", { class: "note" }),
      (item, q) => setText(item, `Pool ${q.pool}, ${plural(q.pages?.length ?? 0, "page")} (${pageList(q.pages ?? [])}): ${q.why}`));
    pools.hidden = entries.length === 0;
    more.hidden = held.length <= 5;
    const small = held.length > 0 ? `oldest started ${span(oldest)} ago` : "";
    this.tiles.quarantine.show(plural(pages, "page"), small, pages > 0 ? "bad" : "");
  }
}

/** The streams of bytes with the most in the window, and the others as one. */
function flowSeries(samples) {
  const sums = new Map();
  for (const point of samples) {
    for (const key of Object.keys(point)) if (key.startsWith("flow ")) sums.set(key, (sums.get(key) ?? 0) + point[key]);
  }
  const most = [...sums].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([key]) => key);
  const own = most.slice(0, most.length > 6 ? 5 : 6).sort();
  const series = own.map((key, at) => ({ key, name: key.slice(5), color: String(at) }));
  if (most.length > own.length) series.push({ key: "others", name: `${most.length - own.length} others`, color: "5" });
  return series;
}

function withOthers(series) {
  const own = new Set(series.map((s) => s.key));
  return (point) => {
    const others = Object.entries(point).filter(([key]) => key.startsWith("flow ") && !own.has(key));
    return { ...point, others: others.reduce((sum, [, value]) => sum + value, 0) };
  };
}

function pagesOf(pool) {
  const q = pool.quarantined_pages;
  return Array.isArray(q) ? q.reduce((sum, entry) => sum + (entry.pages?.length ?? 0), 0) : q ?? 0;
}

/** Pages in words, runs as ranges: "3–5, 9". */
function pageList(pages) {
  const sorted = [...pages].sort((a, b) => a - b);
  const ranges = [];
  for (const page of sorted) {
    const last = ranges.at(-1);
    if (last && last[1] === page - 1) last[1] = page;
    else ranges.push([page, page]);
  }
  const words = ranges.slice(0, 12).map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`));
  return words.join(", ") + (ranges.length > 12 ? ` and ${ranges.length - 12} more ranges` : "");
}

function bar(cell, share) {
  keep(cell, () => el("span", { class: "bar", "aria-hidden": "true" }, el("i")), (node) => {
    node.firstElementChild.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  });
}

const keyOf = (room) => `${room.id ?? room.room}.${room.attempt ?? 0}`;
const roomHash = (id, attempt) => `#/rooms/${encodeURIComponent(id)}.${encodeURIComponent(attempt ?? 0)}`;

function roomLink(cell, id, attempt) {
  keep(cell, () => el("a", { class: "id" }), (link) => {
    setText(link, `${id}.${attempt ?? 0}`);
    const href = roomHash(id, attempt);
    if (link.getAttribute("href") !== href) link.setAttribute("href", href);
  });
}
