// Walks through the chat page in Chromium, with the program of the example `web_chat`. `tests/web/walk.rs` starts it.
//
//   OMNI_NODE_MODULES   the folder that contains `node_modules`, with `playwright-core` and `axe-core`
//   OMNI_WEB_CHAT       the program of the example
//   OMNI_CHROMIUM       the browser
//   OMNI_PORT           the first of ten ports that the servers can use
//   OMNI_STORE          the folder of a store that contains the conversation `long`: 1,000 messages, with costs
//   OMNI_SCREENSHOTS    the folder for screenshots
//   OMNI_STEPS          the names of the scripts whose steps are run, separated by spaces
//   OMNI_ONLY           a word; only the steps whose names contain it are run

import { end } from "./harness.mjs";

// The imports are dynamic and awaited, because modules with a top-level `await` would otherwise be evaluated
// concurrently.
for (const steps of process.env.OMNI_STEPS.split(" ")) {
  await import(`./${steps}.mjs`);
}
await end();
