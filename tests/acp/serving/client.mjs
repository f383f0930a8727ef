// A client built on the official TypeScript implementation. Its arguments are the scenario and the agent's command.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import { client, ndJsonStream } from "@agentclientprotocol/sdk";

const [scenario, command, ...args] = process.argv.slice(2);
const program = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const stream = ndJsonStream(Writable.toWeb(program.stdin), Readable.toWeb(program.stdout));
const cwd = process.cwd();

// The updates of each session, the answers to questions, and the functions that wait for an update.
const updates = new Map();
const decisions = [];
const questions = [];
let changed = () => {};

const of = (session) => updates.get(session) ?? [];
const texts = (session, kind = "agent_message_chunk") =>
  of(session)
    .filter((update) => update.sessionUpdate === kind)
    .map((update) => update.content.text)
    .join("");
const forget = (session) => updates.delete(session);

async function until(fits) {
  while (!fits()) await new Promise((resolve) => (changed = resolve));
}

const app = client({ name: "typescript" })
  .onNotification("session/update", ({ params }) => {
    updates.set(params.sessionId, [...of(params.sessionId), params.update]);
    changed();
  })
  .onRequest("session/request_permission", ({ params, signal }) => {
    questions.push(params);
    changed();
    const decision = decisions.shift();
    if (decision) return { outcome: { outcome: "selected", optionId: decision } };
    return new Promise((resolve) => {
      signal.addEventListener("abort", () => resolve({ outcome: { outcome: "cancelled" } }));
    });
  });

const prompt = (agent, sessionId, text) =>
  agent.request("session/prompt", { sessionId, prompt: [{ type: "text", text }] });
const say = async (agent, session, text) => {
  forget(session);
  const { stopReason } = await prompt(agent, session, text);
  assert.equal(stopReason, "end_turn");
  return texts(session);
};
const fails = async (work, code) => {
  const error = await work.then(
    () => assert.fail("this must fail"),
    (error) => error,
  );
  assert.equal(error.code, code, String(error));
  return JSON.stringify(error.data ?? error.message);
};

async function all(agent) {
  const initialized = await agent.request("initialize", {
    protocolVersion: 1,
    clientCapabilities: {},
    clientInfo: { name: "typescript", version: "1" },
  });
  assert.equal(initialized.agentInfo.name, "served");
  assert.equal(initialized.agentCapabilities.loadSession, true);

  // Prompts, thinking, tools.
  const { sessionId, configOptions } = await agent.request("session/new", { cwd, mcpServers: [] });
  assert.equal(configOptions[0].currentValue, "small:scripted");
  assert.equal(await say(agent, sessionId, "Hello"), "You said: Hello");
  assert.equal(await say(agent, sessionId, "Where are you?"), `The folder is ${cwd}.`);
  await say(agent, sessionId, "Think");
  assert.equal(texts(sessionId, "agent_thought_chunk"), "Hm.");
  assert.equal(await say(agent, sessionId, "Look"), "Seen.");
  const call = of(sessionId).find((update) => update.sessionUpdate === "tool_call");
  assert.deepEqual([call.title, call.rawInput], ["list_files", { in: "." }]);
  const done = of(sessionId).find((update) => update.status === "completed");
  assert.equal(done.toolCallId, call.toolCallId);
  assert.equal(done.content[0].content.text, "a b in .");

  // Permissions: allowed, rejected, several at once.
  decisions.push("allow");
  assert.equal(await say(agent, sessionId, "Delete"), "Deleted.");
  decisions.push("reject");
  assert.equal(await say(agent, sessionId, "Delete"), "Kept.");
  questions.length = 0;
  decisions.push("allow", "reject");
  assert.equal(await say(agent, sessionId, "Delete both"), "Deleted. Kept.");
  assert.deepEqual(
    questions.map((question) => question.toolCall.rawInput.in),
    ["x", "y"],
  );
  assert.deepEqual(
    questions[0].options.map((option) => option.kind),
    ["allow_once", "reject_once"],
  );

  // The tool of an agent that is two agents below.
  for (const [decision, result] of [["allow", "x.txt deleted 1 times"], ["reject", "The user did not allow it."]]) {
    decisions.push(decision);
    assert.equal(await say(agent, sessionId, "Clean up"), `files: ${result}`);
    const { toolCall } = questions.at(-1);
    assert.deepEqual([toolCall.title, toolCall.rawInput], ["delete", { file: "x.txt" }]);
    assert.equal(toolCall.content[0].content.text, "It is gone for ever.");
  }

  // Cancel, during text and during a question.
  for (const [text, begun] of [
    ["Go on for ever", () => texts(sessionId) === "And on"],
    ["Delete", () => questions.length > 0],
  ]) {
    forget(sessionId);
    questions.length = 0;
    const turn = prompt(agent, sessionId, text);
    await until(begun);
    await agent.notify("session/cancel", { sessionId });
    assert.equal((await turn).stopReason, "cancelled");
  }

  // Stop reasons and failures.
  assert.equal((await prompt(agent, sessionId, "Run out")).stopReason, "max_tokens");
  assert.equal((await prompt(agent, sessionId, "Work too much")).stopReason, "max_turn_requests");
  assert.equal((await prompt(agent, sessionId, "Refuse")).stopReason, "refusal");
  assert.match(await fails(prompt(agent, sessionId, "Fail"), -32603), /the model is down/);
  await fails(agent.request("session/new", { cwd: "relative", mcpServers: [] }), -32602);
  await fails(prompt(agent, "nobody", "Hello"), -32002);

  // The choice of the model.
  const chosen = await agent.request("session/set_config_option", {
    sessionId,
    configId: "model",
    value: "big:scripted",
  });
  assert.equal(chosen.configOptions[0].currentValue, "big:scripted");
  assert.equal(await say(agent, sessionId, "Which model?"), "big");

  // Two sessions at once.
  const other = (await agent.request("session/new", { cwd, mcpServers: [] })).sessionId;
  const turn = prompt(agent, other, "Go on for ever");
  await until(() => texts(other) === "And on");
  assert.equal(await say(agent, sessionId, "The word is heron"), "You said: The word is heron");
  await agent.notify("session/cancel", { sessionId: other });
  assert.equal((await turn).stopReason, "cancelled");
  assert.equal(await say(agent, other, "Which word?"), "none");

  // List, close, resume, load, delete.
  const listed = await agent.request("session/list", { cwd });
  assert.deepEqual(listed.sessions.map((session) => session.sessionId).sort(), [sessionId, other].sort());
  await agent.request("session/close", { sessionId });
  await fails(prompt(agent, sessionId, "Hello"), -32002);
  forget(sessionId);
  const resumed = await agent.request("session/resume", { sessionId, cwd, mcpServers: [] });
  assert.equal(resumed.configOptions[0].currentValue, "big:scripted");
  assert.equal(texts(sessionId, "user_message_chunk"), "");
  assert.equal(await say(agent, sessionId, "Which word?"), "heron");
  await agent.request("session/close", { sessionId });
  forget(sessionId);
  await agent.request("session/load", { sessionId, cwd, mcpServers: [] });
  assert.match(texts(sessionId, "user_message_chunk"), /^Hello.*The word is heronWhich word\?$/);
  assert.match(texts(sessionId), /^You said: Hello.*heron$/);
  assert.ok(of(sessionId).some((update) => update.sessionUpdate === "tool_call_update" && update.status === "completed"));
  assert.equal(await say(agent, sessionId, "Which word?"), "heron");
  await agent.request("session/delete", { sessionId });
  await fails(agent.request("session/load", { sessionId, cwd, mcpServers: [] }), -32002);

  // An MCP server of the client.
  const server = {
    name: "echo",
    command: process.execPath,
    args: ["tools.mjs"],
    env: [{ name: "PLACE", value: "the server" }],
  };
  const served = (await agent.request("session/new", { cwd, mcpServers: [server] })).sessionId;
  decisions.push("allow");
  assert.equal(await say(agent, served, "Use the server"), "hello from the server");
  assert.equal(questions.at(-1).toolCall.title, "echo__echo");
  await agent.request("session/close", { sessionId: served });
}

// Begins a turn with a completed step, and waits to be killed.
async function die(agent) {
  await agent.request("initialize", { protocolVersion: 1, clientCapabilities: {} });
  const { sessionId } = await agent.request("session/new", { cwd, mcpServers: [] });
  const turn = prompt(agent, sessionId, "Look, then go on for ever");
  await until(() => texts(sessionId) === "And on");
  console.log("begun");
  await turn;
}

await app.connectWith(stream, { all, die }[scenario]);
program.stdin.end();
await new Promise((resolve) => (program.exitCode === null ? program.on("exit", resolve) : resolve()));
assert.equal(program.exitCode, 0);
console.log("passed");
