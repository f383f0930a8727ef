// The server, the browser and the helpers of the tests of `examples/front_ends`. `tests/web/front_ends.rs` starts them.
//
//   OMNI_WEB_CHAT     the program of the example `web_chat`
//   OMNI_DIST         the folder with the built front end
//   OMNI_PORT         the first of three ports that the server can use
//   OMNI_PLAYWRIGHT   the folder with `playwright-core`
//   OMNI_CHROMIUM     the browser

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";

import { portsFrom, serve } from "../server.mjs";

const { OMNI_WEB_CHAT, OMNI_DIST, OMNI_PORT, OMNI_PLAYWRIGHT, OMNI_CHROMIUM } = process.env;
const { chromium } = createRequire(path.join(OMNI_PLAYWRIGHT, "x.js"))("playwright-core");

/** A busy machine can be slow. A long limit costs nothing while all steps succeed. */
const LIMIT = 60_000;

const flags = ["--model", "demo:parrot", "--page", OMNI_DIST];
setTimeout(() => {
  console.log("the test takes longer than ten minutes");
  process.exit(1);
}, 600_000).unref();
const { port } = await serve(OMNI_WEB_CHAT, portsFrom(Number(OMNI_PORT), 3), flags, { DEMO_PAUSE_MS: "10" });

const browser = await chromium.launch({ executablePath: OMNI_CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
export const page = await browser.newPage();
page.setDefaultTimeout(LIMIT);
page.on("pageerror", (error) => assert.fail(error));
await page.goto(`http://127.0.0.1:${port}/`);

/** Returns the shown text. */
export const text = () => page.innerText("#root");
/** Waits until a check of the shown text holds. */
export async function until(what, check) {
  const end = performance.now() + LIMIT;
  while (!(await check(await text()))) {
    assert.ok(performance.now() < end, `${what} does not happen; the page shows:\n${await text()}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
export const shows = (part) => until(`"${part}"`, (shown) => shown.includes(part));
export const button = (name) => page.locator(`button:text-is("${name}")`);
export const count = (name, expected) => until(`${expected} times ${name}`, async () => (await button(name).count()) === expected);

export async function end() {
  await page.screenshot({ path: path.join(OMNI_DIST, "screenshot.png") });
  await browser.close();
  process.exit(0);
}
