// Drives the real `HttpAgent` against a server.
//
// OMNI_AG_UI_URL is the server's address, and OMNI_AG_UI_CLIENT names the package: `client-0` or `client-1`. The server
// and the answers of its model are in `tests/web/ag_ui.rs`: below `/ag-ui`, clients choose the ids of threads. Below
// `/stored`, a thread has the id of the stored conversation.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { request } from "node:http";
import { test } from "node:test";

const server = process.env.OMNI_AG_UI_URL;
const base = `${server}/ag-ui`;
const name = process.env.OMNI_AG_UI_CLIENT;
const isOne = name === "client-1";
const { HttpAgent } = await import(name);

// The client reports everything that it does not understand as a warning.
const warnings = [];
console.warn = (...text) => warnings.push(text.join(" "));

/** Returns an agent on a new thread, which records its events. */
function agent(threadId = randomUUID()) {
  const agent = new HttpAgent({ url: base, threadId });
  agent.events = [];
  agent.subscribe({ onEvent: ({ event }) => void agent.events.push(event) });
  return agent;
}

async function say(agent, content, parameters = {}) {
  agent.addMessage({ id: randomUUID(), role: "user", content });
  agent.events.length = 0;
  return agent.runAgent({ ...parameters });
}

/** Returns an agent that joins a thread. */
async function join(threadId, onEvent = () => {}) {
  const other = agent(threadId);
  other.url = `${base}/${threadId}${isOne ? "?protocolVersion=1.0" : ""}`;
  other.requestInit = () => ({ method: "GET", headers: { Accept: "text/event-stream" } });
  await other.runAgent({}, { onEvent: ({ event }) => void onEvent(event) });
  return other;
}

const last = (agent) => agent.events.at(-1);
/** Checks that the answers came too late, and that the client has no open interrupt any more. */
function isStale(agent, resume) {
  assert.equal(last(agent).type, "RUN_FINISHED");
  assert.equal(agent.pendingInterrupts.length, 0);
  const { value } = agent.events.find((event) => event.name === "omni.stale-decision");
  assert.deepEqual(value.interruptIds, resume.map((answer) => answer.interruptId));
}
const types = (agent) => agent.events.map((event) => event.type);

/** Returns the messages in the form in which two clients can compare them. */
function shown(agent) {
  return agent.messages
    .filter((message) => message.activityType !== "omni.progress")
    .map(({ id, role, content, toolCalls, toolCallId }) => ({
      id,
      role,
      content: content || undefined,
      toolCallId,
      toolCalls: toolCalls?.map((call) => ({ id: call.id, name: call.function.name, input: JSON.parse(call.function.arguments) })),
    }));
}

/** Checks that another client gets the same messages. */
async function isStored(agent) {
  assert.deepEqual(shown(await join(agent.threadId)), shown(agent));
}

async function stop(threadId) {
  const response = await fetch(`${base}/${threadId}/stop`, { method: "POST" });
  assert.equal(response.status, 204);
}

test("text", async () => {
  const a = agent();
  await say(a, "text");
  assert.deepEqual(a.messages.map((message) => message.content), ["text", "Hello, text."]);
  assert.equal(types(a)[0], "RUN_STARTED");
  assert.equal(last(a).type, "RUN_FINISHED");
  assert.deepEqual(last(a).outcome, isOne ? { type: "success" } : undefined);
  assert.ok(last(a).usage[0].totalTokens > 0);
  const { status, tokens } = a.state.omni;
  assert.deepEqual([status, tokens], ["idle", 15]);
  a.setState({ ...a.state, mine: 1 });
  await say(a, "text");
  assert.equal(a.messages.length, 4);
  assert.deepEqual([a.state.mine, a.state.omni.tokens], [1, 30]);
  await isStored(a);
});

test("reasoning", async () => {
  const a = agent();
  await say(a, "reason");
  assert.deepEqual(a.messages.map((message) => message.role), ["user", "reasoning", "assistant"]);
  assert.equal(a.messages[1].content, "Let me think.");
  await isStored(a);
});

test("tools", async () => {
  const a = agent();
  await say(a, "tools");
  const result = a.messages.find((message) => message.role === "tool");
  assert.equal(result.content, '{"n":1}');
  assert.ok(types(a).includes("ACTIVITY_SNAPSHOT"));
  assert.equal(a.messages.at(-1).content, "Done.");
  await isStored(a);
});

test("several approvals, with an edited input and a rejection", async () => {
  const a = agent();
  await say(a, "approve");
  assert.deepEqual(a.pendingInterrupts.map((interrupt) => interrupt.id).length, 3);
  const [first, second, third] = a.pendingInterrupts;
  assert.equal(first.reason, "tool_call");
  assert.equal(a.state.omni.status, "paused");
  await isStored(a);
  await assert.rejects(say(a, "text"), /pending interrupt/);
  a.setMessages(a.messages.slice(0, -1));
  const resume = [
    { interruptId: first.id, status: "resolved", payload: { approved: true, editedArgs: { n: 7 } } },
    { interruptId: second.id, status: "resolved", payload: { approved: false, reason: "Too risky." } },
    { interruptId: third.id, status: "cancelled" },
  ];
  a.events.length = 0;
  const runId = randomUUID();
  await a.runAgent({ runId, resume });
  assert.equal(a.pendingInterrupts.length, 0);
  const results = a.messages.filter((message) => message.role === "tool").map((message) => message.content);
  assert.equal(results.length, 3);
  assert.equal(results[0], 'asked {"n":7}');
  assert.match(results[1], /Too risky/);
  await isStored(a);
  // A repeated request with the same run id replays the run.
  a.events.length = 0;
  await a.runAgent({ runId, resume });
  assert.equal(last(a).type, "RUN_FINISHED");
  // With another run id, the answers are too late, because the interrupts are already answered.
  a.events.length = 0;
  await a.runAgent({ resume });
  isStale(a, resume);
});

test("a tool two agents below", async () => {
  const approved = (editedArgs) => ({ status: "resolved", payload: { approved: true, editedArgs } });
  for (const [answer, result] of [
    [() => approved(), (file) => `${file} deleted 1 times`],
    [(file) => approved({ file: `other-${file}` }), (file) => `: {"file":"other-${file}"}other-${file} deleted 1 times`],
    [() => ({ status: "resolved", payload: { approved: false, reason: "No." } }), () => "No."],
    [() => ({ status: "cancelled" }), () => "Cancelled by the user."],
  ]) {
    for (const joins of [false, true]) {
      const file = `${randomUUID()}.txt`;
      let a = agent();
      await say(a, `clean up ${file}`);
      const [interrupt] = a.pendingInterrupts;
      assert.deepEqual(
        [interrupt.reason, interrupt.message, interrupt.metadata],
        ["tool_call", "It is gone for ever.", { input: { file }, tool: "delete", subAgent: "team" }],
      );
      assert.equal(interrupt.toolCallId, a.messages.find((message) => message.toolCalls).toolCalls[0].id);
      assert.equal(a.state.omni.status, "paused");
      await isStored(a);
      if (joins) {
        a = await join(a.threadId);
        assert.deepEqual(a.pendingInterrupts, [interrupt]);
        a.url = base;
        delete a.requestInit;
      }
      const resume = [{ interruptId: interrupt.id, ...answer(file) }];
      await a.runAgent({ resume });
      assert.equal(last(a).type, "RUN_FINISHED");
      assert.equal(a.pendingInterrupts.length, 0);
      const [text] = a.messages.filter((message) => message.role === "tool").map((message) => message.content);
      assert.ok(text.startsWith("files: ") && text.endsWith(result(file)), text);
      assert.equal(a.messages.at(-1).content, "Done.");
      await isStored(a);
      await a.runAgent({ resume });
      isStale(a, resume);
    }
  }
});

test("a call that ends while another one waits", async () => {
  const [one, two] = [`${randomUUID()}.txt`, `${randomUUID()}.txt`];
  const a = agent();
  await say(a, `clean up ${one} and later ${two}`);
  const [first] = a.pendingInterrupts;
  await fetch(`${server}/gate`, { method: "POST" });
  const pending = async () => (await join(a.threadId)).pendingInterrupts;
  while ((await pending()).length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
  const approve = ({ id }) => ({ resume: [{ interruptId: id, status: "resolved", payload: { approved: true } }] });
  await a.runAgent(approve(first));
  const [second] = a.pendingInterrupts;
  assert.notEqual(second.toolCallId, first.toolCallId);
  const results = (agent) => agent.messages.filter((message) => message.role === "tool").map((message) => message.content);
  const tools = async () => (await (await fetch(`${server}/agent/conversations/me.${a.threadId}`)).json()).agent.tools;
  const runs = (tool) => tool.tool_use_id === "n0" && tool.is_error === undefined;
  while ((await tools()).some(runs)) await new Promise((resolve) => setTimeout(resolve, 5));
  await a.runAgent(approve(second));
  assert.equal(last(a).type, "RUN_FINISHED");
  assert.deepEqual(results(a), [one, two].map((file) => `files: ${file} deleted 1 times`));
  await isStored(a);
});

test("error", async () => {
  const a = agent();
  await say(a, "fail");
  assert.equal(last(a).type, "RUN_ERROR");
  assert.equal(last(a).code, "provider");
  await say(a, "text");
  assert.equal(last(a).type, "RUN_FINISHED");
});

test("stop keeps the text", async () => {
  const a = agent();
  a.addMessage({ id: randomUUID(), role: "user", content: "slow" });
  await a.runAgent({}, { onTextMessageContentEvent: () => void stop(a.threadId) });
  assert.equal(a.messages.at(-1).content, "Slowly");
  assert.deepEqual(last(a).outcome, isOne ? { type: "cancelled" } : undefined);
  await isStored(a);
});

test("resume in mid-answer", async () => {
  const a = agent();
  a.addMessage({ id: randomUUID(), role: "user", content: "slow" });
  let other;
  await a.runAgent({}, {
    onTextMessageContentEvent: () => {
      other = join(a.threadId, (event) => event.type === "TEXT_MESSAGE_START" && stop(a.threadId));
    },
  });
  assert.deepEqual(shown(await other), shown(a));
  assert.equal(a.messages.at(-1).content, "Slowly");
});

test("a client that aborts its request leaves the run running", async () => {
  const a = agent();
  a.addMessage({ id: randomUUID(), role: "user", content: "slow" });
  await a.runAgent({}, { onTextMessageContentEvent: () => a.abortRun() }).catch(() => {});
  const other = await join(a.threadId, (event) => event.type === "TEXT_MESSAGE_START" && stop(a.threadId));
  assert.equal(other.messages.at(-1).content, "Slowly");
});

test("a new message after an aborted request ends the run, if runs without readers end", async () => {
  const a = agent();
  a.url = `${server}/left`;
  a.addMessage({ id: randomUUID(), role: "user", content: "slow" });
  await a.runAgent({}, { onTextMessageContentEvent: () => a.abortRun() }).catch(() => {});
  await say(a, "text");
  assert.deepEqual(a.messages.map((message) => message.content), ["slow", "Slowly", "text", "Hello, text."]);
  await isStored(a);
});

test("regenerate and edit", async () => {
  const a = agent();
  await say(a, "count");
  await say(a, "count");
  const before = a.messages.at(-1);
  a.setMessages(a.messages.slice(0, 3));
  await a.runAgent();
  assert.equal(a.messages.length, 4);
  assert.notEqual(a.messages[3].id, before.id);
  await isStored(a);
  a.setMessages([{ ...a.messages[0], content: "text" }]);
  await a.runAgent();
  assert.deepEqual(a.messages.map((message) => message.content), ["text", "Hello, text."]);
  await isStored(a);
});

test("prompts of two clients at the same time", async () => {
  const a = agent();
  await say(a, "text");
  const b = agent(a.threadId);
  b.setMessages(a.messages);
  a.addMessage({ id: randomUUID(), role: "user", content: "slow" });
  let second;
  await a.runAgent({}, {
    onTextMessageContentEvent: () => {
      second ??= say(b, "text");
    },
    onCustomEvent: ({ event }) => void (event.name === "omni.staged" && stop(a.threadId)),
  });
  await second;
  assert.equal(last(b).type, "RUN_ERROR");
  assert.equal(last(b).code, "not-started");
});

test("client tools", async () => {
  const a = agent();
  const tools = [{ name: "show", description: "Shows a page.", parameters: { type: "object" } }];
  await say(a, "show", { tools });
  const call = a.messages.at(-1).toolCalls[0];
  if (isOne) assert.deepEqual(last(a).outcome, { type: "success", pendingToolCallIds: [call.id] });
  a.addMessage({ id: randomUUID(), role: "tool", toolCallId: call.id, content: "shown" });
  await a.runAgent({ tools });
  assert.equal(a.messages.at(-1).content, "Done.");
  await isStored(a);
});

test("large file of a prompt is linked", async () => {
  const a = agent();
  const bytes = Buffer.alloc(60_000, 7);
  await say(a, [
    { type: "text", text: "text" },
    { type: "image", source: { type: "data", value: bytes.toString("base64"), mimeType: "image/png" } },
  ]);
  const { source } = (await join(a.threadId)).messages[0].content[1];
  assert.equal(source.type, "url");
  const response = await fetch(new URL(source.value, server));
  assert.equal(response.headers.get("content-type"), "image/png");
  assert.deepEqual(Buffer.from(await response.arrayBuffer()), bytes);
});

test("a stranger gets the answer for a thread that does not exist", async () => {
  const a = agent();
  await say(a, "text");
  const send = async (thread, user, [method, path]) => {
    const init = { method, headers: { "content-type": "application/json", "x-user": user } };
    if (path === "") init.body = JSON.stringify({ threadId: thread, runId: "r", messages: [{ id: "u", role: "user", content: "text" }] });
    const response = await fetch(`${server}/stored${path.replace("T", thread)}`, init);
    return { status: response.status, body: await response.text() };
  };
  const routes = [["POST", ""], ["GET", "/T"], ["POST", "/T/stop"], ["GET", "/T/files/u/0"]];
  for (const route of routes) {
    const absent = await send("absent", "you", route);
    assert.equal(absent.status, 404, route.join(" "));
    assert.deepEqual(await send(`me.${a.threadId}`, "you", route), absent);
  }
  assert.equal((await send(`me.${a.threadId}`, "me", routes[1])).status, 200);
});

test("bad requests", async () => {
  const post = async (body, type = "application/json") =>
    (await fetch(base, { method: "POST", headers: { "content-type": type }, body })).status;
  assert.equal(await post("{"), 400);
  assert.equal(await post("{}"), 400);
  assert.equal(await post(JSON.stringify({ threadId: "a/b", runId: "r", messages: [] })), 400);
  assert.equal(await post("{}", "text/plain"), 415);
  // The announced length exceeds the limit, so the server answers without waiting for the body.
  const headers = { "content-type": "application/json", "content-length": 9 << 20 };
  const large = request(base, { method: "POST", headers }).on("error", () => {});
  large.flushHeaders();
  const [answer] = await once(large, "response");
  assert.equal(answer.statusCode, 413);
  large.destroy();
  assert.equal((await fetch(base)).status, 405);
  assert.equal((await fetch(`${base}/absent`)).status, 404);
  assert.equal((await fetch(base, { method: "POST", headers: { origin: "https://evil.example" } })).status, 403);
});

test("no event contains anything that the client does not know", () => {
  assert.deepEqual(warnings, []);
});
