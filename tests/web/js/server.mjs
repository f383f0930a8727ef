// Starts the program of the example `web_chat`, for the tests in a browser.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";

/** The programs that run. None of them outlives the script, even if the script fails or takes too long. */
const running = new Set();
process.on("exit", () => running.forEach((child) => child.kill("SIGKILL")));

/**
 * Starts the program at the first of these ports that is free, and waits until it listens. Only the program itself binds a
 * port: nobody else can take a port between a check and the start. Returns the process and the port.
 */
export async function serve(program, ports, flags, env) {
  for (const port of ports) {
    const child = spawn(program, ["--port", String(port), ...flags], { env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "inherit"] });
    running.add(child);
    const ended = once(child, "exit").then(() => running.delete(child) && null);
    const line = await Promise.race([once(child.stdout, "data", { signal: AbortSignal.timeout(300_000) }), ended]);
    if (line === null) continue;
    assert.equal(String(line[0]).trim(), `http://127.0.0.1:${port}/`);
    return { child, port };
  }
  assert.fail(`the server does not start at any of the ports ${ports.join(", ")}`);
}

/** Returns `count` ports, from this one on. */
export const portsFrom = (first, count) => Array.from({ length: count }, (_, index) => first + index);
