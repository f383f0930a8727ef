// A stored conversation of 1,000 messages.

import assert from "node:assert/strict";

import { accessible, idle, open, shot, step } from "./harness.mjs";

await step("a stored conversation of 1,000 messages opens with 50, and can be read to its root", async (made) => {
  // Nobody has it open, so the server reads it from the store.
  const page = await open(made, "#/long");
  const isShown = (count) => page.waitForFunction((count) => document.querySelectorAll(".message").length === count, count);
  const shown = async () => {
    await isShown(50);
    return page.evaluate(async () => {
      await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
      return Math.round(performance.now());
    });
  };
  const first = await shown();
  await page.reload();
  const second = await shown();
  // The goal is one second. A busy machine takes longer, so the times are only printed.
  console.log(`     50 messages are shown ${first} ms after the navigation, and ${second} ms after a reload`);

  const read = () => page.$$eval(".message", (messages) => messages.map((message) => message.querySelector(".plain, .markdown").textContent));
  const check = (contents, from) => {
    for (const [position, text] of contents.entries()) {
      const index = from + position;
      if (index % 2 === 0) assert.equal(text, `Question ${index / 2}`);
      else assert.match(text, new RegExp(`^Answer ${(index - 1) / 2} with code and a link\\.[^]*const x = 1;[^]*The end\\.$`));
    }
  };
  check(await read(), 950);
  // The button loads the messages before. The view stays at the end of the conversation.
  await page.evaluate(() => document.querySelector("#older").click());
  await isShown(100);
  check(await read(), 900);
  await page.waitForSelector("#older:not([hidden])");
  // Scrolling to the top loads them, too. The message that was the first one stays at its place.
  const frames = () => page.evaluate(async () => {
    for (let count = 0; count < 5; count += 1) await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  });
  const place = (index) => page.evaluate((index) => document.querySelectorAll(".message")[index].getBoundingClientRect().top, index);
  let release;
  const isReleased = new Promise((resolve) => (release = resolve));
  await made.route("**/messages?**", async (route) => {
    await isReleased;
    await route.continue();
  });
  for (let count = 150; count <= 1000; count += 50) {
    const before = await page.evaluate(() => {
      document.querySelector("#scroll").scrollTop = 0;
      return document.querySelectorAll(".message")[0].getBoundingClientRect().top;
    });
    if (count === 150) {
      await frames();
      await shot(page, "49-earlier");
      await accessible(page, "a conversation with earlier messages");
      release();
    }
    await isShown(count);
    await frames();
    const after = await place(50);
    assert.ok(Math.abs(after - before) <= 2, `the first of ${count - 50} messages moves from ${before} to ${after}`);
  }
  await page.waitForSelector("#older", { state: "hidden" });
  const contents = await read();
  assert.equal(contents.length, 1000);
  check(contents, 0);
  await page.click("#to-end");

  const isInView = (index) => page.waitForFunction((index) => {
    const { top, bottom } = document.querySelector("#scroll").getBoundingClientRect();
    const message = document.querySelectorAll(".message")[index].getBoundingClientRect();
    return message.top >= top - 2 && message.bottom <= bottom + 2;
  }, index);
  await isInView(999);
  const scroller = page.locator("#scroll");
  // Scrolls `to` a share of the whole height, or `by` a number of pixels. Returns the places of all visible messages, as
  // distances from the upper edge of the view, in each painted frame until the view is at rest: all visible messages are
  // laid out, and the ten frames after that show the same. Messages far from the view have estimated heights, so a busy
  // machine can paint frames after a jump in which the visible messages are not laid out yet.
  const scroll = (how) => scroller.evaluate(async (element, { to, by }) => {
    if (to === undefined) element.scrollBy(0, by);
    else element.scrollTo(0, element.scrollHeight * to);
    const frames = [];
    for (let equal = 0; equal < 10; ) {
      if (frames.length === 5000) throw new Error(`the messages do not come to rest: ${JSON.stringify(frames.slice(-3))}`);
      await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
      const { top, bottom } = element.getBoundingClientRect();
      const all = [...document.querySelectorAll(".message")].map((message, index) => ({ message, index, place: message.getBoundingClientRect() }));
      const visible = all.filter(({ place }) => place.bottom > top && place.top < bottom);
      const isLaidOut = visible.every(({ message }) => message.firstElementChild.checkVisibility({ contentVisibilityAuto: true }));
      const places = visible.map(({ index, place }) => [index, place.top - top]);
      const isEqual = isLaidOut && JSON.stringify(places) === JSON.stringify(frames.at(-1)?.places);
      equal = isEqual ? equal + 1 : 0;
      frames.push({ isLaidOut, places });
    }
    return frames;
  }, how);
  // Checks that each frame from the first one that is laid out shows the messages of `before`, moved by this distance.
  const moved = (before, frames, distance) => {
    const first = frames.findIndex(({ isLaidOut }) => isLaidOut);
    for (const { places } of frames.slice(first)) {
      const after = new Map(places);
      const both = before.filter(([index]) => after.has(index));
      assert.ok(both.length > 0, "no message stays in the view");
      for (const [index, top] of both) {
        const error = Math.abs(after.get(index) - top - distance);
        assert.ok(error <= 1, `message ${index} moves from ${top} to ${after.get(index)}: ${JSON.stringify(frames)}`);
      }
    }
  };
  // A message that comes near the view gets its real height, which differs from the estimated one. This does not move the
  // messages that are in the view.
  for (const place of [0.75, 0.5, 0.25]) {
    const frames = await scroll({ to: place });
    let before = frames.at(-1).places;
    assert.ok(Math.abs(before[0][0] - 1000 * place) < 100, `message ${before[0][0]} at ${place}`);
    moved(before, frames, 0);
    for (let step = 0; step < 5; step += 1) {
      const frames = await scroll({ by: -300 });
      moved(before, frames, 300);
      before = frames.at(-1).places;
    }
  }
  await page.waitForSelector("#to-end:not([hidden])");
  await shot(page, "50-long");
  await scroller.focus();
  await page.keyboard.press("Home");
  await isInView(0);
  await page.keyboard.press("PageDown");
  await page.waitForFunction(() => document.querySelector("#scroll").scrollTop > 300);
  await page.click("#to-end");
  await isInView(999);
});

await step("a branch whose messages are not loaded opens at its end", async (made) => {
  const page = await open(made, "#/long");
  const isShown = (count) => page.waitForFunction((count) => document.querySelectorAll(".message").length === count, count);
  await isShown(50);
  // The page has only an outline of the first message, from which another branch starts.
  await page.evaluate(() => {
    const prompt = { content: [{ type: "text", text: "Another beginning" }] };
    const body = JSON.stringify({ type: "run", at: { instead: 1 }, prompt });
    return fetch("agent/conversations/long/commands", { method: "POST", headers: { "content-type": "application/json" }, body });
  });
  await isShown(2);
  await idle(page);
  await page.waitForSelector("#older", { state: "hidden" });
  assert.equal(await page.locator("#notice").isVisible(), false);
  await page.reload();
  await isShown(2);
  await page.getByRole("button", { name: "Previous version" }).click();
  await isShown(50);
  await page.waitForSelector("#older:not([hidden])");
  assert.match(await page.locator(".message").last().textContent(), /Answer 499 with code/);
  assert.equal(await page.locator("#notice").isVisible(), false);
  await page.getByRole("button", { name: "All branches" }).click();
  // The outline shows the messages of all branches.
  await page.locator("#outline", { hasText: "Another beginning" }).locator("button", { hasText: "Question 0" }).first().waitFor();
});
