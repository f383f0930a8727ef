// A restart of the server.

import assert from "node:assert/strict";

import { LONG, accessible, idle, open, saved, say, shot, slow, step, stop, streams, texts, until } from "./harness.mjs";

await step("a restart of the server in mid-answer is reported, and what is lost can be sent again", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  await saved(page);
  await say(page, LONG);
  await streams(page, " 12 ");
  await slow.stop("SIGKILL");
  await page.locator("#notice", { hasText: "connection to the server is lost" }).waitFor();
  await shot(page, "20-lost");
  await slow.start();
  await page.locator("#notice", { hasText: "The server was restarted during an answer" }).waitFor();
  await page.locator(".outcome", { hasText: LONG }).waitFor();
  await until(async () => assert.deepEqual(await texts(page, ".message.user .plain"), ["Hello"]));
  await shot(page, "21-restarted");
  await accessible(page, "after a restart");
  await page.getByRole("button", { name: "Send again", exact: true }).click();
  await page.waitForSelector(".message.live .markdown");
  await stop(page);
  await idle(page, 2);
});
