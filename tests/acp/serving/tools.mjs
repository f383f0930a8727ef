// An MCP server with one tool, which returns the text that it gets.

import { createInterface } from "node:readline";

const schema = { type: "object", properties: { text: { type: "string" } }, required: ["text"] };
const tools = [{ name: "echo", description: "Returns the text.", inputSchema: schema }];

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) continue;
  const answers = {
    initialize: () => ({
      protocolVersion: "2025-06-18",
      capabilities: { tools: {} },
      serverInfo: { name: "echo", version: "1" },
    }),
    "tools/list": () => ({ tools }),
    "tools/call": () => ({ content: [{ type: "text", text: `${params.arguments.text} from ${process.env.PLACE}` }] }),
  };
  const answer = answers[method];
  const body = answer ? { result: answer() } : { error: { code: -32601, message: "unknown method" } };
  console.log(JSON.stringify({ jsonrpc: "2.0", id, ...body }));
}
