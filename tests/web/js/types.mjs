// Checks the types of `client.js` with TypeScript, and compares them with the OpenAPI document: each typedef with the type
// that the server sends, each type of a command with the type that the server reads, and each method with its operation.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import test from "node:test";

const packages = process.env.OMNI_NODE_MODULES;
const required = createRequire(join(packages, "package.json"));
const ts = required("typescript");
const { default: openapiTS, astToString } = required("openapi-typescript");

const repository = new URL("../../../", import.meta.url);
const openapi = new URL("schema/openapi.json", repository);
const source = readFileSync(new URL("examples/web_chat/page/client.js", repository), "utf8");

/** The names of types in the document that differ from those in the client. */
const NAMES = { Update: "SessionUpdate" };
/** Typedefs of the client alone, and the union of all events, whose members a client reads by their names. */
const OWN = ["StreamState", "StreamOptions", "Index"];
const LOOSE = ["Event", "SessionEvent", "ManagerEvent", "Problem"];
/** The types that a client only sends. */
const SENT_BY_CLIENT = ["SessionCommand"];
/** The types of commands, with the types that the server reads. */
const INPUTS = {
  Prompt: "PromptInput", Decision: "DecisionInput", SessionCommand: "SessionCommand", Content: "ContentInput",
  ToolResult: "ToolResultInput",
};
/** The methods of the client, with their operations and the position of the body or the query in their arguments. */
const METHODS = {
  conversations: ["listConversations", "query", 0],
  search: ["search", "query", 0],
  create: ["createConversation", "body", 0],
  snapshot: ["readConversation"],
  delete: ["deleteConversation"],
  command: ["performCommand", "body", 1],
  messages: ["readMessages", "query", 1],
  rows: ["readLedger", "query", 1],
  usage: ["sumUsage", "query", 0],
};

/** The comparisons, as a program that compiles if all types fit. */
function comparisons() {
  const typedefs = [...source.matchAll(/@typedef \{(?:object|[^@]*?)\}\s+(\w+)$/gm)].map(([, name]) => name);
  assert.ok(typedefs.length > 40, "the typedefs are found");
  const compared = typedefs.filter((name) => !OWN.includes(name));
  const lines = [
    'import type * as client from "./client.js";',
    'import type { components, operations } from "./openapi.js";',
    'type Server = components["schemas"];',
    "type Keys<T> = T extends object ? keyof T : never;",
    // `true` if B has all members of A. Otherwise, the names of the members that B lacks.
    "type Lacks<A, B> = [Exclude<Keys<A>, Keys<B>>] extends [never] ? true : Exclude<Keys<A>, Keys<B>>;",
    "declare const sent: Server;",
    'type Json<R> = R extends { content: { "application/json": infer A } } ? A : never;',
    "type Responses<O extends keyof operations> = operations[O][\"responses\"];",
    "type Answer<O extends keyof operations> = Responses<O> extends { 200: infer R } ? Json<R>",
    "  : Responses<O> extends { 201: infer R } ? Json<R> : void;",
    "type Query<O extends keyof operations> = Required<operations[O][\"parameters\"]>[\"query\"];",
    "type Body<O extends keyof operations> = operations[O] extends { requestBody: infer R } ? Json<R> : never;",
    "type Method<M extends keyof client.Client> = client.Client[M] extends (...values: infer A) => infer R ? [A, R] : never;",
  ];
  for (const name of compared) {
    const theirs = NAMES[name] ?? name;
    if (!SENT_BY_CLIENT.includes(name)) lines.push(`export const sent_${name}: client.${name} = sent["${theirs}"];`);
    if (LOOSE.includes(name)) continue;
    lines.push(`export const client_has_all_of_${name}: Lacks<Server["${theirs}"], client.${name}> = true;`);
    lines.push(`export const server_has_all_of_${name}: Lacks<client.${name}, Server["${theirs}"]> = true;`);
  }
  for (const [name, theirs] of Object.entries(INPUTS)) {
    lines.push(`export const read_${name} = (value: client.${name}): Server["${theirs}"] => value;`);
  }
  for (const [method, [operation, part, at]] of Object.entries(METHODS)) {
    lines.push(`export const answer_of_${method} = (value: Answer<"${operation}">): Awaited<Method<"${method}">[1]> => value;`);
    if (!part) continue;
    const ours = `NonNullable<Method<"${method}">[0][${at}]>`;
    const theirs = `${part === "body" ? "Body" : "Query"}<"${operation}">`;
    lines.push(`export const ${part}_of_${method} = (value: ${ours}): ${theirs} => value;`);
    lines.push(`export const ${method}_has_all_of_${part}: Lacks<${theirs}, ${ours}> = true;`);
    lines.push(`export const ${part}_has_all_of_${method}: Lacks<${ours}, ${theirs}> = true;`);
  }
  return `${lines.join("\n")}\n`;
}

writeFileSync(join(packages, "openapi.ts"), astToString(await openapiTS(openapi, { defaultNonNullable: false })));
writeFileSync(join(packages, "comparisons.ts"), comparisons());

const options = {
  strict: true, noEmit: true, allowJs: true, checkJs: true, skipLibCheck: true, types: [],
  target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler,
  lib: ["lib.es2022.d.ts", "lib.dom.d.ts", "lib.dom.iterable.d.ts", "lib.dom.asynciterable.d.ts"],
};

/** Returns the errors of the client with this source. */
function errors(client) {
  writeFileSync(join(packages, "client.js"), client);
  const program = ts.createProgram(["client.js", "comparisons.ts"].map((name) => join(packages, name)), options);
  return ts.getPreEmitDiagnostics(program).map(({ file, start, messageText }) => {
    const line = file && start !== undefined ? file.text.slice(0, start).split("\n").length : 0;
    const code = file?.text.split("\n")[line - 1]?.trim();
    return `${file?.fileName.split("/").pop()}:${line}: ${ts.flattenDiagnosticMessageText(messageText, "\n")}\n    ${code}`;
  });
}

test("types_of_the_client_are_strict_and_equal_those_of_the_server", () => {
  assert.deepEqual(errors(source), []);
});

test("types_of_a_client_with_mistakes_have_errors", () => {
  const mistakes = [
    // A mistake in the code.
    ['this.base = base.replace(/\\/$/, "");', "this.base = base.replace(7);", /^client.js/],
    // A wrong type, a missing member, a member that the server does not send, and a wrong alternative.
    ["content: Content[], timestamp: number", "content: Content[], timestamp: string", /sent_Message/],
    ["tool_use_id: string, input?: any, is_error?: boolean", "tool_use_id: string, input?: any", /client_has_all_of_ToolRun/],
    ["{ secs: number, nanos: number }", "{ secs: number, nanos: number, days?: number }", /server_has_all_of_Duration/],
    ['"idle" | "queued" | "busy" | "paused"', '"idle" | "busy" | "paused"', /sent_OpenSession/],
    // A command that the server does not read, a wrong answer and a wrong query.
    ['{ type: "erase", node: number }', '{ type: "erase", node: string }', /read_SessionCommand/],
    ["@returns {Promise<UsageSum[]>}", "@returns {Promise<UsageSum>}", /answer_of_usage/],
    ["@param {{ from?: number, to?: number }} [query]", "@param {{ since?: number, to?: number }} [query]", /usage_has_all_of_query/],
  ];
  let wrong = source;
  for (const [right, mistake] of mistakes) {
    assert.ok(wrong.includes(right), `the client contains: ${right}`);
    wrong = wrong.replace(right, () => mistake);
  }
  const found = errors(wrong);
  for (const [, mistake, error] of mistakes) {
    assert.ok(found.some((text) => error.test(text)), `${mistake}\n${found.join("\n")}`);
  }
});
