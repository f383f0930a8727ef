// A client for the native routes of `omni_agent::web`, in one file without a build step.
//
//     import { Client, fold } from "./client.js";
//
//     const client = new Client("/agent");
//     const { id } = await client.create();
//     const stream = client.stream({ watch: [id], onConversation: (id, snapshot) => console.log(snapshot.agent.status) });
//     await client.command(id, { type: "run", prompt: { content: [{ type: "text", text: "Hi" }] } });
//     stream.close();
//
// A stream reconnects by itself and continues after the last event that it has received. `fold` applies an update to a
// snapshot, like `SessionSnapshot::take` in Rust. All types describe the JSON of the Rust types with the same names.

/**
 * @typedef {{ secs: number, nanos: number }} Duration
 * @typedef {{ text: string, signature?: string }} Text
 * @typedef {{ text: string, signature?: string, redacted?: string }} Thinking
 * @typedef {{ type: "base64", data: string } | { type: "url", url: string }} Source
 * @typedef {{ source: Source, media_type: string, name?: string, metadata?: Record<string, any> }} Attachment
 * @typedef {{ id: string, name: string, input: any, malformed?: string, signature?: string, decided?: ToolResult }} ToolUse
 * @typedef {{ tool_use_id: string, name: string, content: ResultBlock[], is_error: boolean, decision?: UseDecision }} ToolResult
 * @typedef {({ type: "text" } & Text) | ({ type: "attachment" } & Attachment)} ResultBlock
 * @typedef {{ format: string, data: any }} ProviderItem
 * @typedef {({ type: "text" } & Text) | ({ type: "thinking" } & Thinking) | ({ type: "attachment" } & Attachment)
 *   | ({ type: "tool_use" } & ToolUse) | ({ type: "tool_result" } & ToolResult)
 *   | ({ type: "provider_item" } & ProviderItem)} Content
 * @typedef {{ is_summary: boolean, kept: number, cleared: number, trigger: "size" | "overflow" | "request",
 *   tokens?: [number, number], model?: string, nano_usd?: number }} Compaction
 * @typedef {{ role: "user" | "assistant", content: Content[], timestamp: number, id?: string, app_data?: any,
 *   provider_data?: Record<string, any>, ended?: StopReason, compaction?: Compaction, context_tokens?: number }} Message
 * @typedef {{ input: number, cache_read: number, cache_write: number, output: number, reasoning: number,
 *   cost?: number }} Usage
 * @typedef {{ id: number, parent?: number, message: Message, usage?: Usage, left_open?: boolean }} Node
 * @typedef {{ id: number, parent?: number, message?: Message, role?: "user" | "assistant", usage?: Usage,
 *   left_open?: boolean }} TreeNode
 * @typedef {{ nodes: TreeNode[], head: number | null, cursors: [number, number][], next?: number }} Tree
 * @typedef {{ id?: string, content: Content[], next?: "turn" | "step", app_data?: any, options?: any,
 *   max_steps?: number, turn_timeout?: Duration, budget?: Budget, mixed_steps?: boolean }} Prompt
 * @typedef {{ usd?: number, tokens?: number, requests?: number }} Budget
 * @typedef {{ budget: Budget, spent: UsageSum, reserved?: Budget, shared?: boolean, unpriced?: string }} BudgetReport
 * @typedef {"execute" | { execute_with: any } | { reject: string } | { provide: ToolResult }} Decision
 * @typedef {{ turn: string, tool_use: ToolUse, input_replaced?: boolean, reason?: any,
 *   asked_by?: string, sub_agent?: SubAgentUse, survives?: boolean, since?: number, limit?: Duration, expires?: number,
 *   on_expiry?: Decision }} PendingUse
 * @typedef {{ name: string, conversation?: string, turn: string, tool_use: string, is_question?: boolean }} SubAgentUse
 * @typedef {{ tool_use_id: string, input?: any, is_error?: boolean }} ToolRun
 * @typedef {{ kind: "execute" | "execute_with" | "reject" | "provide" | "expired" | "interrupted", by?: string, at: number,
 *   input?: any, noted?: boolean }} UseDecision
 * @typedef {{ content: Content, input?: string, ended: boolean }} PartialBlock
 * @typedef {{ kind: string, message?: string, error?: { kind: string, message: string }, reason?: string,
 *   callback?: string, limit?: Duration, report?: BudgetReport }} Failure
 * @typedef {string | { other: string }} StopReason
 * @typedef {{ state: "staged" | "returned" } | { state: "in_flight", turn: string } | { state: "ended", outcome: any }} PromptState
 * @typedef {{ id: string, state: PromptState,
 *   through?: number }} KnownPrompt
 * @typedef {{ outcome: "stopped" | "cancelled" | "failed" | "abandoned" | "discarded", stop_reason?: StopReason,
 *   failure?: Failure, turn?: string, unanswered?: Message[], staged?: Prompt[], through?: number,
 *   prompts?: KnownPrompt[], mark?: string }} RunEnd
 * @typedef {{ name: string, description: string, schema: any, has_handler: boolean, requires_approval?: boolean
 *   }} ToolDeclaration
 * @typedef {{ model: string, fallback_for?: string, system?: string, tools: ToolDeclaration[], options: any,
 *   max_steps?: number, turn_timeout?: Duration, omitted?: Record<string, number[]>, history: Message[] }} StateView
 * @typedef {{ last: string, state: StateView, status: "idle" | "busy" | "paused", step: number, compacting?: "size" | "overflow" | "request", pending: Message[],
 *   partial: PartialBlock[], run: number, first_turn?: string, turn?: string, answer?: string,
 *   pauses?: PendingUse[], tools?: ToolRun[], decisions?: [string, UseDecision][], budget?: BudgetReport,
 *   prompts?: KnownPrompt[], staged?: Prompt[], last_run?: RunEnd }} Snapshot
 * @typedef {{ outcome: "saved", what: string, version: number, through?: number }
 *   | { outcome: "failed", what: string, error: string, retry_in: Duration }
 *   | { outcome: "lost", error: string }} StoreReport
 * @typedef {{ last: string, id: string, title: string | null, labels?: Record<string, string>, used: Usage, tree: Tree,
 *   from?: number, agent: Snapshot, unsaved: number[], store: StoreReport | null }} SessionSnapshot
 * @typedef {{ model: string, message?: Message, messages: Message[], stop_reason: StopReason, usage: Usage, delegated?: Usage,
 *   step: number, turn?: string, run: number, warnings?: string[], open_tool_uses?: ToolUse[], decided?: ToolResult[], output?: any,
 *   output_error?: string }} Response
 * @typedef {{ type: string } & Record<string, any>} Event
 * @typedef {{ type: string } & Record<string, any>} SessionEvent
 * @typedef {{ type: "event", id: string, event: SessionEvent } | { type: "resync", snapshot: SessionSnapshot }
 *   | { type: "closed", reason: string, snapshot: SessionSnapshot | null }} Update
 * @typedef {"idle" | "queued" | "busy" | "paused"} Activity
 * @typedef {{ id: string, title: string | null, labels?: Record<string, string>, activity: Activity }} OpenSession
 * @typedef {{ last: string, open: OpenSession[], waiting: string[] }} ManagerSnapshot
 * @typedef {{ type: string } & Record<string, any>} ManagerEvent
 * @typedef {{ type: "event", id: string, event: ManagerEvent } | { type: "resync", snapshot: ManagerSnapshot }
 *   | { type: "closed", reason: string, snapshot: ManagerSnapshot | null }} ManagerUpdate
 * @typedef {{ id: string, title: string | null, labels?: Record<string, string>, created: number, updated: number,
 *   version: number, owner: any, damage: string | null, in_flight?: boolean, waiting?: number }} Summary
 * @typedef {"stored" | "waiting" | "elsewhere" | { open: Activity }} Presence
 * @typedef {{ summary: Summary, presence: Presence }} Listed
 * @typedef {PendingUse & { conversation: string }} ListedApproval
 * @typedef {"head" | { again: number } | { instead: number } | { below: number | null }} RunAt
 * @typedef {{ type: "run", at?: RunAt, prompt?: Prompt, wait?: boolean } | { type: "unstage", id: string }
 *   | { type: "decide", turn: string, decisions: [string, Decision][] } | { type: "cancel" }
 *   | { type: "compact", how?: "summary" | "clear" | "undo", focus?: string } | { type: "interrupt" } | { type: "navigate", node: number | null }
 *   | { type: "title", title: string | null } | { type: "labels", labels: Record<string, string> }
 *   | { type: "model", model: string } | { type: "omit" | "restore", node: number, block: number }
 *   | { type: "erase", node: number }} SessionCommand
 * @typedef {{ type: "accepted", accepted: "started" | "staged" | "known", turn?: string, id?: string, ahead?: number, state?: any }
 *   | ({ type: "response" } & Response) | { type: "prompt", prompt: Prompt } | { type: "message", message: Message }
 *   | { type: "done" }} SessionAnswer
 * @typedef {{ purpose?: string, turn?: string, step?: number, message?: string, at: number, model?: string, usage: Usage,
 *   end?: string, conversation?: string }} UsageRow
 * @typedef {{ model?: string, requests: number, usage: Usage }} UsageSum
 * @typedef {{ type: string, title: string, status: number, detail?: string } & Record<string, any>} Problem
 */

/** An answer of the server with an error status. */
export class ProblemError extends Error {
  /**
   * @param {Problem} problem
   * @param {number | null} retryAfter
   */
  constructor(problem, retryAfter = null) {
    super(problem.detail ?? problem.title);
    this.name = "ProblemError";
    /** The body of the answer. */
    this.problem = problem;
    /** The status of the answer. */
    this.status = problem.status;
    /** The kind of the problem, for programs, such as `not-found`. */
    this.code = problem.type.replace(/^urn:omni-agent:/, "");
    /** The time in seconds after which a new attempt makes sense. */
    this.retryAfter = retryAfter;
  }
}

/** A client for the native routes. */
export class Client {
  /**
   * @param {string} base The path under which the router is nested, such as `/agent`, or a whole address.
   * @param {{ fetch?: typeof fetch, headers?: Record<string, string> }} [options] Another `fetch`, and headers of every
   *   request, such as `authorization`.
   */
  constructor(base = "", { fetch: fetcher, headers = {} } = {}) {
    this.base = base.replace(/\/$/, "");
    this.fetch = fetcher ?? ((...rest) => globalThis.fetch(...rest));
    this.headers = headers;
  }

  /**
   * @param {{ limit?: number, after?: string }} [query] `after` is the `next` of the page before.
   * @returns {Promise<{ items: Listed[], next: string | null }>}
   */
  conversations(query = {}) {
    return this.#json("GET", `/conversations${search(query)}`);
  }

  /**
   * @param {{ q: string, limit?: number, offset?: number }} query
   * @returns {Promise<{ hits: { conversation: Summary, node?: number, excerpt: string }[], complete: boolean }>}
   */
  search(query) {
    return this.#json("GET", `/search${search(query)}`);
  }

  /**
   * Returns the tool uses that wait for decisions, also those of conversations that are not open.
   * @param {{ limit?: number, after?: string }} [query] `after` is the `next` of the page before.
   * @returns {Promise<{ items: ListedApproval[], next: string | null }>}
   */
  approvals(query = {}) {
    return this.#json("GET", `/approvals${search(query)}`);
  }

  /**
   * @param {{ title?: string, model?: string }} [settings]
   * @returns {Promise<{ id: string }>}
   */
  create(settings = {}) {
    return this.#json("POST", "/conversations", settings);
  }

  /**
   * @param {string} id
   * @returns {Promise<SessionSnapshot>}
   */
  snapshot(id) {
    return this.#json("GET", this.#path(id));
  }

  /**
   * @param {string} id
   * @returns {Promise<void>}
   */
  delete(id) {
    return this.#json("DELETE", this.#path(id));
  }

  /**
   * Performs a command. Decisions, a title and labels do not open the conversation.
   * @param {string} id
   * @param {SessionCommand} command
   * @returns {Promise<SessionAnswer>}
   */
  command(id, command) {
    return this.#json("POST", `${this.#path(id)}/commands`, command);
  }

  /**
   * Copies the path to a node into a new conversation.
   * @param {string} id
   * @param {number} node
   * @param {string} [title]
   * @returns {Promise<{ id: string }>}
   */
  fork(id, node, title) {
    return this.#json("POST", `${this.#path(id)}/forks`, { node, title });
  }

  /**
   * Returns the messages before a node, on its branch, oldest first. `next` is the `before` of the next page, and is
   * absent at the first message.
   * @param {string} id
   * @param {{ before: number, limit?: number }} query
   * @returns {Promise<{ messages: Node[], next?: number }>}
   */
  messages(id, query) {
    return this.#json("GET", `${this.#path(id)}/messages${search(query)}`);
  }

  /**
   * Returns the usage ledger of a conversation, newest first.
   * @param {string} id
   * @param {{ limit?: number, after?: number }} [query]
   * @returns {Promise<{ rows: UsageRow[], next: number | null }>}
   */
  rows(id, query = {}) {
    return this.#json("GET", `${this.#path(id)}/usage${search(query)}`);
  }

  /**
   * Returns the usage of all conversations, by model. The times are in milliseconds since 1970.
   * @param {{ from?: number, to?: number }} [query]
   * @returns {Promise<UsageSum[]>}
   */
  usage(query = {}) {
    return this.#json("GET", `/usage${search(query)}`);
  }

  /**
   * Returns a JSON Schema: of the updates that the server sends, or of commands.
   * @param {"updates" | "commands"} name
   * @returns {Promise<any>}
   */
  schema(name) {
    return this.#json("GET", `/schema/${name}`);
  }

  /**
   * Returns the address of an attachment. `block` is the index of the block, or `BLOCK-INNER` inside a tool result.
   * @param {string} id
   * @param {string} message
   * @param {number | string} block
   */
  file(id, message, block) {
    return `${this.base}${this.#path(id)}/files/${encodeURIComponent(message)}/${encodeURIComponent(block)}`;
  }

  /**
   * Opens a stream of the list and of up to eight conversations.
   * @param {StreamOptions} options
   */
  stream(options) {
    return new Stream(this, options);
  }

  /** @param {string} id */
  #path(id) {
    return `/conversations/${encodeURIComponent(id)}`;
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {any} [body]
   */
  async #json(method, path, body) {
    const response = await this.request(path, {
      method,
      ...(body !== undefined && { body: JSON.stringify(body), headers: { "content-type": "application/json" } }),
    });
    return response.status === 204 ? undefined : await response.json();
  }

  /**
   * Sends a request. An answer with an error status becomes a {@link ProblemError}.
   * @param {string} path
   * @param {RequestInit & { headers?: Record<string, string> }} [init]
   */
  async request(path, init = {}) {
    const response = await this.fetch(this.base + path, { ...init, headers: { ...this.headers, ...init.headers } });
    if (response.ok) return response;
    const retry = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
    /** @type {Problem} */
    let problem = { type: "about:blank", title: response.statusText || "The request failed.", status: response.status };
    try {
      problem = { ...problem, ...(await response.json()) };
    } catch {
      // A proxy has answered, so there is no problem document.
    }
    throw new ProblemError(problem, Number.isNaN(retry) ? null : retry);
  }
}

/** @param {Record<string, string | number | undefined>} query */
function search(query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined);
  return given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
}

/**
 * @typedef {"connecting" | "open" | "waiting" | "closed"} StreamState
 * @typedef {object} StreamOptions
 * @property {boolean} [list] Whether the stream carries the list.
 * @property {string[]} [watch] The ids of the watched conversations.
 * @property {number} [messages] The number of messages in a snapshot: the last ones of the path. Without it, a snapshot has
 *   all messages.
 * @property {number} [silence] The time in milliseconds without any byte after which the stream connects again. The
 *   default is 45,000. It must be longer than `keep_alive` of the server, which is 15 s by default: the server sends a
 *   comment after this time, so that a connection that carries nothing is not taken for a lost one. `Infinity` turns this off.
 * @property {(id: string, snapshot: SessionSnapshot, update: Update, before: SessionSnapshot | null) => void}
 *   [onConversation] Called after each update, with the snapshot that includes it. After a resync, `before` is the
 *   snapshot that was replaced. Otherwise it is the same object as `snapshot`, which is changed in place. After an update
 *   of the type `closed`, the conversation is not watched any longer.
 * @property {(list: ManagerSnapshot, update: ManagerUpdate) => void} [onList] Called after each update of the list.
 * @property {(id: string, problem: Problem, retryAfter: number | null) => void} [onRefused] Called if a conversation
 *   cannot be watched. It is not watched any longer. `retryAfter` is the time in seconds after which a new attempt makes
 *   sense, or `null`.
 * @property {(state: StreamState, error: Error | null, delay: number) => void} [onState] Called when the connection's
 *   state changes. While `waiting`, a new attempt follows after `delay` milliseconds. After an error of the kind 401 or
 *   403 the stream is closed.
 */

/** A stream that reconnects by itself. */
export class Stream {
  /** @type {Client} */ #client;
  /** @type {StreamOptions} */ #options;
  /** @type {string[]} */ #watch;
  /** @type {AbortController | null} */ #connection = null;
  /** @type {(() => void) | null} */ #wake = null;
  #isClosed = false;
  #isPaused = false;
  #isRestarting = false;
  #failures = 0;
  /** The conversations whose sessions have ended. Their next snapshot can belong to any life. */
  #ended = new Set();

  /**
   * The snapshots of the watched conversations.
   * @type {Map<string, SessionSnapshot>}
   */
  snapshots = new Map();
  /** @type {ManagerSnapshot | null} */
  list = null;
  /** @type {StreamState} */
  state = "connecting";

  /**
   * @param {Client} client
   * @param {StreamOptions} options
   */
  constructor(client, options) {
    this.#client = client;
    this.#options = options;
    this.#watch = [...new Set(options.watch ?? [])];
    void this.#run();
  }

  /** The ids of the watched conversations. */
  get watched() {
    return this.#watch;
  }

  /**
   * Watches these conversations from now on. The positions in all other conversations are forgotten.
   * @param {string[]} ids
   */
  watch(ids) {
    const wanted = [...new Set(ids)];
    if (wanted.length === this.#watch.length && wanted.every((id) => this.#watch.includes(id))) return;
    this.#watch = wanted;
    for (const id of this.snapshots.keys()) {
      if (!wanted.includes(id)) this.snapshots.delete(id);
    }
    this.reconnect();
  }

  /** Connects again at once, for example when the network is back. */
  reconnect() {
    this.#failures = 0;
    this.#isRestarting = true;
    this.#connection?.abort();
    this.#wake?.();
  }

  /** Closes the connection until `resume` is called. The snapshots stay. */
  pause() {
    this.#isPaused = true;
    this.reconnect();
  }

  /** Connects again after `pause`, and continues after the last event. */
  resume() {
    this.#isPaused = false;
    this.reconnect();
  }

  /** Closes the stream. The snapshots stay. */
  close() {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#connection?.abort();
    this.#wake?.();
    this.#tell("closed", null);
  }

  async #run() {
    while (!this.#isClosed) {
      this.#isRestarting = false;
      let delay = 0;
      let error = null;
      try {
        if (!this.#isPaused && (this.#watch.length || this.#options.list)) {
          this.#tell("connecting", null);
          delay = await this.#read();
        } else {
          delay = Number.POSITIVE_INFINITY;
        }
      } catch (caught) {
        if (this.#isClosed) return;
        error = caught instanceof Error ? caught : new Error(String(caught));
        if (!this.#isRestarting) {
          if (error instanceof ProblemError && [401, 403].includes(error.status)) {
            this.#isClosed = true;
            this.#tell("closed", error);
            return;
          }
          delay = backoff(this.#failures);
          this.#failures += 1;
          const retryAfter = error instanceof ProblemError ? error.retryAfter : null;
          if (retryAfter !== null) delay = Math.max(delay, retryAfter * 1000);
        }
      }
      if (this.#isClosed) return;
      if (!this.#isRestarting && delay > 0) {
        if (Number.isFinite(delay)) this.#tell("waiting", error, delay);
        await this.#sleep(delay);
      }
    }
  }

  /** @param {number} delay */
  #sleep(delay) {
    return new Promise((resolve) => {
      const timer = Number.isFinite(delay) ? setTimeout(() => resolve(undefined), delay) : undefined;
      this.#wake = () => {
        clearTimeout(timer);
        this.#wake = null;
        resolve(undefined);
      };
    });
  }

  /** Reads one connection to its end. Returns the delay before the next connection. */
  async #read() {
    const connection = new AbortController();
    this.#connection = connection;
    const query = new URLSearchParams(this.#watch.map((id) => ["watch", id]));
    if (this.#options.list) query.set("list", "true");
    if (this.#options.messages) query.set("messages", String(this.#options.messages));
    const positions = [...this.snapshots].map(([id, snapshot]) => `${id}:${snapshot.last}`).join(",");
    // A connection can be lost without a sign, for example when a laptop sleeps or changes its network.
    const { silence = 45_000 } = this.#options;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let watchdog;
    const heard = () => {
      clearTimeout(watchdog);
      if (Number.isFinite(silence)) watchdog = setTimeout(() => this.reconnect(), silence);
    };
    let delay = -1;
    try {
      heard();
      const response = await this.#client.request(`/events?${query}`, {
        headers: { accept: "text/event-stream", ...(positions && { "last-event-id": positions }) },
        cache: "no-store",
        signal: connection.signal,
      });
      if (!response.body) throw new Error("the response has no body");
      this.#failures = 0;
      this.#tell("open", null);
      for await (const { event, data } of frames(response.body, heard)) {
        if (this.#isClosed || this.#isRestarting) break;
        if (event === "ending") delay = JSON.parse(data).retry_after * 1000;
        else this.#take(event, JSON.parse(data));
      }
    } finally {
      clearTimeout(watchdog);
      connection.abort();
    }
    // A stream that ends without an announcement was cut.
    if (delay < 0 && !this.#isRestarting && !this.#isClosed) throw new Error("the connection was lost");
    return delay;
  }

  /**
   * @param {string} event
   * @param {any} data
   */
  #take(event, data) {
    const { onConversation, onList, onRefused } = this.#options;
    if (event === "conversation") {
      const { conversation: id, update } = data;
      if (!this.#watch.includes(id)) return;
      const before = this.snapshots.get(id) ?? null;
      const known = this.#ended.delete(id) && update.type === "resync" ? null : before;
      if (update.type !== "closed" && isFormer(known, update)) return;
      /** @type {SessionSnapshot | null} */
      let after;
      try {
        after = fold(known, update);
      } catch {
        // The events do not fit the snapshot, so the next connection begins with a new snapshot.
        this.snapshots.delete(id);
        this.reconnect();
        return;
      }
      if (update.type === "closed") {
        this.#watch = this.#watch.filter((other) => other !== id);
        this.#ended.add(id);
      }
      if (after) {
        this.snapshots.set(id, after);
        onConversation?.(id, after, update, before);
      }
    } else if (event === "list") {
      const after = foldList(this.list, data.update);
      if (after) {
        this.list = after;
        onList?.(after, data.update);
      }
    } else if (event === "refused") {
      this.#watch = this.#watch.filter((id) => id !== data.conversation);
      this.snapshots.delete(data.conversation);
      onRefused?.(data.conversation, data.problem, data.retry_after ?? null);
    }
  }

  /**
   * @param {StreamState} state
   * @param {Error | null} error
   * @param {number} delay
   */
  #tell(state, error, delay = 0) {
    this.state = state;
    this.#options.onState?.(state, error, delay);
  }
}

/**
 * Returns the delay in milliseconds before the next attempt.
 * @param {number} failures The number of attempts that have failed.
 */
export function backoff(failures) {
  const full = Math.min(500 * 2 ** failures, 15_000);
  return full * (0.75 + Math.random() / 2);
}

/**
 * Splits a body into server-sent events.
 * @param {ReadableStream<Uint8Array>} body
 * @param {() => void} [heard] Called for each piece of the body, also for one without an event.
 * @returns {AsyncGenerator<{ event: string, data: string, id: string | null }>}
 */
export async function* frames(body, heard) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let event = "message";
  /** @type {string[]} */
  let data = [];
  /** @type {string | null} */
  let id = null;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard?.();
      rest += decoder.decode(value, { stream: true });
      // A line ends with LF, CR LF or CR. A CR at the end of a piece may be followed by an LF in the next piece.
      const end = rest.endsWith("\r") ? rest.length - 1 : rest.length;
      const lines = rest.slice(0, end).split(/\r\n|\n|\r/);
      rest = (lines.pop() ?? "") + rest.slice(end);
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield { event, data: data.join("\n"), id };
          event = "message";
          data = [];
          continue;
        }
        const colon = line.indexOf(":");
        if (colon === 0) continue;
        const field = colon < 0 ? line : line.slice(0, colon);
        const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (field === "event") event = value;
        else if (field === "data") data.push(value);
        else if (field === "id") id = value;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * Applies an update to a snapshot. The snapshot is changed in place and returned, unless the update brings a new one.
 * An update that the snapshot already includes has no effect, and neither has one of an earlier life of the
 * conversation. Throws an error if events are missing in between.
 * @param {SessionSnapshot | null} snapshot
 * @param {Update} update
 * @returns {SessionSnapshot | null}
 */
export function fold(snapshot, update) {
  if (isFormer(snapshot, update)) return snapshot;
  if (update.type === "resync" || (update.type === "closed" && update.snapshot)) return keep(snapshot, /** @type {any} */ (update.snapshot));
  if (update.type !== "event") return snapshot;
  if (!snapshot) throw new Error("an event came before the first snapshot");
  const order = follows(snapshot.last, update.id);
  if (order === "known") return snapshot;
  if (order === "gap") throw new Error(`the event ${update.id} does not follow ${snapshot.last}`);
  applySession(snapshot, update.event);
  snapshot.last = update.id;
  return snapshot;
}

/**
 * Fills the outlines of a new tail with the messages that are known from the snapshot before. In another life, a node can
 * have another message.
 * @param {SessionSnapshot | null} before
 * @param {SessionSnapshot} after
 */
function keep(before, after) {
  if (before && life(before.last) === life(after.last)) fill(after, before.tree.nodes);
  return after;
}

/**
 * Fills outlines of a tail with their nodes, such as those of {@link Client.messages}. The snapshot is changed in place.
 * @param {SessionSnapshot} snapshot
 * @param {TreeNode[]} nodes
 */
export function fill(snapshot, nodes) {
  const { tree } = snapshot;
  const whole = new Map(nodes.filter((node) => node.message).map((node) => [node.id, node]));
  if (!tree.nodes.some((node) => !node.message && whole.has(node.id))) return;
  tree.nodes = tree.nodes.map((node) => (node.message ? node : (whole.get(node.id) ?? node)));
  indices.delete(tree);
  const first = tailOf(tree)[0];
  if (first?.parent === undefined) delete snapshot.from;
  else snapshot.from = first.id;
}

/**
 * Returns the nodes of the path from its last outline on, without the outline: the messages that are present.
 * @param {Tree} tree
 * @returns {Node[]}
 */
export function tailOf(tree) {
  const path = pathOf(tree);
  const start = path.map((node) => node.message !== undefined).lastIndexOf(false) + 1;
  return /** @type {Node[]} */ (path.slice(start));
}

/**
 * Returns whether an update belongs to an earlier life of the conversation than the snapshot. A life is a period in
 * which one server has the conversation open, and later lives have higher numbers. Such an update comes from a former
 * owner of the conversation, which has not noticed yet that another server has taken over.
 * @param {SessionSnapshot | null} snapshot
 * @param {Update} update
 */
function isFormer(snapshot, update) {
  const id = update.type === "event" ? update.id : update.snapshot?.last;
  return snapshot !== null && id !== undefined && life(id) < life(snapshot.last);
}

/** @param {string} id The id of an event: the life in hexadecimal, and the number of the event in this life. */
const life = (id) => BigInt(`0x${id.split("-")[0]}`);

/**
 * Applies an update of the list. The event numbers of the list have gaps, because other users' conversations are not
 * shown.
 * @param {ManagerSnapshot | null} list
 * @param {ManagerUpdate} update
 * @returns {ManagerSnapshot | null}
 */
export function foldList(list, update) {
  if (update.type === "resync") return update.snapshot;
  if (update.type === "closed") return update.snapshot ?? list;
  if (update.type !== "event" || !list || follows(list.last, update.id) === "known") return list;
  const { event } = update;
  const open = list.open.find((session) => session.id === event.id);
  switch (event.type) {
    case "waiting":
      list.waiting.push(event.id);
      break;
    case "given_up":
      remove(list.waiting, (id) => id === event.id);
      break;
    case "opened":
      remove(list.waiting, (id) => id === event.session.id);
      list.open.push(event.session);
      break;
    case "status":
      if (open) open.activity = event.activity;
      break;
    case "title":
      if (open) open.title = event.title;
      break;
    case "labels":
      if (open) open.labels = event.labels;
      break;
    case "closed":
      remove(list.open, (session) => session.id === event.id);
      break;
    case "deleted":
      remove(list.open, (session) => session.id === event.id);
      remove(list.waiting, (id) => id === event.id);
      break;
  }
  list.last = update.id;
  return list;
}

/**
 * Compares the id of an event with the last known id. Returns `known` if the event is not newer. Returns `gap` if events
 * are missing in between. The first event of another life follows every event of the life before: a reader that has
 * missed the end of that life gets a snapshot first.
 * @param {string} last
 * @param {string} id
 */
function follows(last, id) {
  const [life, number] = last.split("-");
  const [newLife, newNumber] = id.split("-");
  if (life !== newLife) return newNumber === "1" ? "next" : "gap";
  const step = Number(newNumber) - Number(number);
  return step <= 0 ? "known" : step === 1 ? "next" : "gap";
}

/**
 * @template T
 * @param {T[]} items
 * @param {(item: T) => boolean} isRemoved
 */
function remove(items, isRemoved) {
  for (let index = items.length - 1; index >= 0; index -= 1) {
    if (isRemoved(items[index])) items.splice(index, 1);
  }
}

/**
 * @param {SessionSnapshot} snapshot
 * @param {SessionEvent} event
 */
function applySession(snapshot, event) {
  switch (event.type) {
    case "agent": {
      const inner = event.event;
      if (inner.type === "step") addUsage(snapshot, inner.usage);
      // The session of a sub-agent stores its own rows.
      if (inner.type === "usage" && inner.conversation === undefined) addUsage(snapshot, inner.usage);
      apply(snapshot.agent, inner);
      const [life, number] = snapshot.agent.last.split("-");
      snapshot.agent.last = `${life}-${Number(number) + 1}`;
      break;
    }
    case "tree":
      applyChanges(snapshot.tree, /** @type {any} */ (event));
      snapshot.unsaved.push(...event.nodes.map((/** @type {Node} */ node) => node.id));
      break;
    case "title":
      snapshot.title = event.title;
      break;
    case "labels":
      if (Object.keys(event.labels).length) snapshot.labels = event.labels;
      else delete snapshot.labels;
      break;
    case "erased":
      applyErased(snapshot.tree, /** @type {any} */ (event));
      delete snapshot.agent.last_run;
      for (const known of snapshot.agent.prompts ?? []) eraseTexts(/** @type {any} */ (known.state).outcome?.failure);
      break;
    case "usage":
      addUsage(snapshot, event.usage);
      break;
    case "store": {
      const { type: _, ...report } = event;
      if (event.outcome === "saved") {
        if (snapshot.store?.outcome !== "lost") snapshot.store = null;
        remove(snapshot.unsaved, (node) => event.through === undefined || node <= event.through);
      } else {
        snapshot.store = /** @type {StoreReport} */ (report);
      }
      break;
    }
  }
}

/**
 * @param {SessionSnapshot} snapshot
 * @param {Usage} usage
 */
function addUsage(snapshot, usage) {
  const used = snapshot.used;
  for (const name of /** @type {const} */ (["input", "cache_read", "cache_write", "output", "reasoning"])) {
    used[name] += usage[name];
  }
  if (usage.cost !== undefined) used.cost = (used.cost ?? 0) + usage.cost;
}

/** The number of decisions that a snapshot contains at most. Older ones are forgotten. */
const MAX_NAMED = 256;

/**
 * Returns the kind of a decision.
 * @param {Decision} decision
 */
export function kindOf(decision) {
  return /** @type {UseDecision["kind"]} */ (typeof decision === "string" ? decision : Object.keys(decision)[0]);
}

/**
 * Returns the output of a tool without the note that tells the model of a changed input, like `ToolResult::output` in Rust.
 * @param {ToolResult} result
 */
export function outputOf({ content, decision }) {
  return decision?.noted ? content.slice(1) : content;
}

/**
 * Returns the input with which a tool has run, if it is not the model's.
 * @param {ToolResult} [result]
 */
export function changedInput(result) {
  return result?.decision?.noted ? result.decision.input : undefined;
}

/**
 * Applies an event of the agent, like `Snapshot::apply` in Rust.
 * @param {Snapshot} agent
 * @param {Event} event
 */
export function apply(agent, event) {
  const end = runEnd(event);
  if (end) {
    // The events before this one have returned these prompts.
    if (agent.staged) end.staged = agent.staged;
    delete agent.staged;
    agent.last_run = end;
  }
  switch (event.type) {
    case "message":
      agent.partial = [];
      if (event.message.role === "assistant") delete agent.answer;
      agent.pending.push(event.message);
      agent.step = event.step;
      if (event.run !== agent.run) agent.first_turn = event.turn;
      agent.turn = event.turn;
      agent.run = event.run;
      break;
    case "step_start":
      agent.step = event.step;
      agent.answer = event.message_id;
      break;
    case "turn":
      agent.state.history.push(...event.response.messages);
      finish(agent, event.response);
      break;
    case "budget": {
      const { type: _, ...report } = event;
      agent.budget = /** @type {BudgetReport} */ (report);
      break;
    }
    case "decided": {
      const { tool_use_id, by, at, decision } = event;
      if (by === undefined) break;
      const named = /** @type {UseDecision} */ ({ kind: kindOf(decision), by, at });
      put(agent, "decisions", [...(agent.decisions ?? []), /** @type {[string, UseDecision]} */ ([tool_use_id, named])].slice(-MAX_NAMED));
      break;
    }
    case "tool_start": {
      const { type: _, ...run } = event;
      put(agent, "tools", [...(agent.tools ?? []), /** @type {ToolRun} */ (run)]);
      break;
    }
    case "tool_end": {
      const run = agent.tools?.find((run) => run.tool_use_id === event.tool_use_id);
      if (run) run.is_error = event.is_error;
      break;
    }
    case "tool_result":
      put(agent, "tools", (agent.tools ?? []).filter((run) => run.tool_use_id !== event.result.tool_use_id));
      break;
    case "retry":
      agent.pending.length = Math.min(agent.pending.length, event.pending);
      agent.partial = [];
      delete agent.answer;
      delete agent.tools;
      agent.step = event.step;
      break;
    case "compaction_start":
      agent.compacting = event.trigger;
      if (event.run !== agent.run) agent.first_turn = event.turn;
      agent.turn = event.turn;
      agent.run = event.run;
      break;
    case "compaction_end":
      delete agent.compacting;
      if (event.message) agent.pending.splice(event.at, 0, event.message);
      break;
    case "resumed":
      delete agent.compacting;
      agent.partial = [];
      delete agent.pauses;
      delete agent.tools;
      break;
    case "prompt": {
      know(agent, event.id, event.state);
      // A prompt that the run returns stays in the list until the event that ends the run.
      const others = (agent.staged ?? []).filter((prompt) => prompt.id !== event.id);
      put(agent, "staged", event.prompt ? [...others, event.prompt] : others);
      break;
    }
    case "error":
    case "cancelled":
      // A run that has failed can have kept its messages.
      if (event.committed) agent.state.history.push(...event.response.messages);
      finish(agent, event.response);
      break;
    case "state": {
      const { type: _, ...state } = event;
      agent.state = /** @type {StateView} */ (state);
      break;
    }
    case "status":
      agent.status = event.status;
      put(agent, "pauses", event.pauses ?? []);
      break;
    case "step": {
      const usesTools = event.message?.content.some((/** @type {Content} */ block) => block.type === "tool_use");
      // The service continues its response in the next request.
      if (event.stop_reason === "pause" && !usesTools) agent.step = event.step + 1;
      break;
    }
    default:
      applyBlock(agent, event);
  }
}

/**
 * @param {Snapshot} agent
 * @param {Event} event
 */
function applyBlock(agent, event) {
  const block = agent.partial[event.index];
  switch (event.type) {
    case "text_start":
      agent.partial.push({ content: { type: "text", text: "" }, ended: false });
      break;
    case "thinking_start":
      agent.partial.push({ content: { type: "thinking", text: "" }, ended: false });
      break;
    case "tool_use_start":
      agent.partial.push({ content: { type: "tool_use", id: event.id, name: event.name, input: {} }, ended: false });
      break;
    case "text_delta":
      if (block?.content.type === "text") block.content.text += event.delta;
      break;
    case "thinking_delta":
      if (block?.content.type === "thinking") block.content.text += event.delta;
      break;
    case "tool_use_delta":
      if (block) block.input = (block.input ?? "") + event.delta;
      break;
    case "text_end":
    case "thinking_end":
    case "tool_use_end":
      if (block) {
        block.ended = true;
        block.content = { ...event.content, type: event.type.slice(0, -"_end".length) };
      }
      break;
    case "attachment":
      agent.partial.push({ content: { ...event.content, type: "attachment" }, ended: true });
      break;
    case "provider_item": {
      const content = { ...event.content, type: "provider_item" };
      if (block) block.content = content;
      else agent.partial.push({ content, ended: true });
      break;
    }
  }
}

/** The number of prompts that a snapshot remembers. If more have not ended, it remembers all of these. */
const MAX_KNOWN = 32;

/**
 * Notes the new state of a prompt. If too many are over, forgets the oldest other one that was returned, or else the
 * oldest other one that has ended.
 * @param {Snapshot} agent
 * @param {string} id
 * @param {PromptState} state
 */
function know(agent, id, state) {
  const isOver = (/** @type {KnownPrompt} */ known) => ["ended", "returned"].includes(known.state.state);
  const known = agent.prompts?.find((known) => known.id === id && !isOver(known));
  if (known) known.state = state;
  else agent.prompts = [...(agent.prompts ?? []).filter((known) => known.id !== id), { id, state }];
  const prompts = agent.prompts ?? [];
  if (prompts.filter(isOver).length > MAX_KNOWN) {
    const others = prompts.filter((known) => known.id !== id && isOver(known));
    const forgotten = others.find((known) => known.state.state === "returned") ?? others[0];
    agent.prompts = prompts.filter((known) => known !== forgotten);
  }
}

/**
 * Replaces the texts of a failure that may quote messages, because these messages are erased.
 * @param {any} failure
 */
function eraseTexts(failure) {
  const text = "the text was erased";
  if (failure?.error) {
    failure.error.message = text;
    delete failure.error.body;
  } else if (typeof failure?.message === "string") {
    failure.message = text;
  } else if (typeof failure?.reason === "string") {
    failure.reason = text;
  }
}

/**
 * Sets a list that is absent while it is empty.
 * @template {"pauses" | "tools" | "decisions" | "staged"} K
 * @param {Snapshot} agent
 * @param {K} name
 * @param {NonNullable<Snapshot[K]>} items
 */
function put(agent, name, items) {
  if (items.length) agent[name] = items;
  else delete agent[name];
}

/**
 * @param {Snapshot} agent
 * @param {Response} response
 */
function finish(agent, response) {
  agent.pending = [];
  agent.partial = [];
  delete agent.compacting;
  delete agent.answer;
  delete agent.tools;
  delete agent.decisions;
  delete agent.budget;
  delete agent.turn;
  agent.step = response.step;
}

/**
 * Returns the turn in which the agent has made a message.
 * @param {Message} [message]
 */
function turnOf(message) {
  const turn = /^([\w-]{22})-\d+$/.exec(message?.id ?? "")?.[1];
  if (turn === undefined) return undefined;
  const bytes = [...atob(turn.replaceAll("-", "+").replaceAll("_", "/"))];
  return bytes.map((byte) => byte.charCodeAt(0).toString(16).padStart(2, "0")).join("");
}

/**
 * Returns the end of the run if the event ends a run.
 * @param {Event} event
 * @returns {RunEnd | null}
 */
function runEnd(event) {
  /** @type {RunEnd} */
  let end;
  const isAbandoned = event.response?.stop_reason === "abandoned";
  if (isAbandoned && (event.type === "turn" || event.type === "cancelled")) {
    end = { outcome: "abandoned" };
  } else if (event.type === "turn" && !event.continues) {
    end = { outcome: "stopped", stop_reason: event.response.stop_reason };
  } else if (event.type === "cancelled") {
    end = { outcome: "cancelled" };
  } else if (event.type === "error") {
    end = { outcome: "failed", failure: event.failure };
  } else {
    return null;
  }
  // A turn that consists of a compaction alone has the answer of the turn before it.
  const turn = turnOf(event.response.message) ?? event.response.turn;
  if (turn !== undefined) end.turn = turn;
  if (event.type !== "turn" && !event.committed) {
    const isPrompt = (/** @type {Message} */ message, /** @type {number} */ index) =>
      message.role === "user" && !message.compaction && (index === 0 || !message.content.some((block) => block.type === "tool_result"));
    const unanswered = event.response.messages.filter(isPrompt);
    if (unanswered.length) end.unanswered = unanswered;
  }
  return end;
}

/**
 * The lookup tables of a tree. They are kept next to the tree, so that the tree stays plain data.
 * @typedef {{ byId: Map<number, TreeNode>, children: Map<number, number[]>, cursors: Map<number, number> }} Index
 * @type {WeakMap<Tree, Index>}
 */
const indices = new WeakMap();

/**
 * @param {Tree} tree
 * @returns {Index}
 */
function indexOf(tree) {
  let index = indices.get(tree);
  if (!index) {
    index = { byId: new Map(), children: new Map(), cursors: new Map(tree.cursors) };
    for (const node of tree.nodes) adopt(index, node);
    indices.set(tree, index);
  }
  return index;
}

/**
 * @param {Index} index
 * @param {TreeNode} node
 */
function adopt(index, node) {
  index.byId.set(node.id, node);
  const parent = node.parent ?? 0;
  const siblings = index.children.get(parent);
  if (siblings) siblings.push(node.id);
  else index.children.set(parent, [node.id]);
}

/**
 * Returns a node of the tree.
 * @param {Tree} tree
 * @param {number} id
 */
export function nodeOf(tree, id) {
  return indexOf(tree).byId.get(id);
}

/**
 * Returns the ids of a node's children, oldest first. The children of `null` are the roots.
 * @param {Tree} tree
 * @param {number | null} id
 */
export function childrenOf(tree, id) {
  return indexOf(tree).children.get(id ?? 0) ?? [];
}

/**
 * Returns whether a node is a prompt without an answer, such as that of a run that has failed. The path never leads to it.
 * @param {Tree} tree
 * @param {TreeNode} node
 */
export function isUnanswered(tree, node) {
  const parent = node.parent === undefined ? undefined : nodeOf(tree, node.parent);
  const hasResults = () => node.message?.content.some((block) => block.type === "tool_result") && !parent?.left_open;
  if (node.message?.compaction) return false;
  return (node.message ?? node).role === "user" && !childrenOf(tree, node.id).length && !hasResults();
}

/**
 * Returns the nodes of the path, from its root to the head.
 * @param {Tree} tree
 */
export function pathOf(tree) {
  const { byId } = indexOf(tree);
  const path = [];
  let node = tree.head === null ? undefined : byId.get(tree.head);
  while (node) {
    path.push(node);
    node = node.parent === undefined ? undefined : byId.get(node.parent);
  }
  return path.reverse();
}

/**
 * @param {Tree} tree
 * @param {{ nodes?: Node[], head: number | null, cursors?: [number, number][] }} changes
 */
function applyChanges(tree, { nodes = [], head, cursors = [] }) {
  const index = indexOf(tree);
  for (const node of nodes) {
    const next = tree.next ?? (tree.nodes.at(-1)?.id ?? 0) + 1;
    if (node.id !== next) throw new Error(`the node ${node.id} is not the next one, which is ${next}`);
    if (node.parent !== undefined && !index.byId.has(node.parent)) throw new Error(`no node ${node.parent}`);
    delete tree.next;
    tree.nodes.push(node);
    adopt(index, node);
    // The newest child becomes the active one.
    index.cursors.delete(node.parent ?? 0);
  }
  settle(tree, index, head, cursors);
}

/**
 * @param {Tree} tree
 * @param {Index} index
 * @param {number | null} head
 * @param {Iterable<[number, number]>} cursors
 */
function settle(tree, index, head, cursors) {
  const setCursor = (/** @type {number} */ id, /** @type {number} */ child) => {
    if (index.children.get(id)?.at(-1) === child) index.cursors.delete(id);
    else index.cursors.set(id, child);
  };
  for (const [id, child] of cursors) setCursor(id, child);
  if (head !== null && !index.byId.has(head)) throw new Error(`no node ${head}`);
  tree.head = head;
  const path = pathOf(tree);
  for (const [position, node] of path.slice(1).entries()) setCursor(path[position].id, node.id);
  tree.cursors = [...index.cursors].sort(([a], [b]) => a - b);
}

/**
 * @param {Tree} tree
 * @param {{ nodes: number[], head: number | null, next: number }} erased
 */
function applyErased(tree, erased) {
  const isErased = new Set(erased.nodes);
  const cursors = tree.cursors.filter(([node, child]) => !isErased.has(node) && !isErased.has(child));
  tree.nodes = tree.nodes.filter((node) => !isErased.has(node.id));
  tree.cursors = [];
  indices.delete(tree);
  settle(tree, indexOf(tree), erased.head, cursors);
  if (erased.next === (tree.nodes.at(-1)?.id ?? 0) + 1) delete tree.next;
  else tree.next = erased.next;
}
