// Dark colours, the width of a phone, and right-to-left texts.

import assert from "node:assert/strict";

import { MARKDOWN, accessible, context, fast, idle, open, say, shot, step } from "./harness.mjs";

await step("dark, phone and right-to-left texts", async () => {
  for (const [name, options] of [
    ["dark", { colorScheme: "dark" }],
    ["phone", { viewport: { width: 390, height: 800 }, hasTouch: true, isMobile: true }],
    ["phone-dark", { viewport: { width: 390, height: 800 }, colorScheme: "dark" }],
  ]) {
    const made = await context(options);
    const page = await open(made, "", fast);
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
      await page.locator("#sidebar").evaluate((sidebar) => Promise.all(sidebar.getAnimations().map((animation) => animation.finished)));
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

