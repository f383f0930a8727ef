// A stored conversation of 1,000 messages.

import assert from "node:assert/strict";

import { open, shot, step } from "./harness.mjs";

await step("a stored conversation of 1,000 messages opens, is complete, and scrolls", async (made) => {
  // Nobody has it open, so the server reads it from the store.
  const page = await open(made, "#/long");
  const shown = async () => {
    await page.waitForFunction(() => document.querySelectorAll(".message").length === 1000);
    return page.evaluate(async () => {
      await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
      return Math.round(performance.now());
    });
  };
  const first = await shown();
  await page.reload();
  const second = await shown();
  console.log(`     1,000 messages are shown ${first} ms after the navigation, and ${second} ms after a reload`);
  // The goal is one second. A busy machine takes longer.
  assert.ok(Math.min(first, second) < 5000, `${first} and ${second} ms`);

  const contents = await page.$$eval(".message", (messages) => messages.map((message) => message.querySelector(".plain, .markdown").textContent));
  for (const [index, text] of contents.entries()) {
    if (index % 2 === 0) assert.equal(text, `Question ${index / 2}`);
    else assert.match(text, new RegExp(`^Answer ${(index - 1) / 2} with code and a link\\.[^]*const x = 1;[^]*The end\\.$`));
  }

  const isInView = (index) => page.waitForFunction((index) => {
    const { top, bottom } = document.querySelector("#scroll").getBoundingClientRect();
    const message = document.querySelectorAll(".message")[index].getBoundingClientRect();
    return message.top >= top - 2 && message.bottom <= bottom + 2;
  }, index);
  await isInView(999);
  const scroller = page.locator("#scroll");
  // After a jump, the view stays there, even after the messages around it have got their real heights.
  for (const place of [0.75, 0.5, 0.25]) {
    const centre = () => scroller.evaluate(async (element) => {
      await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
      const { left, width, top, height } = element.getBoundingClientRect();
      for (let down = 0; down < 200; down += 10) {
        const message = document.elementFromPoint(left + width / 2, top + height / 2 + down)?.closest(".message");
        if (message) return [...document.querySelectorAll(".message")].indexOf(message);
      }
      return -1;
    });
    await scroller.evaluate((element, place) => element.scrollTo(0, element.scrollHeight * place), place);
    const before = await centre();
    assert.ok(Math.abs(before - 1000 * place) < 100, `message ${before} at ${place}`);
    // The browser keeps the topmost visible message in place, so the centre can move to the next message.
    const after = await centre();
    assert.ok(Math.abs(after - before) <= 1, `message ${after} instead of ${before} at ${place}`);
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
