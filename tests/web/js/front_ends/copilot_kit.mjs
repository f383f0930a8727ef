// The steps of a person at the front end with CopilotKit.

import { button, count, end, page, shows, until } from "./harness.mjs";

const say = async (words) => {
  await page.fill("textarea", words);
  await page.press("textarea", "Enter");
};
// The page has no other sign that a run has ended.
const idle = () => until("the end of the run", () => page.evaluate(() => document.querySelector("[data-copilot-running]")?.dataset.copilotRunning !== "true"));
const answered = async (words) => {
  await shows(`“${words}”`);
  await idle();
};

await page.waitForSelector("textarea");
await say("Hello there");
await answered("Hello there");

// Two tool uses wait for a decision. A reload in the pause shows them again.
await say("send_mail `Ann` and `Ben`");
await count("Approve", 2);
await page.reload();
await count("Approve", 2);
await idle();
await button("Approve").first().click();
await count("Approve", 1);
await button("Reject").click();
await shows("send_mail failed: not now");
await idle();

await say("fail");
await until("an error", async () => (await page.locator('[role="alert"]').allInnerTexts()).some((it) => it.includes("you asked the demo model to fail")));
await idle();

// Stop stops: the next message does not wait for the end of the answer.
await say("count to 9000");
await shows(" 20 ");
await page.click('[data-testid="copilot-send-button"]');
await idle();
await say("after the stop");
await answered("after the stop");

// A reload in the middle of an answer loses nothing of it.
await say("count to 700");
await shows(" 20 ");
await page.reload();
await shows(" 699 700");
await end();
