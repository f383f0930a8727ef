// A restart of the server.

import assert from "node:assert/strict";

import { accessible, idle, open, say, shot, slow, step, streams, texts } from "./harness.mjs";

await step("a restart of the server in mid-answer is reported, and what is lost can be sent again", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  await say(page, "count to 900");
  await streams(page, " 12 ");
  await slow.stop("SIGKILL");
  await page.locator("#notice", { hasText: "connection to the server is lost" }).waitFor();
  await shot(page, "20-lost");
  await slow.start();
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
