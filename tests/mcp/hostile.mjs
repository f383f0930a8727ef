// A server of the Model Context Protocol without dependencies, over standard input and output. Its tools misbehave.
import { appendFileSync } from "node:fs";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

const log = process.env.LOG;
const note = (text) => appendFileSync(log, text + "\n");
note(`pid ${process.pid}`);

const send = (message) => process.stdout.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");
const text = (text) => ({ content: [{ type: "text", text }] });
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const like = process.env.LIKE ?? "";

let names = [
  "echo", "silent", "die", "huge", "too_huge", "flood", "slow", "refuse", "image_error", "ask", "add", "spawn", "secret", "deaf",
];
const schema = { type: "object", properties: { text: { type: "string" } } };

function list() {
  const tools = names.map((name) => ({ name, description: name === "echo" ? "x".repeat(9000) : name, inputSchema: schema }));
  if (like === "odd_list") {
    tools.push({ name: "bad schema", inputSchema: { type: "object", properties: { a: { type: "nonsense" } } } });
    tools.push({ name: "not object", inputSchema: { type: "string" } });
    tools.push({ name: "no schema" });
    tools.push({ name: "a b", inputSchema: schema }, { name: "a/b", inputSchema: schema });
    tools.push({ name: "n".repeat(300), inputSchema: schema });
  }
  return tools;
}

async function call(id, params) {
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
      send({ method: "notifications/tools/list_changed" });
      return answer(text("changed"));
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
    case "deaf": process.stdin.pause(); setInterval(() => {}, 1000); return;
  }
}

let asked;
const replies = [];
createInterface({ input: process.stdin }).on("line", async (line) => {
  const message = JSON.parse(line);
  const { id, method, params } = message;
  if (!method) {
    if (String(id).startsWith("q")) {
      replies.push(message.error ? "error" : message.result.action);
      if (replies.length === 50) asked(replies);
    }
    return;
  }
  note(method === "notifications/cancelled" ? `cancelled ${params.requestId}` : method);
  switch (method) {
    case "initialize":
      if (like === "exits") { process.stderr.write(`bad token ${process.env.TOKEN}\n`); setTimeout(() => process.exit(1), 50); return; }
      if (like === "mute") return;
      return send({ id, result: { protocolVersion: params.protocolVersion, capabilities: { tools: { listChanged: true } }, serverInfo: { name: "hostile", version: "1" } } });
    case "tools/list":
      if (like === "endless_list") return send({ id, result: { tools: [], nextCursor: "again" } });
      return send({ id, result: { tools: list() } });
    case "tools/call": return call(id, params);
    case "ping": return send({ id, result: {} });
    default: if (id !== undefined && like !== "mute") send({ id, error: { code: -32601, message: "unknown" } });
  }
});
if (like !== "stubborn") process.stdin.on("end", () => process.exit(0));
if (like === "stubborn") { process.on("SIGTERM", () => {}); setInterval(() => {}, 1000); }
