// Answers, tools and decisions.

import assert from "node:assert/strict";

import { ENDLESS, LONG, MARKDOWN, accessible, counted, hide, holdAtWork, holdable, idOf, idle, lastAnswer, open, pass, releaseEvents, saved, say, shot, slow, step, stop, stopClock, streams, texts, until } from "./harness.mjs";

await step("an answer streams and is shown as Markdown", async (made) => {
  const page = await open(made);
  await shot(page, "01-empty");
  await accessible(page, "the empty page");
  await say(page, "Hello");
  await idle(page);
  assert.match(await lastAnswer(page), /demo model/);
  await say(page, LONG);
  await page.waitForSelector(".message.live");
  await page.waitForSelector(".item.current .meta.busy");
  await streams(page, " 12 ");
  await stop(page);
  await idle(page, 2);
  await page.waitForSelector(".item.current .meta:not(.busy)");
  await say(page, MARKDOWN);
  await idle(page, 3);
  const answer = page.locator(".message.answer").last();
  for (const selector of ["strong", "em", "del", "code", "a[href='https://example.org/']", "table td", "ol li ul li", "blockquote", "input[type=checkbox]"]) {
    await answer.locator(selector).first().waitFor({ state: "attached" });
  }
  assert.equal(await answer.locator("pre code").innerText(), "const answer = 6 * 7;");
  await answer.locator(".copy").click();
  await answer.getByText("Copied").waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "const answer = 6 * 7;");
  await answer.locator("details.thinking summary").click();
  await answer.locator("details.thinking", { hasText: "names no tool" }).getByText("names no tool").waitFor();
  await page.locator("#summary", { hasText: /complete: \d+ words/ }).waitFor({ state: "attached" });
  await answer.locator("details.thinking").scrollIntoViewIfNeeded();
  await shot(page, "02-thinking");
  await shot(page, "02-markdown");
  await accessible(page, "a conversation");
});

await step("a reload in mid-answer shows the text of an undisturbed window", async (made) => {
  const page = await open(made);
  await say(page, ENDLESS);
  await streams(page, " 20 ");
  const other = await open(made, `#/${await idOf(page)}`);
  await other.waitForSelector(".message.live .markdown");
  await page.reload();
  await page.waitForSelector(".message.live .markdown");
  await streams(page, " 20 ");
  await stop(page);
  await Promise.all([idle(page), idle(other)]);
  const stopped = await lastAnswer(page);
  assert.ok(counted(20_000).startsWith(stopped), stopped);
  assert.equal(await lastAnswer(other), stopped);
  // This answer can end before the reload, because nothing stops it.
  await say(page, "count to 800");
  await streams(page, "1 2 3 ");
  await page.reload();
  await Promise.all([idle(page, 2), idle(other, 2)]);
  const expected = counted(800);
  assert.equal(await lastAnswer(page), expected);
  assert.equal(await lastAnswer(other), expected);
});

await step("two windows show the same, and decisions name who decided", async (made) => {
  const [one, two] = [await open(made), await open(made)];
  await say(one, "Hello");
  await idle(one);
  await two.goto(`${slow.address}#/${await idOf(one)}`);
  await two.waitForSelector(".message.answer");
  await say(two, 'send_mail "Lunch is ready"');
  await one.waitForSelector(".tool.waiting");
  await one.locator(".item.current .meta.paused", { hasText: "paused: 1 decision" }).waitFor();
  await shot(one, "05-one-window");
  await two.waitForSelector(".tool.waiting");
  await one.getByRole("button", { name: "Approve" }).click();
  await Promise.all([idle(one, 3), idle(two, 3)]);
  await two.waitForFunction(() => !document.querySelector(".tool.waiting"));
  assert.deepEqual(await texts(two, ".message .markdown"), await texts(one, ".message .markdown"));
  await two.locator("details.tool summary").click();
  await two.locator("details.tool").getByText("Approved by ann.").waitFor();
  await shot(two, "05-other-window");
  // The result of the tool contains the name of the person who decided.
  await two.reload();
  await two.locator("details.tool summary").click();
  await two.locator("details.tool").getByText("Approved by ann.").waitFor();
});

await step("a decision that comes too late is reported", async (made) => {
  const [one, two] = [await open(made), await open(made)];
  await say(one, "send_mail `one`");
  await one.waitForSelector(".tool.waiting");
  await two.goto(`${slow.address}#/${await idOf(one)}`);
  await two.waitForSelector(".tool.waiting");
  // A hidden page gets no events, so the second page does not show the first page's decision.
  await hide(two, true);
  await one.getByRole("button", { name: "Reject…" }).click();
  await one.getByRole("button", { name: "Reject", exact: true }).click();
  await idle(one, 2);
  await two.getByRole("button", { name: "Approve" }).click();
  await two.locator("#notice", { hasText: "Somebody else has decided already." }).waitFor();
  await shot(two, "05-too-late");
  await hide(two, false);
  await idle(two, 2);
  await two.locator(".badge.denied").waitFor();
});

await step("tools show input, progress, result, duration and failure", async (made) => {
  await holdable(made);
  const page = await open(made);
  // The first answer of a conversation can be under way when its stream starts.
  await say(page, "Hello");
  await idle(page);
  // The tools work for one second, and their events are held from the first progress on.
  await holdAtWork(page, '"total"', 1);
  await say(page, "measure_temperature in `Oslo` and in `Atlantis`");
  await page.locator(".badge.running", { hasText: "%" }).first().waitFor();
  await shot(page, "03-progress");
  await releaseEvents(page);
  await idle(page, 3);
  const badges = page.locator(".badge");
  await badges.nth(0).filter({ hasText: /^done · [\d.]+ (min \d+ )?s$/ }).waitFor();
  await badges.nth(1).filter({ hasText: /^failed · [\d.]+ (min \d+ )?s$/ }).waitFor();
  await page.locator("details.tool summary").first().click();
  const card = page.locator("details.tool").first();
  await card.getByText('"city": "Oslo"').waitFor();
  await card.getByText("9 °C in Oslo").waitFor();
  // A tool can end before its result is known, for example while another tool is running.
  const late = await page.evaluate(async () => {
    const { ToolCard } = await import("./tools.js");
    const card = new ToolCard(async () => {});
    const facts = { use: { id: "a", name: "send_mail", input: {} }, isWritten: true, isActive: true, run: { is_error: false } };
    card.update(facts);
    const shown = (/** @type {string} */ text) => {
      card.update({ ...facts, result: { content: [{ type: "text", text }], is_error: false } });
      return [...card.element.querySelectorAll("[aria-label=Result]")].map((result) => result.textContent);
    };
    return [shown("a late result"), shown("the reviewed result")];
  });
  assert.deepEqual(late, [["a late result"], ["the reviewed result"]]);
  await say(page, 'paint_picture of "a whale"');
  await idle(page, 5);
  await page.locator("details.tool summary").last().click();
  await page.waitForFunction(() => [...document.querySelectorAll(".tool img")].some((image) => image.naturalWidth === 96));
  await shot(page, "04-tools");
  await accessible(page, "tool cards");
});

await step("the duration of a tool is the time that the page measured, or after a reload that of the messages", async (made) => {
  const page = await open(made);
  const badge = page.locator(".badge").last();
  const book = async (milliseconds, button) => {
    await say(page, 'book_table "Luigi"');
    await page.getByText("Which table at Luigi?").waitFor();
    await pass(page, milliseconds);
    if (button === "Answer") {
      await page.getByLabel("People").fill("3");
      await page.getByLabel("Time").selectOption("20:00");
    }
    await page.getByRole("button", { name: button, exact: true }).click();
  };
  // The page measures what it sees. The first answer of a conversation can be under way when its stream starts.
  await say(page, "Hello");
  await idle(page);
  await stopClock(page);
  await book(1234, "Decline");
  await badge.filter({ hasText: /^failed · 1\.2 s$/ }).waitFor();
  await idle(page, 3);
  await book(61_400, "Answer");
  await badge.filter({ hasText: /^done · 1 min 1 s$/ }).waitFor();
  await idle(page, 5);
  await saved(page);
  await page.reload();
  await idle(page, 5);
  const took = await page.evaluate(async () => {
    const { duration } = await import("./format.js");
    const { tree } = await (await fetch(`agent/conversations/${location.hash.slice(2)}`)).json();
    const [use, result] = ["tool_use", "tool_result"].map((type) => tree.nodes.findLast(({ message }) => message.content.some((block) => block.type === type)));
    return duration(result.message.timestamp - use.message.timestamp);
  });
  await until(async () => assert.equal(await badge.innerText(), `done · ${took}`));
});

await step("a sub-agent of a sub-agent is drawn below it, and its tool is approved", async (made) => {
  const page = await open(made);
  await say(page, "research `writer: deliver good news`");
  await page.locator("#waiting", { hasText: "1 decision is needed" }).waitFor();
  const card = page.locator("details.tool").first();
  await card.locator(".approval .reason", { hasText: "The sub-agent research wants to run deliver." }).waitFor();
  const drawn = card.locator("pre[aria-label=Progress]");
  await until(async () => assert.match(await drawn.innerText(), /^research, step 1: uses writer\n└─ writer, step 1: /));
  await shot(page, "06-grandchild");
  await accessible(page, "approval of a sub-agent");
  assert.match(await card.getByRole("link", { name: "Open the conversation of the sub-agent" }).getAttribute("href"), /^#\/sub-/);
  await page.getByRole("button", { name: "Approve" }).click();
  await idle(page, 2);
  await page.locator(".message.answer .markdown", { hasText: "The letter would have been" }).waitFor();
});

await step("several researchers at work are drawn side by side", async (made) => {
  await holdable(made);
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  const drawn = page.locator("details.tool .brief", { hasText: "research, step 1: uses look_up" });
  let asked = 0;
  // Each of them works for one second. On a slow machine, the first can end before the last begins, so they are asked again.
  await until(async () => {
    asked += 1;
    await holdAtWork(page, '"tool":"look_up"', 3);
    await say(page, "research `look_up Oslo` and `look_up Rome` and `look_up Lisbon`");
    await Promise.race([drawn.nth(2).waitFor(), idle(page, 1 + 2 * asked)]);
    assert.equal(await drawn.count(), 3);
  });
  await shot(page, "06-researchers");
  await releaseEvents(page);
  await idle(page, 1 + 2 * asked);
  assert.equal(await page.locator(".badge.done").count(), 3 * asked);
});

await step("several approvals are decided in different ways", async (made) => {
  const page = await open(made);
  await say(page, 'send_mail `first` and `second` and `third` and `fourth`');
  await page.locator("#waiting", { hasText: "4 decisions are needed" }).waitFor();
  await page.locator(".item.current .meta.paused", { hasText: "paused: 4 decisions" }).waitFor();
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
  await until(async () => {
    await page.$$eval("details.tool", (cards) => cards.forEach((card) => (card.open = true)));
    const cards = await texts(page, "details.tool");
    assert.match(cards[0], /would have been: first/);
    assert.match(cards[1], /Rejected \(not today\) by/);
    assert.match(cards[2], /would have been: edited/);
    assert.match(cards[2], /Approved with another input by/);
    assert.match(cards[3], /I have told them/);
  });
  await say(page, "send_mail `fifth` and `sixth`");
  await page.getByRole("button", { name: "Approve all" }).click();
  await idle(page, 4);
});


await step("questions of running tools are answered and declined", async (made) => {
  const page = await open(made);
  await say(page, 'book_table "Luigi"');
  const card = page.locator("details.tool").last();
  await card.getByText("Which table at Luigi?").waitFor();
  await card.locator(".badge", { hasText: "asks a question" }).waitFor();
  await card.getByRole("button", { name: "Answer" }).click();
  // A field is missing, so nothing was sent, and the field has the focus.
  await until(async () => assert.equal(await card.getByLabel("People").evaluate((field) => field === document.activeElement && field.validity.valueMissing), true));
  await card.getByLabel("People").fill("3");
  await card.getByLabel("Time").selectOption("20:00");
  await card.getByLabel("Outside").check();
  await shot(page, "06-question");
  await accessible(page, "a question");
  await card.getByRole("button", { name: "Answer" }).click();
  await idle(page, 2);
  await card.evaluate((card) => (card.open = true));
  await card.getByText('would have been: {"people":3,"time":"20:00","outside":true}').waitFor();
  await say(page, 'book_table "Mario"');
  await card.getByRole("button", { name: "Decline" }).click();
  await idle(page, 4);
  await card.evaluate((card) => (card.open = true));
  await card.getByText("no table was booked: The user declined.").waitFor();
});

await step("old messages are folded by /compact, and Undo sends all of them again", async (made) => {
  const page = await open(made);
  for (const [index, text] of ["One", "Two", "Three"].entries()) {
    await say(page, text);
    await idle(page, index + 1);
  }
  await say(page, "/compact the numbers");
  const fold = page.locator(".message.compaction").first();
  await fold.locator("summary", { hasText: /^2 messages are summarized, [\d.,]+K? to [\d.,]+K? tokens$/ }).waitFor();
  await fold.locator("summary").click();
  await fold.getByText("You have sent 3 messages").waitFor();
  assert.deepEqual(await texts(page, ".message.user .plain"), ["One", "Two", "Three"]);
  await shot(page, "06-compaction");
  await accessible(page, "a compaction");
  await saved(page);
  await page.reload();
  await fold.locator("summary", { hasText: /^2 messages are summarized/ }).waitFor();
  await say(page, "Four");
  await idle(page, 4);
  await fold.getByRole("button", { name: "Undo" }).click();
  await page.locator(".message.compaction", { hasText: "All messages are sent again" }).waitFor();
  await until(async () => assert.equal(await page.getByRole("button", { name: "Undo" }).count(), 0));
  await say(page, "Five");
  await idle(page, 5);
});
