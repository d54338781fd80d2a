// A page in Debian's Chromium, and what is demanded of it in every test: no request to anywhere else, no error
// that nothing explains, nothing that the page's policy had to refuse.

import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

export const CHROMIUM = process.env.KVROOM_CHROMIUM ?? "/usr/bin/chromium";
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"];

export async function launch() {
  if (!existsSync(CHROMIUM)) throw new Error(`${CHROMIUM} is not there; apt-get install chromium`);
  return chromium.launch({ executablePath: CHROMIUM, args: FLAGS });
}

/** A page of its own in a fresh context. `errors` has what went wrong in it. */
export async function open(browser, address, { path = "", ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, locale: "en-GB", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  const errors = [];
  page.on("pageerror", (error) => errors.push(`error: ${error.stack ?? error}`));
  page.on("console", (message) => {
    // A refused connection and an answer that is no success are what some tests are about.
    if (message.type() === "error" && !/Failed to load resource|net::ERR_/.test(message.text())) errors.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(`${address}/`) && !request.url().startsWith("data:")) errors.push(`request to ${request.url()}`);
  });
  await page.goto(`${address}/${path}`);
  return { page, errors, context };
}
