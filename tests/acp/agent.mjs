// An agent built on the official TypeScript implementation. The prompts determine what it does.

import { appendFileSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Readable, Writable } from "node:stream";
import { RequestError, agent, ndJsonStream } from "@agentclientprotocol/sdk";

const folder = process.env.OMNI_ACP_FOLDER;
appendFileSync(join(folder, "pids"), `${process.pid}\n`);

const cancels = new Map();
const file = (id) => join(folder, id.replaceAll("/", "_"));

async function prompted({ params, client }) {
  const id = params.sessionId;
  const said = params.prompt.map((block) => block.text ?? "").join("");
  const before = readFileSync(file(id), "utf8");
  appendFileSync(file(id), `${said}\n`);
  const tell = (update) => client.notify("session/update", { sessionId: id, update });
  const text = (text) => ({ type: "text", text });
  const say = (words) => tell({ sessionUpdate: "agent_message_chunk", content: text(words) });
  const done = (status, words) =>
    tell({
      sessionUpdate: "tool_call_update",
      toolCallId: "t1",
      status,
      content: [{ type: "content", content: text(words) }],
    });
  switch (said) {
    case "Go on for ever": {
      const cancelled = new Promise((resolve) => cancels.set(id, resolve));
      await say("And on");
      await cancelled;
      return { stopReason: "cancelled" };
    }
    case "Look":
      await tell({ sessionUpdate: "agent_thought_chunk", content: text("Hm.") });
      await tell({
        sessionUpdate: "plan",
        entries: [{ content: "Look", priority: "high", status: "in_progress" }],
      });
      await tell({
        sessionUpdate: "tool_call",
        toolCallId: "t1",
        title: "List files",
        kind: "search",
        rawInput: { in: "." },
      });
      await done("completed", "a b");
      await say("Seen.");
      return { stopReason: "end_turn" };
    case "Delete": {
      const toolCall = { toolCallId: "t1", title: "Delete it", kind: "delete", status: "pending" };
      await tell({ sessionUpdate: "tool_call", ...toolCall });
      const { outcome } = await client.request("session/request_permission", {
        sessionId: id,
        toolCall,
        options: [
          { optionId: "yes", name: "Yes", kind: "allow_once" },
          { optionId: "no", name: "No", kind: "reject_once" },
        ],
      });
      if (outcome.outcome === "cancelled") return { stopReason: "cancelled" };
      const allowed = outcome.optionId === "yes";
      await done(allowed ? "completed" : "failed", "");
      await say(allowed ? "Deleted." : "Kept.");
      return { stopReason: "end_turn" };
    }
    case "Which word?": {
      const words = [...before.matchAll(/^The word is (.*)$/gm)];
      await say(words.at(-1)?.[1] ?? "none");
      return { stopReason: "end_turn" };
    }
    case "Fail":
      throw new RequestError(-32603, "the model is down");
    default:
      await say(`You said: ${said}`);
      return { stopReason: "end_turn" };
  }
}

agent({ name: "for tests" })
  .onRequest("initialize", () => ({
    protocolVersion: 1,
    agentCapabilities: { loadSession: true },
    agentInfo: { name: "for-tests", version: "1" },
  }))
  .onRequest("session/new", () => {
    const sessionId = `session-${process.pid}`;
    writeFileSync(file(sessionId), "");
    return { sessionId };
  })
  .onRequest("session/load", async ({ params, client }) => {
    if (!existsSync(file(params.sessionId))) throw RequestError.resourceNotFound(params.sessionId);
    for (const line of readFileSync(file(params.sessionId), "utf8").split("\n")) {
      await client.notify("session/update", {
        sessionId: params.sessionId,
        update: { sessionUpdate: "agent_message_chunk", content: { type: "text", text: `before: ${line}` } },
      });
    }
    return {};
  })
  .onRequest("session/prompt", prompted)
  .onNotification("session/cancel", ({ params }) => cancels.get(params.sessionId)?.())
  .connect(ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
