// Drives the served manager with the official client: over HTTP if the argument is an address, or else over the
// standard input and output of a program.
import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const [target, ...args] = process.argv.slice(2);
const headers = { "x-user": process.env.USER_NAME };
const transport = target.startsWith("http")
  ? new StreamableHTTPClientTransport(new URL(target), { requestInit: { headers } })
  : new StdioClientTransport({ command: target, args, env: process.env, stderr: "ignore" });

const client = new Client({ name: "npm", version: "1.0.0" }, { capabilities: { elicitation: {} } });
const questions = [];
let answer = { action: "accept", content: {} };
client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
  questions.push(params.message);
  return answer;
});
await client.connect(transport);
assert.equal(client.getServerVersion().name, "served");

const { tools } = await client.listTools();
assert.deepEqual(tools.map((tool) => tool.name), ["ask", "list", "read", "stop"]);

const reports = [];
const call = async (name, input) => {
  const options = { onprogress: (report) => reports.push(report.message), resetTimeoutOnProgress: true };
  const result = await client.callTool({ name, arguments: input }, undefined, options);
  assert.ok(!result.isError, JSON.stringify(result));
  return result.structuredContent;
};

const looked = await call("ask", { prompt: "Look" });
assert.equal(looked.answer, "Seen.");

assert.equal((await call("ask", { prompt: "Delete both" })).answer, "gone, gone");
assert.equal(questions.length, 2);
answer = { action: "decline" };
assert.equal((await call("ask", { prompt: "Delete" })).answer, "The user did not allow it.");
answer = { action: "accept", content: { name: "Ann" } };
// This client drops a report that arrives in the same chunk as the result. The result of this call follows an answer.
reports.length = 0;
assert.match((await call("ask", { prompt: "Ask" })).answer, /Ann/);
assert.deepEqual(reports, ["Running form"]);

// A cancelled call stops the agent.
const { conversation } = looked;
const cancelled = new AbortController();
const running = client.callTool(
  { name: "ask", arguments: { conversation, prompt: "Go on for ever" } }, undefined, { signal: cancelled.signal });
const status = async () => (await call("read", { conversation })).status;
while ((await status()) !== "busy") await new Promise((done) => setTimeout(done, 10));
cancelled.abort();
await assert.rejects(running);
while ((await status()) !== "idle") await new Promise((done) => setTimeout(done, 10));
assert.deepEqual(await call("stop", { conversation }), { stopped: false });

const missing = await client.callTool({ name: "read", arguments: { conversation: "none" } });
assert.equal(missing.isError, true);
await client.close();
