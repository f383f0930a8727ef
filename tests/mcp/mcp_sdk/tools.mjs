// The tools that the servers of both generations offer.
import { appendFileSync } from "node:fs";
import { z } from "zod";

export const note = (text) => process.env.LOG && appendFileSync(process.env.LOG, text + "\n");
export const text = (text) => ({ content: [{ type: "text", text }] });
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const empty = z.object({});
note(`pid ${process.pid}`);

// The context of a call, which differs between the generations.
const view = (context) => context.mcpReq
  ? { signal: context.mcpReq.signal, meta: context.mcpReq._meta, notify: context.mcpReq.notify,
      header: (name) => context.http?.req?.headers.get(name) }
  : { signal: context.signal, meta: context._meta, notify: context.sendNotification,
      header: (name) => context.requestInfo?.headers[name] };

let changed = false;
const servers = new Set();
const change = (server) => {
  server.registerTool("added", { inputSchema: empty }, () => text("added"));
};

// Registers the tools. `announce` reports a changed list to clients that another server object serves.
export function register(server, announce, ask) {
  servers.add(server);
  server.registerTool("echo", { description: "Repeats a text.", inputSchema: z.object({ text: z.string() }) },
    ({ text: said }) => text(said));
  server.registerTool("fail", { inputSchema: empty }, () => ({ ...text("it failed"), isError: true }));
  server.registerTool("throw", { inputSchema: empty }, () => { throw new Error("it threw"); });
  server.registerTool("image", { inputSchema: empty },
    () => ({ content: [{ type: "image", mimeType: "image/png", data: "iVBORw0KGgo=" }] }));
  server.registerTool("progress", { inputSchema: z.object({ steps: z.number() }) }, async ({ steps }, context) => {
    const { meta, notify, signal } = view(context);
    for (let progress = 1; progress <= steps && !signal.aborted; progress++) {
      await sleep(50);
      const params = { progressToken: meta.progressToken, progress, total: steps, message: `step ${progress}` };
      await notify({ method: "notifications/progress", params });
    }
    return text("done");
  });
  server.registerTool("silent", { inputSchema: empty }, (_, context) => new Promise(() => {
    note("silent");
    view(context).signal.addEventListener("abort", () => note("aborted"));
  }));
  server.registerTool("change", { inputSchema: empty }, () => {
    if (!changed) {
      changed = true;
      servers.forEach(change);
      announce();
    }
    return text("changed");
  });
  server.registerTool("meta", { inputSchema: empty }, (_, context) => text(JSON.stringify(view(context).meta ?? {})));
  server.registerTool("who", { inputSchema: empty },
    (_, context) => text(`key of ${(view(context).header("authorization") ?? "").length} bytes`));
  server.registerTool("kill", { inputSchema: empty }, () => process.exit(3));
  server.registerTool("ask", { inputSchema: z.object({ kind: z.enum(["form", "url", "two", "endless"]) }) },
    ({ kind }, context) => ask(kind, context, server));
  if (changed) change(server);
  return server;
}
