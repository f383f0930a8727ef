// The message box: drafts, attached files, and queued prompts.

import { byId, h, icon, iconButton, isComposing, place, setText, visible } from "./dom.js";
import { LIMIT, bytesOf, read, withData } from "./files.js";
import { size } from "./format.js";
import { textOf } from "./messages.js";

const DRAFT = "chat.draft.";

/**
 * A message for which Enter was pressed, until the server has accepted it.
 * @typedef {object} Outgoing
 * @property {string} key The id of the conversation, or `new`.
 * @property {string} entered The text as it was in the box.
 * @property {import("./client.js").Attachment[]} files
 * @property {import("./client.js").Prompt} prompt
 */

/** @param {string} key The id of a conversation, or `new`. */
function draftOf(key) {
  try {
    return localStorage.getItem(DRAFT + key) ?? "";
  } catch {
    return "";
  }
}

/**
 * @param {string} key The id of a conversation, or `new`.
 * @param {string} text
 */
function keepDraft(key, text) {
  try {
    if (text) localStorage.setItem(DRAFT + key, text);
    else localStorage.removeItem(DRAFT + key);
  } catch {
    // Without storage, the draft is kept only until the page is closed.
  }
}

export class Composer {
  /** @type {import("./client.js").Attachment[]} */ #files = [];
  /** @type {Map<string, import("./client.js").Attachment[]>} */ #filesOf = new Map();
  #key = "";
  #isBusy = false;
  // The messages on their way to the server, which are sent one after the other.
  /** @type {Outgoing[]} */ #outgoing = [];
  // The server may have accepted these messages although no answer has arrived. If one of them is sent again unchanged, it
  // keeps its id, so the server accepts it only once.
  /** @type {Map<string, Outgoing>} */ #unanswered = new Map();
  #queue = "";

  /**
   * @param {{ send: (prompt: import("./client.js").Prompt, id: string | null) => Promise<boolean>, stop: () => void,
   *   unstage: (id: string) => Promise<any>, fail: (error: unknown) => void }} actions
   */
  constructor(actions) {
    this.actions = actions;
    this.area = /** @type {HTMLTextAreaElement} */ (byId("prompt"));
    byId("attach").append(icon("clip"));
    byId("send").append(icon("send"));
    byId("stop").append(icon("stop"));
    byId("attach").addEventListener("click", () => byId("file").click());
    byId("stop").addEventListener("click", () => actions.stop());
    byId("file").addEventListener("change", () => {
      this.attach([...byId("file").files]);
      byId("file").value = "";
    });
    byId("composer").addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.#send();
    });
    this.area.addEventListener("input", () => {
      this.#unanswered.delete(this.#key);
      this.#changed();
    });
    addEventListener("storage", (event) => {
      // The draft was changed in another window.
      if (event.key !== DRAFT + this.#key || document.activeElement === this.area) return;
      this.area.value = event.newValue ?? "";
      this.#changed();
    });
    this.area.addEventListener("keydown", (event) => {
      if (isComposing(event)) return;
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        this.#send();
      } else if (event.key === "Escape" && this.#isBusy) {
        actions.stop();
      }
    });
    this.area.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length) return;
      event.preventDefault();
      this.attach(files);
    });
    this.#listenToDrops();
  }

  #listenToDrops() {
    const hasFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files");
    let depth = 0;
    addEventListener("dragenter", (event) => {
      if (!hasFiles(event)) return;
      depth += 1;
      byId("drop").hidden = false;
    });
    addEventListener("dragleave", (event) => {
      if (!hasFiles(event)) return;
      depth -= 1;
      byId("drop").hidden = depth > 0;
    });
    addEventListener("dragover", (event) => {
      if (hasFiles(event)) event.preventDefault();
    });
    addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      depth = 0;
      byId("drop").hidden = true;
      this.attach([...(event.dataTransfer?.files ?? [])]);
    });
  }

  /**
   * Shows the draft of this conversation.
   * @param {string | null} id
   */
  open(id) {
    const key = id ?? "new";
    if (key === this.#key) return;
    this.#filesOf.set(this.#key, this.#files);
    this.#key = key;
    this.#files = this.#filesOf.get(key) ?? [];
    this.area.value = draftOf(key);
    this.#showFiles();
    this.#changed();
  }

  /**
   * Gives the new conversation its id. The messages and the draft that were entered in the meantime belong to it too.
   * @param {string} id
   */
  created(id) {
    for (const outgoing of this.#outgoing) {
      if (outgoing.key === "new") outgoing.key = id;
    }
    // The user may have chosen another conversation in the meantime.
    if (this.#key !== "new") return;
    keepDraft("new", "");
    this.#filesOf.delete("new");
    this.#key = id;
    this.#changed();
  }

  /**
   * Puts a text back into the box, after the text that is already there.
   * @param {import("./client.js").Prompt | import("./client.js").Message} prompt
   */
  async putBack(prompt) {
    const key = this.#key;
    let files = prompt.content.filter((block) => block.type === "attachment");
    try {
      files = await withData(files);
    } catch (error) {
      files = [];
      this.actions.fail(error);
    }
    // The user may have chosen another conversation in the meantime.
    if (key !== this.#key) return;
    const text = textOf(prompt);
    this.area.value = this.area.value.trim() ? `${this.area.value}\n${text}` : text;
    this.#files.push(...files);
    this.#showFiles();
    this.#changed();
    this.area.focus();
  }

  /** @param {File[]} files */
  async attach(files) {
    for (const file of files) {
      try {
        const used = this.#files.reduce((sum, file) => sum + bytesIn(file), 0);
        if (used + file.size > LIMIT) throw new Error(`${visible(file.name)} is too large: a message can have ${size(LIMIT)} of files.`);
        this.#files.push(await read(file));
      } catch (error) {
        this.actions.fail(error);
      }
    }
    this.#showFiles();
    this.#changed();
  }

  #showFiles() {
    byId("files").hidden = this.#files.length === 0;
    place(byId("files"), this.#files.map((file) => {
      const name = visible(file.name ?? file.media_type);
      const remove = iconButton("close", `Remove ${name}`, () => {
        this.#files.splice(this.#files.indexOf(file), 1);
        this.#showFiles();
        this.#changed();
        this.area.focus();
      });
      const image = file.source.type === "base64" && /^image\/(png|jpeg|gif|webp|avif)$/.test(file.media_type)
        ? h("img", { src: `data:${file.media_type};base64,${file.source.data}`, alt: "" })
        : null;
      return h("li", {}, image, h("bdi", {}, name), h("span", { class: "note" }, size(bytesIn(file))), remove);
    }));
  }

  #changed() {
    const isEmpty = !this.area.value.trim() && this.#files.length === 0;
    byId("send").disabled = isEmpty;
    keepDraft(this.#key, this.area.value);
    byId("stop").hidden = !this.#isBusy;
    byId("send").hidden = this.#isBusy && isEmpty;
    byId("at-step").hidden = !this.#isBusy || isEmpty;
    const label = this.#isBusy ? "Queue the message" : "Send";
    byId("send").setAttribute("aria-label", label);
    byId("send").title = `${label} (Enter)`;
    setText(byId("hint"), this.#isBusy && !isEmpty ? "Sent after this answer" : "");
  }

  /** Takes the message out of the box, and sends it after those that were entered before it. */
  #send() {
    let [entered, files] = [this.area.value, this.#files];
    if (!entered.trim() && !files.length) return;
    const isIdle = this.#outgoing.length === 0;
    const before = this.#unanswered.get(this.#key);
    const start = before?.entered.trim() ? `${before.entered}\n` : "";
    const startsSame = entered === before?.entered || entered.startsWith(start);
    if (before && startsSame && before.files.every((file, index) => file === files[index])) {
      this.#outgoing.push({ ...before, key: this.#key });
      // What follows in the box was entered later, so it is another message.
      entered = entered.slice(start.length);
      files = files.slice(before.files.length);
    }
    const text = entered.trim();
    /** @type {import("./client.js").Content[]} */
    const content = [...files];
    if (text) content.push({ type: "text", text });
    /** @type {import("./client.js").Prompt} */
    const prompt = { id: crypto.randomUUID(), content };
    if (this.#isBusy && byId("at-step-box").checked) prompt.next = "step";
    byId("at-step-box").checked = false;
    if (content.length) this.#outgoing.push({ key: this.#key, entered, files, prompt });
    this.area.value = "";
    this.#files = [];
    this.#showFiles();
    this.#changed();
    if (isIdle) this.#sendAll();
  }

  async #sendAll() {
    while (this.#outgoing.length) {
      const [next] = this.#outgoing;
      const isSent = await this.actions.send(next.prompt, next.key === "new" ? null : next.key);
      if (isSent) {
        this.#outgoing.shift();
        this.#unanswered.delete(next.key);
      } else {
        this.#restore(next.key);
      }
    }
  }

  /**
   * Puts the messages of a conversation back into its box, before the text that was typed in the meantime.
   * @param {string} key
   */
  #restore(key) {
    const unsent = this.#outgoing.filter((outgoing) => outgoing.key === key);
    this.#outgoing = this.#outgoing.filter((outgoing) => outgoing.key !== key);
    const isShown = key === this.#key;
    const draft = isShown ? this.area.value : draftOf(key);
    const drafted = isShown ? this.#files : (this.#filesOf.get(key) ?? []);
    const texts = [...unsent.map(({ entered }) => entered), draft].filter((text) => text.trim());
    const files = [...unsent.flatMap((outgoing) => outgoing.files), ...drafted];
    this.#unanswered.set(key, unsent[0]);
    if (isShown) {
      this.area.value = texts.join("\n");
      this.#files = files;
      this.#showFiles();
      this.#changed();
    } else {
      keepDraft(key, texts.join("\n"));
      this.#filesOf.set(key, files);
    }
  }

  /**
   * @param {boolean} isBusy
   * @param {import("./client.js").Prompt[]} staged
   */
  update(isBusy, staged) {
    if (isBusy !== this.#isBusy) {
      this.#isBusy = isBusy;
      this.#changed();
    }
    const queue = JSON.stringify(staged.map((prompt) => [prompt.id, prompt.next, textOf(prompt)]));
    if (queue === this.#queue) return;
    this.#queue = queue;
    byId("queue").hidden = staged.length === 0;
    place(byId("queue"), staged.map((prompt) => {
      const text = visible(textOf(prompt)) || `${prompt.content.length} files`;
      const withdraw = h("button", { type: "button", class: "quiet small", "aria-label": `Take back: ${text}` }, "Take back");
      withdraw.addEventListener("click", () => this.actions.unstage(prompt.id ?? ""));
      return h("li", {}, h("span", { class: "note" }, prompt.next === "step" ? "next step" : "queued"), h("bdi", {}, text), withdraw);
    }));
  }
}

/** @param {import("./client.js").Attachment} file */
function bytesIn(file) {
  return file.source.type === "base64" ? bytesOf(file.source.data) : 0;
}
