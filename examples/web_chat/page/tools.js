// The card of a tool use: input, progress, result, duration, and the decision of a person.

import { h, isComposing, place, setText, visible } from "./dom.js";
import { changedInput, outputOf } from "./client.js";
import { duration, percent } from "./format.js";
import { attachment } from "./files.js";
import { showQuestion } from "./questions.js";

/** @typedef {import("./client.js").Decision} Decision */

/**
 * The known facts about a tool use.
 * @typedef {object} ToolFacts
 * @property {import("./client.js").ToolUse} use
 * @property {string} [text] The text of the input, while the model writes it.
 * @property {boolean} isWritten Whether the model has written the whole input.
 * @property {boolean} isActive Whether the run of this tool use is active.
 * @property {import("./client.js").PendingUse} [pause]
 * @property {import("./client.js").ToolRun} [run]
 * @property {import("./client.js").ToolResult} [result]
 * @property {number} [total] The time from the request to the result in milliseconds, if nothing better is known.
 * @property {any} [progress]
 * @property {import("./client.js").UseDecision} [decided]
 * @property {{ start: number, end?: number }} [timing]
 * @property {boolean} [isUnstarted] Whether the page has seen that the tool use was written, and not that its tool began.
 * @property {any} [input] The input that the tool was run with, if it differs.
 */

const LABELS = {
  writing: "writing",
  waiting: "needs a decision",
  asking: "asks a question",
  queued: "queued",
  running: "running",
  done: "done",
  error: "failed",
  denied: "rejected",
  open: "not run",
};

export class ToolCard {
  /** @type {string | null} */ #state = null;
  #isOpenedHere = false;
  #content = "";
  /** @type {{ pause: import("./client.js").PendingUse, form: HTMLElement } | null} */ #form = null;
  #seen = "";

  /** @param {(pause: import("./client.js").PendingUse, decision: Decision) => Promise<void>} decide */
  constructor(decide) {
    this.decide = decide;
    this.name = h("bdi", { class: "tool-name mono" });
    this.brief = h("span", { class: "brief mono", dir: "ltr" });
    this.badge = h("span", { class: "badge" });
    this.inside = h("div", { class: "inside" });
    this.input = section("Input", h("pre", { dir: "ltr", tabIndex: 0, role: "group", "aria-label": "Input" }));
    this.changed = section("Run with this input", h("pre", { dir: "ltr", tabIndex: 0, role: "group", "aria-label": "Run with this input" }));
    this.bar = h("progress", { "aria-label": "Progress" });
    this.below = h("a", { hidden: true }, "Open the conversation of the sub-agent");
    this.progress = section("Progress", h("div", {}, this.bar), h("pre", { tabIndex: 0, role: "group", "aria-label": "Progress" }), this.below);
    this.result = section("Result", h("div", { class: "body" }));
    this.decision = h("p", { class: "note", dir: "auto" });
    this.element = h("details", { class: "tool" }, h("summary", {}, this.name, this.brief, this.badge), this.inside);
  }

  /** @param {ToolFacts} facts */
  update(facts) {
    const { use, pause, result } = facts;
    const state = stateOf(facts);
    const seen = JSON.stringify([state, facts]);
    if (seen === this.#seen) return;
    this.#seen = seen;
    setText(this.name, visible(use.name));
    const shown = pause?.tool_use.input ?? use.input;
    const text = facts.isWritten ? pretty(shown) : (facts.text ?? "");
    const news = state === "running" && facts.progress !== undefined ? progressText(facts.progress).split("\n")[0] : "";
    setText(this.brief, visible(news || brief(facts.isWritten ? shown : text)));
    setText(this.badge, label(state, facts));
    this.badge.className = `badge ${state}`;
    const isWaiting = state === "waiting" || state === "asking";
    this.element.classList.toggle("waiting", isWaiting);
    setText(/** @type {Element} */ (this.input.querySelector("pre")), visible(use.malformed ?? text));
    if (facts.input !== undefined) setText(/** @type {Element} */ (this.changed.querySelector("pre")), visible(pretty(facts.input)));
    if (facts.progress !== undefined) this.#showProgress(facts.progress);
    // The state can be `done` before the result is known, and the final result can differ from the first one.
    const content = result ? JSON.stringify(result.content) : "";
    if (result && content !== this.#content) {
      this.#content = content;
      place(/** @type {Element} */ (this.result.querySelector(".body")), outputOf(result).map((block) =>
        block.type === "text"
          ? h("pre", { dir: "auto", tabIndex: 0, role: "group", "aria-label": "Result" }, block.text || "(empty)")
          : attachment(block)));
    }
    setText(this.decision, facts.decided ? decisionText(facts.decided, result) : "");
    place(this.inside, /** @type {Node[]} */ ([
      this.input,
      facts.input !== undefined && this.changed,
      facts.progress !== undefined && !result && this.progress,
      facts.decided && this.decision,
      result && this.result,
      pause && this.#formOf(pause),
    ].filter(Boolean)));
    if (!pause) this.#form = null;
    if (state !== this.#state) {
      // The card opens for a decision and for progress, and closes again unless the user has opened it.
      if (isWaiting && !this.element.open) {
        this.element.open = this.#isOpenedHere = true;
      } else if (this.#isOpenedHere && (state === "done" || state === "denied")) {
        this.element.open = this.#isOpenedHere = false;
      }
      this.#state = state;
    }
  }

  /** @param {any} data */
  #showProgress(data) {
    const share = progressShare(data);
    this.bar.hidden = share === null;
    if (share !== null) this.bar.value = share;
    const text = progressText(data);
    const pre = /** @type {HTMLElement} */ (this.progress.querySelector("pre"));
    pre.hidden = text === "";
    setText(pre, visible(text));
    const id = data?.sub_agent?.conversation;
    this.below.hidden = typeof id !== "string";
    if (!this.below.hidden) this.below.setAttribute("href", `#/${encodeURIComponent(id)}`);
  }

  /** @param {import("./client.js").PendingUse} pause */
  #formOf(pause) {
    if (this.#form?.pause.tool_use.id === pause.tool_use.id && this.#form.pause.turn === pause.turn) return this.#form.form;
    this.#form = { pause, form: approval(pause, this.decide) };
    return this.#form.form;
  }
}

/**
 * @param {string} title
 * @param {...Node} children
 */
function section(title, ...children) {
  return h("section", {}, h("h3", {}, title), ...children);
}

/** The texts of the crate in the results of tools that were not run. After a reload, nothing else tells them apart. */
const NOT_RUN = /^Not run\b|\bThe tool was not run\.$/;

/** @param {import("./client.js").ToolResult} result */
const textOf = (result) => outputOf(result).map((block) => (block.type === "text" ? block.text : "")).join("");

/**
 * Returns whether a running tool asks. A pause of a sub-agent can be either.
 * @param {import("./client.js").PendingUse} pause
 */
export const isQuestion = (pause) =>
  (pause.sub_agent ? pause.sub_agent.is_question === true : pause.asked_by !== undefined && pause.survives === false);

/** @param {ToolFacts} facts */
export function stateOf({ pause, run, result, decided, timing, isWritten, isActive, isUnstarted }) {
  if (pause) return isQuestion(pause) ? "asking" : "waiting";
  if (result) {
    if (decided?.kind === "reject") return "denied";
    if (!result.is_error) return "done";
    // Nobody has decided in time, and nothing shows that the tool has run.
    if (decided?.kind === "expired" && !run && !timing && changedInput(result) === undefined) return "denied";
    return isUnstarted || NOT_RUN.test(textOf(result)) ? "open" : "error";
  }
  if (run) return run.is_error === undefined ? "running" : run.is_error ? "error" : "done";
  if (!isWritten) return "writing";
  return isActive ? "queued" : "open";
}

/**
 * @param {keyof typeof LABELS} state
 * @param {ToolFacts} facts
 */
function label(state, { timing, total, progress }) {
  const share = state === "running" && progress !== undefined ? progressShare(progress) : null;
  if (share !== null) return `${LABELS[state]} · ${percent(share)}`;
  const took = timing?.end !== undefined ? timing.end - timing.start : total;
  const isOver = state === "done" || state === "error";
  return isOver && took !== undefined ? `${LABELS[state]} · ${duration(took)}` : LABELS[state];
}

/** @param {any} value */
export function pretty(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/**
 * Returns the beginning of an input on one line.
 * @param {any} input
 */
function brief(input) {
  if (input === null || typeof input !== "object") return String(input ?? "").slice(0, 120);
  const values = Object.values(input);
  const text = values.length === 1 && typeof values[0] === "string" ? values[0] : values.length ? JSON.stringify(input) : "";
  return text.replace(/\s+/g, " ").slice(0, 120);
}

/** @param {any} data */
function progressShare(data) {
  if (data === null || typeof data !== "object") return null;
  if (typeof data.percent === "number") return data.percent / 100;
  const done = data.progress ?? data.done ?? data.current;
  if (typeof done !== "number") return null;
  if (typeof data.total === "number" && data.total > 0) return done / data.total;
  return done <= 1 ? done : null;
}

/** @param {any} data */
function progressText(data) {
  if (typeof data === "string") return data;
  if (data && typeof data === "object") {
    if (data.sub_agent) return teamText(data.sub_agent);
    if (typeof data.message === "string") return data.message;
    if (progressShare(data) !== null) return "";
  }
  return pretty(data);
}

/**
 * Describes a sub-agent and those below it, each on one line.
 * @param {any} report
 * @param {number} [depth]
 * @returns {string}
 */
function teamText({ name, step, tool, text, below }, depth = 0) {
  const words = String(text ?? "").replace(/\s+/g, " ").slice(-80);
  const line = `${name}, step ${step}: ${tool ? `uses ${tool}` : words || "thinks"}`;
  const branch = depth ? `${"   ".repeat(depth - 1)}└─ ` : "";
  return branch + line + (below && depth < 16 ? `\n${teamText(below, depth + 1)}` : "");
}

/**
 * @param {import("./client.js").UseDecision} decided
 * @param {import("./client.js").ToolResult} [result]
 */
function decisionText({ kind, by }, result) {
  const reason = kind === "reject" && result ? textOf(result) : "";
  const what = {
    execute: "Approved",
    execute_with: "Approved with another input",
    reject: reason ? `Rejected (${reason})` : "Rejected",
    provide: "Answered in place of the tool",
    expired: "Decided automatically, because nobody decided in time",
    interrupted: by ? "Cut off after the decision" : "Cut off",
  }[kind];
  return by ? `${what} by ${visible(by)}.` : `${what}.`;
}

/**
 * The controls for a decision.
 * @param {import("./client.js").PendingUse} pause
 * @param {(pause: import("./client.js").PendingUse, decision: Decision) => Promise<void>} decide
 */
function approval(pause, decide) {
  const { tool_use: use, reason } = pause;
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const fail = (/** @type {string} */ text) => {
    problem.textContent = text;
    problem.hidden = false;
  };
  const body = h("div", { class: "body" });
  const send = async (/** @type {Decision} */ decision) => {
    problem.hidden = true;
    const buttons = [...form.querySelectorAll("button")];
    for (const button of buttons) button.disabled = true;
    try {
      await decide(pause, decision);
    } catch (error) {
      fail(error instanceof Error ? error.message : String(error));
    }
    for (const button of buttons) button.disabled = false;
  };

  const choices = () => {
    const button = (/** @type {string} */ text, /** @type {() => void} */ onclick, kind = "") =>
      h("button", { type: "button", class: kind, onclick }, text);
    place(body, [
      h("div", { class: "buttons" },
        button("Approve", () => send("execute"), "primary"),
        button("Reject…", () => ask("The reason, for the model", "", "Reject", (text) => ({ reject: text || "The user rejected it." }))),
        button("Edit input…", () => ask("The input as JSON", pretty(use.input), "Run with this input", (text) => ({ execute_with: JSON.parse(text) }))),
        button("Answer instead…", () => ask("The result, for the model", "", "Answer", (text) => ({
          provide: { tool_use_id: use.id, name: use.name, content: [{ type: "text", text }], is_error: false },
        })))),
    ]);
  };
  const ask = (
    /** @type {string} */ title,
    /** @type {string} */ start,
    /** @type {string} */ action,
    /** @type {(text: string) => Decision} */ make,
  ) => {
    const area = h("textarea", { value: start, class: start ? "mono" : "", dir: start ? "ltr" : "auto", spellcheck: !start });
    const submit = () => {
      try {
        send(make(area.value.trim()));
      } catch (error) {
        fail(`This is not JSON: ${error instanceof Error ? error.message : error}`);
      }
    };
    area.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (isComposing(event)) return;
      if (event.key === "Escape") {
        event.stopPropagation();
        choices();
        body.querySelector("button")?.focus();
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        submit();
      }
    });
    place(body, [
      h("label", {}, title, area),
      h("div", { class: "buttons" },
        h("button", { type: "button", class: "primary", onclick: submit }, action),
        h("button", { type: "button", class: "quiet", onclick: () => { problem.hidden = true; choices(); } }, "Back")),
    ]);
    area.focus();
  };
  const text = typeof reason === "string" ? reason : reason?.message ?? pretty(reason);
  const who = pause.sub_agent ? `The sub-agent ${pause.sub_agent.name} wants to run ${use.name}.` : "The model wants to run this tool.";
  const why = text === "needs approval" ? who : text;
  const label = isQuestion(pause) ? "Question of" : "Decision on";
  const form = h("div", { class: "approval", role: "group", "aria-label": `${label} ${visible(use.name)}` },
    h("p", { class: "reason", dir: "auto" }, visible(why)),
    pause.expires && h("p", { class: "note" }, `Without a decision, this is decided automatically at ${new Date(pause.expires).toLocaleTimeString()}.`),
    body, problem);
  if (!isQuestion(pause)) choices();
  else showQuestion(body, reason, send);
  return form;
}
