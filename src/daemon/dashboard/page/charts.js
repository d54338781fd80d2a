// Charts over the last minutes (one at first, up to five): plain SVG, with a legend that has the present values, a line that reads out any
// moment (pointer or arrow keys), and the same as a table.

const WINDOW = 5 * 60_000; // What is kept, and the longest that is shown.
const LEAST_SHOWN = 60_000;
const EDGE = { left: 62, right: 8, top: 8, bottom: 20 };

/** The top of an axis that shows `most`, and its step. */
function scale(most) {
  if (!(most > 0)) return { top: 1, step: 1 };
  const raw = most / 3;
  const ten = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * ten).find((n) => n >= raw);
  return { top: Math.ceil(most / step) * step, step };
}

class Chart {
  /** series: [{name, key, color}]; shape: "area" (stacked), "line", or "log" (lines over a logarithmic axis). */
  constructor({ title, note, shape, words, series, unit }) {
    Object.assign(this, { title, shape, words, series });
    this.points = [];
    this.breaks = [];
    this.drawing = svg("svg", { role: "img" });
    this.readout = el("p", { class: "note" });
    this.legend = el("ul", { class: "legend" });
    this.plot = el("div", { class: "plot", tabindex: "0", role: "group", "aria-label": `${title}; the arrow keys read out a moment` }, this.drawing);
    this.note = el("p", { class: "note" }, note ?? "");
    this.table = el("div", { class: "scroll" });
    this.details = el("details", { ontoggle: () => this.tabulate() }, el("summary", {}, "As a table"), this.table);
    this.node = el("section", { class: "panel", "aria-label": title },
      el("header", {}, el("h2", {}, title), el("span", { class: "note" }, unit ?? "")),
      this.legend, this.plot, this.readout, this.note, this.details);
    this.plot.addEventListener("pointermove", (event) => this.pick(event.clientX));
    this.plot.addEventListener("pointerleave", () => this.mark(null));
    this.plot.addEventListener("blur", () => this.mark(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.marked = null;
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  /** points: [{at, key: number, …}] in order; breaks: moments at which another life of the daemon began. */
  show(points, breaks) {
    Object.assign(this, { points, breaks });
    this.draw();
  }

  x(at) {
    return EDGE.left + ((at - this.from) / this.window) * (this.wide - EDGE.left - EDGE.right);
  }

  y(value) {
    const share = this.shape === "log"
      ? (Math.log10(Math.max(value, this.low)) - Math.log10(this.low)) / (Math.log10(this.top) - Math.log10(this.low))
      : value / this.top;
    return this.tall - EDGE.bottom - share * (this.tall - EDGE.top - EDGE.bottom);
  }

  draw() {
    this.wide = this.plot.clientWidth;
    if (this.wide === 0) return;
    this.tall = this.drawing.clientHeight;
    const now = Date.now();
    // As long as there is something to show, in whole minutes.
    const age = this.points.length > 0 ? now - this.points[0].at : 0;
    this.window = Math.min(WINDOW, Math.max(LEAST_SHOWN, Math.ceil(age / 60_000) * 60_000));
    this.from = now - this.window;
    const points = this.points.filter((p) => p.at >= this.from);
    this.shown = points;
    const value = (p, s) => p[s.key] ?? 0;
    const all = points.flatMap((p) => this.shape === "area"
      ? [this.series.reduce((sum, s) => sum + value(p, s), 0)]
      : this.series.map((s) => p[s.key]).filter((n) => n !== null && n !== undefined));
    const most = Math.max(0, ...all);
    this.axis(most, all);
    const parts = [];
    for (const tick of this.ticks) {
      const at = this.y(tick);
      parts.push(svg("line", { class: "grid-line", x1: EDGE.left, x2: this.wide - EDGE.right, y1: at, y2: at }));
      parts.push(svg("text", { x: EDGE.left - 6, y: at + 4, "text-anchor": "end" }, this.words(tick)));
    }
    parts.push(...this.moments());
    for (const run of runs(points)) parts.push(...(this.shape === "area" ? this.areas(run, value) : this.lines(run)));
    for (const at of this.breaks) {
      if (at < this.from) continue;
      parts.push(svg("line", { class: "restart", x1: this.x(at), x2: this.x(at), y1: EDGE.top, y2: this.tall - EDGE.bottom }));
      parts.push(svg("text", { x: this.x(at) + 4, y: EDGE.top + 8 }, "restart"));
    }
    this.cursor = svg("line", { class: "cursor", y1: EDGE.top, y2: this.tall - EDGE.bottom, visibility: "hidden" });
    this.drawing.setAttribute("viewBox", `0 0 ${this.wide} ${this.tall}`);
    this.drawing.replaceChildren(...parts, this.cursor);
    this.tell(points);
    if (this.details.open) this.tabulate();
  }

  /** The names of moments under the drawing: as many as have room. */
  moments() {
    const step = this.window <= LEAST_SHOWN ? 15_000 : this.wide < 420 ? this.window : 60_000;
    const all = [];
    for (let ago = this.window; ago >= 0; ago -= step) {
      const words = ago === 0 ? "now" : this.window <= LEAST_SHOWN ? `−${ago / 1000} s` : `−${ago / 60_000} min`;
      const anchor = ago === 0 ? "end" : ago === this.window ? "start" : "middle";
      all.push(svg("text", { x: this.x(this.from + this.window - ago), y: this.tall - 4, "text-anchor": anchor }, words));
    }
    return all;
  }

  axis(most, all) {
    if (this.shape !== "log") {
      const { top, step } = scale(most);
      this.top = top;
      this.ticks = [0];
      for (let tick = step; tick <= top * 1.001; tick += step) this.ticks.push(tick);
      return;
    }
    const least = Math.min(...all.filter((n) => n > 0), most || 1);
    this.low = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
    this.top = Math.max(this.low * 10, 10 ** Math.ceil(Math.log10(Math.max(most, 1))));
    this.ticks = [];
    for (let tick = this.low; tick <= this.top * 1.001; tick *= 10) this.ticks.push(tick);
  }

  areas(run, value) {
    let below = run.map(() => 0);
    return this.series.map((s) => {
      const above = run.map((p, at) => below[at] + value(p, s));
      const up = run.map((p, at) => `${this.x(p.at).toFixed(1)},${this.y(above[at]).toFixed(1)}`);
      const down = run.map((p, at) => `${this.x(p.at).toFixed(1)},${this.y(below[at]).toFixed(1)}`).reverse();
      below = above;
      return svg("path", { class: `area c-${s.color}`, d: `M${[...up, ...down].join("L")}Z` });
    });
  }

  lines(run) {
    return this.series.map((s) => {
      const there = run.filter((p) => p[s.key] !== null && p[s.key] !== undefined);
      if (there.length === 1) {
        return svg("circle", { class: `c-${s.color}`, cx: this.x(there[0].at), cy: this.y(there[0][s.key]), r: 2 });
      }
      const d = there.map((p) => `${this.x(p.at).toFixed(1)},${this.y(p[s.key]).toFixed(1)}`).join("L");
      return svg("path", { class: `line c-${s.color}`, d: d ? `M${d}` : "" });
    });
  }

  /** The legend, with the present values, and the summary for who does not see the drawing. */
  tell(points) {
    const last = points.at(-1);
    reconcile(this.legend, this.series, (s) => s.key,
      (s) => el("li", {}, el("span", { class: "swatch", "aria-hidden": "true" }), el("span", {}, s.name), el("b")),
      (item, s) => {
        item.firstElementChild.setAttribute("class", `swatch c-${s.color}`);
        setText(item.children[1], s.name);
        setText(item.lastElementChild, last ? this.words(last[s.key]) : "–");
      });
    const now = this.series.map((s) => `${s.name} ${last ? this.words(last[s.key]) : "not known"}`).join(", ");
    this.drawing.setAttribute("aria-label", `${this.title}, the last ${plural(this.window / 60_000, "minute")}. Now: ${now}.`);
    if (this.marked !== null) this.mark(Math.min(this.marked, points.length - 1));
    else setText(this.readout, last ? "" : "Nothing was measured yet since this page was opened.");
  }

  pick(x) {
    if (!this.shown?.length) return;
    const inside = x - this.plot.getBoundingClientRect().left;
    let best = 0;
    this.shown.forEach((p, at) => {
      if (Math.abs(this.x(p.at) - inside) < Math.abs(this.x(this.shown[best].at) - inside)) best = at;
    });
    this.mark(best);
  }

  key(event) {
    const many = this.shown?.length ?? 0;
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -many, End: many }[event.key];
    if (!step || many === 0) return;
    event.preventDefault();
    this.readout.setAttribute("aria-live", "polite");
    this.mark(Math.max(0, Math.min(many - 1, (this.marked ?? many) + step)));
    this.readout.removeAttribute("aria-live");
  }

  mark(at) {
    this.marked = at;
    const point = at === null ? null : this.shown?.[at];
    if (!this.cursor) return;
    this.cursor.setAttribute("visibility", point ? "visible" : "hidden");
    if (!point) return setText(this.readout, "");
    this.cursor.setAttribute("x1", this.x(point.at));
    this.cursor.setAttribute("x2", this.x(point.at));
    setText(this.readout, `${clock(point.at)}: ${this.series.map((s) => `${s.name} ${this.words(point[s.key])}`).join(", ")}`);
  }

  /** The same in numbers: at most 20 moments, 15 seconds apart. */
  tabulate() {
    if (!this.details.open) return;
    const rows = [];
    for (const p of [...(this.shown ?? [])].reverse()) {
      if (rows.length === 0 || rows.at(-1).at - p.at >= 15_000) rows.push(p);
    }
    this.table.replaceChildren(el("table", {},
      el("caption", { class: "unseen" }, this.title),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "At"), this.series.map((s) => el("th", { scope: "col", class: "n" }, s.name)))),
      el("tbody", {}, rows.slice(0, 20).map((p) => el("tr", {},
        el("td", {}, clock(p.at)), this.series.map((s) => el("td", { class: "n" }, this.words(p[s.key]))))))));
  }
}

/** Points without a pause of more than three seconds between them: a drawing shows no line where nothing was measured. */
function runs(points) {
  const all = [];
  for (const p of points) {
    if (all.length === 0 || p.at - all.at(-1).at(-1).at > 3_500) all.push([]);
    all.at(-1).push(p);
  }
  return all;
}
