// The messages of a conversation. Each message has one element, which stays while the message streams, is complete, and
// is committed.

import { changedInput, childrenOf, isUnanswered, nodeOf, pathOf, tailOf } from "./client.js";
import { h, iconButton, isComposing, place, setText } from "./dom.js";
import { attachment, withData } from "./files.js";
import { moment, money, short, when } from "./format.js";
import { Markdown, copyText } from "./markdown.js";
import { ToolCard } from "./tools.js";

/** @typedef {import("./client.js").SessionSnapshot} SessionSnapshot */
/** @typedef {import("./client.js").Message} Message */

/**
 * @typedef {object} Actions
 * @property {(pause: import("./client.js").PendingUse, decision: import("./client.js").Decision) => Promise<void>} decide
 * @property {(command: import("./client.js").SessionCommand) => Promise<any>} command
 * @property {(node: number) => Promise<void>} fork
 */

/**
 * The details of tool uses that a snapshot does not contain, recorded since the page was opened.
 * @typedef {object} Seen
 * @property {Map<string, any>} progress
 * @property {Map<string, any>} decided
 * @property {Map<string, { start: number, end?: number }>} timing
 * @property {Map<string, any>} inputs
 * @property {Set<string>} unstarted The tool uses that were written and not started.
 * @property {Message[]} settling The messages of a turn that has ended, until the tree contains them.
 */

/**
 * @typedef {object} Entry
 * @property {string} key
 * @property {Message} [message]
 * @property {import("./client.js").Node} [node]
 * @property {import("./client.js").PartialBlock[]} [partial]
 * @property {boolean} [isUnanswered] Whether the message is a prompt without an answer, which is not on the path.
 */

/** @param {Message} message */
export const isPrompt = (message) => message.role === "user" && !message.compaction && !message.content.some((block) => block.type === "tool_result");

/** The maximum length of a provisional title, as for the titles that the server makes from the first words. */
const TITLE = 50;

/**
 * Returns the first words of a conversation on one line, or `null` if it has none yet, or if they are not loaded.
 * @param {SessionSnapshot} snapshot
 */
export function firstWords(snapshot) {
  if (snapshot.from !== undefined) return null;
  const all = [...tailOf(snapshot.tree).map((node) => node.message), ...snapshot.agent.pending];
  const text = all.filter((message) => message.role === "user").map(textOf).find((text) => text.trim());
  if (text === undefined) return null;
  const line = text.slice(0, 2000).replace(/[\s\p{Cc}]+/gu, " ").trim();
  // A segment is what a reader takes for one character, such as an emoji with a skin tone.
  const letters = [...new Intl.Segmenter().segment(line)].map(({ segment }) => segment);
  if (letters.length <= TITLE) return line || null;
  const cut = letters.slice(0, TITLE).join("");
  const end = letters[TITLE] === " " ? cut.length : cut.lastIndexOf(" ");
  return `${end > 0 ? cut.slice(0, end) : cut}…`;
}

/** @param {Message | import("./client.js").Prompt} message */
export const textOf = (message) => message.content.map((block) => (block.type === "text" ? block.text : "")).join("");

/** @param {import("./client.js").Failure} [failure] */
export const reasonOf = (failure) => failure?.error?.message ?? failure?.message ?? failure?.kind ?? "unknown";

/**
 * Returns the ids of the prompts without an answer that are shown at their places.
 * @param {SessionSnapshot} snapshot
 */
export function unansweredIn(snapshot) {
  return new Set(entriesOf(snapshot, []).filter((entry) => entry.isUnanswered).map(({ key }) => key));
}

/**
 * Returns the messages in order, each once.
 * @param {SessionSnapshot} snapshot
 * @param {Message[]} settling
 * @returns {Entry[]}
 */
function entriesOf(snapshot, settling) {
  const { tree } = snapshot;
  /** @type {Map<string, Entry>} */
  const entries = new Map();
  const pending = [...settling, ...snapshot.agent.pending].map((message, index) => ({ key: message.id ?? `pending-${index}`, message }));
  const inFlight = new Set(pending.map(({ key }) => key));
  const addUnanswered = (/** @type {number | null} */ parent) => {
    for (const id of childrenOf(tree, parent)) {
      const node = /** @type {import("./client.js").TreeNode} */ (nodeOf(tree, id));
      const key = node.message?.id ?? `node-${id}`;
      if (!node.message || inFlight.has(key) || !isUnanswered(tree, node) || !isShownUser(node.message)) continue;
      entries.set(key, { key, message: node.message, node: /** @type {any} */ (node), isUnanswered: true });
    }
  };
  if (snapshot.from === undefined) addUnanswered(null);
  for (const node of tailOf(tree)) {
    const key = node.message.id ?? `node-${node.id}`;
    entries.set(key, { key, message: node.message, node });
    addUnanswered(node.id);
  }
  for (const entry of pending) if (!entries.has(entry.key)) entries.set(entry.key, entry);
  const { answer, partial, status } = snapshot.agent;
  if (status !== "idle" && (answer !== undefined || partial.length)) {
    const key = answer ?? "partial";
    if (!entries.has(key)) entries.set(key, { key, partial });
  }
  return [...entries.values()];
}

export class Messages {
  /** @type {Map<string, UserMessage | AnswerMessage | CompactionMessage>} */ #views = new Map();
  #isBusy = false;

  /**
   * @param {HTMLElement} list
   * @param {Actions} actions
   */
  constructor(list, actions) {
    this.list = list;
    this.actions = actions;
  }

  /** Forgets all messages, for another conversation. */
  clear() {
    this.#views.clear();
    this.list.replaceChildren();
  }

  /**
   * @param {SessionSnapshot} snapshot
   * @param {Seen} seen
   */
  render(snapshot, seen) {
    const entries = entriesOf(snapshot, seen.settling);
    const { agent, tree } = snapshot;
    const isBusy = agent.status !== "idle";
    /** @type {Map<string, { result: any, message: Message }>} */
    const results = new Map();
    /** @type {Map<string, import("./client.js").StopReason>} */
    const ends = new Map();
    let answer = "";
    for (const { key, message, isUnanswered } of entries) {
      if (message?.role === "assistant") answer = key;
      if (message?.ended) ends.set(answer, message.ended);
      if (message?.role !== "user" || isUnanswered) continue;
      for (const block of message.content) {
        if (block.type === "tool_result") results.set(block.tool_use_id, { result: block, message });
      }
    }
    // A call can have several pauses of sub-agents. The oldest is shown first.
    const pauses = new Map([...(agent.pauses ?? [])].reverse().map((pause) => [pause.asked_by ?? pause.tool_use.id, pause]));
    const runs = new Map((agent.tools ?? []).map((run) => [run.tool_use_id, run]));
    const shown = entries.filter(({ message }) => !message || message.role === "assistant" || isShownUser(message));
    const elements = [];
    /** @type {Entry | null} */
    let prompt = null;
    let isFirst = false;
    const inForce = shown.findLast(({ message }) => message?.compaction);
    for (const [position, entry] of shown.entries()) {
      if (entry.message?.compaction) {
        elements.push(this.#compaction(entry, tree, entry === inForce, isBusy));
        continue;
      }
      const isUser = entry.message?.role === "user";
      const next = shown.slice(position + 1).find(({ message }) => !message?.compaction);
      const isLast = position === shown.length - 1;
      if (isUser && !entry.isUnanswered) {
        prompt = entry;
        isFirst = true;
      }
      let view = /** @type {UserMessage | AnswerMessage | undefined} */ (this.#views.get(entry.key));
      if (!view) {
        view = isUser ? new UserMessage(this.actions) : new AnswerMessage(this.actions);
        view.element.inert = false;
        this.#views.set(entry.key, view);
      }
      const { node } = entry;
      const isVersion = node && !entry.isUnanswered && (isUser || isFirst);
      const { siblings, own } = isVersion ? versionsOf(tree, node) : { siblings: [], own: 0 };
      if (!isUser) isFirst = false;
      const isTurnEnd = !isUser && (!next || next.message?.role === "user");
      view.update({
        entry, isBusy, isLast, siblings, own,
        omitted: agent.state.omitted?.[entry.message?.id ?? ""] ?? [],
        question: isTurnEnd && entry.message && !(isBusy && isLast) ? prompt?.node?.id : undefined,
        isTurnEnd: isTurnEnd && !(isBusy && isLast),
        ended: ends.get(entry.key),
        tools: { pauses, runs, results, seen, isActive: isBusy && !node },
        failure: agent.last_run?.unanswered?.some((message) => message.id === entry.key) ? agent.last_run.failure : undefined,
      });
      elements.push(view.element);
    }
    const keys = new Set(shown.map(({ key }) => key));
    for (const key of this.#views.keys()) if (!keys.has(key)) this.#views.delete(key);
    place(this.list, elements);
    if (isBusy !== this.#isBusy) {
      this.#isBusy = isBusy;
      for (const button of this.list.querySelectorAll("button.needs-idle")) /** @type {any} */ (button).disabled = isBusy;
    }
    return shown.length;
  }

  /**
   * @param {Entry} entry
   * @param {import("./client.js").Tree} tree
   * @param {boolean} isInForce
   * @param {boolean} isBusy
   */
  #compaction(entry, tree, isInForce, isBusy) {
    let view = /** @type {CompactionMessage | undefined} */ (this.#views.get(entry.key));
    if (!view) {
      view = new CompactionMessage(/** @type {Message} */ (entry.message), this.actions);
      this.#views.set(entry.key, view);
    }
    view.update(entry.node && pathOf(tree).indexOf(entry.node), isInForce, isBusy);
    return view.element;
  }
}

/**
 * Returns the children of a node to which the path can lead.
 * @param {import("./client.js").Tree} tree
 * @param {number | null} parent
 */
function answeredOf(tree, parent) {
  return childrenOf(tree, parent).filter((id) => !isUnanswered(tree, /** @type {any} */ (nodeOf(tree, id))));
}

/**
 * Returns the versions of a message, and which of them is shown. A compaction before the message stands for it.
 * @param {import("./client.js").Tree} tree
 * @param {import("./client.js").TreeNode} node
 */
function versionsOf(tree, node) {
  for (let at = node; ; ) {
    const siblings = answeredOf(tree, at.parent ?? null);
    const parent = at.parent === undefined ? undefined : nodeOf(tree, at.parent);
    if (siblings.length > 1 || !parent?.message?.compaction) return { siblings, own: at.id };
    at = parent;
  }
}

/** @param {Message} message */
function isShownUser(message) {
  return message.content.some((block) => block.type !== "tool_result");
}

/**
 * @typedef {object} State
 * @property {Entry} entry
 * @property {boolean} isBusy
 * @property {boolean} isLast
 * @property {boolean} isTurnEnd
 * @property {import("./client.js").StopReason} [ended] Why the answer ended, if this is unusual.
 * @property {number[]} siblings The first nodes of all versions of the message.
 * @property {number} own The one of them that is shown.
 * @property {number | undefined} question The node of the prompt that the answer can be repeated for.
 * @property {any} tools
 * @property {number[]} omitted The blocks that requests leave out.
 * @property {import("./client.js").Failure} [failure] Why the last run, which was about this message, has failed.
 */

/**
 * The buttons ‹2/3› of a message with alternates.
 * @param {Actions} actions
 * @param {number[]} siblings
 * @param {number} node
 * @param {boolean} isBusy
 * @param {string} what
 */
function alternates(actions, siblings, node, isBusy, what) {
  const at = siblings.indexOf(node);
  const go = (/** @type {number} */ step) => () => actions.command({ type: "navigate", node: siblings[at + step] });
  const left = iconButton("left", `Previous ${what}`, go(-1), at > 0 ? "needs-idle" : "");
  const right = iconButton("right", `Next ${what}`, go(1), at < siblings.length - 1 ? "needs-idle" : "");
  left.disabled = isBusy || at <= 0;
  right.disabled = isBusy || at >= siblings.length - 1;
  const count = h("span", { "aria-label": `${what} ${at + 1} of ${siblings.length}`, role: "img" }, `${at + 1}/${siblings.length}`);
  return h("span", { class: "alternates" }, left, count, right);
}

/** @param {number} timestamp */
function time(timestamp) {
  return h("time", { dateTime: new Date(timestamp).toISOString(), title: moment(timestamp) }, when(timestamp));
}

/** A fold with the summary that a model gets in place of the messages before it. */
class CompactionMessage {
  /**
   * @param {Message} message
   * @param {Actions} actions
   */
  constructor(message, actions) {
    const { is_summary, kept, cleared } = (this.compaction = /** @type {import("./client.js").Compaction} */ (message.compaction));
    this.covered = kept + cleared;
    this.isUndone = !is_summary && !cleared;
    this.line = h(is_summary ? "summary" : "p", {});
    this.undo = h("button", { type: "button", class: "small quiet needs-idle", onclick: () => actions.command({ type: "compact", how: "undo" }) }, "Undo");
    const fold = is_summary ? h("details", {}, this.line, h("p", { class: "plain", dir: "auto" }, textOf(message))) : this.line;
    this.element = h("li", { class: "message compaction" }, h("h2", { class: "hidden" }, "Summary"), fold, this.undo);
  }

  /**
   * @param {number | undefined} index The number of messages before the compaction, if it is on the path.
   * @param {boolean} isLast Whether the compaction counts for the next request.
   * @param {boolean} isBusy
   */
  update(index, isLast, isBusy) {
    const { is_summary, tokens, nano_usd } = this.compaction;
    const count = index === undefined ? "Earlier" : Math.max(index - this.covered, 0);
    const what = is_summary ? `${count} messages are summarized` : this.isUndone ? "All messages are sent again" : "Old results and files are left out";
    const sizes = tokens && !this.isUndone && `${short(tokens[0])} to ${short(tokens[1])} tokens`;
    setText(this.line, [what, sizes, nano_usd && money(nano_usd / 1e9)].filter(Boolean).join(", "));
    this.undo.hidden = !isLast || this.isUndone || index === undefined;
    this.undo.disabled = isBusy;
  }
}

class UserMessage {
  #seen = "";
  #omitted = "";
  /** @type {Message | null} */ #message = null;
  #isEditing = false;

  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions;
    /** @type {(file: import("./client.js").Attachment, block: number) => HTMLElement} */
    this.file = attachment;
    this.body = h("div", { class: "body" });
    this.foot = h("div", { class: "foot" });
    this.note = h("div", { class: "outcome bad" });
    this.element = h("li", { class: "message user" }, h("h2", { class: "hidden" }, "You"), this.body, this.foot);
  }

  /** @param {State} state */
  update({ entry, isBusy, siblings, own, isLast, omitted, failure }) {
    const message = /** @type {Message} */ (entry.message);
    const node = entry.node?.id;
    const left = [node, ...omitted].join();
    if ((message !== this.#message || left !== this.#omitted) && !this.#isEditing) {
      const isSame = this.#message && left === this.#omitted && JSON.stringify(this.#message.content) === JSON.stringify(message.content);
      this.#message = message;
      this.#omitted = left;
      this.file = (file, block) => this.#file(file, block, node, omitted.includes(block), isBusy);
      if (!isSame) this.#show();
    }
    const why = failure ? `The answer failed: ${reasonOf(failure)}` : "This message has no answer.";
    const seen = [node, siblings.join(), isLast, entry.isUnanswered && why].join("/");
    if (seen === this.#seen) return;
    this.#seen = seen;
    if (entry.isUnanswered) {
      const again = h("button", { type: "button", class: "small needs-idle", onclick: () => this.actions.command({ type: "run", at: { again: node } }) }, "Send again");
      again.disabled = isBusy;
      place(this.note, [h("p", { role: failure ? "alert" : undefined, dir: "auto" }, why), h("div", { class: "buttons" }, again)]);
      this.element.append(this.note);
    } else this.note.remove();
    const edit = iconButton("edit", "Edit and send again", () => node !== undefined && this.#edit(node), "needs-idle");
    edit.disabled = isBusy;
    place(this.foot, /** @type {Node[]} */ ([
      message.timestamp ? time(message.timestamp) : null,
      node !== undefined ? edit : null,
      node !== undefined && siblings.length > 1 ? alternates(this.actions, siblings, own, isBusy, "version") : null,
    ].filter(Boolean)));
    this.foot.classList.toggle("shown", siblings.length > 1);
  }

  #show() {
    const blocks = /** @type {Message} */ (this.#message).content;
    place(this.body, [...blocks.entries()].filter(([, block]) => block.type !== "tool_result").map(([index, block]) =>
      block.type === "attachment"
        ? this.file(block, index)
        : h("p", { class: "plain", dir: "auto" }, block.type === "text" ? block.text : block.type)));
  }

  /**
   * Returns a file with the button that leaves it out of requests, or sends it again.
   * @param {import("./client.js").Attachment} file
   * @param {number} block
   * @param {number | undefined} node
   * @param {boolean} isOmitted
   * @param {boolean} isBusy
   */
  #file(file, block, node, isOmitted, isBusy) {
    if (node === undefined) return attachment(file);
    const type = isOmitted ? /** @type {const} */ ("restore") : /** @type {const} */ ("omit");
    const press = () => this.actions.command({ type, node, block });
    const label = isOmitted ? "Send this file to the model again" : "Do not send this file to the model any more";
    const button = h("button", { type: "button", class: "small quiet needs-idle", title: label, onclick: press }, isOmitted ? "Include again" : "Leave out");
    button.disabled = isBusy;
    return h("div", { class: isOmitted ? "omitted" : undefined }, attachment(file), button);
  }

  /** @param {number} node */
  #edit(node) {
    if (this.#isEditing) return;
    this.#isEditing = true;
    this.element.classList.add("editing");
    const message = /** @type {Message} */ (this.#message);
    const area = h("textarea", { value: textOf(message), dir: "auto", "aria-label": "Edited message" });
    const problem = h("p", { class: "problem", role: "alert", hidden: true });
    const close = () => {
      this.#isEditing = false;
      this.element.classList.remove("editing");
      this.#show();
      this.foot.hidden = false;
      this.foot.querySelector("button")?.focus();
    };
    const submit = async () => {
      const attached = message.content.filter((block) => block.type === "attachment");
      const text = area.value.trim();
      if (!text && !attached.length) return;
      try {
        const files = await withData(attached);
        const content = [...files, ...(text ? [{ type: /** @type {const} */ ("text"), text }] : [])];
        await this.actions.command({ type: "run", at: { instead: node }, prompt: { id: crypto.randomUUID(), content } });
        close();
      } catch (error) {
        problem.textContent = error instanceof Error ? error.message : String(error);
        problem.hidden = false;
      }
    };
    area.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (isComposing(event)) return;
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        submit();
      }
    });
    this.foot.hidden = true;
    place(this.body, [h("div", { class: "edit" }, area, problem, h("div", { class: "buttons" },
      h("button", { type: "button", class: "primary", onclick: submit }, "Send"),
      h("button", { type: "button", class: "quiet", onclick: close }, "Cancel")))]);
    area.focus();
  }
}

/** @param {import("./client.js").StopReason | undefined} reason */
function endText(reason) {
  if (!reason) return "";
  const word = typeof reason === "string" ? reason : reason.other;
  return `Ended: ${word.replaceAll("_", " ")}.`;
}

class AnswerMessage {
  /** @type {any[]} */ #blocks = [];
  #seen = "";
  /** @type {Message | undefined} */ #message;
  #isSettled = false;

  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions;
    this.body = h("div", { class: "body" });
    this.foot = h("div", { class: "foot" });
    this.typing = h("div", { class: "typing", role: "img", "aria-label": "Answering" }, h("i"), h("i"), h("i"));
    this.element = h("li", { class: "message answer" }, h("h2", { class: "hidden" }, "Assistant"), this.body, this.foot);
  }

  /** @param {State} state */
  update({ entry, isBusy, isLast, isTurnEnd, ended, siblings, own, question, tools }) {
    const { message, partial, node } = entry;
    if (!(this.#isSettled && message === this.#message)) {
      this.#message = message;
      const content = message?.content ?? partial?.map((block) => block.content) ?? [];
      this.#isSettled = node !== undefined && this.#showBlocks(content, partial, tools);
      if (!node) this.#showBlocks(content, partial, tools);
    }
    this.element.classList.toggle("live", partial !== undefined || (isBusy && isLast));
    this.element.classList.toggle("last", isLast && !isBusy);
    const isTyping = partial !== undefined && partial.every((block) => block.ended);
    if (isTyping !== this.typing.isConnected) {
      if (isTyping) this.element.insertBefore(this.typing, this.foot);
      else this.typing.remove();
    }
    const seen = [node?.id, siblings.join(), question, isTurnEnd, endText(ended)].join("/");
    if (seen === this.#seen) return;
    this.#seen = seen;
    const parts = [];
    if (isTurnEnd && ended) parts.push(h("span", { class: "note ended" }, endText(ended)));
    if (isTurnEnd && message) {
      parts.push(iconButton("copy", "Copy the answer", () => copyText(textOf(/** @type {Message} */ (this.#message)))));
      if (question !== undefined) {
        const again = iconButton("redo", "Answer again", () => this.actions.command({ type: "run", at: { again: question } }), "needs-idle");
        again.disabled = isBusy;
        parts.push(again);
      }
      if (node) parts.push(iconButton("fork", "Continue in a new conversation", () => this.actions.fork(node.id)));
    }
    if (siblings.length > 1 && node) parts.push(alternates(this.actions, siblings, own, isBusy, "answer"));
    if (isTurnEnd && message?.timestamp) parts.push(time(message.timestamp));
    this.foot.hidden = parts.length === 0;
    this.foot.classList.toggle("shown", siblings.length > 1);
    place(this.foot, parts);
  }

  /**
   * Returns whether nothing in the blocks can change any more.
   * @param {import("./client.js").Content[]} content
   * @param {import("./client.js").PartialBlock[] | undefined} partial
   * @param {any} tools
   */
  #showBlocks(content, partial, tools) {
    let isSettled = partial === undefined;
    const elements = [];
    for (const [index, block] of content.entries()) {
      let view = this.#blocks[index];
      if (!view || view.type !== block.type) {
        view = makeBlock(block, this.actions);
        this.#blocks[index] = view;
      }
      const part = partial?.[index];
      isSettled = view.update(block, part, tools, this.#message) && isSettled;
      elements.push(view.element);
    }
    this.#blocks.length = content.length;
    place(this.body, elements);
    return isSettled;
  }
}

/**
 * @param {import("./client.js").Content} block
 * @param {Actions} actions
 */
function makeBlock(block, actions) {
  switch (block.type) {
    case "text": {
      const markdown = new Markdown();
      return {
        type: "text",
        element: markdown.element,
        update(/** @type {any} */ text, /** @type {any} */ part) {
          markdown.update(text.text, part === undefined || part.ended);
          return true;
        },
      };
    }
    case "thinking": {
      const label = h("span");
      const inner = h("div", { dir: "auto" });
      const element = h("details", { class: "thinking" }, h("summary", {}, label), inner);
      return {
        type: "thinking",
        element,
        update(/** @type {any} */ thinking, /** @type {any} */ part) {
          setText(label, part && !part.ended ? "Thinking…" : "Thoughts");
          setText(inner, thinking.text);
          element.hidden = thinking.text === "";
          return true;
        },
      };
    }
    case "tool_use": {
      const card = new ToolCard(actions.decide);
      return {
        type: "tool_use",
        element: card.element,
        update(/** @type {any} */ use, /** @type {any} */ part, /** @type {any} */ tools, /** @type {Message | undefined} */ message) {
          const found = tools.results.get(use.id);
          const { seen } = tools;
          const result = found?.result ?? seen.results?.get(use.id) ?? use.decided;
          const total = found && message ? found.message.timestamp - message.timestamp : undefined;
          card.update({
            use,
            text: part?.input,
            isWritten: part === undefined || part.ended,
            isActive: tools.isActive,
            pause: tools.pauses.get(use.id),
            run: tools.runs.get(use.id),
            result,
            total: total !== undefined && total >= 0 ? total : undefined,
            progress: seen.progress.get(use.id),
            decided: result?.decision ?? seen.decided.get(use.id),
            timing: seen.timing.get(use.id),
            isUnstarted: seen.unstarted.has(use.id),
            input: seen.inputs.get(use.id) ?? tools.runs.get(use.id)?.input ?? changedInput(result),
          });
          return found !== undefined;
        },
      };
    }
    case "attachment":
      return { type: "attachment", element: attachment(block), update: () => true };
    default: {
      const name = block.type === "provider_item" ? `Item of the provider (${block.format})` : block.type;
      return { type: block.type, element: h("span", { class: "chip" }, name), update: () => true };
    }
  }
}

/**
 * Returns the prompt that a node answers.
 * @param {SessionSnapshot} snapshot
 * @param {number} id
 */
export function promptOf(snapshot, id) {
  let node = nodeOf(snapshot.tree, id);
  while (node && !(node.message && isPrompt(node.message))) node = node.parent === undefined ? undefined : nodeOf(snapshot.tree, node.parent);
  return node;
}
