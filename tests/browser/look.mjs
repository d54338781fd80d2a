// Screenshots to look at: node look.mjs FOLDER [SCENE...]
import { mkdirSync } from "node:fs";
import { launch, open } from "./browser.mjs";
import { startMock } from "./mock.mjs";

const [folder = "screenshots", ...only] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const browser = await launch();
const views = [
  ["calm-light", "calm", { colorScheme: "light" }, "#/"],
  ["calm-dark", "calm", { colorScheme: "dark" }, "#/"],
  ["calm-narrow", "calm", { colorScheme: "light", viewport: { width: 360, height: 740 } }, "#/"],
  ["storm-light", "storm", { colorScheme: "light" }, "#/"],
  ["wedge-dark", "wedge", { colorScheme: "dark" }, "#/"],
  ["quarantine-light", "quarantine", { colorScheme: "light" }, "#/"],
  ["rooms-light", "quarantine", { colorScheme: "light" }, "#/rooms"],
  ["rooms-narrow", "quarantine", { colorScheme: "dark", viewport: { width: 360, height: 740 } }, "#/rooms"],
  ["room-light", "calm", { colorScheme: "light" }, "#/rooms/43.0"],
  ["room-narrow", "quarantine", { colorScheme: "dark", viewport: { width: 360, height: 740 } }, "#/rooms/900.0"],
  ["empty-light", "empty", { colorScheme: "light" }, "#/"],
];
await Promise.all(views.filter(([name]) => only.length === 0 || only.some((o) => name.startsWith(o))).map(async ([name, scene, options, path]) => {
  const mock = await startMock({ scene });
  const { page, errors } = await open(browser, mock.address, { path, ...options });
  await page.waitForTimeout(Number(process.env.SECONDS ?? 14) * 1000);
  if (name.startsWith("room-light")) {
    await page.getByRole("button", { name: "Abort…" }).click();
    await page.screenshot({ path: `${folder}/abort-dialog.png` });
    await page.getByRole("button", { name: "Abort the room" }).click();
    await page.waitForTimeout(4000);
  }
  await page.screenshot({ path: `${folder}/${name}.png`, fullPage: !process.env.TOP });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  if (wide > 0) console.log(`${name}: wider than the screen by ${wide}`);
  if (errors.length > 0) console.log(name, errors);
  await mock.stop();
}));
await browser.close();
