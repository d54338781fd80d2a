// The page against real daemons: what an operator does with it.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch, open } from "./browser.mjs";
import { Daemon, forget, pair, pool, receive, transfer } from "./daemon.mjs";
import { has, region, tile, until } from "./waits.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser?.close());

let count = 0;
/** Two daemons and a page on the decode one; all are gone afterwards, and the page has done nothing wrong. */
async function watching(use, about) {
  const nodes = await pair(count++);
  const { page, errors, context } = await open(browser, nodes.decode.address, about);
  try {
    await use(page, nodes);
    assert.deepEqual(errors, []);
  } finally {
    await context.close();
    await Promise.all([nodes.decode.kill(), nodes.prefill.kill()]);
    for (const file of nodes.files) forget(file);
  }
}

test("the page loads from a daemon and shows its node, peers and pools", () => watching(async (page) => {
  await has(page.locator("#link"), /^Live$/);
  await has(page.locator("#node-name"), /^decode$/);
  await has(region(page, "Peers"), /prefill\s+up/);
  await has(region(page, "Pools"), /kv\s+serving\s+16\s+0/);
  await has(tile(page, "Live rooms"), /\b0\b/);
}));

test("a daemon says that it is ready, and which checks say so", () => watching(async (page) => {
  await has(tile(page, "Health"), /Ready\s+\d+ checks?/);
  await has(region(page, "Health"), /All \d+ checks pass/);
}));

test("a check of a daemon that fails is shown with how long it has failed", async () => {
  const daemon = await Daemon.start(["--name", "lent", "--health-canary-deadline", "200ms", "--node-listen", "tcp://127.0.0.1:0"]);
  const path = `/dev/shm/kvroom-browser-${process.pid}-lent`;
  const other = await Daemon.start(["--name", "prefill", "--node-listen", "tcp://127.0.0.1:0"]);
  const { page, errors, context } = await open(browser, daemon.address);
  try {
    // Both have the pool: a claim on one that the sender lacks ends its room.
    await pool(daemon, path);
    await pool(other, `${path}-other`);
    await daemon.post("/v1/peers", { address: other.ready.addresses[0] });
    await daemon.post("/v1/rooms", receive(1, [...Array(16).keys()]));
    await has(tile(page, "Health"), /Not ready/);
    await has(region(page, "Health"), /pool kv\s+not ready, failing for \d+(\.\d+)? m?s\b/);
    assert.deepEqual(errors, []);
  } finally {
    await context.close();
    await Promise.all([daemon.kill(), other.kill()]);
    for (const file of [path, `${path}-other`]) forget(file);
  }
});

test("what happens in the daemon is on the page without a reload", () => watching(async (page, nodes) => {
  // From the second sample on the daemon knows how many end in a second.
  await has(tile(page, "Done"), /0\/s/);
  const room = await transfer(nodes, 42);
  assert.equal(room.outcome.end, "done", JSON.stringify(room));
  const events = region(page, "What happens");
  await has(events, /42\.0\s+transferring/);
  await has(events, /42\.0\s+done/);
  // The drawings have it too: somewhere in the last minute a room ended, and bytes came.
  const ended = region(page, "Rooms that ended");
  await ended.getByText("As a table").click();
  await until("a second in which a room was done", async () => {
    await ended.locator(".plot").focus();
    await page.keyboard.press("End");
    for (let back = 0; back < 30; back += 1) {
      const said = await ended.locator(".plot + .note").innerText();
      if (/done [1-9]/.test(said)) return true;
      await page.keyboard.press("ArrowLeft");
    }
    return "no such second";
  });
  await decodeHolds(page, nodes, 43);
}));

/** A room that waits for its sender is counted as live, and as gone when it is aborted elsewhere. */
async function decodeHolds(page, { decode }, id) {
  await decode.post("/v1/rooms", receive(id, [5, 6]));
  await has(tile(page, "Live rooms"), /\b1\b/);
  await has(region(page, "Pools"), /kv\s+serving\s+16\s+2/);
  await decode.ask("DELETE", `/v1/rooms/${id}?attempt=0&role=receive`);
  await has(tile(page, "Live rooms"), /\b0\b/);
}

test("rooms are found by id, tag, state and page", () => watching(async (page, nodes) => {
  for (let id = 100; id < 108; id += 1) await nodes.decode.post("/v1/rooms", receive(id, [id - 100], { tag: id % 2 ? "odd" : "even" }));
  await has(page.locator("#rooms-status"), /^8 rooms\. Renewed/);
  await page.getByLabel("Tag").fill("odd");
  await has(page.locator("#rooms-status"), /^4 rooms\./);
  await page.getByLabel("Tag").fill("");
  await page.getByLabel("State").selectOption("draining");
  await has(page.locator("main"), /No room fits/);
  await page.getByLabel("State").selectOption("registered");
  await has(page.locator("#rooms-status"), /^8 rooms\./);
  await page.getByLabel("State").selectOption("");
  await page.getByLabel("Role").selectOption("send");
  await has(page.locator("main"), /No room fits/);
  await page.getByLabel("Role").selectOption("");
  await page.getByLabel("Room id").fill("105");
  await has(page.locator("#rooms-status"), /^1 room\./);
  await page.getByLabel("Room id").press("Enter");
  await has(page.getByRole("heading", { level: 1 }), /^Room 105, attempt 0$/);
  await has(page.locator("main"), /odd/);
}, { path: "#/rooms" }));

test("a list longer than a page is turned page by page", () => watching(async (page, nodes) => {
  // Rooms that ended are remembered: so many do not fit a page, and need no memory.
  for (let id = 1; id <= 60; id += 1) {
    await nodes.decode.post("/v1/rooms", receive(id, [1]));
    await nodes.decode.ask("DELETE", `/v1/rooms/${id}?attempt=0&role=receive`);
    await nodes.decode.get(`/v1/rooms/${id}?wait=10s&for=released`);
  }
  // What is shown may be of a moment when there were fewer.
  await page.reload();
  await has(page.locator("#rooms-status"), /^Page 1, 50 rooms/);
  await page.getByRole("button", { name: "Next page" }).click();
  await has(page.locator("#rooms-status"), /^Page 2, 10 rooms/);
  assert.ok(await page.getByRole("button", { name: "Next page" }).isDisabled());
}, { path: "#/rooms" }));

test("a room's page has its timeline from the recorder, and its tag is text whatever is in it", () => watching(async (page, nodes) => {
  const tag = '<img src=x onerror="window.struck = 1">';
  await transfer(nodes, 7, { tag });
  await has(page.locator(".steps [aria-current]"), /^done$/);
  await has(page.locator(".held"), /Its memory is back in its pools; proven by \w+/);
  const timeline = region(page, "Timeline");
  await has(timeline, /from the flight recorder/);
  await has(timeline, /receive: registered/);
  await has(timeline, /(sent to|received from) prefill/);
  await has(timeline, /the gate of leg 0 is closed/);
  await has(timeline, /transferring → /);
  await page.getByText(tag, { exact: true }).first().waitFor();
  assert.equal(await page.evaluate(() => window.struck), undefined);
}, { path: "#/rooms/7.0" }));

test("an abort asks first, ends the room in the daemon, and its memory is followed home", () => watching(async (page, { decode }) => {
  await decode.post("/v1/rooms", receive(9, [1, 2]));
  await has(page.locator(".steps [aria-current]"), /^registered$/);
  await page.getByRole("button", { name: "Abort…" }).click();
  await page.getByRole("button", { name: "Keep it running" }).click();
  assert.equal((await decode.get("/v1/rooms/9")).outcome, null);
  await page.getByRole("button", { name: "Abort…" }).click();
  await page.getByRole("button", { name: "Abort the room" }).click();
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  const room = await decode.get("/v1/rooms/9?wait=20s&for=released");
  assert.equal(room.outcome.end, "aborted");
  assert.equal(room.outcome.code, "Requested");
  assert.match(room.outcome.detail, /by hand, from the dashboard/);
  await has(page.locator(".steps [aria-current]"), /^aborted$/);
  await has(page.locator(".held"), /Its memory is back/);
  await has(region(page, "Timeline"), /because Requested/);
}, { path: "#/rooms/9.0" }));

test("a daemon that is killed and started again is taken up by the open page", () => watching(async (page, nodes) => {
  await has(page.locator("#link"), /^Live$/);
  await has(page.locator("#node-facts"), /incarnation \S+/);
  const before = await page.locator("#node-facts").innerText();
  await nodes.decode.kill();
  await has(page.locator("#banner"), /^Disconnected since \d\d:\d\d:\d\d/);
  nodes.decode = await Daemon.start(["--name", "decode-again"], nodes.decode.http);
  await has(page.locator("#link"), /^Live$/);
  await has(page.locator("#node-name"), /^decode-again$/);
  await has(page.locator("#toast"), /started anew/);
  assert.notEqual(await page.locator("#node-facts").innerText(), before);
  await nodes.decode.kill("SIGTERM");
  await has(page.locator("#banner"), /^Disconnected since/);
}));

test("a daemon with a token gives the page to anybody and its data to who has the token", async () => {
  const folder = mkdtempSync(join(tmpdir(), "kvroom-browser-"));
  const secret = "a-secret-of-many-letters";
  writeFileSync(join(folder, "token"), `${secret}\n`);
  const daemon = await Daemon.start(["--name", "guarded", "--http-token-file", join(folder, "token")]);
  const { page, errors, context } = await open(browser, daemon.address);
  try {
    await has(page.getByRole("dialog"), /wants a token/);
    assert.equal(await page.locator("#node-name").innerText(), "");
    await page.getByLabel("Token", { exact: true }).fill(secret);
    await page.keyboard.press("Enter");
    await has(page.locator("#link"), /^Live$/);
    await has(page.locator("#node-name"), /^guarded$/);
    assert.deepEqual(errors, []);
  } finally {
    await context.close();
    await daemon.kill();
    rmSync(folder, { recursive: true });
  }
});
