// Stopping, editing, choosing between alternates of an answer, the queue of prompts, and failures.

import assert from "node:assert/strict";

import { LONG, accessible, idle, lastAnswer, open, say, send, shot, step, stop, streams, texts, until } from "./harness.mjs";

await step("an answer is stopped, repeated and edited, and alternates are chosen", async (made) => {
  const page = await open(made);
  await say(page, LONG);
  await streams(page, " 12 ");
  await stop(page);
  await idle(page);
  assert.match(await lastAnswer(page), /^1 2 3/);
  await page.getByText("Stopped.", { exact: true }).waitFor();
  const user = page.locator(".message.user").first();
  await user.hover();
  await user.getByRole("button", { name: "Edit and send again" }).click();
  await page.getByLabel("Edited message").fill("count to 3");
  await shot(page, "07-edit");
  await accessible(page, "an edited message");
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
  await until(async () => assert.equal(await user.locator(".plain").innerText(), LONG));
  await page.getByRole("button", { name: "All branches" }).click();
  await until(async () => assert.equal((await texts(page, "#outline button")).length, 5));
  await shot(page, "07-map");
  await accessible(page, "the map");
  await page.locator("#outline button", { hasText: "count to 3" }).click();
  await user.getByText("2/2").waitFor();
  await until(async () => assert.equal(await lastAnswer(page), "1 2 3"));
});

await step("keys that an input method uses neither send, stop nor discard", async (made) => {
  const page = await open(made);
  const commands = [];
  page.on("request", (request) => request.url().endsWith("/commands") && commands.push(request.postDataJSON().type));
  // Safari ends a composition, and then reports the key that has ended it with this code.
  const compose = (area, key) => area.evaluate((element, key) => {
    element.dispatchEvent(new KeyboardEvent("keydown", { key, keyCode: 229, bubbles: true, cancelable: true }));
  }, key);
  await page.fill("#prompt", "cou");
  await compose(page.locator("#prompt"), "Enter");
  await say(page, "count to 300");
  await streams(page, " 12 ");
  await compose(page.locator("#prompt"), "Escape");
  await idle(page);
  const user = page.locator(".message.user").first();
  await user.hover();
  await user.getByRole("button", { name: "Edit and send again" }).click();
  const edited = page.getByLabel("Edited message");
  await edited.fill("send_mail `one`");
  for (const key of ["Enter", "Escape"]) await compose(edited, key);
  assert.equal(await edited.inputValue(), "send_mail `one`");
  await edited.press("Enter");
  await page.waitForSelector(".tool.waiting");
  await page.getByRole("button", { name: "Reject…" }).click();
  const reason = page.getByLabel("The reason, for the model");
  await reason.fill("No.");
  await compose(reason, "Escape");
  assert.equal(await reason.inputValue(), "No.");
  await page.getByRole("button", { name: "Reject", exact: true }).click();
  await idle(page);
  assert.deepEqual(commands, ["run", "run", "decide"]);
});

await step("an address that names no conversation in a valid form shows a new conversation", async (made) => {
  const page = await open(made, "#/%");
  await say(page, "count to 3");
  await idle(page);
  await page.goto(`${page.url().split("#")[0]}#/%E0`);
  await until(async () => assert.deepEqual(await texts(page, ".message"), []));
});

await step("an answer is continued in a new conversation", async (made) => {
  const page = await open(made);
  await say(page, "count to 3");
  await idle(page);
  await say(page, "count to 4");
  await idle(page, 2);
  const before = page.url();
  await page.locator(".message.answer").first().hover();
  await page.getByRole("button", { name: "Continue in a new conversation" }).first().click();
  await until(async () => assert.notEqual(page.url(), before));
  await until(async () => assert.deepEqual(await texts(page, ".message.answer .markdown"), ["1 2 3"]));
  await say(page, "count to 2");
  await idle(page, 2);
  await page.goto(before);
  await until(async () => assert.deepEqual(await texts(page, ".message.answer .markdown"), ["1 2 3", "1 2 3 4"]));
});

await step("alternates are chosen between answers, and not during one", async (made) => {
  const page = await open(made);
  await say(page, "count to 3");
  await idle(page);
  for (const number of [2, 3]) {
    await page.locator(".message.answer").last().hover();
    await page.getByRole("button", { name: "Answer again" }).click();
    await page.locator(".message.answer .alternates", { hasText: `${number}/${number}` }).waitFor();
    await idle(page);
  }
  await page.getByRole("button", { name: "Previous answer" }).click();
  await page.locator(".message.answer .alternates", { hasText: "2/3" }).waitFor();
  await shot(page, "07-alternates");
  await accessible(page, "alternates");
  await say(page, LONG);
  await streams(page, " 12 ");
  const buttons = ["Previous answer", "Next answer", "Edit and send again", "Answer again"];
  for (const name of buttons) await until(async () => assert.ok(await page.getByRole("button", { name }).first().isDisabled(), name));
  await page.getByRole("button", { name: "All branches" }).click();
  await until(async () => assert.ok(await page.locator("#outline button").first().isDisabled()));
  await page.keyboard.press("Escape");
  await stop(page);
  await idle(page, 2);
  for (const name of buttons) await until(async () => assert.ok(await page.getByRole("button", { name }).first().isEnabled(), name));
});

await step("prompts are queued, withdrawn, and join the answer", async (made) => {
  const page = await open(made);
  await say(page, LONG);
  await streams(page, " 12 ");
  await say(page, "Too early");
  await page.locator("#queue li", { hasText: "Too early" }).waitFor();
  await page.getByRole("button", { name: "Take back: Too early" }).click();
  await page.waitForFunction(() => document.querySelectorAll("#queue li").length === 0 && document.querySelector("#prompt").value === "Too early");
  await page.fill("#prompt", "");
  await stop(page);
  await idle(page);
  // This answer waits for a decision, so it lasts until all prompts are queued.
  await say(page, "send_mail `one`");
  await page.waitForSelector(".tool.waiting");
  await say(page, "Hello again");
  await page.locator("#queue li", { hasText: "Hello again" }).waitFor();
  await say(page, "Never mind");
  await page.locator("#queue li", { hasText: "Never mind" }).waitFor();
  await shot(page, "08-queue");
  await accessible(page, "the queue");
  await page.getByRole("button", { name: "Take back: Never mind" }).click();
  await page.waitForFunction(() => document.querySelectorAll("#queue li").length === 1 && document.querySelector("#prompt").value === "Never mind");
  await page.fill("#prompt", "");
  await page.getByRole("button", { name: "Approve" }).click();
  await idle(page, 4);
  await until(async () => assert.deepEqual(await texts(page, ".message.user .plain"), [LONG, "send_mail `one`", "Hello again"]));
  await send(page, "send_mail `two`");
  await page.waitForSelector(".tool.waiting");
  await page.fill("#prompt", "and be quick");
  await page.check("#at-step-box");
  await page.press("#prompt", "Enter");
  await page.locator("#queue li", { hasText: "next step" }).waitFor();
  await page.getByRole("button", { name: "Approve" }).click();
  await idle(page, 6);
  await until(async () => assert.equal((await texts(page, ".message.user .plain")).at(-1), "and be quick"));
});

await step("a failed run shows the failure and keeps the prompt", async (made) => {
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  await say(page, "fail");
  const failed = page.locator(".message.user .outcome.bad");
  await failed.filter({ hasText: "you asked the demo model to fail" }).waitFor();
  await shot(page, "09-failure");
  await accessible(page, "a failure");
  await say(page, "fail");
  await until(async () => assert.equal(await failed.count(), 2));
  await page.reload();
  await until(async () => assert.deepEqual(await texts(page, ".message.user .plain"), ["Hello", "fail", "fail"]));
  assert.deepEqual([await failed.count(), await page.locator("#tail .outcome").count()], [2, 0]);
  await failed.last().getByRole("button", { name: "Send again" }).click();
  await idle(page);
  await until(async () => assert.equal(await failed.count(), 2));
  assert.deepEqual(await texts(page, ".message.user .plain"), ["Hello", "fail", "fail"]);
});

