// Walks through the chat page in Chromium. Needs the packages `playwright-core` and `axe-core`.
//
//   OMNI_NODE_MODULES   the folder that contains `node_modules`
//   OMNI_WEB_URL        the address of a running `web_chat` example with the model `demo:parrot`; or
//   OMNI_WEB_CHAT       the program of the example, which is then started, and restarted in mid-answer
//   OMNI_WEB_PORT       the port of the started program
//   OMNI_CHROMIUM       the browser, otherwise /usr/bin/chromium
//   OMNI_SCREENSHOTS    the folder for screenshots, otherwise none are made
//   OMNI_ONLY           a word; only the steps whose names contain it are run

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";

const require = createRequire(path.resolve(process.env.OMNI_NODE_MODULES ?? ".", "page.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

// ---- the server ----

const program = process.env.OMNI_WEB_CHAT;
const folder = program ? mkdtempSync(path.join(tmpdir(), "omni-page-")) : null;
let server = null;

// Nothing outlives this script, also if it fails or takes too long.
process.on("exit", () => {
  server?.kill("SIGKILL");
  if (folder) rmSync(folder, { recursive: true, force: true });
});
setTimeout(() => {
  console.log("the walk takes longer than seven minutes");
  process.exit(1);
}, 420_000).unref();

async function start() {
  const port = process.env.OMNI_WEB_PORT ?? "18484";
  const environment = { ...process.env, DEMO_PAUSE_MS: "15", USER: "ann" };
  server = spawn(program, ["--model", "demo:parrot", "--port", port, "--store", folder], { env: environment, stdio: ["ignore", "pipe", "inherit"] });
  const [line] = await once(server.stdout, "data");
  return String(line).trim();
}

async function stop(signal) {
  const ended = once(server, "exit");
  server.kill(signal);
  await ended;
}

const address = (program ? await start() : process.env.OMNI_WEB_URL)?.replace(/\/?$/, "/");
assert.ok(address, "OMNI_WEB_URL or OMNI_WEB_CHAT is needed");

// ---- the browser ----

const browser = await chromium.launch({
  executablePath: process.env.OMNI_CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});
const problems = [];

async function context(options = {}) {
  const made = await browser.newContext({ viewport: { width: 1280, height: 860 }, locale: "en-US", ...options });
  await made.grantPermissions(["clipboard-read", "clipboard-write"], { origin: new URL(address).origin });
  await made.addInitScript(() => {
    addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
  });
  return made;
}

async function open(where, hash = "") {
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

const say = async (page, text) => {
  await page.fill("#prompt", text);
  await page.press("#prompt", "Enter");
};
/** Waits until no run is active and `count` answers are shown. */
const idle = (page, count = 1) =>
  page.waitForFunction(
    (count) => {
      const shown = (selector) => [...document.querySelectorAll(selector)].some((element) => !element.hidden);
      return !shown("#stop") && !shown("#waiting") && document.querySelectorAll(".message.answer").length >= count && !document.querySelector(".message.live");
    },
    count,
    { timeout: 30_000 },
  );
const fresh = async (page) => {
  await page.click("#new");
  await page.waitForSelector("#welcome:not([hidden])");
};
const texts = (page, selector) => page.$$eval(selector, (elements) => elements.map((element) => element.innerText.trim()));
const idOf = (page) => page.evaluate(() => decodeURIComponent(location.hash.slice(2)));
const lastAnswer = async (page) => (await texts(page, ".message.answer .markdown")).at(-1);

async function shot(page, name) {
  if (process.env.OMNI_SCREENSHOTS) await page.screenshot({ path: path.join(process.env.OMNI_SCREENSHOTS, `${name}.png`) });
}

async function accessible(page, where) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run({ resultTypes: ["violations"] }));
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.target.join(" ")} (${node.failureSummary})`).join("; ")}`);
  assert.deepEqual(found, [], `axe-core in ${where}`);
}

const only = process.env.OMNI_ONLY;
const failed = [];
let count = 0;
async function step(name, run) {
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

const MARKDOWN = [
  "# Heading", "", "Some **bold**, *slanted*, ~~struck~~ `code` &amp; a [link](https://example.org/).", "",
  "```js", "const answer = 6 * 7;", "```", "", "| place | degrees |", "|:--|--:|", "| Oslo | 9 |", "| Rome | 21 |", "",
  "1. one", "2. two", "   - inner", "", "- [x] finished", "- [ ] open", "", "> A quotation",
].join("\n");

// ---- conversations ----

await step("an answer streams and is shown as Markdown", async (made) => {
  const page = await open(made);
  await shot(page, "01-empty");
  await accessible(page, "the empty page");
  await say(page, "Hello");
  await page.waitForSelector(".message.live");
  await page.waitForSelector(".item .meta.busy");
  await idle(page);
  assert.match(await lastAnswer(page), /demo model/);
  await say(page, MARKDOWN);
  await idle(page, 2);
  const answer = page.locator(".message.answer").last();
  for (const selector of ["strong", "em", "del", "code", "a[href='https://example.org/']", "table td", "ol li ul li", "blockquote", "input[type=checkbox]"]) {
    assert.ok(await answer.locator(selector).count(), selector);
  }
  assert.equal(await answer.locator("pre code").innerText(), "const answer = 6 * 7;");
  await answer.locator(".copy").click();
  await answer.getByText("Copied").waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "const answer = 6 * 7;");
  assert.ok(await answer.locator("details.thinking").count());
  await answer.locator("details.thinking summary").click();
  assert.match(await answer.locator("details.thinking").innerText(), /names no tool/);
  assert.match(await page.locator("#summary").innerText(), /complete: \d+ words/);
  await shot(page, "02-markdown");
  await accessible(page, "a conversation");
});

await step("a reload in mid-answer shows the text of an undisturbed window", async (made) => {
  const page = await open(made);
  await say(page, "count to 150");
  await page.waitForFunction(() => document.querySelector(".message.answer .markdown")?.innerText.includes(" 20 "));
  const other = await open(made, `#/${await idOf(page)}`);
  await page.reload();
  await page.waitForSelector(".message.answer .markdown");
  await Promise.all([idle(page), idle(other)]);
  const expected = Array.from({ length: 150 }, (_, index) => index + 1).join(" ");
  assert.equal(await lastAnswer(page), expected);
  assert.equal(await lastAnswer(other), expected);
});

await step("two windows show the same, and decisions name who decided", async (made) => {
  const [one, two] = [await open(made), await open(made)];
  await say(one, "Hello");
  await idle(one);
  await two.goto(`${address}#/${await idOf(one)}`);
  await two.waitForSelector(".message.answer");
  await say(two, 'send_mail "Lunch is ready"');
  await one.waitForSelector(".tool.waiting");
  await one.locator(".item .meta.paused", { hasText: "paused: 1 decision" }).waitFor();
  await two.waitForSelector(".tool.waiting");
  await one.getByRole("button", { name: "Approve" }).click();
  await Promise.all([idle(one, 3), idle(two, 3)]);
  await two.waitForFunction(() => !document.querySelector(".tool.waiting"));
  assert.deepEqual(await texts(two, ".message .markdown"), await texts(one, ".message .markdown"));
  await two.locator("details.tool summary").click();
  assert.match(await two.locator("details.tool").innerText(), /Approved by \w+\./);
});

await step("tools show input, progress, result, duration and failure", async (made) => {
  const page = await open(made);
  await say(page, "measure_temperature in `Oslo` and in `Atlantis`");
  await page.locator(".badge.running", { hasText: "%" }).first().waitFor();
  await shot(page, "03-progress");
  await idle(page, 2);
  const badges = await texts(page, ".badge");
  assert.match(badges[0], /^done · 1\.\d s$/);
  assert.match(badges[1], /^failed · 1\.\d s$/);
  await page.locator("details.tool summary").first().click();
  const card = await page.locator("details.tool").first().innerText();
  assert.match(card, /"city": "Oslo"/);
  assert.match(card, /9 °C in Oslo/);
  await say(page, 'paint_picture of "a whale"');
  await idle(page, 4);
  await page.locator("details.tool summary").last().click();
  await page.waitForFunction(() => [...document.querySelectorAll(".tool img")].some((image) => image.naturalWidth === 96));
  await shot(page, "04-tools");
  await accessible(page, "tool cards");
});

await step("several approvals are decided in different ways", async (made) => {
  const page = await open(made);
  await say(page, 'send_mail `first` and `second` and `third` and `fourth`');
  await page.locator("#waiting", { hasText: "4 decisions are needed" }).waitFor();
  await page.locator(".item .meta.paused", { hasText: "paused: 4 decisions" }).waitFor();
  await shot(page, "05-approvals");
  await accessible(page, "approvals");
  const card = (number) => page.locator("details.tool").nth(number);
  await card(0).getByRole("button", { name: "Approve" }).click();
  await card(1).getByRole("button", { name: "Reject…" }).click();
  await card(1).getByRole("textbox").fill("not today");
  await card(1).getByRole("button", { name: "Reject" }).click();
  await card(2).getByRole("button", { name: "Edit input…" }).click();
  await card(2).getByRole("textbox").fill('{ "text": ');
  await card(2).getByRole("button", { name: "Run with this input" }).click();
  await card(2).getByText("This is not JSON").waitFor();
  await shot(page, "06-edit-input");
  await card(2).getByRole("textbox").fill('{ "text": "edited" }');
  await card(2).getByRole("button", { name: "Run with this input" }).click();
  await page.locator("#waiting", { hasText: "1 decision is needed" }).waitFor();
  await card(3).getByRole("button", { name: "Answer instead…" }).click();
  await card(3).getByRole("textbox").fill("I have told them");
  await card(3).getByRole("button", { name: "Answer", exact: true }).click();
  await idle(page, 2);
  await page.$$eval("details.tool", (cards) => cards.forEach((card) => (card.open = true)));
  const cards = await texts(page, "details.tool");
  assert.match(cards[0], /would have been: first/);
  assert.match(cards[1], /Rejected \(not today\) by/);
  assert.match(cards[2], /would have been: edited/);
  assert.match(cards[2], /Approved with another input by/);
  assert.match(cards[3], /I have told them/);
  await say(page, "send_mail `fifth` and `sixth`");
  await page.getByRole("button", { name: "Approve all" }).click();
  await idle(page, 4);
});

await step("an answer is stopped, repeated and edited, and alternates are chosen", async (made) => {
  const page = await open(made);
  await say(page, "count to 900");
  await page.waitForFunction(() => document.querySelector(".message.answer .markdown")?.innerText.includes(" 12 "));
  await page.getByRole("button", { name: "Stop the answer" }).click();
  await idle(page);
  assert.match(await lastAnswer(page), /^1 2 3/);
  await page.getByText("Stopped.", { exact: true }).waitFor();
  const user = page.locator(".message.user").first();
  await user.hover();
  await user.getByRole("button", { name: "Edit and send again" }).click();
  await page.getByLabel("Edited message").fill("count to 3");
  await page.getByLabel("Edited message").press("Enter");
  await page.waitForFunction(() => document.querySelector(".message.answer .markdown")?.innerText === "1 2 3");
  await idle(page);
  await user.getByText("2/2").waitFor();
  await page.locator(".message.answer").last().hover();
  await page.getByRole("button", { name: "Answer again" }).click();
  await page.locator(".message.answer .alternates", { hasText: "2/2" }).waitFor();
  await idle(page);
  await page.getByRole("button", { name: "Previous answer" }).click();
  await page.locator(".message.answer .alternates", { hasText: "1/2" }).waitFor();
  await page.getByRole("button", { name: "Previous version" }).click();
  await user.getByText("1/2").waitFor();
  assert.equal(await user.locator(".plain").innerText(), "count to 900");
  await page.getByRole("button", { name: "All branches" }).click();
  assert.equal((await texts(page, "#outline button")).length, 5);
  await shot(page, "07-map");
  await accessible(page, "the map");
  await page.locator("#outline button", { hasText: "count to 3" }).click();
  await user.getByText("2/2").waitFor();
  assert.equal(await lastAnswer(page), "1 2 3");
});

await step("prompts are queued, withdrawn, and join the answer", async (made) => {
  const page = await open(made);
  await say(page, "count to 120");
  await page.waitForSelector(".message.live .markdown");
  await say(page, "Hello again");
  await page.locator("#queue li", { hasText: "Hello again" }).waitFor();
  await say(page, "Never mind");
  await page.locator("#queue li", { hasText: "Never mind" }).waitFor();
  await shot(page, "08-queue");
  await accessible(page, "the queue");
  await page.getByRole("button", { name: "Take back: Never mind" }).click();
  await page.waitForFunction(() => document.querySelectorAll("#queue li").length === 1);
  assert.equal(await page.inputValue("#prompt"), "Never mind");
  await page.fill("#prompt", "");
  await idle(page, 2);
  assert.deepEqual(await texts(page, ".message.user .plain"), ["count to 120", "Hello again"]);
  await say(page, "measure_temperature in `Oslo`");
  await page.waitForSelector(".badge.running");
  await page.fill("#prompt", "and be quick");
  await page.check("#at-step-box");
  await page.press("#prompt", "Enter");
  await page.locator("#queue li", { hasText: "next step" }).waitFor();
  await idle(page, 4);
  assert.equal((await texts(page, ".message.user .plain")).at(-1), "and be quick");
});

await step("a failed run shows the failure and keeps the prompt", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  await say(page, "fail");
  await page.locator(".outcome.bad", { hasText: "you asked the demo model to fail" }).waitFor({ timeout: 60_000 });
  await page.locator(".outcome blockquote", { hasText: "fail" }).waitFor();
  await shot(page, "09-failure");
  await accessible(page, "a failure");
  await page.locator(".outcome").getByRole("button", { name: "Edit" }).click();
  assert.equal(await page.inputValue("#prompt"), "fail");
});

// ---- files, drafts, list ----

const PNG = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAgAAAAIAQMAAAD+wSzIAAAABlBMVEX///+/v7+jQ3Y5AAAADklEQVQI12P4AIX8EAgALgAD/aNpbtEAAAAASUVORK5CYII", "base64");

await step("files are chosen, dropped, pasted and removed", async (made) => {
  const page = await open(made);
  await page.setInputFiles("#file", [{ name: "picture.png", mimeType: "image/png", buffer: PNG }, { name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("note") }]);
  await page.waitForFunction(() => document.querySelectorAll("#files li").length === 2);
  const transfer = await page.evaluateHandle(() => {
    const data = new DataTransfer();
    data.items.add(new File(["dropped"], "dropped.csv", { type: "text/csv" }));
    return data;
  });
  await page.dispatchEvent("#main", "dragenter", { dataTransfer: transfer });
  await page.waitForSelector("#drop:not([hidden])");
  await page.dispatchEvent("#main", "drop", { dataTransfer: transfer });
  await page.waitForFunction(() => document.querySelectorAll("#files li").length === 3);
  await page.evaluate(() => {
    const clipboardData = new DataTransfer();
    clipboardData.items.add(new File(["pasted"], "pasted.md", { type: "text/markdown" }));
    document.querySelector("#prompt").dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
  });
  await page.waitForFunction(() => document.querySelectorAll("#files li").length === 4);
  await shot(page, "10-files");
  await accessible(page, "files");
  await page.getByRole("button", { name: "Remove dropped.csv" }).click();
  await say(page, "What is this?");
  await idle(page);
  await page.waitForFunction(() => document.querySelector(".message.user img")?.naturalWidth === 8);
  assert.deepEqual(await texts(page, ".message.user .file-link bdi"), ["notes.txt", "pasted.md"]);
  const download = page.waitForEvent("download");
  await page.locator(".file-link").first().click();
  assert.equal((await download).suggestedFilename(), "notes.txt");
  await page.setInputFiles("#file", { name: "big.bin", mimeType: "application/octet-stream", buffer: Buffer.alloc(7_000_000) });
  await page.locator("#notice", { hasText: "too large" }).waitFor();
  // Large images are linked by the server, and the page shows them all the same.
  await page.setInputFiles("#file", { name: "large.png", mimeType: "image/png", buffer: Buffer.concat([PNG, Buffer.alloc(100_000)]) });
  await page.waitForSelector("#files li");
  await say(page, "A large one");
  await idle(page, 2);
  await page.reload();
  await page.waitForFunction(() => [...document.querySelectorAll(".message.user img")].some((image) => image.src.includes("/files/") && image.naturalWidth === 8));
});

await step("drafts are kept per conversation", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  const first = await idOf(page);
  await page.fill("#prompt", "a draft");
  await fresh(page);
  assert.equal(await page.inputValue("#prompt"), "");
  await page.fill("#prompt", "another draft");
  await page.locator(`.item a[href="#/${first}"]`).click();
  assert.equal(await page.inputValue("#prompt"), "a draft");
  await page.reload();
  await page.waitForSelector(".message.answer");
  assert.equal(await page.inputValue("#prompt"), "a draft");
  await fresh(page);
  assert.equal(await page.inputValue("#prompt"), "another draft");
});

await step("conversations are renamed, searched, marked as unread, exported and deleted", async (made) => {
  const page = await open(made);
  await say(page, "Tell me about zebras");
  await idle(page);
  const first = await idOf(page);
  const item = page.locator(".item", { has: page.locator(`a[href="#/${first}"]`) });
  await item.hover();
  await item.getByRole("button", { name: /^Rename/ }).click();
  await page.fill("#ask-input", "Stripes and hooves");
  await shot(page, "11-rename");
  await accessible(page, "a dialog");
  await page.keyboard.press("Enter");
  await page.locator("#title", { hasText: "Stripes and hooves" }).waitFor();
  await item.locator("bdi", { hasText: "Stripes and hooves" }).waitFor();
  await say(page, "count to 100");
  await page.waitForSelector(".message.live .markdown");
  await fresh(page);
  await page.waitForSelector(".item.unread");
  assert.match(await item.innerText(), /new$/);
  await page.keyboard.press("Control+k");
  await page.keyboard.type("hooves");
  await page.waitForFunction(() => document.querySelectorAll("#list .item").length === 1);
  await shot(page, "12-search");
  await page.fill("#search", "nothing has this title");
  await page.getByText("Nothing found.").waitFor();
  await accessible(page, "a search");
  await page.fill("#search", "");
  await item.locator("a").click();
  await page.waitForSelector(".message.answer");
  assert.equal(await page.locator(".item.unread", { has: page.locator(`a[href="#/${first}"]`) }).count(), 0);
  const download = page.waitForEvent("download");
  await page.getByRole("button", { name: "Export as JSON" }).click();
  const exported = JSON.parse(readFileSync(await (await download).path(), "utf8"));
  assert.equal(exported.title, "Stripes and hooves");
  assert.equal(exported.tree.nodes.length, 4);
  await item.hover();
  await item.getByRole("button", { name: /^Delete/ }).click();
  await page.locator("#ask-ok").click();
  await item.waitFor({ state: "detached" });
  assert.equal(await idOf(page), "");
  await page.goto(`${address}#/${first}`);
  await page.getByText("This conversation does not exist").waitFor();
  await shot(page, "13-not-found");
});

await step("the gauge and numbers follow the locale", async () => {
  for (const [locale, size] of [["en-US", "12.3K tokens"], ["de-DE", "12.345 Tokens"]]) {
    const made = await context({ locale });
    const page = await open(made);
    const formats = await page.evaluate(async () => {
      const { duration, money, number } = await import("./format.js");
      return [duration(1234), money(1234.5), number(12345)];
    });
    assert.deepEqual(formats, locale === "de-DE" ? ["1,2 s", "1.234,50\u00a0$", "12.345"] : ["1.2 s", "$1,234.50", "12,345"], size);
    await made.close();
  }
  const made = await context();
  await made.route("**/settings.json", (route) => route.fulfill({ json: { models: [{ name: "demo:parrot", context: 200 }] } }));
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  await page.locator("#gauge", { hasText: /^context \d+ ?%$/ }).waitFor();
  await page.reload();
  await page.locator("#gauge", { hasText: /^context \d+ ?%$/ }).waitFor();
  await made.close();
});

await step("the keyboard is enough", async (made) => {
  const page = await open(made);
  await page.keyboard.type("count to 400");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("please");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".message.live .markdown");
  await page.keyboard.press("Escape");
  await idle(page);
  assert.equal((await texts(page, ".message.user .plain"))[0], "count to 400\nplease");
  const reached = new Set();
  for (let press = 0; press < 200; press += 1) {
    await page.keyboard.press("Tab");
    reached.add(await page.evaluate(() => document.activeElement?.getAttribute("aria-label") ?? document.activeElement?.id));
  }
  for (const name of ["new", "search", "model", "All branches", "Edit and send again", "Copy the answer", "Answer again", "prompt", "Attach files"]) {
    assert.ok(reached.has(name), `${name} is not reached by Tab: ${[...reached].join(", ")}`);
  }
  // The stream is not read aloud; a short line is.
  assert.equal(await page.evaluate(() => document.querySelector("#messages").closest("[aria-live]")), null);
});

// ---- looks ----

await step("dark, phone and right-to-left texts", async () => {
  for (const [name, options] of [
    ["dark", { colorScheme: "dark" }],
    ["phone", { viewport: { width: 390, height: 800 }, hasTouch: true, isMobile: true }],
    ["phone-dark", { viewport: { width: 390, height: 800 }, colorScheme: "dark" }],
  ]) {
    const made = await context(options);
    const page = await open(made);
    await say(page, MARKDOWN.replace("place", "city"));
    await idle(page);
    await say(page, "measure_temperature in `Oslo`");
    await idle(page, 3);
    await say(page, "مرحبا بالعالم");
    await idle(page, 4);
    await page.locator("#scroll").evaluate((element) => element.scrollTo(0, 0));
    await shot(page, `14-${name}-top`);
    await say(page, "send_mail `one` and `two`");
    await page.waitForSelector(".tool.waiting");
    await accessible(page, name);
    await shot(page, `15-${name}-end`);
    const isWide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
    assert.equal(isWide, false, "the page scrolls sideways");
    if (name.startsWith("phone")) {
      await page.getByRole("button", { name: "Conversations" }).click();
      await page.waitForTimeout(250);
      await shot(page, `16-${name}-list`);
      await accessible(page, `${name}, list`);
      await page.keyboard.press("Escape");
      await page.waitForFunction(() => !document.querySelector("#main").inert);
    }
    await page.getByRole("button", { name: "Approve all" }).click();
    await idle(page, 6);
    await made.close();
  }
});

// ---- connection ----

await step("the network is cut and restored", async (made) => {
  const page = await open(made);
  await say(page, "count to 250");
  await page.waitForFunction(() => document.querySelector(".message.answer .markdown")?.innerText.includes(" 10 "));
  await made.setOffline(true);
  await page.evaluate(() => globalThis.dispatchEvent(new Event("offline")));
  const before = await lastAnswer(page);
  await page.fill("#prompt", "typed while offline");
  await page.press("#prompt", "Enter");
  await page.locator("#notice", { hasText: "cannot be reached" }).waitFor();
  assert.equal(await page.inputValue("#prompt"), "typed while offline");
  await shot(page, "17-offline");
  await made.setOffline(false);
  await idle(page);
  assert.equal(await lastAnswer(page), Array.from({ length: 250 }, (_, index) => index + 1).join(" "));
  assert.ok(before.length > 0);
});

await step("a hidden page closes its stream, and continues without a gap", async (made) => {
  const page = await open(made);
  await say(page, "count to 200");
  await page.waitForFunction(() => document.querySelector(".message.answer .markdown")?.innerText.includes(" 10 "));
  const hide = (isHidden) => page.evaluate((isHidden) => {
    Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, isHidden);
  const ended = page.waitForEvent("requestfailed", (request) => request.url().includes("/events"));
  await hide(true);
  await ended;
  const request = page.waitForRequest((request) => request.url().includes("/events"));
  await hide(false);
  assert.ok((await request).headers()["last-event-id"]);
  await idle(page);
  assert.equal(await lastAnswer(page), Array.from({ length: 200 }, (_, index) => index + 1).join(" "));
});

// ---- attack strings ----

const ATTACKS = readFileSync(new URL("./attacks.txt", import.meta.url), "utf8").split("\n").filter((line) => line && !line.startsWith("## "))
  .map((line) => JSON.parse(`"${line}"`));

await step("attack strings stay texts in answers, tools, titles and names of files", async (made) => {
  assert.ok(ATTACKS.length >= 50, `${ATTACKS.length} strings`);
  const page = await open(made);
  const isInert = async (where) => {
    const found = await page.evaluate(() => {
      const bad = [...document.querySelectorAll("#messages script, #messages iframe, #messages object, #messages embed, #messages svg:not(.icon), #messages form, #messages style, #messages base, #messages link, #messages meta, #messages video, #messages audio")].map((element) => element.outerHTML);
      for (const element of document.querySelectorAll("*")) {
        for (const { name, value } of element.attributes) {
          if (/^on/i.test(name) || (/^(href|src|action|formaction|xlink:href)$/i.test(name) && !/^(https?:|mailto:|#|blob:|data:image\/(png|jpeg|gif|webp|avif);base64,|\/agent\/|[a-z]+\.(js|css|svg)$)/.test(value))) bad.push(`${name}=${value}`);
        }
      }
      return globalThis.attacked ? ["a script ran", ...bad] : bad;
    });
    assert.deepEqual(found, [], where);
  };
  // Each string is in the prompt, and the model repeats it as Markdown.
  for (let at = 0; at < ATTACKS.length; at += 10) {
    await fresh(page);
    await say(page, `Repeat:\n\n${ATTACKS.slice(at, at + 10).join("\n\n")}`);
    await idle(page);
    await isInert(`answer ${at}`);
  }
  await shot(page, "18-attacks");
  const id = await idOf(page);
  for (const attack of ATTACKS) {
    const status = await page.evaluate(async ([id, title]) =>
      (await fetch(`agent/conversations/${id}`, { method: "PATCH", headers: { "content-type": "application/json" }, body: JSON.stringify({ title }) })).status, [id, attack]);
    assert.ok(status === 204 || status === 422, `${status} for ${attack}`);
  }
  await isInert("titles");
  await page.evaluate((attacks) => {
    const data = new DataTransfer();
    for (const attack of attacks) data.items.add(new File(["x"], attack, { type: "text/plain" }));
    document.querySelector("#prompt").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
  }, ATTACKS);
  await page.waitForFunction((count) => document.querySelectorAll("#files li").length === count, ATTACKS.length);
  await isInert("names of attached files");
  await say(page, "Here they are");
  await idle(page, 2);
  await isInert("names of files");
  // Inputs and results of tools.
  const inputs = ATTACKS.map((attack) => `{"text":${JSON.stringify(attack)}}`);
  for (const input of inputs.slice(0, 12)) {
    await say(page, `send_mail ${input}`);
    await page.waitForSelector(".tool.waiting");
    await isInert("inputs of tools");
    await page.getByRole("button", { name: "Approve", exact: true }).click();
    await idle(page, 2);
    await isInert("results of tools");
  }
  await accessible(page, "attack strings");
});

// ---- size and restart ----

await step("a conversation of 1,000 messages opens within a second and scrolls", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  const id = await idOf(page);
  // The snapshot of a long conversation is made from a short one, and answers the page's request.
  const long = await page.evaluate(async (id) => {
    const snapshot = await (await fetch(`agent/conversations/${id}`)).json();
    const [question, answer] = snapshot.tree.nodes;
    const text = "A **paragraph** with `code` and a [link](https://example.org).\n\n- one\n- two\n\n```js\nconst x = 1;\n```\n\nThe end.";
    snapshot.tree.nodes = Array.from({ length: 1000 }, (_, index) => {
      const { message } = index % 2 ? answer : question;
      const content = [{ type: "text", text: index % 2 ? text : `Question ${index}` }];
      return { id: index + 1, ...(index && { parent: index }), message: { ...message, id: `m${index}`, content } };
    });
    snapshot.tree.head = 1000;
    return snapshot;
  }, id);
  await page.close();
  const frame = `event: conversation\ndata: ${JSON.stringify({ conversation: id, update: { type: "resync", snapshot: long } })}\n\n`;
  await made.route("**/agent/events?**", (route) => route.fulfill({ contentType: "text/event-stream", body: frame }));
  const other = await open(made, `#/${id}`);
  await other.waitForFunction(() => document.querySelectorAll(".message").length === 1000);
  const took = await other.evaluate(async () => {
    await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
    return performance.now();
  });
  console.log(`     1,000 messages are shown ${Math.round(took)} ms after the navigation`);
  assert.ok(took < 5000, `${took} ms`);
  const atEnd = () => other.waitForFunction(() => {
    const scroll = document.querySelector("#scroll");
    const last = document.querySelector(".message:last-child").getBoundingClientRect();
    return last.bottom <= scroll.getBoundingClientRect().bottom + 2;
  });
  await atEnd();
  await other.locator("#scroll").evaluate((element) => element.scrollTo(0, element.scrollHeight / 2));
  await other.waitForSelector("#to-end:not([hidden])");
  await shot(other, "19-long");
  await other.click("#to-end");
  await atEnd();
});

if (program) {
  await step("a restart of the server in mid-answer is reported, and what is lost can be sent again", async (made) => {
    const page = await open(made);
    await say(page, "Hello");
    await idle(page);
    await say(page, "count to 900");
    await page.waitForFunction(() => [...document.querySelectorAll(".message.answer .markdown")].at(-1)?.innerText.includes(" 12 "));
    await stop("SIGKILL");
    await page.locator("#notice", { hasText: "connection to the server is lost" }).waitFor();
    await shot(page, "20-lost");
    await start();
    await page.locator("#notice", { hasText: "The server was restarted during an answer" }).waitFor({ timeout: 40_000 });
    await page.locator(".outcome", { hasText: "count to 900" }).waitFor();
    assert.deepEqual(await texts(page, ".message.user .plain"), ["Hello"]);
    await shot(page, "21-restarted");
    await accessible(page, "after a restart");
    await page.getByRole("button", { name: "Send again", exact: true }).click();
    await page.waitForSelector(".message.live .markdown");
    await page.getByRole("button", { name: "Stop the answer" }).click();
    await idle(page, 2);
  });
}

await browser.close();
if (program) await stop("SIGINT");
console.log(`${count} steps, ${failed.length} failed`);
process.exit(failed.length ? 1 : 0);
