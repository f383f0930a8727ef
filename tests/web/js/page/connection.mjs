// Lost connections and hidden pages.

import assert from "node:assert/strict";

import { accessible, counted, fresh, hide, holdTimers, idOf, idle, lastAnswer, open, passTimers, say, shot, step, streams, texts, until } from "./harness.mjs";

await step("the network is cut and restored", async (made) => {
  const page = await open(made);
  await say(page, "count to 400");
  await streams(page, " 10 ");
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
  assert.equal(await lastAnswer(page), counted(400));
  assert.ok(before.length > 0);
  assert.notEqual(before, counted(400), "the answer was complete before the network was cut");
});

await step("a hidden page closes its stream, and continues without a gap", async (made) => {
  const page = await open(made);
  await say(page, "count to 400");
  await streams(page, " 10 ");
  const ended = page.waitForEvent("requestfailed", (request) => request.url().includes("/events"));
  await hide(page, true);
  await ended;
  const request = page.waitForRequest((request) => request.url().includes("/events"));
  await hide(page, false);
  assert.ok((await request).headers()["last-event-id"]);
  await idle(page);
  assert.equal(await lastAnswer(page), counted(400));
});


await step("missed updates are reported, and the conversation is loaded again", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  const before = await lastAnswer(page);
  // Without the last id, the server sends a snapshot, as it does for a reader that has missed too much.
  await made.route("**/agent/events?**", (route, request) => {
    const { "last-event-id": _, ...headers } = request.headers();
    return route.continue({ headers });
  });
  await hide(page, true);
  await hide(page, false);
  await page.locator("#notice", { hasText: "Some updates were missed" }).waitFor();
  await shot(page, "17-missed");
  await until(async () => assert.equal(await lastAnswer(page), before));
  await say(page, "Hello again");
  await idle(page, 2);
});

await step("a conversation that is not available for a while is shown as soon as it is available", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  const [id, before] = [await idOf(page), await lastAnswer(page)];
  const problem = { type: "urn:omni-agent:newer-turn", title: "…", status: 503, detail: "This server cannot continue the answer." };
  const refuse = (route) => route.fulfill({
    contentType: "text/event-stream",
    body: `event: refused\ndata: ${JSON.stringify({ conversation: id, problem, retry_after: 1 })}\n\nevent: ending\ndata: {"retry_after":3600}\n\n`,
  });
  await made.route("**/agent/events?**", refuse);
  await page.reload();
  await page.locator(".outcome", { hasText: problem.detail }).waitFor();
  assert.deepEqual(await texts(page, ".message"), []);
  await made.unroute("**/agent/events?**", refuse);
  await idle(page);
  assert.equal(await lastAnswer(page), before);
  await page.locator(".outcome").waitFor({ state: "detached" });
  await say(page, "Hello again");
  await idle(page, 2);
});

/** Returns a stream that carries one frame, and then asks the page to connect again at once. */
const only = (event, data) => ({
  contentType: "text/event-stream",
  body: `event: ${event}\ndata: ${JSON.stringify(data)}\n\nevent: ending\ndata: {"retry_after":0}\n\n`,
});
/** The streams of a conversation. A stream of the list alone is not affected. */
const STREAMS = /\/agent\/events\?.*watch=/;
const ELSEWHERE = { type: "urn:omni-agent:open-elsewhere", title: "Another server has the conversation open.", status: 421 };

await step("a conversation that another server has opened for a while is opened again", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  const [id, before] = [await idOf(page), await lastAnswer(page)];
  const answers = [
    ["conversation", { conversation: id, update: { type: "closed", reason: "lost_place", snapshot: null } }],
    ["refused", { conversation: id, problem: ELSEWHERE }],
  ];
  await made.route(STREAMS, (route) => {
    const answer = answers.shift();
    return answer ? route.fulfill(only(...answer)) : route.continue();
  });
  // The page waits for each attempt until the test has seen it wait, however busy the machine is.
  await holdTimers(page);
  await hide(page, true);
  await hide(page, false);
  await page.locator("#notice", { hasText: "Another server has opened this conversation." }).waitFor();
  await passTimers(page);
  await page.locator(".outcome", { hasText: ELSEWHERE.title }).waitFor();
  await passTimers(page);
  await page.locator(".outcome").waitFor({ state: "detached" });
  await until(async () => assert.equal(await lastAnswer(page), before));
  await page.locator("#notice", { hasText: "Another server" }).waitFor({ state: "hidden" });
  await say(page, "Hello again");
  await idle(page, 2);
});

await step("a refused conversation can be tried again, and a missing one is no longer shown", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  const [id, before] = [await idOf(page), await lastAnswer(page)];
  const refuseWith = async (problem) => {
    const refuse = (route) => route.fulfill(only("refused", { conversation: id, problem }));
    await made.route(STREAMS, refuse);
    await hide(page, true);
    await hide(page, false);
    await page.locator(".outcome").waitFor();
    await made.unroute(STREAMS, refuse);
  };
  await refuseWith({ type: "urn:omni-agent:internal", title: "The server has a problem.", status: 500 });
  await page.locator(".outcome", { hasText: "The server has a problem." }).getByRole("button", { name: "Try again", exact: true }).click();
  await page.locator(".outcome").waitFor({ state: "detached" });
  await idle(page);
  assert.equal(await lastAnswer(page), before);
  await refuseWith({ type: "urn:omni-agent:not-found", title: "Not found", status: 404 });
  await page.locator(".outcome", { hasText: "This conversation does not exist" }).waitFor();
  assert.deepEqual(await texts(page, ".message"), []);
  assert.equal(await page.getByRole("button", { name: "Try again", exact: true }).count(), 0);
});

await step("a listed conversation that is refused is not asked for again and again", async (made) => {
  const page = await open(made);
  await say(page, "send_mail `one`");
  await page.waitForSelector(".tool.waiting");
  const id = await idOf(page);
  let requests = 0;
  await made.route(STREAMS, (route, request) => {
    if (!request.url().includes(id)) return route.continue();
    requests += 1;
    return route.fulfill(only("refused", { conversation: id, problem: { type: "urn:omni-agent:forbidden", title: "Not allowed", status: 403 } }));
  });
  await fresh(page);
  await say(page, "Hello");
  await idle(page);
  await until(() => assert.equal(requests, 1));
  // Another answer changes the list several times.
  await fresh(page);
  await say(page, "Hello");
  await idle(page);
  assert.equal(requests, 1);
});

await step("a conversation that stays open on another server is opened again by a button", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  const [id, before] = [await idOf(page), await lastAnswer(page)];
  let requests = 0;
  const refuse = (route, request) => {
    // The page also watches listed conversations that wait for decisions.
    if (!request.url().includes(id)) return route.continue();
    requests += 1;
    return route.fulfill(only("refused", { conversation: id, problem: ELSEWHERE }));
  };
  await made.route(STREAMS, refuse);
  // Without this, the page would wait for a minute in all. A longer timer watches for a lost connection.
  await page.evaluate(() => {
    const { setTimeout } = globalThis;
    globalThis.setTimeout = (run, delay) => setTimeout(run, delay > 40_000 ? delay : Math.min(delay, 10));
  });
  await hide(page, true);
  await hide(page, false);
  await page.getByRole("button", { name: "Try again", exact: true }).waitFor();
  await until(() => assert.equal(requests, 9));
  await shot(page, "18-stays-elsewhere");
  await accessible(page, "a conversation that another server has open");
  await made.unroute(STREAMS, refuse);
  await page.getByRole("button", { name: "Try again", exact: true }).click();
  await idle(page);
  assert.equal(await lastAnswer(page), before);
});
