// Screenshots of the page on real daemons that move pages all the while: KVROOM_BIN=… node look-real.mjs FOLDER
import { mkdirSync } from "node:fs";
import { launch, open } from "./browser.mjs";
import { forget, pair, receive, transfer } from "./daemon.mjs";

const [folder = "screenshots"] = process.argv.slice(2);
const seconds = Number(process.env.SECONDS ?? 14);
mkdirSync(folder, { recursive: true });
const [browser, nodes] = await Promise.all([launch(), pair("look")]);
const views = [["real-light", "light", "#/"], ["real-dark", "dark", "#/"], ["real-rooms-dark", "dark", "#/rooms"], ["real-room-light", "light", "#/rooms/1.0"]];
const pages = await Promise.all(views.map(async ([name, colorScheme, path]) => ({ name, ...(await open(browser, nodes.decode.address, { path, colorScheme })) })));
const until = Date.now() + seconds * 1000;
for (let id = 1; Date.now() < until; id += 1) {
  const room = await transfer(nodes, id);
  if (room.outcome.end !== "done") console.log(id, room.outcome);
  if (id % 4 === 0) {
    await nodes.decode.post("/v1/rooms", receive(1_000_000 + id, [9]));
    await nodes.decode.ask("DELETE", `/v1/rooms/${1_000_000 + id}?attempt=0&role=receive`);
  }
}
for (const { name, page, errors } of pages) {
  await page.screenshot({ path: `${folder}/${name}.png`, fullPage: true });
  if (errors.length > 0) console.log(name, errors);
}
await browser.close();
await Promise.all([nodes.decode.kill(), nodes.prefill.kill()]);
for (const file of nodes.files) forget(file);
