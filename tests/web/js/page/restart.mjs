// Restarts of the server: turns continue, approvals wait, and losses are reported.

import assert from "node:assert/strict";

import { ENDLESS, LONG, accessible, context, counted, idOf, idle, lastAnswer, open, saved, say, send, shot, slow, step, stop, streams, texts, until } from "./harness.mjs";

/** Kills the server and starts it again. `lost` is called while there is no server. */
async function restart(page, lost = async () => {}) {
  await slow.stop("SIGKILL");
  await page.locator("#notice", { hasText: "connection to the server is lost" }).waitFor();
  await lost();
  await slow.start();
  // The page waits up to 15 s between two attempts. If it is connected already, the button is gone.
  await page.evaluate(() => [...document.querySelectorAll("#notice button")].find((button) => button.textContent === "Try now")?.click());
}

await step("an answer continues by itself after the server was killed", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  await send(page, ENDLESS);
  await streams(page, " 50 ");
  await restart(page, () => shot(page, "20-lost"));
  await page.locator("#notice", { hasText: "The server was restarted. The answer continues. Its unfinished part is written again." }).waitFor();
  await streams(page, " 20 ");
  await shot(page, "21-continues");
  await accessible(page, "after a restart");
  await stop(page);
  await idle(page, 2);
  assert.deepEqual(await texts(page, ".message.user .plain"), ["Hello", ENDLESS]);
  assert.equal(await page.locator(".outcome").count(), 0);
});

await step("an answer that continues after a restart becomes complete, and is saved", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  await send(page, "count to 400");
  await streams(page, " 50 ");
  await restart(page);
  await idle(page, 2);
  assert.equal(await lastAnswer(page), counted(400));
  assert.deepEqual(await texts(page, ".message.user .plain"), ["Hello", "count to 400"]);
  assert.equal(await page.locator(".outcome").count(), 0);
  await saved(page);
  await page.reload();
  await idle(page, 2);
  assert.equal(await lastAnswer(page), counted(400));
});

await step("an approval waits over a restart, and an interrupted tool is reported", async (made) => {
  const page = await open(made);
  await send(page, "send_mail `late`");
  await page.waitForSelector(".tool.waiting");
  await send(page, "Hello");
  await page.locator("#queue li", { hasText: "Hello" }).waitFor();
  await restart(page);
  await page.locator("#notice", { hasText: "The server was restarted. The answer continues." }).waitFor();
  await page.locator("#waiting", { hasText: "1 decision is needed" }).waitFor();
  await page.locator("#queue li", { hasText: "Hello" }).waitFor();
  await shot(page, "22-approval");
  await page.getByRole("button", { name: "Approve" }).click();
  await idle(page, 3);
  await page.locator(".badge.done").waitFor();
  await until(async () => assert.deepEqual(await texts(page, ".message.user .plain"), ["send_mail `late`", "Hello"]));
  // This tool asks while it is running. It must not run twice, so nobody knows whether it has taken effect.
  await send(page, 'book_table "Luigi"');
  await page.getByText("Which table at Luigi?").waitFor();
  await restart(page);
  await idle(page, 5);
  const card = page.locator("details.tool").last();
  await card.evaluate((card) => (card.open = true));
  await card.getByText("Interrupted by a restart. It is not known whether the tool took effect.").waitFor();
  await card.locator(".badge.error").waitFor();
  await shot(page, "23-interrupted-tool");
});

await step("the name of the decider is known in another browser and after a restart, until the turn ends", async (made) => {
  const page = await open(made);
  await send(page, "send_mail `first` and `second`");
  await page.locator("#waiting", { hasText: "2 decisions are needed" }).waitFor();
  await page.getByRole("button", { name: "Approve", exact: true }).first().click();
  await page.locator("#waiting", { hasText: "1 decision is needed" }).waitFor();
  const id = await idOf(page);
  /** Opens the conversation in another browser, which knows only what the server sends. */
  const elsewhere = async (name) => {
    const browser = await context();
    const other = await open(browser, `#/${id}`);
    await other.locator("#waiting", { hasText: "1 decision is needed" }).waitFor();
    const card = other.locator("details.tool").first();
    await card.evaluate((card) => (card.open = true));
    await card.getByText("Approved by ann.").waitFor();
    await shot(other, name);
    return { browser, other };
  };
  await (await elsewhere("27-decider")).browser.close();
  await page.close();
  await slow.stop("SIGKILL");
  await slow.start();
  const { browser, other } = await elsewhere("28-decider-after-restart");
  await other.getByRole("button", { name: "Approve", exact: true }).click();
  await idle(other, 2);
  await saved(other);
  const decisions = await other.evaluate(async (id) => (await (await fetch(`agent/conversations/${id}`)).json()).agent.decisions, id);
  assert.equal(decisions, undefined);
  await browser.close();
});

await step("an approval is decided after a restart, while nobody has its conversation open", async (made) => {
  const page = await open(made);
  await send(page, "send_mail `later`");
  await page.waitForSelector(".tool.waiting");
  const id = await idOf(page);
  await page.close();
  await slow.stop("SIGKILL");
  await slow.start();
  const other = await open(made);
  const item = other.locator("#list .item", { has: other.locator(`a[href="#/${id}"]`) });
  await item.locator(".meta.paused", { hasText: "paused: 1 decision" }).waitFor();
  await shot(other, "24-stored-approval");
  /** Returns the entry of the conversation in the list of the server, without opening the conversation. */
  const listed = () => other.evaluate(async (id) => {
    const { Client } = await import("./client.js");
    const { items } = await new Client("agent").conversations();
    const { summary: { in_flight = false, waiting = 0 }, presence } = items.find(({ summary }) => summary.id === id);
    return { in_flight, waiting, presence };
  }, id);
  assert.deepEqual(await listed(), { in_flight: true, waiting: 1, presence: "stored" });
  await other.evaluate(async (id) => {
    const { Client } = await import("./client.js");
    const client = new Client("agent");
    const approval = (await client.approvals()).items.find(({ conversation }) => conversation === id);
    await client.command(id, { type: "decide", turn: approval.turn, decisions: [[approval.tool_use.id, "execute"]] });
  }, id);
  // This was the last decision, so the server opens the conversation and finishes the answer. No page watches it.
  await until(async () => {
    const { in_flight, presence } = await listed();
    assert.deepEqual([in_flight, presence.open ?? "idle"], [false, "idle"]);
  });
  await item.locator(".meta:not(.paused):not(.busy)").waitFor();
  await item.locator("a").click();
  await idle(other, 2);
  await other.locator(".badge.done").waitFor();
  assert.match(await lastAnswer(other), /later/);
  await shot(other, "25-decided");
});

await step("messages that a restart has lost are reported, and can be sent again", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  await saved(page);
  const id = await idOf(page);
  const snapshot = await page.evaluate(async (id) => (await fetch(`agent/conversations/${id}`)).json(), id);
  await say(page, LONG);
  await streams(page, " 12 ");
  // The server of this walk loses nothing. A server that keeps no turns would answer with the conversation as it was saved.
  snapshot.last = `${(BigInt(`0x${snapshot.last.split("-")[0]}`) + 1n).toString(16)}-0`;
  const update = { conversation: id, update: { type: "resync", snapshot } };
  await made.route("**/agent/events?**", (route) => route.fulfill({
    contentType: "text/event-stream",
    body: `event: conversation\ndata: ${JSON.stringify(update)}\n\nevent: ending\ndata: {"retry_after":3600}\n\n`,
  }));
  await slow.stop("SIGKILL");
  await page.locator(".outcome", { hasText: LONG }).getByText("This message was lost when the server was restarted.").waitFor();
  await page.getByRole("button", { name: "Close this notice" }).click();
  await page.locator("#notice", { hasText: "The server was restarted during an answer" }).waitFor();
  await until(async () => assert.deepEqual(await texts(page, ".message.user .plain"), ["Hello"]));
  await shot(page, "26-lost-messages");
  await accessible(page, "lost messages");
  await slow.start();
  const sent = page.waitForRequest((request) => request.url().endsWith("/commands"));
  await page.getByRole("button", { name: "Send again", exact: true }).click();
  assert.equal((await sent).postDataJSON().prompt.content[0].text, LONG);
  await page.locator(".outcome").waitFor({ state: "detached" });
});
