// Messages and decisions on their way to the server: answers that are lost or late, and users who do not wait for them.

import assert from "node:assert/strict";

import { LONG, fresh, idOf, idle, open, say, send, shot, step, stop, streams, texts, until } from "./harness.mjs";

/** Performs the next request of this kind, and resets the connection before the answer. */
const loseAnswer = (made, address) => made.route(address, async (route) => {
  await route.fetch();
  await route.abort("connectionreset");
}, { times: 1 });

/** Holds the next request of this kind. Returns a function that waits for the request, and one that lets it pass. */
async function hold(made, address) {
  const [isHeld, held] = gate();
  const [isReleased, release] = gate();
  let isFirst = true;
  await made.route(address, async (route) => {
    // The list is read at the address at which conversations are created.
    if (!isFirst || route.request().method() !== "POST") return route.fallback();
    isFirst = false;
    held();
    await isReleased;
    await route.continue();
  });
  return [isHeld, release];
}

function gate() {
  let open;
  const isOpen = new Promise((resolve) => (open = resolve));
  return [isOpen, open];
}

/** Counts the conversations that the page creates. */
function creations(page) {
  const seen = [];
  page.on("request", (request) => request.method() === "POST" && request.url().endsWith("/conversations") && seen.push(request));
  return seen;
}

/** Returns the texts of all prompts that the server knows of the conversation on screen, also those that wait. */
const known = (page) => page.evaluate(async () => {
  const { tree, agent } = await (await fetch(`agent/conversations/${location.hash.slice(2)}`)).json();
  const messages = [...tree.nodes.map((node) => node.message), ...agent.pending].filter((message) => message?.role === "user");
  const all = [...messages, ...(agent.staged ?? [])].map(({ content }) => content.map((block) => block.text ?? "").join(""));
  return all.filter(Boolean);
});

/** Presses Enter in the box, and waits until the server has accepted the message. */
async function enter(page) {
  const answer = page.waitForResponse((response) => response.url().endsWith("/commands"));
  await page.press("#prompt", "Enter");
  assert.ok((await answer).ok());
  await page.waitForFunction(() => document.querySelector("#prompt").value === "");
}

const isRestored = async (page, text) => {
  await page.locator("#notice", { hasText: "The server cannot be reached." }).waitFor();
  await page.waitForFunction((text) => document.querySelector("#prompt").value === text, text);
};

await step("a message whose answer was lost arrives once if it is sent again unchanged", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  await loseAnswer(made, "**/commands");
  await say(page, "pay 100");
  await isRestored(page, "pay 100");
  await idle(page, 2);
  await shot(page, "60-unknown");
  await enter(page);
  await idle(page, 2);
  assert.deepEqual(await known(page), ["Hello", "pay 100"]);
  // The same text is another message after the user has typed it again.
  await loseAnswer(made, "**/commands");
  await say(page, "pay 200");
  await isRestored(page, "pay 200");
  await page.locator("#notice", { hasText: "It is not known whether the message has arrived." }).waitFor();
  await page.fill("#prompt", "pay 2");
  await page.fill("#prompt", "pay 200");
  await enter(page);
  await idle(page, 4);
  assert.deepEqual(await known(page), ["Hello", "pay 100", "pay 200", "pay 200"]);
});

await step("a message whose answer was lost arrives once if another text follows it in the box", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  const [isHeld, held] = gate();
  const [isReleased, release] = gate();
  await made.route("**/commands", async (route) => {
    await route.fetch();
    held();
    await isReleased;
    await route.abort("connectionreset");
  }, { times: 1 });
  await say(page, "pay 100");
  await isHeld;
  await page.fill("#prompt", "thanks");
  release();
  await isRestored(page, "pay 100\nthanks");
  await page.press("#prompt", "Enter");
  await page.waitForFunction(() => document.querySelector("#prompt").value === "");
  await idle(page, 3);
  assert.deepEqual(await known(page), ["Hello", "pay 100", "thanks"]);
});

await step("the first message of a conversation whose answer was lost starts one conversation and one run", async (made) => {
  const page = await open(made);
  const created = creations(page);
  await loseAnswer(made, "**/commands");
  await say(page, "pay 100");
  await isRestored(page, "pay 100");
  await enter(page);
  await idle(page);
  assert.equal(created.length, 1);
  assert.deepEqual(await known(page), ["pay 100"]);
});

await step("messages that are entered while the first one is on its way belong to its conversation", async (made) => {
  const page = await open(made);
  const created = creations(page);
  for (const [index, address] of ["**/agent/conversations", "**/commands"].entries()) {
    const [isHeld, release] = await hold(made, address);
    await say(page, "count to 3");
    await isHeld;
    await say(page, "count to 4");
    await page.fill("#prompt", "not entered");
    release();
    await idle(page, 2);
    assert.deepEqual(await known(page), ["count to 3", "count to 4"], address);
    assert.equal(created.length, index + 1, address);
    assert.equal(await page.inputValue("#prompt"), "not entered");
    await page.fill("#prompt", "");
    await fresh(page);
    assert.equal(await page.inputValue("#prompt"), "");
  }
});

await step("a message that joins at the next step is entered while another one is on its way", async (made) => {
  const page = await open(made);
  await send(page, "send_mail `one`");
  await page.waitForSelector(".tool.waiting");
  const [isHeld, release] = await hold(made, "**/commands");
  await say(page, "queued message");
  await isHeld;
  await page.fill("#prompt", "joining message");
  await page.check("#at-step-box");
  await page.press("#prompt", "Enter");
  release();
  await page.locator("#queue li", { hasText: "queued message" }).filter({ hasText: "queued" }).waitFor();
  await page.locator("#queue li", { hasText: "joining message" }).filter({ hasText: "next step" }).waitFor();
  assert.equal(await page.isChecked("#at-step-box"), false);
  await page.getByRole("button", { name: "Approve" }).click();
  await idle(page, 3);
});

await step("all approvals are given in the conversation in which the button was pressed", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  const other = await idOf(page);
  await fresh(page);
  await say(page, "send_mail `one` and `two` and `three` and `four`");
  await page.locator("#waiting", { hasText: "4 decisions are needed" }).waitFor();
  const id = await idOf(page);
  const decided = [];
  page.on("request", (request) => request.url().endsWith("/commands") && decided.push(request.url().split("/").at(-2)));
  const [isHeld, release] = await hold(made, "**/commands");
  await page.getByRole("button", { name: "Approve all" }).click();
  await isHeld;
  await page.evaluate((id) => (location.hash = `/${id}`), other);
  await page.locator(".message.answer").waitFor();
  release();
  await until(() => assert.deepEqual(decided, [id, id, id, id]));
  await page.evaluate((id) => (location.hash = `/${id}`), id);
  await idle(page, 2);
  assert.equal(await page.locator(".badge.done").count(), 4);
});

await step("all approvals are given in each of two conversations that look the same", async (made) => {
  const page = await open(made);
  const ids = [];
  for (const _ of [1, 2]) {
    await fresh(page);
    await say(page, "send_mail `one` and `two`");
    await page.locator("#waiting", { hasText: "2 decisions are needed" }).waitFor();
    ids.push(await idOf(page));
  }
  // The page watches both conversations, because both wait for decisions.
  for (const id of ids) {
    await page.evaluate((id) => (location.hash = `/${id}`), id);
    await page.waitForFunction((id) => document.querySelector(`.item.current a[href="#/${id}"]`) && document.querySelector(".tool.waiting"), id);
    await page.getByRole("button", { name: "Approve all" }).click();
    await idle(page, 2);
    assert.equal(await page.locator(".badge.done").count(), 2);
  }
});

await step("a double click on Send again sends a returned message once", async (made) => {
  const page = await open(made);
  await say(page, LONG);
  await streams(page, " 12 ");
  await send(page, "Hello");
  await page.locator("#queue li", { hasText: "Hello" }).waitFor();
  await stop(page);
  const again = page.locator(".outcome", { hasText: "Hello" }).getByRole("button", { name: "Send again", exact: true });
  await again.waitFor();
  await again.dblclick();
  await idle(page, 2);
  assert.deepEqual(await texts(page, ".message.user .plain"), [LONG, "Hello"]);
  assert.deepEqual(await known(page), [LONG, "Hello"]);
});
