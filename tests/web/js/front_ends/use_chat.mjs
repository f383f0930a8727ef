// The steps of a person at the front end with `useChat`.

import { button, count, end, page, shows, text, until } from "./harness.mjs";

const say = async (words) => {
  await page.fill("textarea", words);
  await button("Send").click();
};
const ready = () => page.waitForSelector('main[data-status="ready"]');
const answered = async (words) => {
  await shows(`“${words}”`);
  await ready();
};

await say("Hello there");
await answered("Hello there");
await until("a thought", async () => (await page.innerText(".reasoning")).includes("This prompt names no tool"));

await say("measure_temperature Oslo");
await shows("measure_temperature returned 9 °C in Oslo");
await ready();

// Two tool uses wait for a decision. A reload in the pause shows them again.
await say("send_mail `Ann` and `Ben`");
await count("Approve", 2);
await page.reload();
await count("Approve", 2);
await button("Approve").first().click();
await count("Approve", 1);
await button("Reject").click();
await shows("send_mail failed: not now");
await ready();

await say("fail");
await until("an error", async () => (await page.locator('[role="alert"]').allInnerTexts()).some((it) => it.includes("you asked the demo model to fail")));

// Stop stops: the next message does not wait for the end of the answer, and the error is gone.
await say("count to 9000");
await shows(" 20 ");
await button("Stop").click();
await say("after the stop");
await answered("after the stop");
const before = await text();
await button("Again").last().click();
await until("another answer", async (shown) => shown !== before && shown.includes("“after the stop”"));
await ready();

// A reload in the middle of an answer loses nothing of it.
await say("count to 700");
await shows(" 20 ");
await page.reload();
await shows(" 699 700");
await ready();

// An edited message begins another branch.
await button("Edit").first().click();
await say("Hello edited");
await answered("Hello edited");
await page.reload();
await shows("“Hello edited”");
await until("only this branch", (shown) => !shown.includes("Oslo"));
await end();
