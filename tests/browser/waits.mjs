// Waiting for what a page shows.

import assert from "node:assert/strict";

/** Waits until `so` gives true; fails with what it gave last. */
export async function until(what, so, within = 15_000) {
  const start = Date.now();
  for (;;) {
    const seen = await so();
    if (seen === true) return;
    if (Date.now() - start > within) assert.fail(`${what}: still ${JSON.stringify(seen)}`);
    await new Promise((done) => setTimeout(done, 100));
  }
}

/** Waits until the element's text is like this. */
export const has = (locator, pattern) => until(`${pattern}`, async () => {
  const seen = (await locator.count()) > 0 ? await locator.first().innerText() : "nothing";
  return pattern.test(seen) || seen;
});

export const region = (page, name) => page.getByRole("region", { name, exact: true });
export const tile = (page, name) => page.locator(".tile").filter({ has: page.getByText(name, { exact: true }) });
