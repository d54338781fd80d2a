// Which view is shown, the top of the page, and the one clock by which everything is drawn.

let view = null;
let drawn = false;

/** Something has changed; it is drawn with the next frame, however many changes there were. */
function dirty() {
  if (drawn) return;
  drawn = true;
  requestAnimationFrame(() => {
    drawn = false;
    draw();
  });
}

function draw() {
  top_();
  if (view instanceof Overview) view.render();
}

function top_() {
  const { node } = known;
  setText($("node-name"), node?.name ?? "");
  setText($("node-facts"), node ? `${node.version ?? ""}, incarnation ${node.incarnation}` : "");
  const chip = $("link");
  chip.dataset.state = live.state;
  document.body.dataset.link = live.state;
  setText(chip, { live: "Live", connecting: "Connecting", lost: "Disconnected" }[live.state]);
  const banner = $("banner");
  banner.hidden = live.state !== "lost";
  if (live.state === "lost") {
    setText(banner, `Disconnected since ${clock(live.since)} (${span(Date.now() - live.since)}): ${live.why}. What you see is from before; this page keeps trying.`);
  }
  const bad = known.ready && !known.ready.ok ? "not ready – " : "";
  const name = node ? `${node.name} – ` : "";
  const title = `${live.state === "lost" ? "disconnected – " : bad}${view?.title ?? ""} – ${name}kvroom`;
  if (document.title !== title) document.title = title;
}

function route(first = false) {
  const [path, search = ""] = location.hash.replace(/^#/, "").split("?");
  const query = new URLSearchParams(search);
  const room = /^\/rooms\/(\d+)(?:\.(\d+))?$/.exec(path);
  if (path === "/rooms" && view instanceof Rooms) return view.moved(query);
  if (room) view = new Room(room[1], room[2] ?? "0");
  else if (path === "/rooms") view = new Rooms(query);
  else view = new Overview();
  $("main").replaceChildren(...view.node);
  for (const [id, here] of [["nav-overview", view instanceof Overview], ["nav-rooms", !(view instanceof Overview)]]) {
    if (here) $(id).setAttribute("aria-current", "page");
    else $(id).removeAttribute("aria-current");
  }
  draw();
  if (!first) {
    // Who goes to another view by keyboard goes on from its heading.
    $("main").querySelector("h1").focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

// The theme: the system's, unless a person says otherwise.

const THEMES = ["system", "light", "dark"];
function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  setText($("theme"), `Theme: ${name}`);
  store("kvroom-theme", name === "system" ? null : name, localStorage);
}
const themeNow = () => document.documentElement.dataset.theme ?? "system";

$("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(themeNow()) + 1) % 3]));
theme(THEMES.includes(stored("kvroom-theme", localStorage)) ? stored("kvroom-theme", localStorage) : "system");
$("skip").addEventListener("click", (event) => {
  event.preventDefault(); // The address is the view's.
  $("main").focus();
});

live.on("room", (event) => {
  if (view instanceof Room) view.heard(event);
});
live.on("restart", () => view.restarted?.());
addEventListener("hashchange", () => route());
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  refresh();
  dirty();
});

setInterval(() => {
  askWhatIsDue();
  if (document.hidden) return;
  view.tick?.();
  draw();
}, 1_000);
route(true);
live.run();
