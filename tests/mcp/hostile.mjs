// A server of the Model Context Protocol without dependencies. Its tools misbehave. It uses standard input and output, or
// HTTP if PORT is set.
import { appendFileSync, readFileSync } from "node:fs";
import { spawn } from "node:child_process";
import { createServer } from "node:http";
import { createInterface } from "node:readline";

const log = process.env.LOG;
const note = (text) => appendFileSync(log, text + "\n");
note(`pid ${process.pid}`);

if (process.env.LIKE === "exit_at_start") {
  process.stderr.write("no configuration\n");
  process.exit(1);
}

const port = process.env.PORT;
const line = (message) => message.raw ?? JSON.stringify({ jsonrpc: "2.0", ...message });
const text = (text) => ({ content: [{ type: "text", text }] });
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const like = process.env.LIKE ?? "";

let names = [
  "echo", "silent", "die", "huge", "too_huge", "flood", "slow", "refuse", "image_error", "ask", "add", "spawn", "secret", "deaf",
  "unreadable", "noise", "cut_text",
];
if (port) names.push("too_huge_json", "endless_event", "endless_json", "endless_comments", "cut", "no_headers", "status");
const schema = { type: "object", properties: { text: { type: "string" } } };

const hints = { read: { readOnlyHint: true }, put: { readOnlyHint: false, idempotentHint: true }, send: { readOnlyHint: false }, drop: {} };

function list() {
  if (like === "hints") names = Object.keys(hints);
  if (like === "many_tools") names = Array.from({ length: 1000 }, (_, count) => `tool_${count}`);
  const tools = names.map((name) => ({ name, description: name === "echo" ? "x".repeat(9000) : name, inputSchema: schema, annotations: hints[name] }));
  if (like === "odd_list") {
    tools.push({ name: "bad schema", inputSchema: { type: "object", properties: { a: { type: "nonsense" } } } });
    tools.push({ name: "not object", inputSchema: { type: "string" } });
    tools.push({ name: "no schema" });
    tools.push({ name: "long schema", inputSchema: { ...schema, description: "x".repeat(65536) } });
    tools.push({ name: "a b", inputSchema: schema }, { name: "a/b", inputSchema: schema });
    tools.push({ name: "n".repeat(300), inputSchema: schema });
    let deep = { type: "string" };
    for (let level = 0; level < 63; level++) deep = { type: "object", properties: { a: deep } };
    tools.push({ name: "deep schema", inputSchema: deep });
  }
  return tools;
}

async function call(id, params, send, response) {
  const token = params._meta?.progressToken;
  const answer = (result) => send({ id, result });
  const progress = (progress) => send({ method: "notifications/progress", params: { progressToken: token, progress, message: `step ${progress}` } });
  switch (params.name) {
    case "echo": return answer(text(params.arguments.text ?? ""));
    case "silent": return;
    case "die": return process.exit(3);
    case "huge": return answer(text("h".repeat(1024 * 1024)));
    case "too_huge": return answer(text("h".repeat(17 * 1024 * 1024)));
    case "flood":
      for (let count = 0; count < 20000; count++) progress(count);
      return answer(text("flooded"));
    case "slow":
      for (let count = 0; count < 8; count++) { await sleep(100); progress(count); }
      return answer(text("slow"));
    case "refuse": return send({ id, error: { code: -32602, message: `no: ${process.env.TOKEN}` } });
    case "image_error":
      return answer({ isError: true, content: [{ type: "image", mimeType: "image/png", data: "iVBORw0KGgo=" }] });
    case "ask": {
      for (let count = 0; count < 50; count++) {
        send({ id: `q${count}`, method: "elicitation/create", params: { message: "Who?", requestedSchema: { type: "object", properties: {} } } });
      }
      asked = (replies) => answer(text(replies.join(",")));
      return;
    }
    case "add":
      names = ["echo", "added"];
      announce({ method: "notifications/tools/list_changed" });
      return answer(text("changed"));
    case "drop":
      hints.read = {};
      announce({ method: "notifications/tools/list_changed" });
      return answer(text("dropped"));
    case "added": return answer(text("added"));
    case "spawn": {
      const child = spawn("sleep", ["1000"]);
      note(`pid ${child.pid}`);
      return answer(text("spawned"));
    }
    case "secret":
      process.stderr.write(`token ${process.env.TOKEN}\n`);
      await sleep(50);
      return process.exit(4);
    // The first call of each of these tools is never answered.
    case "read": case "put": case "send": {
      const isFirst = !readFileSync(log, "utf8").includes(`called ${params.name}\n`);
      note(`called ${params.name}`);
      return isFirst ? undefined : answer(text(`${params.name} is done`));
    }
    // The answer is not JSON, as some libraries write it.
    case "unreadable": return send({ id, raw: `{"jsonrpc":"2.0","id":${id},"result":{"content":[],"structuredContent":{"a":NaN}}}` });
    case "noise":
      for (const raw of ["a log line", "{", "[1]", "\u0000"]) send({ raw });
      return answer(text("heard"));
    // A text that was cut inside a character, which is written as an unpaired escape.
    case "cut_text": return answer(text("cut \ud83d"));
    case "deaf": process.stdin.pause(); setInterval(() => {}, 1000); return;
  }
}

// Performs the misbehaviour that is possible only over HTTP. Returns whether the tool is one of these tools.
function callOverHttp(id, params, response) {
  const events = () => response.writeHead(200, { "content-type": "text/event-stream" });
  const json = () => response.writeHead(200, { "content-type": "application/json" });
  const forever = (start, part) => {
    response.write(start);
    const more = () => { while (response.write(part)); };
    response.on("drain", more);
    more();
  };
  switch (params.name) {
    case "too_huge_json": json().end(line({ id, result: text("h".repeat(17 * 1024 * 1024)) })); return true;
    case "endless_event": events(); forever("data: ", "h".repeat(65536)); return true;
    case "endless_json": json(); forever('{"jsonrpc":"2.0","x":"', "h".repeat(65536)); return true;
    case "endless_comments": {
      events();
      const timer = setInterval(() => response.write(": still here\n\n"), 20);
      response.on("close", () => clearInterval(timer));
      return true;
    }
    case "cut": events().write(": begins\n\n"); setTimeout(() => response.destroy(), 20); return true;
    case "no_headers": return true;
    case "status": response.writeHead(Number(params.arguments.text)).end("no"); return true;
    default: return false;
  }
}

// A server of version 2026-07-28 that answers calls with tasks.
const tasks = new Map();
function receiveAsModern({ id, method, params }, send) {
  const complete = (result) => send({ id, result: { resultType: "complete", ...result } });
  const now = "2026-07-28T00:00:00Z";
  switch (method) {
    case "server/discover": return complete({
      supportedVersions: ["2026-07-28"], capabilities: { tools: {}, extensions: { "io.modelcontextprotocol/tasks": {} } },
      ttlMs: 0, cacheScope: "private", _meta: { "io.modelcontextprotocol/serverInfo": { name: "hostile", version: "1" } },
    });
    case "tools/list": {
      const names = ["done", "fails", "cancelled", "asks", "asks_for_ever", "for_ever", "asks_without_task"];
      return complete({ tools: names.map((name) => ({ name, inputSchema: schema })), ttlMs: 0, cacheScope: "private" });
    }
    case "tools/call": {
      const capabilities = params._meta["io.modelcontextprotocol/clientCapabilities"];
      note(`capabilities ${JSON.stringify(capabilities)}`);
      if (params.name === "asks_without_task") {
        const count = Number(params.requestState ?? 0);
        return send({ id, result: { resultType: "input_required", requestState: String(count + 1) } });
      }
      const task = { taskId: `${params.name}-1`, status: "working", createdAt: now, lastUpdatedAt: now, ttlMs: null, pollIntervalMs: 1 };
      tasks.set(task.taskId, { ...task, polls: 0, answers: {} });
      return send({ id, result: { resultType: "task", ...task } });
    }
    case "tasks/get": {
      const { polls, answers, ...task } = tasks.get(params.taskId);
      tasks.get(params.taskId).polls++;
      task.statusMessage = `poll ${polls}`;
      const question = (key) => ({ [key]: { method: "elicitation/create", params: { mode: "form", message: key, requestedSchema: { type: "object", properties: {} } } } });
      if (polls < 2 || task.taskId.startsWith("for_ever")) return complete(task);
      switch (params.taskId) {
        case "done-1": return complete({ ...task, status: "completed", result: text("the result") });
        case "fails-1": return complete({ ...task, status: "failed", error: { code: -32603, message: `broken: ${process.env.TOKEN}` } });
        case "cancelled-1": return complete({ ...task, status: "cancelled" });
        case "asks-1": {
          const given = answers.a;
          if (given && polls > 4) return complete({ ...task, status: "completed", result: text(JSON.stringify(given)) });
          return complete({ ...task, status: "input_required", inputRequests: question("a") });
        }
        default: return complete({ ...task, status: "input_required", inputRequests: question(`q${polls}`) });
      }
    }
    case "tasks/update": Object.assign(tasks.get(params.taskId).answers, params.inputResponses); return complete({});
    case "tasks/cancel": note(`task ${params.taskId}`); return complete({});
    default: if (id !== undefined) send({ id, error: { code: -32601, message: "unknown" } });
  }
}

let asked;
const replies = [];
const methods = new Map();
async function receive(message, send, response) {
  const { id, method, params } = message;
  if (!method) {
    if (String(id).startsWith("q")) {
      replies.push(message.error ? "error" : message.result.action);
      if (replies.length === 50) asked(replies);
    }
    return;
  }
  if (id !== undefined) methods.set(id, method);
  note(method === "notifications/cancelled" ? `cancelled ${methods.get(params.requestId)}` : method);
  if (like === "exit_on_discover" && method === "server/discover") {
    process.stderr.write("ExpectedInitializeRequest\n");
    return process.exit(1);
  }
  if (like === "exit_on_message") {
    process.stderr.write(`no ${method}\n`);
    return process.exit(1);
  }
  if (like === "tasks") return receiveAsModern(message, send);
  switch (method) {
    case "initialize":
      if (like === "exits") { process.stderr.write(`bad token ${process.env.TOKEN}\n`); setTimeout(() => process.exit(1), 50); return; }
      if (like === "mute") return;
      return send({ id, result: { protocolVersion: params.protocolVersion, capabilities: { tools: { listChanged: true } }, serverInfo: { name: "hostile", version: "1" } } });
    case "tools/list":
      if (like === "heavy_list") {
        const tool = (count) => ({ name: `tool_${count}`, description: "x".repeat(60000), inputSchema: schema });
        return send({ id, result: { tools: Array.from({ length: 150 }, (_, count) => tool(count)), nextCursor: "again" } });
      }
      if (like === "endless_list") return send({ id, result: { tools: [], nextCursor: `page ${++listed}` } });
      if (like === "same_page" || like === "empty_cursor") {
        return send({ id, result: { tools: list(), nextCursor: like === "same_page" ? "again" : "" } });
      }
      if (like === "same_cursor") return send({ id, result: { tools: [{ name: `tool_${++listed}`, inputSchema: schema }], nextCursor: "again" } });
      if (like === "failing_list" && listed++) return send({ id, error: { code: -32603, message: "no list" } });
      if (like === "ttl" && listed++) names = ["echo", "added"];
      return send({ id, result: { tools: list(), ...(like === "ttl" ? { ttlMs: 100 } : {}) } });
    case "tools/call": return call(id, params, send, response);
    case "ping": return send({ id, result: {} });
    default: if (id !== undefined && like !== "mute" && like !== "no_discover") send({ id, error: { code: -32601, message: "unknown" } });
  }
}
let listed = 0;

let announce = (message) => process.stdout.write(line(message) + "\n");
if (port) {
  const streams = new Set();
  announce = (message) => streams.forEach((stream) => stream.write(`data: ${line(message)}\n\n`));
  const server = createServer(async (request, response) => {
    if (process.env.LIKE === "unauthorized") return response.writeHead(401, { "www-authenticate": "Bearer" }).end();
    if (request.method === "GET") {
      response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders();
      streams.add(response);
      return response.on("close", () => streams.delete(response));
    }
    if (request.method !== "POST") return response.writeHead(405).end();
    let body = "";
    for await (const part of request) body += part;
    const message = JSON.parse(body);
    if (message.id === undefined || !message.method) {
      response.writeHead(202).end();
      return receive(message);
    }
    if (message.method === "tools/call" && callOverHttp(message.id, message.params, response)) return note("tools/call");
    let open = false;
    const send = (part) => {
      if (!open) response.writeHead(200, { "content-type": "text/event-stream" });
      open = true;
      response.write(`data: ${line(part)}\n\n`);
      if (part.id === message.id && !part.method) response.end();
    };
    await receive(message, send, response);
    if (!open) response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders();
    open = true;
  });
  server.listen(Number(port), "127.0.0.1", () => note("listening"));
} else {
  const send = announce;
  createInterface({ input: process.stdin }).on("line", (text) => receive(JSON.parse(text), send));
  if (like !== "stubborn") process.stdin.on("end", () => process.exit(0));
}
if (like === "stubborn") { process.on("SIGTERM", () => {}); setInterval(() => {}, 1000); }
