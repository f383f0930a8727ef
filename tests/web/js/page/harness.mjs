// The servers, the browser and the helpers of the walk. `walk.mjs` explains the environment.

import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

import { portsFrom, serve } from "../server.mjs";

const require = createRequire(path.resolve(process.env.OMNI_NODE_MODULES, "page.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

// ---- the servers ----

class Server {
  #child = null;

  /** `pause` is the number of milliseconds between two words of the demo model. */
  constructor(ports, pause, flags) {
    this.ports = ports;
    this.flags = flags;
    this.env = { DEMO_PAUSE_MS: String(pause), USER: "ann" };
  }

  async start() {
    const { child, port } = await serve(process.env.OMNI_WEB_CHAT, this.ports, this.flags, this.env);
    this.#child = child;
    // The page expects the server at the same address after a restart.
    this.ports = [port];
    this.address = `http://127.0.0.1:${port}/`;
  }

  async stop(signal) {
    // A step that failed may have left the server stopped.
    if (!this.#child) return;
    const ended = once(this.#child, "exit");
    this.#child.kill(signal);
    await ended;
    this.#child = null;
  }
}

const port = Number(process.env.OMNI_PORT);
/** A server with a store of files, whose model is slow enough to be interrupted. */
export const slow = new Server(portsFrom(port, 5), 15, ["--model", "demo:parrot", "--store", process.env.OMNI_STORE]);
/** A server with a store in memory, which can search texts. It offers two models. */
export const fast = new Server(portsFrom(port + 5, 5), 1, ["--model", "demo:macaw"]);

setTimeout(() => {
  console.log("the walk takes longer than 45 minutes");
  process.exit(1);
}, 45 * 60_000).unref();

await Promise.all([slow.start(), fast.start()]);

// ---- the browser ----

const browser = await chromium.launch({
  executablePath: process.env.OMNI_CHROMIUM,
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});
const problems = [];
/** A machine that is busy with other work can be slow. A long limit costs nothing while all steps succeed. */
const LIMIT = 60_000;

/** Makes a browser profile. */
export async function context(options = {}) {
  const made = await browser.newContext({ viewport: { width: 1280, height: 860 }, locale: "en-US", ...options });
  made.setDefaultTimeout(LIMIT);
  for (const { address } of [slow, fast]) await made.grantPermissions(["clipboard-read", "clipboard-write"], { origin: new URL(address).origin });
  await made.addInitScript(() => {
    addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
  });
  return made;
}

/** Opens the page of a server. `hash` names a conversation. */
export async function open(where, hash = "", { address } = slow) {
  const page = await where.newPage();
  page.on("pageerror", (error) => problems.push(`error in the page: ${error.stack}`));
  page.on("console", (message) => {
    // Requests that are meant to fail are reported by the browser too.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) problems.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    if (!/^(data|blob):/.test(request.url()) && !request.url().startsWith(address)) problems.push(`outside request: ${request.url()}`);
  });
  page.on("dialog", (dialog) => {
    problems.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  await page.goto(address + hash);
  return page;
}

export const say = async (page, text) => {
  await page.fill("#prompt", text);
  await page.press("#prompt", "Enter");
};
/**
 * Sends a prompt, and waits until the server has accepted it. A server with a store has then stored the prompt, so that it
 * survives a kill of the server.
 */
export async function send(page, text) {
  const isIts = (request) => request.url().endsWith("/commands") && request.postDataJSON().prompt?.content[0].text === text;
  const answer = page.waitForResponse((response) => isIts(response.request()));
  await say(page, text);
  assert.ok((await answer).ok());
}
/** Waits until no run is active and `count` answers are shown. */
export const idle = (page, count = 1) =>
  page.waitForFunction(
    (count) => {
      const shown = (selector) => [...document.querySelectorAll(selector)].some((element) => !element.hidden);
      return !shown("#stop") && !shown("#waiting") && document.querySelectorAll(".message.answer").length >= count && !document.querySelector(".message.live");
    },
    count,
  );
/**
 * Repeats a check until it holds. The page changes after an action, not during it, so a check of a state that an action
 * causes has to wait. Fails with the last failure of the check.
 */
export async function until(check) {
  const end = performance.now() + LIMIT;
  for (;;) {
    try {
      return await check();
    } catch (error) {
      if (performance.now() > end) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
/** Waits until the server has saved the conversation on screen. */
export const saved = (page) => until(async () => {
  const unsaved = await page.evaluate(async () => (await (await fetch(`agent/conversations/${location.hash.slice(2)}`)).json()).unsaved);
  assert.deepEqual(unsaved, []);
});
/** Stops the answer in flight. */
export const stop = (page) => page.getByRole("button", { name: "Stop the answer" }).click();
/** Starts a new conversation, and waits until the page shows it. */
export const fresh = async (page) => {
  await page.click("#new");
  await page.waitForFunction(() => !document.querySelector(".message") && !document.querySelector("#welcome").hidden && document.querySelector("#title").textContent === "New chat");
};
export const texts = (page, selector) => page.$$eval(selector, (elements) => elements.map((element) => element.innerText.trim()));
export const idOf = (page) => page.evaluate(() => decodeURIComponent(location.hash.slice(2)));
export const lastAnswer = async (page) => (await texts(page, ".message.answer .markdown")).at(-1);
/** Waits until the last answer contains a text. */
export const streams = (page, text) =>
  page.waitForFunction((text) => [...document.querySelectorAll(".message.answer .markdown")].at(-1)?.innerText.includes(text), text);
/** The question for an answer that lasts long enough to act on it. At the pace of the slow server, it takes 90 s. */
export const LONG = "count to 6000";
/** The question for an answer that lasts longer than all waits of a step together. A step that asks it stops the answer. */
export const ENDLESS = "count to 20000";
/** The answer to `count to N`. */
export const counted = (last) => Array.from({ length: last }, (_, index) => index + 1).join(" ");
/** Makes the page believe that it is hidden or shown. */
export const hide = (page, isHidden) => page.evaluate((isHidden) => {
  Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}, isHidden);

/**
 * Holds the timers of half a second and more that the page starts from now on, until `passTimers`. A timer of more than 40 s
 * watches for a lost connection, and is not held.
 */
export const holdTimers = (page) => page.evaluate(() => {
  const { setTimeout } = globalThis;
  const held = [];
  globalThis.setTimeout = (run, delay) => (delay >= 500 && delay < 40_000 ? void held.push(run) : setTimeout(run, delay));
  globalThis.passTimers = () => held.splice(0).forEach((run) => run());
});
/** Lets the timers that are held run now. */
export const passTimers = (page) => page.evaluate(() => globalThis.passTimers());

/**
 * Lets the pages that are opened from now on hold the events of their streams, see `holdAtWork`. However slow the machine
 * is, a page then shows a state for as long as the test needs.
 */
export const holdable = (made) => made.addInitScript(() => {
  const { fetch } = globalThis;
  let wanted = { text: "", count: Number.POSITIVE_INFINITY };
  let release = () => {};
  const working = new Set();
  globalThis.holdAtWork = (text, count) => {
    working.clear();
    wanted = { text, count };
  };
  globalThis.releaseEvents = () => {
    wanted.count = Number.POSITIVE_INFINITY;
    release();
  };
  const take = (frame) => {
    const data = /^data: ?(.*)$/m.exec(frame)?.[1] ?? "null";
    const event = JSON.parse(data)?.update?.event?.event;
    if (event?.type === "tool_progress" && JSON.stringify(event.data).includes(wanted.text)) working.add(event.tool_use_id);
    else if (event?.type === "tool_end") working.delete(event.tool_use_id);
  };
  globalThis.fetch = async (address, init) => {
    const response = await fetch(address, init);
    if (!response.ok || !String(address).includes("/events?")) return response;
    let rest = "";
    const gate = new TransformStream({
      async transform(piece, output) {
        const frames = (rest + piece).split("\n\n");
        rest = frames.pop();
        for (const frame of frames) {
          output.enqueue(`${frame}\n\n`);
          take(frame);
          if (working.size >= wanted.count) await new Promise((resolve) => (release = resolve));
        }
      },
    });
    const body = response.body.pipeThrough(new TextDecoderStream()).pipeThrough(gate).pipeThrough(new TextEncoderStream());
    return new Response(body, response);
  };
});
/** Holds the events as soon as this many tools are at work at the same time, with a progress that contains the text. */
export const holdAtWork = (page, text, count) => page.evaluate(([text, count]) => globalThis.holdAtWork(text, count), [text, count]);
/** Lets the page have all events. */
export const releaseEvents = (page) => page.evaluate(() => globalThis.releaseEvents());

/** Stops the clock with which the page measures durations. The clock shows zero. */
export const stopClock = (page) => page.evaluate(() => {
  globalThis.passed = 0;
  performance.now = () => globalThis.passed;
});
/** Advances the stopped clock. */
export const pass = (page, milliseconds) => page.evaluate((milliseconds) => { globalThis.passed += milliseconds; }, milliseconds);

export const shot = (page, name) => page.screenshot({ path: path.join(process.env.OMNI_SCREENSHOTS, `${name}.png`) });

export async function accessible(page, where) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run({ resultTypes: ["violations"] }));
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.target.join(" ")} (${node.failureSummary})`).join("; ")}`);
  assert.deepEqual(found, [], `axe-core in ${where}`);
}

const only = process.env.OMNI_ONLY;
const failed = [];
let count = 0;
export async function step(name, run) {
  if (only && !name.includes(only)) return;
  const began = performance.now();
  problems.length = 0;
  const made = await context();
  try {
    await run(made);
    assert.deepEqual(problems, []);
    count += 1;
    console.log(`ok   ${name} (${Math.round(performance.now() - began)} ms)`);
  } catch (error) {
    failed.push(name);
    console.log(`FAIL ${name}\n${error.stack}`);
    const page = made.pages().at(-1);
    if (page) await shot(page, `failed-${failed.length}`).catch(() => {});
  }
  await made.close();
}

/** Ends the browser and the servers, and this program. */
export async function end() {
  await browser.close();
  await Promise.all([slow.stop("SIGINT"), fast.stop("SIGINT")]);
  console.log(`${count} steps, ${failed.length} failed, ${Math.round(performance.now() / 1000)} s`);
  process.exit(failed.length ? 1 : 0);
}

/** An answer with this text shows each kind of Markdown. */
export const MARKDOWN = [
  "# Heading", "", "Some **bold**, *slanted*, ~~struck~~ `code` &amp; a [link](https://example.org/).", "",
  "```js", "const answer = 6 * 7;", "```", "", "| place | degrees |", "|:--|--:|", "| Oslo | 9 |", "| Rome | 21 |", "",
  "1. one", "2. two", "   - inner", "", "- [x] finished", "- [ ] open", "", "> A quotation",
].join("\n");
