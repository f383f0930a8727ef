// Tests of `client.js`: the function `fold`, which applies updates to a snapshot and is compared with recordings of the
// crate; the reader of server-sent events; the reconnection; and the vendored lexer.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import test from "node:test";

import { Client, ProblemError, apply, fill, fold, foldList, frames, pathOf, tailOf } from "../../../examples/web_chat/page/client.js";
import { firstWords } from "../../../examples/web_chat/page/messages.js";
import { stateOf } from "../../../examples/web_chat/page/tools.js";

const recordings = process.env.OMNI_RECORDINGS ? JSON.parse(readFileSync(process.env.OMNI_RECORDINGS, "utf8")) : [];

for (const { name, before, steps } of recordings) {
  test(`fold_${name}_equals_the_snapshot_after_each_update`, () => {
    let snapshot = before;
    assert.ok(steps.length > 10);
    for (const [index, { update, after }] of steps.entries()) {
      snapshot = fold(snapshot, structuredClone(update));
      // Costs can be compared exactly, because the client and the crate add the same decimal fractions in the same
      // order.
      assert.deepEqual(snapshot, after, `update ${index}: ${JSON.stringify(update).slice(0, 300)}`);
    }
  });

  test(`fold_${name}_twice_changes_nothing`, () => {
    let snapshot = structuredClone(steps.at(-1).after);
    for (const { update } of steps) snapshot = fold(snapshot, update);
    assert.deepEqual(snapshot, steps.at(-1).after);
  });

  test(`fold_${name}_with_a_missing_update_fails`, () => {
    const snapshot = structuredClone(steps[0].after);
    assert.throws(() => fold(snapshot, steps[2].update));
  });
}

test("fold_of_the_list_applies_all_events", () => {
  const session = (id) => ({ id, title: null, activity: "idle" });
  let list = foldList(null, { type: "resync", snapshot: { last: "a-1", open: [session("x")], waiting: [] } });
  const events = [
    { type: "waiting", id: "y" }, { type: "opened", session: session("y") }, { type: "status", id: "y", activity: "busy" },
    { type: "title", id: "y", title: "T" }, { type: "labels", id: "y", labels: { user: "ann" } }, { type: "waiting", id: "z" },
    { type: "given_up", id: "z" }, { type: "closed", id: "x", reason: "idle" }, { type: "deleted", id: "x" },
  ];
  // The event numbers of the list may have gaps.
  for (const [index, event] of events.entries()) list = foldList(list, { type: "event", id: `a-${2 * index + 3}`, event });
  const open = [{ id: "y", title: "T", activity: "busy", labels: { user: "ann" } }];
  assert.deepEqual(list, { last: "a-19", open, waiting: [] });
});

const bodyOf = (...pieces) => new ReadableStream({
  start(controller) {
    for (const piece of pieces) controller.enqueue(typeof piece === "string" ? new TextEncoder().encode(piece) : piece);
    controller.close();
  },
});

test("frames_cut_at_every_byte_are_the_same", async () => {
  const text = ": keep-alive\n\nevent: list\r\ndata: {\"ä\":\r\ndata: 1}\rid: 7\n\ndata:x\n\nevent: cut\ndata: y";
  const bytes = new TextEncoder().encode(text);
  for (let cut = 0; cut <= bytes.length; cut += 1) {
    const found = [];
    for await (const frame of frames(bodyOf(bytes.slice(0, cut), bytes.slice(cut)))) found.push([frame.event, frame.data]);
    assert.deepEqual(found, [["list", "{\"ä\":\n1}"], ["message", "x"]], `cut at ${cut}`);
  }
});

const empty = (last) => ({
  last, id: "c", title: null, used: { input: 0, cache_read: 0, cache_write: 0, output: 0, reasoning: 0 },
  tree: { nodes: [], head: null, cursors: [] }, unsaved: [], store: null,
  agent: { last: "b-0", state: { model: "m", tools: [], options: {}, history: [] }, status: "idle", step: 0, pending: [], partial: [], run: 0 },
});
const frame = (event, data) => `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`;
const title = (id, title) => frame("conversation", { conversation: "c", update: { type: "event", id, event: { type: "title", title } } });
const resync = (last) => frame("conversation", { conversation: "c", update: { type: "resync", snapshot: empty(last) } });

test("fold_of_an_update_of_an_earlier_life_changes_nothing", () => {
  const event = (id) => ({ type: "event", id, event: { type: "title", title: "former" } });
  const snapshot = empty("100-2");
  for (const update of [event("ff-9"), { type: "resync", snapshot: empty("ff-9") }, { type: "closed", reason: "lost_place", snapshot: empty("ff-9") }]) {
    assert.equal(fold(snapshot, update), snapshot, update.type);
    assert.deepEqual(snapshot, empty("100-2"), update.type);
  }
  assert.equal(fold(snapshot, { type: "resync", snapshot: empty("101-0") }).last, "101-0");
  assert.throws(() => fold(snapshot, event("101-2")));
  // A reader that has seen a whole life continues with the first event of the next one.
  assert.equal(fold(snapshot, event("101-1")).last, "101-1");
});

test("apply_of_a_resumed_turn_removes_what_is_emitted_again", () => {
  const rest = { ...empty("1-1").agent, status: "busy", turn: "t", pending: [{ role: "user", content: [], timestamp: 1 }] };
  const agent = { ...structuredClone(rest), partial: [{ content: { type: "text", text: "void" }, ended: false }], pauses: [{}], tools: [{}] };
  apply(agent, { type: "resumed", turn: "t", lives: 1 });
  assert.deepEqual(agent, rest);
});

/** A server that answers each request with the next body. */
function scripted(bodies) {
  const requests = [];
  const fetch = async (url, { headers, signal }) => {
    requests.push({ url, position: headers["last-event-id"] });
    const body = bodies.shift();
    if (body instanceof Response) return body;
    if (body === undefined) {
      return new Promise((_, reject) => signal.addEventListener("abort", () => reject(new DOMException("aborted", "AbortError"))));
    }
    return new Response(bodyOf(body), { status: 200 });
  };
  return { requests, client: new Client("/agent", { fetch }) };
}

/** Waits until the condition holds after a report of the stream. */
function following(client, condition, options = {}) {
  return new Promise((resolve) => {
    const look = (...rest) => {
      if (condition(stream, ...rest)) {
        stream.close();
        resolve(stream);
      }
    };
    const stream = client.stream({ watch: ["c"], onConversation: look, onRefused: look, ...options });
  });
}

test("stream_after_an_announced_end_continues_after_the_last_event", async () => {
  const { requests, client } = scripted([
    resync("a-1") + title("a-2", "two") + frame("ending", { retry_after: 0 }),
    // The event `a-2` is sent again, and has no effect.
    title("a-2", "again") + title("a-3", "three"),
  ]);
  const stream = await following(client, ({ snapshots }) => snapshots.get("c")?.last === "a-3");
  assert.equal(stream.snapshots.get("c").title, "three");
  assert.deepEqual(requests.map(({ position }) => position), [undefined, "c:a-2"]);
});

test("stream_after_a_gap_asks_for_a_new_snapshot", async () => {
  const { requests, client } = scripted([resync("a-1") + title("a-5", "five"), resync("a-5")]);
  await following(client, ({ snapshots }) => snapshots.get("c")?.last === "a-5");
  assert.deepEqual(requests.map(({ position }) => position), [undefined, undefined]);
});

test("stream_ignores_a_former_owner_of_the_conversation", async () => {
  const { requests, client } = scripted([
    resync("10-1") + title("10-2", "two"),
    resync("f-7") + title("f-8", "former"),
    resync("11-1") + title("11-2", "three"),
  ]);
  const seen = [];
  const isNew = ({ snapshots }) => {
    seen.push(snapshots.get("c").last);
    return snapshots.get("c").last === "11-2";
  };
  await following(client, isNew);
  assert.deepEqual(seen, ["10-1", "10-2", "11-1", "11-2"]);
  assert.deepEqual(requests.map(({ position }) => position), [undefined, "c:10-2", "c:10-2"]);
});

test("stream_begins_anew_after_the_end_of_a_session", async () => {
  const closed = frame("conversation", { conversation: "c", update: { type: "closed", reason: "deleted", snapshot: null } });
  const { client } = scripted([resync("10-1") + closed, resync("1-1")]);
  const isNew = (stream, _, snapshot, update) => {
    if (update.type === "closed") stream.watch(["c"]);
    return snapshot.last === "1-1";
  };
  const stream = await following(client, isNew);
  assert.equal(stream.snapshots.get("c").last, "1-1");
});

test("stream_after_an_unannounced_end_waits_and_connects_again", async () => {
  const { client } = scripted([resync("a-1"), title("a-2", "two")]);
  const states = [];
  await following(client, ({ snapshots }) => snapshots.get("c")?.last === "a-2", { onState: (state) => states.push(state) });
  assert.deepEqual(states.slice(0, 5), ["connecting", "open", "waiting", "connecting", "open"]);
});

/** Waits until everything has happened that needs no timer. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

test("stream_without_any_bytes_for_a_while_continues_over_another_connection", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const requests = [];
  // The bodies never end. They fail if the request is aborted.
  const fetch = async (_, { headers, signal }) => {
    const body = new ReadableStream({
      start(controller) {
        const send = (text) => controller.enqueue(new TextEncoder().encode(text));
        requests.push({ position: headers["last-event-id"], send });
        signal.addEventListener("abort", () => controller.error(new DOMException("aborted", "AbortError")));
      },
    });
    return new Response(body);
  };
  const states = [];
  const stream = new Client("/agent", { fetch }).stream({ watch: ["c"], onState: (state) => states.push(state) });
  requests[0].send(resync("a-1"));
  await settled();
  assert.equal(stream.snapshots.get("c").last, "a-1");
  // A comment shows that the connection works.
  t.mock.timers.tick(44_999);
  requests[0].send(": keep-alive\n\n");
  await settled();
  t.mock.timers.tick(44_999);
  await settled();
  assert.equal(requests.length, 1);
  t.mock.timers.tick(1);
  await settled();
  assert.deepEqual(requests.map(({ position }) => position), [undefined, "c:a-1"]);
  assert.deepEqual(states, ["connecting", "open", "connecting", "open"]);
  stream.close();
  t.mock.timers.tick(45_000);
  await settled();
  assert.equal(requests.length, 2);
});

test("stream_without_an_answer_for_a_while_asks_again_unless_the_silence_is_infinite", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  for (const [silence, expected] of [[10, 2], [Number.POSITIVE_INFINITY, 1]]) {
    const { requests, client } = scripted([]);
    const stream = client.stream({ watch: ["c"], silence });
    t.mock.timers.tick(10);
    await settled();
    assert.equal(requests.length, expected);
    stream.close();
  }
});

test("stream_without_permission_is_closed", async () => {
  const problem = { type: "urn:omni-agent:unauthenticated", title: "The request is not authenticated.", status: 401 };
  const { client } = scripted([Response.json(problem, { status: 401 })]);
  const error = await new Promise((resolve) => client.stream({ list: true, onState: (state, error) => state === "closed" && resolve(error) }));
  assert.ok(error instanceof ProblemError);
  assert.equal(error.code, "unauthenticated");
});

test("stream_with_a_refused_conversation_reports_the_problem_and_keeps_the_others", async () => {
  const refused = (conversation, code, status, rest) => frame("refused", { conversation, problem: { type: `urn:omni-agent:${code}`, title: "…", status }, ...rest });
  const { client } = scripted([refused("d", "not-found", 404) + refused("e", "newer-turn", 503, { retry_after: 30 }) + resync("a-1")]);
  const found = [];
  const onRefused = (id, { status }, retryAfter) => found.push([id, status, retryAfter]);
  const stream = await following(client, ({ snapshots }) => snapshots.has("c"), { watch: ["c", "d", "e"], onRefused });
  assert.deepEqual(found, [["d", 404, null], ["e", 503, 30]]);
  assert.deepEqual(stream.watched, ["c"]);
});

test("request_with_an_error_status_becomes_a_problem", async () => {
  const answer = Response.json({ type: "urn:omni-agent:busy", title: "A run is active.", status: 409, activity: "busy" }, { status: 409, headers: { "retry-after": "5" } });
  const client = new Client("", { fetch: async () => answer });
  await assert.rejects(client.command("c", { type: "cancel" }), (error) => {
    assert.equal(error.code, "busy");
    assert.equal(error.problem.activity, "busy");
    assert.equal(error.retryAfter, 5);
    return true;
  });
  const proxy = new Client("", { fetch: async () => new Response("<html>", { status: 502, statusText: "Bad Gateway" }) });
  await assert.rejects(proxy.snapshot("c"), { status: 502, message: "Bad Gateway" });
});

test("requests_have_the_routes_of_the_server", async () => {
  const seen = [];
  const client = new Client("/agent/", { headers: { authorization: "Bearer x" }, fetch: async (url, init) => {
    seen.push(`${init.method ?? "GET"} ${url} ${init.body ?? ""}`.trim());
    assert.equal(init.headers.authorization, "Bearer x");
    return Response.json({});
  } });
  await client.conversations({ limit: 5, after: "1.a" });
  await client.search({ q: "a b" });
  await client.approvals({ limit: 5 });
  await client.create({ title: "T" });
  await client.snapshot("a/b");
  await client.delete("c");
  await client.command("c", { type: "interrupt" });
  await client.fork("c", 4);
  await client.messages("c", { before: 7, limit: 2 });
  await client.rows("c", { limit: 1 });
  await client.usage({ from: 1 });
  await client.schema("updates");
  await client.schema("commands");
  client.stream({ list: true, watch: ["c"] }).close();
  assert.deepEqual(seen, [
    "GET /agent/conversations?limit=5&after=1.a", "GET /agent/search?q=a+b", "GET /agent/approvals?limit=5", 'POST /agent/conversations {"title":"T"}',
    "GET /agent/conversations/a%2Fb", "DELETE /agent/conversations/c",
    'POST /agent/conversations/c/commands {"type":"interrupt"}', 'POST /agent/conversations/c/forks {"node":4}',
    "GET /agent/conversations/c/messages?before=7&limit=2",
    "GET /agent/conversations/c/usage?limit=1", "GET /agent/usage?from=1", "GET /agent/schema/updates",
    "GET /agent/schema/commands", "GET /agent/events?watch=c&list=true",
  ]);
  const file = client.file("c", "m/1", "2-0");
  assert.equal(file, "/agent/conversations/c/files/m%2F1/2-0");
  // A test in Rust compares the document with the routes of the router.
  const { paths } = JSON.parse(readFileSync(new URL("../../../schema/openapi.json", import.meta.url), "utf8"));
  const operations = Object.entries(paths).flatMap(([path, item]) => Object.keys(item)
    .filter((method) => method !== "parameters").map((method) => `${method.toUpperCase()} ${path}`));
  const requested = [...seen, `GET ${file}`].map((request) => {
    const [method, address] = request.split(" ");
    const segments = new URL(address, "http://localhost").pathname.replace("/agent", "").split("/");
    const fits = (template) => template.length === segments.length
      && template.every((name, at) => name.startsWith("{") || name === segments[at]);
    const found = operations.filter((operation) => {
      const [known, path] = operation.split(" ");
      return known === method && fits(path.split("/"));
    });
    assert.equal(found.length, 1, request);
    return found[0];
  });
  // The client uses neither of these two routes. Instead of the stream of one conversation, it reads the stream of the
  // page. The OpenAPI document is for tools.
  const unused = ["GET /conversations/{id}/events", "GET /openapi.json"];
  assert.deepEqual([...new Set([...requested, ...unused])].sort(), operations.sort());
});

test("tail_is_filled_with_pages_and_keeps_them_in_a_new_tail_of_the_same_life", () => {
  const message = (text) => ({ role: "user", content: [{ type: "text", text }], timestamp: 1 });
  const whole = (id) => ({ id, ...(id > 1 && { parent: id - 1 }), message: message(`${id}`) });
  const outline = (id) => ({ id, ...(id > 1 && { parent: id - 1 }), role: "user" });
  const tail = (last, from, nodes) => ({ last, from, tree: { nodes, head: nodes.at(-1).id, cursors: [] }, unsaved: [] });
  const ids = (snapshot) => tailOf(snapshot.tree).map((node) => node.id);
  const snapshot = tail("1-5", 4, [outline(1), outline(2), outline(3), whole(4)]);
  assert.deepEqual([ids(snapshot), pathOf(snapshot.tree).length], [[4], 4]);
  fill(snapshot, [whole(2), whole(3)]);
  assert.deepEqual([ids(snapshot), snapshot.from], [[2, 3, 4], 2]);
  const next = (last) => tail(last, 5, [outline(1), outline(2), outline(3), outline(4), whole(5)]);
  const same = fold(snapshot, { type: "resync", snapshot: next("1-9") });
  assert.deepEqual([ids(same), same.from], [[2, 3, 4, 5], 2]);
  const other = fold(snapshot, { type: "resync", snapshot: next("2-1") });
  assert.deepEqual([ids(other), other.from], [[5], 5]);
  fill(same, [whole(1)]);
  assert.deepEqual([ids(same), same.from], [[1, 2, 3, 4, 5], undefined]);
});

test("path_of_an_empty_tree_is_empty", () => {
  assert.deepEqual(pathOf({ nodes: [], head: null, cursors: [] }), []);
});

test("vendored_lexer_has_the_recorded_hash", () => {
  const folder = new URL("../../../examples/web_chat/vendor/", import.meta.url);
  const hash = createHash("sha256").update(readFileSync(new URL("marked.esm.js", folder))).digest("hex");
  assert.ok(readFileSync(new URL("README.md", folder), "utf8").includes(hash));
});

test("page_has_no_way_to_parse_html", () => {
  const folder = new URL("../../../examples/web_chat/page/", import.meta.url);
  const names = readdirSync(folder).filter((name) => name.endsWith(".js"));
  assert.ok(names.length > 10);
  for (const name of names) {
    const source = readFileSync(new URL(name, folder), "utf8");
    assert.doesNotMatch(source, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|setHTML|DOMParser|createContextualFragment|\beval\(|new Function/, name);
  }
});

const conversation = (text) => {
  const snapshot = empty("1-1");
  snapshot.agent.pending.push({ role: "user", content: [{ type: "text", text }], timestamp: 1 });
  return snapshot;
};

test("firstWords_of_a_long_or_strange_text_are_cut_between_whole_characters", () => {
  assert.equal(firstWords(empty("1-1")), null);
  assert.equal(firstWords(conversation(" Where\n\u0007is \u001b[31mit? ")), "Where is [31mit?");
  assert.equal(firstWords(conversation(`${"word ".repeat(9)}and the rest`)), `${"word ".repeat(9)}and…`);
  const family = "👨‍👩‍👧‍👦";
  assert.equal(firstWords(conversation(family.repeat(60))), `${family.repeat(50)}…`);
});

test("stateOf_a_tool_that_never_ran_is_not_a_failure", () => {
  const failed = (text) => ({ content: [{ type: "text", text }], is_error: true });
  const facts = { use: { id: "a", name: "send", input: {} }, isWritten: true, isActive: false };
  const texts = ["Not run: the limit of 20 steps is reached.", "Interrupted. The tool was not run.", "The run failed (invalid request). The tool was not run."];
  for (const text of texts) assert.equal(stateOf({ ...facts, result: failed(text) }), "open", text);
  assert.equal(stateOf({ ...facts, result: failed("The disk is full.") }), "error");
  const late = { ...facts, decided: { kind: "expired", at: 1 }, result: failed("The approval was not given in time.") };
  assert.equal(stateOf(late), "denied");
  assert.equal(stateOf({ ...late, timing: { start: 1, end: 2 } }), "error");
  assert.equal(stateOf({ ...facts, isUnstarted: true, result: failed("There is no tool \"sned\".") }), "open");
});
