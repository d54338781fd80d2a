// The page against the played daemon: states that a real one is not brought to in a test.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, open } from "./browser.mjs";
import { startMock } from "./mock.mjs";
import { has, region, tile, until } from "./waits.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser?.close());

/** A page on a played daemon; both are gone afterwards, and the page has done nothing wrong. */
async function on(options, use, about = {}) {
  const mock = await startMock(options);
  const { page, errors, context } = await open(browser, mock.address, about);
  try {
    await use(page, mock);
    assert.deepEqual(errors, []);
  } finally {
    await context.close();
    await mock.stop();
  }
}

const text = (locator) => locator.innerText();

test("the overview has what the daemon says, and moves with it", () => on({ scene: "calm" }, async (page) => {
  await has(page.locator("#link"), /^Live$/);
  await has(page.locator("#node-name"), /^decode-0$/);
  await has(tile(page, "Health"), /Ready/);
  await has(tile(page, "Throughput"), /GB\/s/);
  await has(region(page, "Peers"), /prefill-2/);
  await has(region(page, "Pools"), /65,536/);
  await has(region(page, "Lanes"), /lane 3/);
  const newest = region(page, "What happens").locator("tbody tr").first();
  await has(newest, /transferring/);
  const before = await text(newest);
  await until("a newer transition", async () => (await text(newest)) !== before || before);
  // The drawing has a line that grows, and says in words what it shows.
  const drawing = region(page, "Throughput by peer and fabric").getByRole("img");
  assert.match(await drawing.getAttribute("aria-label"), /Now: from prefill-0, shm .* GB\/s, from prefill-1, tcp/);
  const path = drawing.locator("path").first();
  const long = (await path.getAttribute("d")).length;
  await until("a longer drawing", async () => (await path.getAttribute("d")).length > long || long);
}));

test("a thousand rooms a second are summed up and sampled, and the page says so and stays quick", () => on({ scene: "storm" }, async (page) => {
  await has(tile(page, "Done"), /\d{3}\/s/);
  await has(region(page, "What happens"), /Sampled: 40 of 2,940 transitions in the last second/);
  assert.equal(await region(page, "What happens").locator("tbody tr").count(), 12);
  await has(region(page, "Throughput by peer and fabric"), /3 others/);
  // Ten frames while all that goes on: none takes a tenth of a second on average.
  const took = await page.evaluate(() => new Promise((done) => {
    const start = performance.now();
    let frames = 0;
    const next = () => (++frames === 60 ? done((performance.now() - start) / 60) : requestAnimationFrame(next));
    requestAnimationFrame(next);
  }));
  assert.ok(took < 100, `a frame takes ${took} ms`);
}));

test("a wedged lane is named with since when and what to do", () => on({ scene: "wedge" }, async (page) => {
  await has(tile(page, "Health"), /Not ready/);
  const health = region(page, "Health");
  await has(health, /lane 1\s+not ready, failing for 12 s/);
  await has(health, /has not taken a turn for 12 s/);
  await has(health, /What to do: take a recording/);
  assert.match(await page.title(), /^not ready/);
  await has(region(page, "Lanes"), /lane 1\s+4,096\s+12 s/);
}));

test("quarantine shows its pages, its oldest room, who holds it, and what no timer will do", () => on({ scene: "quarantine" }, async (page) => {
  await has(tile(page, "Quarantined"), /56 pages/);
  const panel = region(page, "Quarantine");
  await has(panel, /56 pages of 7 rooms/);
  await has(panel, /oldest room was started 16 min/);
  await has(panel.locator("tbody tr").first(), /^906\.0/);
  await has(panel, /Pool kv, 5 pages \(9–12, 40\): its owner, process 4711, died/);
  await has(region(page, "Peers"), /prefill-2\s+down/);
  await has(region(page, "Pools"), /owner-died/);
  await panel.getByRole("link", { name: "All rooms in quarantine" }).click();
  await has(page.locator("#rooms-status"), /^7 rooms/);
  await page.getByRole("link", { name: "900.0" }).click();
  await has(page.locator(".held"), /Why its memory is still held: lane 1 of prefill-2 is inside the gate of page 9/);
}));

test("rooms are found by id, tag, peer and state, page by page, and the address has the search", () => on({ scene: "calm" }, async (page, mock) => {
  await has(page.locator("#rooms-status"), /^Page 1, 50 rooms/);
  const first = await text(page.locator("tbody tr").first());
  await page.getByRole("button", { name: "Next page" }).click();
  await has(page.locator("#rooms-status"), /^Page 2, 50 rooms/);
  assert.notEqual(await text(page.locator("tbody tr").first()), first);
  await page.getByRole("button", { name: "Previous page" }).click();
  await has(page.locator("#rooms-status"), /^Page 1,/);

  await page.getByLabel("Tag").fill("batch-7");
  await has(page.locator("#rooms-status"), /^1 room\./);
  await has(page.locator("tbody tr").first(), /^42\.0/);
  assert.match(page.url(), /#\/rooms\?tag=batch-7$/);
  await page.reload();
  await has(page.locator("#rooms-status"), /^1 room\./);
  assert.equal(await page.getByLabel("Tag").inputValue(), "batch-7");

  await page.getByLabel("Tag").fill("");
  await page.getByLabel("State").selectOption("draining");
  const draining = [...mock.daemon.rooms.values()].filter((r) => r.state === "draining").length;
  assert.ok(draining > 0);
  await until("only draining rooms", async () => {
    const states = await page.locator("tbody .state").allInnerTexts();
    return (states.length > 0 && states.every((s) => s === "draining")) || states;
  });
  await page.getByLabel("State").selectOption("");
  await page.getByLabel("Room id").fill("43");
  await has(page.locator("#rooms-status"), /^1 room\./);
  await page.getByLabel("Room id").fill("999999");
  await has(page.locator("main"), /No room fits/);
  await page.getByLabel("Room id").fill("nonsense");
  await has(page.locator("#rooms-status"), /is no room id/);
  await page.getByLabel("Room id").fill("42");
  await page.getByLabel("Room id").press("Enter");
  await has(page.getByRole("heading", { level: 1 }), /^Room 42, attempt 0$/);
}, { path: "#/rooms" }));

test("the list stands still while a person is in it", () => on({ scene: "storm" }, async (page) => {
  await has(page.locator("#rooms-status"), /Renewed every 2 seconds/);
  const link = page.locator("tbody a").first();
  await link.focus();
  const room = await text(link);
  await has(page.locator("#rooms-status"), /Not renewed while you are in the table/);
  await page.waitForTimeout(3000); // Longer than a renewal takes: that none comes has no other sign.
  assert.equal(await page.evaluate(() => document.activeElement.textContent), room);
}, { path: "#/rooms" }));

test("text of the daemon that looks like markup stays text", () => on({ scene: "calm" }, async (page) => {
  const hostile = page.getByText('<img src=x onerror="window.struck = true"><script>window.struck = true</script>', { exact: true });
  await hostile.first().waitFor();
  await page.goto(`${page.url().split("#")[0]}#/rooms?tag=${encodeURIComponent("<img src=x onerror=struck=1>")}`);
  await has(page.locator("main"), /No room fits/);
  assert.equal(await page.evaluate(() => window.struck), undefined);
  assert.equal(await page.locator("main img").count(), 0);
}, { path: "#/rooms/43.0" }));

test("an abort asks first, by keyboard alone, and the room's memory is followed home", () => on({ scene: "calm" }, async (page, mock) => {
  await has(page.locator(".steps [aria-current]"), /transferring/);
  const button = page.getByRole("button", { name: "Abort…" });
  await button.focus();
  await page.keyboard.press("Enter");
  const dialog = page.getByRole("dialog");
  await has(dialog, /Abort room 42\.0 \(receive\)\?/);
  // Who presses Enter too often keeps the room; Escape too.
  assert.equal(await page.evaluate(() => document.activeElement.id), "ask-abort-no");
  await page.keyboard.press("Enter");
  await dialog.waitFor({ state: "hidden" });
  await page.keyboard.press("Enter");
  await dialog.waitFor();
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "hidden" });
  assert.equal(mock.daemon.rooms.get("42").outcome, null);
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Abort…");

  await page.keyboard.press("Enter");
  await dialog.waitFor();
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await dialog.waitFor({ state: "hidden" });
  await has(page.locator("#said"), /Room 42\.0 \(receive\) is aborted/);
  await has(page.locator(".held"), /Its memory is back in its pools; proven by PeerDrained/);
  const timeline = region(page, "Timeline");
  await has(timeline, /transferring → draining by Abort.*because Requested, here, by hand, from the dashboard/);
  await has(timeline, /the gate of leg 0 is occupied/);
  await has(timeline, /its memory went back, proven by PeerDrained/);
  assert.ok(await page.getByRole("button", { name: "It has ended" }).isDisabled());
}, { path: "#/rooms/42.0" }));

test("a room that the daemon does not know is said to be unknown", () => on({ scene: "calm" }, async (page) => {
  await has(page.locator("main"), /The daemon knows no such room/);
}, { path: "#/rooms/4000000000000000000.3" }));

test("a cut connection is taken up where it was left, with no event lost or told twice", () => on({ scene: "calm" }, async (page, mock) => {
  await has(region(page, "What happens"), /transferring/);
  mock.cut();
  await until("a resumed stream", async () => (mock.daemon.resumed?.startsWith(`${mock.daemon.incarnation}-`) && mock.daemon.streams.size > 0) || mock.daemon.resumed);
  await has(page.locator("#link"), /^Live$/);
  await page.waitForTimeout(1500); // One more sample.
  const rooms = await region(page, "What happens").locator("tbody tr td:first-child").allInnerTexts();
  const numbers = rooms.map(Number.parseFloat);
  assert.deepEqual(numbers, numbers.map((_, at) => numbers[0] - at), "newest first, without a hole");
}));

test("a daemon that is gone is said to be, since when, and its next life is told apart", () => on({ scene: "calm" }, async (page, mock) => {
  await has(page.locator("#link"), /^Live$/);
  await has(region(page, "What happens"), /transferring/);
  await mock.down();
  await has(page.locator("#banner"), /^Disconnected since \d\d:\d\d:\d\d \(.*\): the daemon does not answer/);
  await has(page.locator("#link"), /^Disconnected$/);
  assert.match(await page.title(), /^disconnected/);
  await has(tile(page, "Health"), /Not known/);
  await mock.up({ incarnation: 99 });
  await has(page.locator("#link"), /^Live$/);
  assert.ok(await page.locator("#banner").isHidden());
  await has(page.locator("#toast"), /started anew/);
  await has(page.locator("#node-facts"), /incarnation 99/);
  await has(region(page, "Rooms by state").locator(".plot"), /restart/);
}));

test("a token is asked for, kept for the tab, and asked for again when it is wrong", () => on({ scene: "calm", token: "a-long-enough-secret" }, async (page) => {
  const dialog = page.getByRole("dialog");
  await has(dialog, /wants a token/);
  assert.ok(await page.getByText("did not accept").isHidden());
  await page.keyboard.type("wrong");
  await page.keyboard.press("Enter");
  await has(dialog, /did not accept that token/);
  await page.keyboard.press("Escape");
  assert.ok(await dialog.isVisible());
  await page.getByLabel("Token", { exact: true }).fill("a-long-enough-secret");
  await page.getByRole("button", { name: "Use it" }).click();
  await has(page.locator("#link"), /^Live$/);
  await has(tile(page, "Health"), /Ready/);
  await page.reload();
  await has(page.locator("#link"), /^Live$/);
  assert.equal(await page.evaluate(() => localStorage.getItem("kvroom-token")), null);
}));

test("the page is used by keyboard: skip link, views, a chart's moments, its table", () => on({ scene: "calm" }, async (page) => {
  await has(region(page, "What happens"), /transferring/);
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.id), "skip");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  const chart = region(page, "Rooms by state");
  await chart.locator(".plot").focus();
  await page.keyboard.press("ArrowLeft");
  await has(chart, /\d\d:\d\d:\d\d: registered \d+, transferring \d+, draining \d+/);
  await chart.getByText("As a table").focus();
  await page.keyboard.press("Enter");
  await has(chart.locator("table"), /At\s+registered\s+transferring\s+draining\s+\d\d:\d\d:\d\d/);
  await page.getByRole("link", { name: "Rooms", exact: true }).focus();
  assert.notEqual(await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle), "none");
  await page.keyboard.press("Enter");
  await has(page.getByRole("heading", { level: 1 }), /^Rooms$/);
  assert.equal(await page.evaluate(() => document.activeElement.tagName), "H1");
  // Nothing that changes every second is read out.
  assert.deepEqual(await page.locator("[aria-live]").evaluateAll((all) => all.map((e) => e.id)), ["said"]);
}));

for (const colorScheme of ["light", "dark"]) {
  test(`in ${colorScheme} all text has contrast, and the other theme is one key away`, () => on({ scene: "quarantine" }, async (page) => {
    await has(tile(page, "Quarantined"), /56 pages/);
    const weak = () => page.evaluate(contrast);
    assert.deepEqual(await weak(), []);
    const button = page.getByRole("button", { name: /^Theme/ });
    await button.press("Enter");
    if (colorScheme === "light") await button.press("Enter");
    await has(button, colorScheme === "light" ? /dark/ : /light/);
    assert.equal(await page.evaluate(() => getComputedStyle(document.documentElement).colorScheme), colorScheme === "light" ? "dark" : "light");
    assert.deepEqual(await weak(), []);
  }, { colorScheme }));
}

/** Elements whose text has less than 4.5 : 1 to what is behind it. Runs in the page. */
function contrast() {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      if (at instanceof SVGElement) continue;
      const color = rgb(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255];
  };
  const weak = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((c) => c.nodeType === Node.TEXT_NODE && c.textContent.trim() !== "");
    if (!own || node.closest("script, style, noscript, .unseen, dialog:not([open]), option") || !node.checkVisibility() || node.matches(":disabled")) continue;
    const style = getComputedStyle(node);
    const pair = [light(rgb(node instanceof SVGElement ? style.fill : style.color)), light(behind(node))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < 4.5) weak.push(`${node.tagName} ${node.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return weak;
}

for (const path of ["#/", "#/rooms", "#/rooms/900.0"]) {
  test(`360 pixels are enough for ${path}`, () => on({ scene: "quarantine" }, async (page) => {
    await has(page.locator("#link"), /^Live$/);
    await has(page.locator("main"), path === "#/" ? /56 pages of 7 rooms/ : /prefill-/);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 360, `${wide} pixels wide`);
  }, { path, viewport: { width: 360, height: 740 } }));
}
