// What every part of the page uses: elements, words for numbers, and the daemon's answers.
//
// The files of this folder are joined in the order of `mod.rs` and share one scope. Nothing in them turns a
// string into markup: what the daemon says becomes a text node, and the page's policy (trusted types) has the
// browser refuse anything else.
"use strict";

const $ = (id) => document.getElementById(id);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/** An element. Children that are strings or numbers become text; null and undefined are left out. */
function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** Changes the text of an element only if it is another one: what did not change is not laid out again. */
function setText(node, text) {
  text = String(text);
  if (node.textContent !== text) node.textContent = text;
}

/** Makes the children of `parent` those of `items`, in their order, and keeps the elements that stay. */
function reconcile(parent, items, key, make, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, at) => {
    const name = key(item);
    let node = old.get(name);
    if (node) old.delete(name);
    else {
      node = make(item);
      node.dataset.key = name;
    }
    update(node, item);
    if (parent.children[at] !== node) parent.insertBefore(node, parent.children[at] ?? null);
  });
  for (const node of old.values()) node.remove();
}

/** A table whose rows are kept from one update to the next, so that focus and selection stay. */
class Table {
  /** columns: {label, kind?: class of its cells, text?: item => string, fill?: (cell, item) => void} */
  constructor({ caption, columns, key, empty, cards = false }) {
    Object.assign(this, { columns, key });
    this.body = el("tbody");
    this.head = el("thead", {}, el("tr", {}, columns.map((c) => el("th", { scope: "col", class: c.kind }, c.label))));
    this.table = el("table", { class: cards ? "cards" : null },
      el("caption", { class: "unseen" }, caption), this.head, this.body);
    this.nothing = el("p", { class: "note" }, empty);
    this.node = el("div", { class: cards ? null : "scroll" }, this.table, this.nothing);
    this.show([]);
  }

  show(items, empty) {
    if (empty !== undefined) setText(this.nothing, empty);
    this.nothing.hidden = items.length > 0;
    this.table.hidden = items.length === 0;
    const make = () => el("tr", {}, this.columns.map((c) => el("td", { class: c.kind, "data-label": c.label })));
    reconcile(this.body, items, this.key, make, (row, item) => {
      this.columns.forEach((column, at) => {
        const cell = row.children[at];
        if (column.fill) column.fill(cell, item);
        else setText(cell, column.text(item));
      });
    });
  }
}

/** Fills a cell with one element that is kept: `make` builds it, `update` changes it. */
function keep(cell, make, update) {
  if (!cell.firstElementChild) cell.append(make());
  update(cell.firstElementChild);
}

function stateChip(cell, state, words = state) {
  keep(cell, () => el("span", { class: "state" }), (chip) => {
    chip.dataset.state = state;
    setText(chip, words);
  });
}

// Words for numbers.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const number = (n) => (n === null || n === undefined || Number.isNaN(n) ? "–" : Math.abs(n) >= 1000 ? grouped.format(n) : fine.format(n));

function scaled(n, units, step) {
  if (n === null || n === undefined) return "–";
  let at = 0;
  while (Math.abs(n) >= step && at < units.length - 1) {
    n /= step;
    at += 1;
  }
  return `${fine.format(n)} ${units[at]}`;
}
const bytes = (n) => scaled(n, ["B", "kB", "MB", "GB", "TB"], 1000);
const rate = (n) => (n === null || n === undefined ? "–" : `${bytes(n)}/s`);
const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

/** Microseconds in words: "412 µs", "3.1 ms", "2.5 s". */
function micros(us) {
  if (us === null || us === undefined) return "–";
  if (us < 1000) return `${fine.format(us)} µs`;
  if (us < 1e6) return `${fine.format(us / 1e3)} ms`;
  return span(us / 1e3);
}

/** Milliseconds in words: "850 ms", "12 s", "4 min 10 s", "3 h 2 min". */
function span(ms) {
  if (ms === null || ms === undefined) return "–";
  ms = Math.max(0, ms);
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = Math.floor(ms / 1000);
  if (s < 10) return `${fine.format(ms / 1000)} s`;
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}
const clock = (at) => new Date(at).toLocaleTimeString("en-GB");

/** Says something once to who listens and does not look. Never called every second. */
function say(text) {
  $("said").textContent = text;
}

let toastTimer = 0;
/** Says it on the screen too, for some seconds. */
function toast(text) {
  say(text);
  setText($("toast"), text);
  $("toast").hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => ($("toast").hidden = true), 8000);
}

// The daemon's answers.

/** An answer that is no success, in the daemon's words. */
class Problem extends Error {
  constructor(status, detail, code) {
    super(detail);
    Object.assign(this, { status, code });
  }
}

function stored(name, kind = sessionStorage) {
  try {
    return kind.getItem(name);
  } catch {
    return null;
  }
}
function store(name, value, kind = sessionStorage) {
  try {
    if (value === null) kind.removeItem(name);
    else kind.setItem(name, value);
  } catch {
    // A browser that keeps nothing: then it is asked for again.
  }
}

let token = stored("kvroom-token");
let asking = null;

/** Asks for the token, once for all that wait for it. */
function askForToken(wrong) {
  asking ??= new Promise((done) => {
    const dialog = $("ask-token");
    $("ask-token-wrong").hidden = !wrong;
    $("token").value = "";
    $("ask-token-form").onsubmit = (event) => {
      event.preventDefault();
      token = $("token").value.trim();
      store("kvroom-token", token);
      dialog.close();
      asking = null;
      done();
    };
    // Without it there is nothing to see; Escape leaves the dialog where it is.
    dialog.oncancel = (event) => event.preventDefault();
    if (!dialog.open) dialog.showModal();
  });
  return asking;
}

/** One request with the token, which is asked for if the daemon wants one. Success or not is for the caller. */
async function request(path, options = {}) {
  for (;;) {
    const used = token;
    const headers = { ...options.headers, ...(used ? { authorization: `Bearer ${used}` } : {}) };
    // Made anew for each try: the time in which a person looks for a token does not count.
    const answer = await fetch(path, { ...options, signal: options.signal?.(), headers, cache: "no-store" });
    if (answer.status !== 401) return answer;
    if (used === token) await askForToken(Boolean(used));
  }
}

const soon = (ms = 10_000) => () => AbortSignal.timeout(ms);

async function problemOf(answer) {
  let said = {};
  try {
    said = await answer.json();
  } catch {
    // Not a problem document.
  }
  return new Problem(answer.status, said.detail ?? `The daemon answers ${answer.status}.`, said.code);
}

/** The JSON of an answer. `also`: statuses that are answers too. */
async function ask(path, { method = "GET", also = [], wait } = {}) {
  const answer = await request(path, { method, signal: soon(wait), headers: { accept: "application/json" } });
  if (!answer.ok && !also.includes(answer.status)) throw await problemOf(answer);
  return answer.json();
}
