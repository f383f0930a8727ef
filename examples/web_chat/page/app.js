// The page: one stream carries the list and the conversation on screen, and everything else follows from its snapshots.

import { Client, ProblemError, backoff, fill, kindOf, tailOf } from "./client.js";
import { Composer } from "./composer.js";
import { byId, h, icon, iconButton, isComposing, place, setText, visible } from "./dom.js";
import { save, withData } from "./files.js";
import { locale, money, percent, short } from "./format.js";
import { Messages, firstWords, reasonOf, textOf, unansweredIn } from "./messages.js";
import { showOutline } from "./outline.js";
import { Sidebar } from "./sidebar.js";
import { isQuestion } from "./tools.js";

/** @typedef {import("./client.js").SessionSnapshot} SessionSnapshot */

const client = new Client("agent");
/** @type {{ models: { name: string, context?: number }[] }} */
let settings = { models: [] };
/** @type {string | null} */
let current = null;
/** @type {ReturnType<Client["stream"]>} */
let stream;
/** The model that was chosen for a new conversation. */
let newModel = "";
/** The prompts that were lost with a connection or in a restart of the server. */
let lost = /** @type {import("./client.js").Message[]} */ ([]);
/** The reason why the conversation on screen is not available. `null` if it is available. */
let refused = /** @type {string | null} */ (null);
/** The attempts to open the conversation on screen since another server has opened it. */
let attempts = 0;
const MAX_ATTEMPTS = 8;
/** The timer of the next attempt to open the conversation on screen. `null` if none is planned. */
let planned = /** @type {ReturnType<typeof setTimeout> | null} */ (null);
/** The reason if the server says that there is no such conversation. No other attempt can help. */
const MISSING = "This conversation does not exist, or it belongs to somebody else.";
/** Other conversations that the server refuses. They are listed, but they cannot be watched. */
const unwatchable = new Set();
let dismissedRun = "";

const emptySeen = () => ({
  progress: new Map(), decided: new Map(), timing: new Map(), inputs: new Map(), results: new Map(), settling: /** @type {any[]} */ ([]),
  asked: new Set(), unstarted: new Set(), waiting: /** @type {{ until: number, why: string } | null} */ (null),
  backup: /** @type {{ model: string, why: string } | null} */ (null),
});
let seen = emptySeen();

// ---- notices ----

/** @type {Map<string, { text: string, isBad: boolean, action?: [string, () => void] }>} */
const notices = new Map();

/**
 * @param {string} key
 * @param {string | null} text
 * @param {{ isBad?: boolean, action?: [string, () => void], seconds?: number }} [options]
 */
function notice(key, text, { isBad = false, action, seconds } = {}) {
  if (text === null) notices.delete(key);
  else notices.set(key, { text, isBad, action });
  if (text !== null && seconds) setTimeout(() => notices.get(key)?.text === text && notice(key, null), seconds * 1000);
  const bar = byId("notice");
  const shown = [...notices.values()].at(-1);
  bar.hidden = !shown;
  if (!shown) return place(bar, []);
  bar.classList.toggle("bad", shown.isBad);
  const close = iconButton("close", "Close this notice", () => notice([...notices.keys()].at(-1) ?? "", null));
  place(bar, [
    h("span", { dir: "auto" }, shown.text),
    ...(shown.action ? [h("button", { type: "button", class: "small", onclick: shown.action[1] }, shown.action[0])] : []),
    ...(shown.isBad ? [close] : []),
  ]);
}

const UNKNOWN_MESSAGE = "It is not known whether the message has arrived. If you send it again unchanged, it does not arrive twice.";

/**
 * Shows why something has failed. A request without an answer may have reached the server.
 * @param {unknown} error
 * @param {string} [unknown] The sentence for a request without an answer.
 */
function fail(error, unknown = "It is not known whether the change was made.") {
  const text = error instanceof ProblemError
    ? error.message
    : error instanceof TypeError ? `The server cannot be reached. ${unknown}`.trim() : String(error instanceof Error ? error.message : error);
  notice("error", text, { isBad: true, seconds: 15 });
}

/**
 * Shows why something could not be read.
 * @param {unknown} error
 */
const failToRead = (error) => fail(error, "");

/** @param {import("./client.js").SessionCommand} command */
async function command(command) {
  if (!current) return;
  try {
    return await client.command(current, command);
  } catch (error) {
    fail(error);
    throw error;
  }
}

/**
 * Runs the command of a button. `command` shows a failure, so it is ignored here.
 * @param {import("./client.js").SessionCommand} what
 */
const press = (what) => command(what).catch(() => undefined);

// ---- parts ----

const messages = new Messages(byId("messages"), {
  async decide(pause, decision) {
    if (!current) return;
    try {
      await client.command(current, { type: "decide", turn: pause.turn, decisions: [[pause.tool_use.id, decision]] });
    } catch (error) {
      if (error instanceof ProblemError && error.code === "stale-decision") {
        notice("decision", "Somebody else has decided already.", { seconds: 8 });
        return;
      }
      throw error;
    }
  },
  command: (what) => (what.type === "run" && what.prompt ? command(what) : press(what)),
  async fork(node) {
    if (!current) return;
    try {
      const { id } = await client.fork(current, node);
      location.hash = `/${encodeURIComponent(id)}`;
      await sidebar.refresh();
    } catch (error) {
      fail(error);
    }
  },
});

const sidebar = new Sidebar(client, {
  decisions: (id) => stream?.snapshots.get(id)?.agent.pauses?.length ?? 0,
  rename,
  async delete(id, title) {
    const answer = await ask("Delete this conversation?", `“${title}” and all its branches are deleted.`, "Delete", { isDanger: true });
    if (answer === null) return;
    try {
      await client.delete(id);
      if (id === current) location.hash = "/";
      await sidebar.refresh();
    } catch (error) {
      fail(error);
    }
  },
  fail: failToRead,
  chosen: () => toggleSidebar(false),
  changed: watch,
});

const composer = new Composer({
  async send(prompt, id) {
    const compact = id !== null && /^\/compact(?:\s+(.+))?$/s.exec(prompt.content.length === 1 ? textOf(prompt) : "");
    try {
      id ??= await create();
      await client.command(id, compact ? { type: "compact", ...(compact[1] && { focus: compact[1] }) } : { type: "run", prompt });
      // The user may have chosen another conversation in the meantime.
      if (id !== current) return true;
      follow();
      lost = [];
      const end = stream.snapshots.get(id)?.agent.last_run;
      if (end) dismissedRun = runKey(end);
      return true;
    } catch (error) {
      fail(error, UNKNOWN_MESSAGE);
      return false;
    }
  },
  stop: () => press({ type: "interrupt" }),
  async unstage(id) {
    const answer = await press({ type: "unstage", id });
    if (answer?.type === "prompt") composer.putBack(answer.prompt);
  },
  fail: failToRead,
});

/**
 * Creates a conversation, and shows it unless the user has chosen another one in the meantime. Returns its id. It is shown
 * before its first message is sent, so that the next message goes to it too, even if the first one fails.
 */
async function create() {
  const { id } = await client.create(newModel ? { model: newModel } : {});
  composer.created(id);
  if (current === null) {
    location.hash = `/${encodeURIComponent(id)}`;
    route();
  }
  return id;
}

/**
 * @param {string} id
 * @param {string | null} title
 */
async function rename(id, title) {
  const answer = await ask("Rename the conversation", "", "Save", { value: title ?? "" });
  if (answer === null) return;
  try {
    await client.command(id, { type: "title", title: answer.trim() || null });
    await sidebar.refresh();
  } catch (error) {
    fail(error);
  }
}

/**
 * Asks the user. Returns the text, or `null` if the user cancels.
 * @param {string} title
 * @param {string} text
 * @param {string} ok
 * @param {{ value?: string, isDanger?: boolean }} options
 * @returns {Promise<string | null>}
 */
function ask(title, text, ok, { value, isDanger = false }) {
  const dialog = byId("ask");
  setText(byId("ask-title"), title);
  setText(byId("ask-text"), text);
  setText(byId("ask-ok"), ok);
  byId("ask-ok").className = isDanger ? "danger" : "primary";
  byId("ask-input").hidden = value === undefined;
  byId("ask-input").value = value ?? "";
  dialog.returnValue = "";
  dialog.showModal();
  byId(value === undefined ? "ask-ok" : "ask-input").focus();
  byId("ask-input").select();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "ok" ? byId("ask-input").value : null), { once: true });
  });
}

// ---- the stream ----

/** The number of messages that are loaded at once. */
const PAGE = 50;
let isLoadingOlder = false;

/** Loads the messages before those on screen, which stay at their place. */
async function loadOlder() {
  const [id, from] = [current, current ? stream.snapshots.get(current)?.from : undefined];
  if (!id || from === undefined || isLoadingOlder) return;
  isLoadingOlder = true;
  try {
    const { messages: older } = await client.messages(id, { before: from, limit: PAGE });
    const snapshot = stream.snapshots.get(id);
    if (id !== current || !snapshot) return;
    fill(snapshot, older);
    const below = scroller.scrollHeight - scroller.scrollTop;
    paint();
    if (!isFollowing) scroller.scrollTop = scroller.scrollHeight - below;
    if (snapshot.from === undefined && document.activeElement === document.body) scroller.focus();
  } catch (error) {
    failToRead(error);
  } finally {
    isLoadingOlder = false;
  }
}

/** Whether the stream connects again only to watch other conversations. */
let isSwitching = false;

/** Watches the conversation on screen and those that wait for decisions, so that the list shows their number. */
function watch() {
  const wanted = refused === null && planned === null ? current : null;
  const ids = wanted ? [wanted] : [];
  for (const id of sidebar.openPaused) {
    if (ids.length < 8 && id !== current && !unwatchable.has(id)) ids.push(id);
  }
  // A conversation whose pause has ended stays watched until another conversation has to be watched. This saves a new
  // connection.
  const isEnough = ids.every((id) => stream.watched.includes(id)) && (!wanted || stream.watched.includes(wanted));
  if (isEnough) return;
  isSwitching = true;
  stream.watch(ids);
}

function connect() {
  stream = client.stream({
    list: true,
    watch: current ? [current] : [],
    messages: PAGE,
    onList(list, update) {
      sidebar.take(list, update, isSwitching);
      isSwitching = false;
    },
    onConversation(id, snapshot, update, before) {
      if (id !== current) {
        if (update.type !== "event" || update.event.type === "agent") sidebar.render();
        return;
      }
      if (update.type === "event") {
        attempts = 0;
        note(snapshot, update.event);
      }
      if (update.type !== "closed") notice("elsewhere", null);
      if (update.type !== "event" || ["decided", "status"].includes(update.event.event?.type)) sidebar.render();
      // If a write follows the end of a run on screen, the write's time counts as seen.
      const isSaved = update.type === "event" && update.event.type === "store" && update.event.outcome === "saved";
      if (isSaved && snapshot.agent.status === "idle") sidebar.refresh();
      if (update.type === "resync" && before) replaced(before, snapshot);
      else if (update.type === "closed") again(update.reason);
      schedule();
    },
    onRefused(id, problem, retryAfter) {
      if (id !== current) {
        unwatchable.add(id);
        if (retryAfter !== null) setTimeout(() => unwatchable.delete(id) && watch(), Math.max(retryAfter, 1) * 1000);
        return;
      }
      notice("elsewhere", null);
      refused = problem.status === 404 ? MISSING : (problem.detail ?? problem.title);
      if (refused === MISSING) messages.clear();
      // The status 421 means that another server has the conversation open.
      const delay = retryAfter !== null ? Math.max(retryAfter, 1) * 1000 : problem.status === 421 ? nextDelay() : null;
      if (delay !== null) plan(delay);
      schedule();
    },
    onState(state, error, delay) {
      if (state === "open") {
        if (notices.has("offline")) notice("online", "Connected again.", { seconds: 4 });
        notice("offline", null);
      } else if (state === "waiting") {
        isSwitching = false;
        const retry = ["Try now", () => stream.reconnect()];
        const why = navigator.onLine ? "The connection to the server is lost." : "You are offline.";
        const wait = Number.isFinite(delay) ? " The page tries again by itself." : "";
        notice("offline", why + wait, { isBad: true, action: /** @type {any} */ (retry) });
      } else if (state === "closed" && error) {
        notice("offline", "Your session has ended. Sign in again and reload the page.", { isBad: true });
      }
    },
  });
}

/**
 * Records the details of an event that a snapshot does not contain.
 * @param {SessionSnapshot} snapshot
 * @param {import("./client.js").SessionEvent} event
 */
function note(snapshot, event) {
  if (event.type === "tree") seen.settling = [];
  if (event.type !== "agent") return;
  const { event: inner } = event;
  const use = inner.tool_use_id;
  if (["step_start", "turn", "cancelled", "error"].includes(inner.type)) seen.waiting = null;
  if (["cancelled", "error"].includes(inner.type) || (inner.type === "turn" && !inner.continues)) seen.backup = null;
  switch (inner.type) {
    case "retry": {
      const delay = inner.delay.secs * 1000 + inner.delay.nanos / 1e6;
      // A shorter delay is over before anybody has read about it.
      if (delay >= 2000) seen.waiting = { until: Date.now() + delay, why: reasonOf(inner.failure) };
      if (inner.model) seen.backup = { model: inner.model, why: reasonOf(inner.failure) };
      break;
    }
    case "tool_use_end":
      seen.unstarted.add(inner.content.id);
      break;
    case "resumed":
      // Tools that continue report their progress and their results again.
      seen.progress.clear();
      seen.results.clear();
      break;
    case "tool_progress":
      seen.progress.set(use, inner.data);
      break;
    case "decided":
      seen.decided.set(use, { kind: inner.expired ? "expired" : kindOf(inner.decision), by: inner.by, at: inner.at });
      break;
    case "tool_start":
      seen.unstarted.delete(use);
      seen.timing.set(use, { start: performance.now() });
      if (inner.input !== undefined) seen.inputs.set(use, inner.input);
      break;
    case "tool_end":
      // After a reload, the start is unknown. The duration is then computed from the messages.
      if (seen.timing.has(use)) seen.timing.get(use).end = performance.now();
      break;
    case "tool_result":
      if (inner.input !== undefined) seen.inputs.set(inner.result.tool_use_id, inner.input);
      seen.results.set(inner.result.tool_use_id, inner.result);
      break;
    case "status":
      for (const { tool_use } of inner.pauses ?? []) {
        if (!seen.asked.has(tool_use.id)) say(`A decision is needed: ${tool_use.name}.`);
        seen.asked.add(tool_use.id);
      }
      break;
    case "turn":
      // The tree contains these messages after its next event.
      seen.settling = inner.response.messages;
      if (!inner.continues) {
        const words = inner.response.message ? textOf(inner.response.message).split(/\s+/).filter(Boolean).length : 0;
        const isStopped = ["interrupted", "abandoned"].includes(inner.response.stop_reason);
        say(isStopped ? "The answer was stopped." : `The answer is complete: ${words} words.`);
      }
      break;
    case "error":
      if (inner.committed) seen.settling = inner.response.messages;
      say(inner.committed ? "The answer failed. Its beginning is kept." : "The answer failed.");
      break;
    case "message":
      if (inner.message.role === "user" && snapshot.agent.pending.length === 1) say("Answering.");
      break;
  }
}

/**
 * Remembers the decisions in a snapshot. They were made before this page was opened. Results contain their decisions.
 * @param {SessionSnapshot} snapshot
 */
function learnDecisions({ agent: { decisions = [] } }) {
  for (const [use, decision] of new Map(decisions)) {
    // A snapshot has only decisions that somebody has made by name. A later one without a name stays.
    if ((seen.decided.get(use)?.at ?? Number.NEGATIVE_INFINITY) < decision.at) seen.decided.set(use, decision);
  }
}

/**
 * Watches a conversation again after its session has ended, for example because nobody used it for a while, or because
 * another server has opened it.
 * @param {string} reason
 */
function again(reason) {
  if (reason !== "lost_place") {
    plan(500);
    return;
  }
  const delay = nextDelay();
  if (delay === null) {
    refused = "Another server has opened this conversation.";
    return;
  }
  notice("elsewhere", "Another server has opened this conversation. The page opens it again by itself.", { isBad: true });
  plan(delay);
}

/**
 * Plans the next attempt to open the conversation on screen. Until then, nothing else opens it.
 * @param {number | null} delay The delay in milliseconds. `null` cancels the attempt.
 */
function plan(delay) {
  if (planned !== null) clearTimeout(planned);
  planned = delay === null ? null : setTimeout(retry, delay);
}

/**
 * Returns the delay in milliseconds before the next attempt to open a conversation that another server has opened.
 * Returns `null` if there were too many attempts.
 */
function nextDelay() {
  if (attempts >= MAX_ATTEMPTS) return null;
  attempts += 1;
  return backoff(attempts);
}

/** Tries to open the conversation on screen again at the user's wish. */
function startAgain() {
  attempts = 0;
  retry();
}

/** Watches the conversation on screen again. */
function retry() {
  plan(null);
  refused = null;
  watch();
  schedule();
}

/**
 * Handles a snapshot that replaces another one, because events were missed or because the path has moved.
 * @param {SessionSnapshot} before
 * @param {SessionSnapshot} after
 */
function replaced(before, after) {
  seen.settling = [];
  const ids = new Set([...after.tree.nodes.map((node) => node.message), ...after.agent.pending].map((message) => message?.id));
  for (const prompt of after.agent.staged ?? []) ids.add(prompt.id);
  for (const message of after.agent.last_run?.unanswered ?? []) ids.add(message.id);
  // Without the message of the former head, the messages after it can be missing too: a tail has only their outlines.
  const isCut = after.from !== undefined && !after.tree.nodes.some((node) => node.id === before.tree.head && node.message);
  const isLost = (/** @type {any} */ message) => !isCut && message.id !== undefined && !ids.has(message.id);
  const prompts = [...before.agent.pending, ...(before.agent.staged ?? [])].filter(isLost);
  const users = prompts.filter((prompt) => !("role" in prompt) || (prompt.role === "user" && !prompt.compaction)).filter((prompt) => textOf(prompt));
  // In another life, a tool that runs again reports its progress and its result again.
  const isRestarted = life(before) !== life(after);
  // If the path or the settings have changed, the server sends a snapshot with the messages that the page needs now.
  const isMoved = after.tree.head !== before.tree.head || after.tree.nodes.length !== before.tree.nodes.length
    || after.agent.state.model !== before.agent.state.model;
  if (isRestarted) seen = emptySeen();
  if (isRestarted && users.length) {
    lost = /** @type {any} */ (users);
    notice("resync", "The server was restarted during an answer. What was not saved yet is lost.", { isBad: true });
  } else if (isRestarted && before.agent.status !== "idle" && after.agent.status !== "idle") {
    const again = before.agent.partial.length ? " Its unfinished part is written again." : "";
    notice("resync", `The server was restarted. The answer continues.${again}`, { seconds: 10 });
  } else if (!isMoved) {
    notice("resync", "Some updates were missed. The conversation was loaded again.", { seconds: 6 });
  }
}

/** @param {SessionSnapshot} snapshot */
const life = (snapshot) => snapshot.last.split("-")[0];

/**
 * Makes screen readers read a line.
 * @param {string} text
 */
function say(text) {
  setText(byId("summary"), text);
}

// ---- painting ----

let isScheduled = false;
let isFollowing = true;

function schedule() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    paint();
  });
}

function paint() {
  const snapshot = current ? stream.snapshots.get(current) : undefined;
  const isBusy = snapshot !== undefined && snapshot.agent.status !== "idle";
  if (snapshot) learnDecisions(snapshot);
  const count = snapshot ? messages.render(snapshot, seen) : 0;
  if (snapshot && !snapshot.title && !sidebar.words.has(snapshot.id)) {
    const words = firstWords(snapshot);
    if (words !== null) {
      sidebar.words.set(snapshot.id, words);
      sidebar.render();
    }
  }
  const known = current ? sidebar.nameOf({ id: current, title: snapshot ? snapshot.title : (sidebar.item(current)?.title ?? null) }) : null;
  const title = refused !== null ? "Not available" : (known ?? "New chat");
  setText(byId("title"), title);
  document.title = current ? `${title} · Chat` : "Chat";
  byId("older").hidden = snapshot?.from === undefined;
  byId("welcome").hidden = count > 0 || (current !== null && !snapshot);
  byId("composer").hidden = refused !== null;
  composer.update(isBusy, snapshot?.agent.staged ?? []);
  paintWaiting(snapshot);
  paintTail(snapshot, isBusy);
  paintGauge(snapshot);
  paintModel(snapshot, isBusy);
  for (const button of byId("tools").children) button.hidden = !snapshot;
  if (isFollowing) toEnd();
  byId("to-end").hidden = isFollowing || count === 0;
}

/** @param {SessionSnapshot | undefined} snapshot */
function paintWaiting(snapshot) {
  const pauses = snapshot?.agent.pauses ?? [];
  const bar = byId("waiting");
  bar.hidden = pauses.length === 0;
  // Tool uses of different conversations can have the same ids.
  const key = pauses.map((pause) => [pause.turn, pause.tool_use.id]).join();
  if (bar.dataset.key === key) return;
  bar.dataset.key = key;
  if (!pauses.length) return place(bar, []);
  const text = pauses.length === 1 ? "1 decision is needed" : `${pauses.length} decisions are needed`;
  const show = () => byId("messages").querySelector(".tool.waiting")?.scrollIntoView({ block: "center" });
  // Questions are left out, because no single answer fits all of them.
  const approvals = pauses.filter((pause) => !isQuestion(pause));
  const all = async () => {
    // The user may choose another conversation in the meantime.
    const id = /** @type {string} */ (current);
    // One command each, so that the others are approved even if somebody has decided about one meanwhile.
    for (const { turn, tool_use } of approvals) {
      try {
        const command = { type: "decide", turn, decisions: [[tool_use.id, "execute"]] };
        await client.command(id, command);
      } catch (error) {
        if (!(error instanceof ProblemError && error.code === "stale-decision")) return fail(error);
      }
    }
  };
  place(bar, [
    h("span", {}, text),
    h("button", { type: "button", class: "small", onclick: show }, "Show"),
    ...(approvals.length > 1 ? [h("button", { type: "button", class: "small", onclick: all }, "Approve all")] : []),
  ]);
}

/** @param {import("./client.js").RunEnd} end */
function runKey(end) {
  return JSON.stringify([end.turn, end.outcome, end.unanswered?.map((message) => message.id), end.staged?.map((prompt) => prompt.id)]);
}

/**
 * Shows how the last run ended, and the messages that got no answer.
 * @param {SessionSnapshot | undefined} snapshot
 * @param {boolean} isBusy
 */
function paintTail(snapshot, isBusy) {
  const tail = byId("tail");
  const end = snapshot?.agent.last_run;
  const store = snapshot?.store;
  const shown = snapshot && end?.unanswered?.length ? unansweredIn(snapshot) : new Set();
  const budget = snapshot?.agent.budget;
  const key = JSON.stringify([refused, planned === null, isBusy, end && runKey(end), shown.size, dismissedRun, lost.map((message) => message.id), store, seen.waiting, seen.backup, budget]);
  if (tail.dataset.key === key) return;
  tail.dataset.key = key;
  const parts = [];
  if (refused !== null) {
    const again = refused !== MISSING && planned === null && h("button", { type: "button", class: "small", onclick: startAgain }, "Try again");
    parts.push(h("div", { class: "outcome bad" }, h("p", {}, refused), ...(again ? [again] : [])));
  }
  if (store?.outcome === "failed") parts.push(h("div", { class: "outcome bad" }, h("p", {}, "The last messages are not saved yet. The server tries again.")));
  if (store?.outcome === "lost") parts.push(h("div", { class: "outcome bad" }, h("p", {}, "This server can no longer save the conversation. Copy what you need, and load the page again.")));
  if (isBusy && seen.waiting) {
    const at = new Date(seen.waiting.until).toLocaleTimeString(locale);
    parts.push(h("p", { class: "note", role: "status", dir: "auto" }, `The model service does not answer now (${seen.waiting.why}). The request is sent again at ${at}.`));
  }
  if (isBusy && budget) {
    const { requests, usage } = budget.spent;
    const cost = usage.cost === undefined ? "" : `, $${usage.cost.toFixed(2)}`;
    parts.push(h("p", { class: "note", role: "status" }, `Most of the budget is spent: ${requests} requests${cost}.`));
  }
  if (isBusy && seen.backup) {
    parts.push(h("p", { class: "note", role: "status", dir: "auto" }, `Another model answers: ${seen.backup.model}. The one before it failed (${seen.backup.why}).`));
  }
  if (end && !isBusy && runKey(end) !== dismissedRun) {
    if (end.outcome === "failed" && !end.unanswered?.some((message) => shown.has(message.id))) {
      parts.push(h("div", { class: "outcome bad", role: "alert" }, h("p", { dir: "auto" }, `The answer failed: ${reasonOf(end.failure)}`)));
    }
    if (end.outcome === "abandoned") parts.push(h("div", { class: "outcome bad" }, h("p", {}, "The answer was given up after too many restarts of the server.")));
    if (end.outcome === "stopped" && end.stop_reason === "interrupted") parts.push(h("p", { class: "note" }, "Stopped."));
    if (end.outcome === "stopped" && end.stop_reason === "max_steps") parts.push(h("p", { class: "note" }, "Stopped at the limit of steps."));
    if (end.outcome === "stopped" && end.stop_reason === "budget") parts.push(h("p", { class: "note" }, "Stopped at the limit of the budget."));
    if (end.outcome === "stopped" && end.stop_reason === "length") parts.push(h("p", { class: "note" }, "The answer has reached its greatest length."));
    const why = "This message has no answer.";
    const dismiss = () => (dismissedRun = runKey(end));
    // The server knows the id of a message whose run has ended, and accepts it only under another one.
    const ended = (end.unanswered ?? []).filter((message) => !shown.has(message.id));
    for (const message of ended) parts.push(unanswered(message, message.id && `${message.id}-again`, why, dismiss));
    for (const prompt of end.staged ?? []) parts.push(unanswered(prompt, prompt.id, why, dismiss));
  }
  for (const prompt of lost) {
    const dismiss = () => (lost = lost.filter((other) => other !== prompt));
    parts.push(unanswered(prompt, prompt.id, "This message was lost when the server was restarted.", dismiss));
  }
  place(tail, parts);
}

/**
 * @param {import("./client.js").Prompt | import("./client.js").Message} prompt
 * @param {string | undefined} id The id under which the message is sent again. The server accepts it only once.
 * @param {string} why
 * @param {() => void} done
 */
function unanswered(prompt, id, why, done) {
  const conversation = /** @type {string} */ (current);
  const again = async () => {
    button.disabled = true;
    try {
      const tree = stream.snapshots.get(conversation)?.tree;
      const node = tree?.nodes.find((node) => prompt.id !== undefined && node.message?.id === prompt.id);
      const run = node ? { at: { again: node.id } } : { prompt: { id, content: await withData(prompt.content) } };
      await client.command(conversation, { type: "run", ...run });
      done();
      schedule();
    } catch (error) {
      fail(error, UNKNOWN_MESSAGE);
      button.disabled = false;
    }
  };
  const button = h("button", { type: "button", class: "small", onclick: again }, "Send again");
  const back = () => {
    composer.putBack(prompt);
    done();
    schedule();
  };
  return h("div", { class: "outcome" }, h("p", {}, why), h("blockquote", { dir: "auto", tabIndex: 0 }, textOf(prompt)),
    h("div", { class: "buttons" },
      button,
      h("button", { type: "button", class: "small quiet", onclick: back }, "Edit")));
}

/**
 * Returns the size of the conversation in tokens, as a service has counted it last, or 0.
 * @param {SessionSnapshot} snapshot
 */
function contextOf(snapshot) {
  const all = [...tailOf(snapshot.tree).map((node) => node.message), ...snapshot.agent.pending];
  const last = all.findLast((message) => message.compaction?.tokens || message.context_tokens);
  return last?.context_tokens ?? last?.compaction?.tokens?.[1] ?? 0;
}

/** @param {SessionSnapshot | undefined} snapshot */
function paintGauge(snapshot) {
  const gauge = byId("gauge");
  const size = settings.models.find((model) => model.name === snapshot?.agent.state.model)?.context;
  const context = snapshot ? contextOf(snapshot) : 0;
  const parts = [];
  if (snapshot?.agent.compacting) parts.push("compacting");
  else if (context > 0) {
    if (size) parts.push(`context ${percent(Math.min(context / size, 1))}`);
    else parts.push(`${short(context)} tokens`);
  }
  const cost = snapshot?.used.cost;
  if (cost) parts.push(money(cost));
  const text = parts.join(", ");
  gauge.hidden = !text;
  if (gauge.dataset.text === text) return;
  gauge.dataset.text = text;
  const share = size ? Math.min(context / size, 1) : 0;
  const meter = h("meter", { min: 0, max: 1, low: 0.7, high: 0.9, optimum: 0, value: share, "aria-label": "Context in use" });
  gauge.title = snapshot ? `${short(snapshot.used.input + snapshot.used.cache_read + snapshot.used.cache_write)} tokens read, ${short(snapshot.used.output)} written` : "";
  place(gauge, [...(size ? [meter] : []), h("span", {}, text)]);
}

/**
 * @param {SessionSnapshot | undefined} snapshot
 * @param {boolean} isBusy
 */
function paintModel(snapshot, isBusy) {
  const select = byId("model");
  const chosen = snapshot?.agent.state.model ?? (newModel || settings.models[0]?.name || "");
  const names = settings.models.map((model) => model.name);
  if (chosen && !names.includes(chosen)) names.unshift(chosen);
  select.hidden = names.length === 0 || refused !== null;
  const key = names.join("\n");
  if (select.dataset.key !== key) {
    select.dataset.key = key;
    place(select, names.map((name) => h("option", { value: name }, visible(name))));
  }
  if (document.activeElement !== select || isBusy) select.value = chosen;
  select.disabled = isBusy;
}

// ---- scrolling ----

const scroller = byId("scroll");

function toEnd() {
  scroller.scrollTop = scroller.scrollHeight;
}

/** @param {boolean} isOn */
function setFollowing(isOn) {
  isFollowing = isOn;
  scroller.classList.toggle("following", isOn);
}

/** Scrolls to the end, and stays there. */
function follow() {
  setFollowing(true);
  toEnd();
}

let lastTop = 0;
scroller.addEventListener("scroll", () => {
  const isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 48;
  // Only the user scrolls up, so scrolling up ends following. The distance to the end is not used, because the height
  // of messages that were never on screen is estimated, so the end moves.
  if (isAtEnd) setFollowing(true);
  else if (scroller.scrollTop < lastTop - 4) setFollowing(false);
  lastTop = scroller.scrollTop;
  byId("to-end").hidden = isFollowing;
  if (scroller.scrollTop < 200 && !isFollowing) loadOlder();
}, { passive: true });
new ResizeObserver(() => isFollowing && toEnd()).observe(byId("messages"));

// ---- start ----

/** Returns the id of the conversation that the address names. `null` if it names none, or not in a valid form. */
function idInAddress() {
  try {
    return decodeURIComponent(location.hash.slice(2)) || null;
  } catch {
    return null;
  }
}

/** Shows the conversation that the address names. */
function route() {
  const id = idInAddress();
  if (id === current) return;
  current = id;
  refused = null;
  attempts = 0;
  plan(null);
  if (id) unwatchable.delete(id);
  lost = [];
  dismissedRun = "";
  seen = emptySeen();
  for (const key of ["error", "resync", "decision", "elsewhere"]) notice(key, null);
  messages.clear();
  follow();
  say("");
  sidebar.current = id;
  if (id) sidebar.read(id);
  composer.open(id);
  sidebar.render();
  watch();
  schedule();
  composer.area.focus();
}

/** @param {boolean} isOpen */
function toggleSidebar(isOpen) {
  byId("sidebar").classList.toggle("open", isOpen);
  byId("shade").hidden = !isOpen;
  byId("menu").setAttribute("aria-expanded", String(isOpen));
  byId("main").inert = isOpen;
  if (isOpen) byId("search").focus();
}

byId("ask-cancel").addEventListener("click", () => byId("ask").close(""));
byId("menu").append(icon("menu"));
byId("to-end").append(icon("down"));
byId("map-close").append(icon("close"));
byId("menu").addEventListener("click", () => toggleSidebar(true));
byId("shade").addEventListener("click", () => toggleSidebar(false));
byId("older").addEventListener("click", () => {
  setFollowing(false);
  loadOlder();
});
byId("to-end").addEventListener("click", () => {
  follow();
  composer.area.focus();
});
byId("new").addEventListener("click", () => {
  location.hash = "/";
  toggleSidebar(false);
  composer.area.focus();
});
byId("tools").append(
  iconButton("map", "All branches", async () => {
    const id = current;
    const snapshot = id && (await client.snapshot(id).catch(failToRead));
    // Another conversation may be on screen by now.
    if (!snapshot || id !== current || byId("map").open) return;
    showOutline(snapshot, snapshot.agent.status !== "idle", (node) => {
      byId("map").close();
      press({ type: "navigate", node });
    });
  }),
  iconButton("edit", "Rename the conversation", () => {
    const snapshot = current && stream.snapshots.get(current);
    if (snapshot) rename(snapshot.id, snapshot.title);
  }),
  iconButton("save", "Export as JSON", async () => {
    if (!current) return;
    try {
      const snapshot = await client.snapshot(current);
      save(new Blob([JSON.stringify(snapshot, null, 2)], { type: "application/json" }), `${current}.json`);
    } catch (error) {
      failToRead(error);
    }
  }),
);
byId("model").addEventListener("change", async () => {
  const model = byId("model").value;
  if (!current) {
    newModel = model;
    return;
  }
  try {
    await client.command(current, { type: "model", model });
  } catch (error) {
    fail(error);
  }
  schedule();
});
addEventListener("hashchange", route);
addEventListener("online", () => stream.reconnect());
addEventListener("keydown", (event) => {
  if (isComposing(event)) return;
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    if (byId("menu").offsetParent) toggleSidebar(true);
    byId("search").focus();
  } else if (event.key === "Escape" && byId("sidebar").classList.contains("open")) {
    toggleSidebar(false);
    byId("menu").focus();
  }
});
// A hidden page needs no stream. When it is shown again, the stream continues after the last event.
document.addEventListener("visibilitychange", () => {
  isSwitching = false;
  if (document.hidden) stream.pause();
  else stream.resume();
});

connect();
route();
composer.open(current);
composer.area.focus();
schedule();
try {
  settings = await (await client.fetch("settings.json")).json();
  schedule();
} catch {
  // Without the settings, the user cannot choose a model.
}
