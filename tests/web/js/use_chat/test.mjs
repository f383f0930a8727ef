// Runs `useChat` of `@ai-sdk/react` in Chromium. `tests/web/use_chat.rs` starts it.
//
//   OMNI_SERVER       host and port of the server of `tests/web/ai_sdk.rs`
//   OMNI_MODULES      the folder with React, the AI SDK and esbuild
//   OMNI_PLAYWRIGHT   the folder with `playwright-core`
//   OMNI_CHROMIUM     the browser
//
// The browser reaches the server through a proxy, which can reset all connections: both sides then get RST, as if the
// network or a proxy had failed.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createRequire } from "node:module";
import { connect, createServer } from "node:net";
import path from "node:path";

const { buildSync } = createRequire(path.join(process.env.OMNI_MODULES, "x.js"))("esbuild");
const { chromium } = createRequire(path.join(process.env.OMNI_PLAYWRIGHT, "x.js"))("playwright-core");

const [host, port] = process.env.OMNI_SERVER.split(":");
// A busy machine can be slow. Long limits cost nothing while all scenarios succeed.
setTimeout(() => {
  console.log("the test takes longer than ten minutes");
  process.exit(1);
}, 600_000).unref();

// ---- the proxy ----

const pairs = new Set();
const proxy = createServer((near) => {
  const far = connect(Number(port), host);
  const pair = [near, far];
  pairs.add(pair);
  for (const [from, to] of [pair, [far, near]]) {
    from.pipe(to);
    from.on("error", () => to.destroy());
    from.on("close", () => pairs.delete(pair));
  }
});
// Ports from 32768 on belong to outgoing connections.
for (let free = Number(port) + 1; !proxy.listening; free += 1) {
  proxy.listen(free, "127.0.0.1");
  // If the port is taken, the proxy emits `error`, and the loop tries the next port.
  await once(proxy, "listening").catch(() => {});
}
const origin = `http://127.0.0.1:${proxy.address().port}`;
const reset = () => {
  assert.ok(pairs.size > 0);
  for (const pair of pairs) for (const socket of pair) socket.resetAndDestroy();
};
const request = async (method, path, body) => {
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  const response = await fetch(`http://${host}:${port}${path}`, { method, headers, body: body && JSON.stringify(body) });
  assert.ok(response.ok, `${method} ${path}: ${response.status}`);
  return response.status === 204 ? undefined : response.json();
};

// ---- the page ----

const PAGE = `
  import { createElement as h, useEffect, useRef } from "react";
  import { createRoot } from "react-dom/client";
  import { useChat } from "@ai-sdk/react";
  import { DefaultChatTransport } from "ai";

  // All settings are the defaults, except that the page resumes a stream after a reload, and that the fragment of its
  // address can name another place of the routes. If a lost stream has nothing to resume, the page loads the messages
  // again, as the guide recommends.
  const base = location.hash.slice(1);
  const transport = base ? new DefaultChatTransport({ api: base + "/chat" }) : undefined;
  function App({ id, messages }) {
    const chat = useChat({ id, messages, transport, resume: messages.length > 0 });
    globalThis.chat = chat;
    const hasFailed = useRef(false);
    useEffect(() => {
      const isStale = hasFailed.current && chat.status === "ready";
      hasFailed.current = chat.status === "error";
      if (isStale) load().then(chat.setMessages);
    }, [chat.status]);
    const texts = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text).join("");
    return h("main", { "data-status": chat.status, "data-error": chat.error?.message },
      chat.messages.map((message) => h("p", { key: message.id, className: message.role }, texts(message))));
  }

  const id = location.search.slice(1);
  const load = async () => (await fetch((base || "/api") + "/chat/" + id + "/messages")).json();
  createRoot(document.querySelector("#root")).render(h(App, { id, messages: await load() }));
`;
const { outputFiles: [bundle] } = buildSync({
  stdin: { contents: PAGE, resolveDir: process.env.OMNI_MODULES, loader: "js" },
  bundle: true, format: "esm", write: false, define: { "process.env.NODE_ENV": '"production"' },
});

const browser = await chromium.launch({ executablePath: process.env.OMNI_CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
const context = await browser.newContext();
context.setDefaultTimeout(120_000);
const html = '<!doctype html><title>x</title><div id="root"></div><script type="module" src="/bundle.js"></script>';
await context.route((url) => url.pathname === "/", (route) => route.fulfill({ contentType: "text/html", body: html }));
await context.route("**/bundle.js", (route) => route.fulfill({ contentType: "text/javascript", body: bundle.text }));

/** Opens a new conversation. `base` is the place of the routes, if it is not `/api`. */
const open = async (base = "") => {
  const { id } = await request("POST", "/agent/conversations", {});
  const page = await context.newPage();
  page.on("pageerror", (error) => assert.fail(error));
  await page.goto(`${origin}/?${id}#${base}`);
  await status(page, "ready");
  return { page, id };
};
const send = (page, text) => page.evaluate((text) => void globalThis.chat.sendMessage({ text }), text);
const status = (page, name) => page.waitForSelector(`main[data-status="${name}"]`, { state: "attached" });
const shown = (page) => page.$$eval("main p", (elements) => elements.map((element) => `${element.className}: ${element.textContent}`));
const answer = (page, text) => page.waitForFunction((text) => [...document.querySelectorAll(".assistant")].at(-1)?.textContent === text, text);
const ids = (page) => page.evaluate(() => globalThis.chat.messages.map(({ id }) => id));
/** Waits for a complete answer to `count` that differs from an earlier one, and returns its text. */
const counted = async (page, earlier) => (await page.waitForFunction((earlier) => {
  const last = [...document.querySelectorAll(".assistant")].at(-1)?.textContent;
  const isReady = document.querySelector("main")?.dataset.status === "ready";
  return isReady && last?.startsWith("Answer ") && last.endsWith(".") && last !== earlier && last;
}, earlier)).jsonValue();
/** Waits until no run is active. */
const idle = async (id) => {
  const { body } = await fetch(`http://${host}:${port}/agent/conversations/${id}/events`);
  let text = "";
  for await (const piece of body.pipeThrough(new TextDecoderStream())) {
    text += piece;
    if (text.includes('"status":"idle"')) return;
  }
  assert.fail(text);
};
const listed = async (id) => (await request("GET", `/api/chat/${id}/messages`))
  .map(({ role, parts }) => `${role}: ${parts.filter(({ type }) => type === "text").map(({ text }) => text).join("")}`);

// ---- the scenarios ----

const scenarios = {
  async "an answer without trouble"() {
    const { page, id } = await open();
    await send(page, "hello");
    await answer(page, "Hello, world.");
    await status(page, "ready");
    assert.deepEqual(await shown(page), ["user: hello", "assistant: Hello, world."]);
    assert.deepEqual(await listed(id), await shown(page));
  },

  async "a reset connection is an error, and the answer is resumed without a gap"() {
    const { page, id } = await open();
    await send(page, "slow");
    await answer(page, "One ");
    reset();
    await status(page, "error");
    assert.match(await page.getAttribute("main", "data-error"), /network error/);
    assert.deepEqual(await shown(page), ["user: slow", "assistant: One "]);
    await page.evaluate(() => void globalThis.chat.resumeStream());
    await status(page, "streaming");
    await request("POST", "/gate");
    await answer(page, "One two.");
    await status(page, "ready");
    assert.deepEqual(await shown(page), ["user: slow", "assistant: One two."]);
    assert.deepEqual(await listed(id), await shown(page));
    // The next prompt continues the conversation.
    await send(page, "hello");
    await answer(page, "Hello, world.");
    await status(page, "ready");
    assert.deepEqual(await listed(id), await shown(page));
  },

  async "an answer that ends while the connection is reset is complete after a reload"() {
    const { page, id } = await open();
    await send(page, "slow");
    await answer(page, "One ");
    reset();
    await status(page, "error");
    await request("POST", "/gate");
    await page.reload();
    await answer(page, "One two.");
    await status(page, "ready");
    assert.deepEqual(await shown(page), ["user: slow", "assistant: One two."]);
    assert.deepEqual(await listed(id), await shown(page));
  },

  async "an answer that ends while the connection is lost is complete when the page is shown again"() {
    const { page, id } = await open();
    await send(page, "hello");
    await answer(page, "Hello, world.");
    await status(page, "ready");
    // The page resumes only after a reload with messages.
    await page.reload();
    await answer(page, "Hello, world.");
    await send(page, "slow");
    await answer(page, "One ");
    reset();
    await status(page, "error");
    await request("POST", "/gate");
    await idle(id);
    await page.evaluate(() => document.dispatchEvent(new Event("visibilitychange")));
    await answer(page, "One two.");
    await status(page, "ready");
    assert.deepEqual(await listed(id), await shown(page));
  },

  async "a reload after a reset connection in mid-answer resumes by itself"() {
    const { page, id } = await open();
    await send(page, "hello");
    await answer(page, "Hello, world.");
    await status(page, "ready");
    await send(page, "slow");
    await answer(page, "One ");
    reset();
    await status(page, "error");
    await page.reload();
    await answer(page, "One ");
    await request("POST", "/gate");
    await answer(page, "One two.");
    await status(page, "ready");
    assert.deepEqual(await listed(id), await shown(page));
  },

  async "stop() interrupts the run after the grace"() {
    const { page, id } = await open("/left-briefly");
    await send(page, "slow");
    await answer(page, "One ");
    await page.evaluate(() => void globalThis.chat.stop());
    await status(page, "ready");
    await idle(id);
    assert.deepEqual(await listed(id), ["user: slow", "assistant: One "]);
    await page.reload();
    await status(page, "ready");
    await answer(page, "One ");
    await send(page, "hello");
    await answer(page, "Hello, world.");
    await status(page, "ready");
    assert.deepEqual(await listed(id), await shown(page));
  },

  async "a reload after stop() continues the answer, and a new message after stop() ends it"() {
    const { page, id } = await open("/left-long");
    await send(page, "slow");
    await answer(page, "One ");
    await page.evaluate(() => void globalThis.chat.stop());
    await status(page, "ready");
    await page.reload();
    await status(page, "streaming");
    await request("POST", "/gate");
    await answer(page, "One two.");
    await status(page, "ready");
    await send(page, "slow");
    await answer(page, "One ");
    await page.evaluate(() => void globalThis.chat.stop());
    await status(page, "ready");
    await send(page, "hello");
    await answer(page, "Hello, world.");
    await status(page, "ready");
    const texts = ["user: slow", "assistant: One two.", "user: slow", "assistant: One ", "user: hello", "assistant: Hello, world."];
    assert.deepEqual(await shown(page), texts);
    assert.deepEqual(await listed(id), texts);
  },

  async "a regenerated answer has its own id, also after a reload"() {
    const { page, id } = await open();
    await send(page, "count");
    const older = await counted(page);
    const [, first] = await ids(page);
    await page.evaluate(() => void globalThis.chat.regenerate());
    const newer = await counted(page, older);
    const [, second] = await ids(page);
    assert.notEqual(second, first);
    await page.reload();
    assert.equal(await counted(page, older), newer);
    assert.deepEqual((await ids(page))[1], second);
    assert.deepEqual(await listed(id), await shown(page));
  },
};

let failed = 0;
for (const [name, run] of Object.entries(scenarios)) {
  try {
    await run();
    console.log(`ok   ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${name}\n${error.stack}`);
  }
}
await browser.close();
process.exit(failed ? 1 : 0);
