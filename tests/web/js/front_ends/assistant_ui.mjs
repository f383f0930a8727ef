// The steps of a person at the front end with assistant-ui.

import { button, count, end, page, shows, until } from "./harness.mjs";

const say = async (words) => {
  await page.fill('textarea[aria-label="message"]', words);
  await button("Send").click();
};
const idle = () => button("Send").waitFor();
const answered = async (words) => {
  await shows(`“${words}”`);
  await idle();
};

await say("Hello there");
await answered("Hello there");
await until("a thought", async () => (await page.innerText(".reasoning")).includes("This prompt names no tool"));

await say("measure_temperature Oslo");
await shows("measure_temperature returned 9 °C in Oslo");
await idle();

// Two tool uses wait for a decision. A reload in the pause shows them again.
await say("send_mail `Ann` and `Ben`");
await count("Approve", 2);
await page.reload();
await count("Approve", 2);
await button("Approve").first().click();
await count("Approve", 1);
await button("Reject").click();
await shows("send_mail failed: not now");
await idle();

await say("fail");
await shows("you asked the demo model to fail");
await idle();

// Stop stops: the next message does not wait for the end of the answer.
await say("count to 9000");
await shows(" 20 ");
await button("Stop").click();
await idle();
await say("after the stop");
await answered("after the stop");

// Another answer, back to the first one, and on from there.
await button("Again").last().click();
await shows("2/2");
await idle();
await button("Back").last().click();
await shows("1/2");
await say("from the older answer");
await answered("from the older answer");

// An edit of the first message begins another branch at the root.
await button("Edit").first().click();
await page.fill('textarea[aria-label="edited message"]', "Hello edited");
await button("Save").click();
await answered("Hello edited");
await until("only this branch", (shown) => !shown.includes("Oslo"));

// A reload in the middle of an answer loses nothing of it.
await say("count to 700");
await shows(" 20 ");
await page.reload();
await shows(" 699 700");
await idle();
await shows("“Hello edited”");
await until("only this branch", (shown) => !shown.includes("Oslo"));
await end();
