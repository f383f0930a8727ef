// A server of version 2026-07-28, over HTTP if PORT is set.
import { createServer } from "node:http";
import { toNodeHandler } from "@modelcontextprotocol/node";
import { McpServer, createMcpHandler, inputRequired } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { note, register, text } from "./tools.mjs";

let announce = () => {};

function ask(kind, context) {
  const answers = context.mcpReq.inputResponses;
  const state = context.mcpReq.requestState();
  if (answers && kind !== "endless") return text(JSON.stringify({ answers, state }));
  const requestedSchema = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
  const form = inputRequired.elicit({ message: "Who?", requestedSchema });
  const url = inputRequired.elicitUrl({ message: "Log in", url: "https://example.com/login" });
  const requests = { form: { form }, url: { url }, two: { form, url }, endless: { form } };
  note("asked");
  return inputRequired({ inputRequests: requests[kind], requestState: `state of ${kind}` });
}

const make = () => register(
  new McpServer({ name: "new", version: "1.0.0" }, { capabilities: { tools: { listChanged: true } } }),
  () => announce(), ask);

if (process.env.PORT) {
  const handler = createMcpHandler(make);
  announce = () => handler.notify.toolsChanged();
  const server = createServer(toNodeHandler(handler));
  server.listen(Number(process.env.PORT), "127.0.0.1", () => note("listening"));
} else {
  serveStdio(make);
}
