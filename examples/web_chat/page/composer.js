// The message box: drafts, attached files, and queued prompts.

import { byId, h, icon, iconButton, place, setText, visible } from "./dom.js";
import { LIMIT, bytesOf, read, withData } from "./files.js";
import { size } from "./format.js";
import { textOf } from "./messages.js";

const DRAFT = "chat.draft.";

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
  #key = "new";
  #isBusy = false;
  #isSending = false;
  // The conversation in which Enter was pressed while another message was on its way.
  /** @type {string | null} */ #sendsNext = null;
  #queue = "";

  /**
   * @param {{ send: (prompt: import("./client.js").Prompt) => Promise<boolean>, stop: () => void,
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
    this.area.addEventListener("input", () => this.#changed());
    addEventListener("storage", (event) => {
      // The draft was changed in another window.
      if (event.key !== DRAFT + this.#key || document.activeElement === this.area) return;
      this.area.value = event.newValue ?? "";
      this.#changed();
    });
    this.area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
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
    this.#filesOf.set(this.#key, this.#files);
    this.#key = id ?? "new";
    this.#files = this.#filesOf.get(this.#key) ?? [];
    try {
      this.area.value = localStorage.getItem(DRAFT + this.#key) ?? "";
    } catch {
      this.area.value = "";
    }
    this.#showFiles();
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
    byId("send").disabled = isEmpty || this.#isSending;
    keepDraft(this.#key, this.area.value);
    byId("stop").hidden = !this.#isBusy;
    byId("send").hidden = this.#isBusy && isEmpty;
    byId("at-step").hidden = !this.#isBusy || isEmpty;
    const label = this.#isBusy ? "Queue the message" : "Send";
    byId("send").setAttribute("aria-label", label);
    byId("send").title = `${label} (Enter)`;
    setText(byId("hint"), this.#isBusy && !isEmpty ? "Sent after this answer" : "");
  }

  async #send() {
    const text = this.area.value.trim();
    if (!text && !this.#files.length) return;
    if (this.#isSending) {
      this.#sendsNext = this.#key;
      return;
    }
    const files = this.#files;
    /** @type {import("./client.js").Content[]} */
    const content = [...files];
    if (text) content.push({ type: "text", text });
    /** @type {import("./client.js").Prompt} */
    const prompt = { id: crypto.randomUUID(), content };
    if (this.#isBusy && byId("at-step-box").checked) prompt.next = "step";
    const [before, key] = [this.area.value, this.#key];
    this.#isSending = true;
    this.area.value = "";
    this.#files = [];
    this.#showFiles();
    this.#changed();
    const isSent = await this.actions.send(prompt);
    this.#isSending = false;
    byId("at-step-box").checked = false;
    if (!isSent && key !== this.#key && key !== "new") {
      // The user has chosen another conversation in the meantime.
      keepDraft(key, before);
      this.#filesOf.set(key, files);
    } else if (!isSent) {
      // Text that was typed in the meantime is kept.
      this.area.value = this.area.value ? `${before}\n${this.area.value}` : before;
      this.#files = [...files, ...this.#files];
      this.#showFiles();
    }
    this.#changed();
    const sendsNext = isSent && this.#sendsNext === this.#key;
    this.#sendsNext = null;
    if (sendsNext) this.#send();
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
