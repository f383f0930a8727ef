// A server of the versions before 2026-07-28, over HTTP if PORT is set.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { note, register, text } from "./tools.mjs";

async function ask(kind, context, server) {
  const requestedSchema = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
  const options = { relatedRequestId: context.requestId, timeout: 60000 };
  const form = () => server.server.elicitInput({ mode: "form", message: "Who?", requestedSchema }, options);
  const url = () => server.server.elicitInput(
    { mode: "url", message: "Log in", url: "https://example.com/login", elicitationId: randomUUID() }, options);
  note("asked");
  if (kind === "endless") for (;;) await form();
  const answers = {};
  if (kind !== "url") answers.form = await form();
  if (kind !== "form") answers.url = await url();
  return text(JSON.stringify({ answers }));
}

const make = () => register(
  new McpServer({ name: "old", version: "1.0.0" }, { capabilities: { tools: { listChanged: true } } }), () => {}, ask);

if (process.env.PORT) {
  const sessions = new Map();
  const server = createServer(async (request, response) => {
    let transport = sessions.get(request.headers["mcp-session-id"]);
    if (!transport && request.headers["mcp-session-id"]) return response.writeHead(404).end();
    if (!transport) {
      transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => sessions.set(id, transport),
      });
      await make().connect(transport);
    }
    await transport.handleRequest(request, response);
  });
  server.listen(Number(process.env.PORT), "127.0.0.1", () => note("listening"));
} else {
  await make().connect(new StdioServerTransport());
}
