// Shows Markdown as elements. The lexer of `marked` returns tokens, and this module creates elements from them. Raw
// HTML is shown as text. The address of a link must begin with http, https or mailto.

import { lexer } from "../vendor/marked.esm.js";
import { append, h, icon } from "./dom.js";

/**
 * The elements of a growing text. Complete Markdown blocks are not lexed again, and their elements stay.
 */
export class Markdown {
  #text = "";
  /** The offset of the last block, which can still change. */
  #offset = 0;
  /** @type {{ token: any, node: Node }[]} */
  #blocks = [];

  constructor() {
    this.element = h("div", { class: "markdown", dir: "auto" });
  }

  get text() {
    return this.#text;
  }

  /**
   * @param {string} text
   * @param {boolean} isComplete
   */
  update(text, isComplete) {
    if (text === this.#text && !isComplete) return;
    if (isComplete || !text.startsWith(this.#text)) {
      // At the end, the whole text is lexed once more, because the definition of a link may be anywhere in the text.
      if (isComplete && text === this.#text && this.#isFinal) return;
      this.#offset = 0;
      this.#replace(0, lexer(text));
      this.#isFinal = isComplete;
    } else {
      this.#isFinal = false;
      const last = this.#offset;
      const tokens = lexer(text.slice(last));
      const kept = this.#blocks.length ? this.#blocks.length - 1 : 0;
      this.#replace(kept, tokens);
      this.#offset = last + offsetOfLast(tokens);
    }
    this.#text = text;
  }
  #isFinal = false;

  /**
   * @param {number} kept
   * @param {any[]} tokens
   */
  #replace(kept, tokens) {
    const wanted = tokens.filter((token) => token.type !== "space" && token.type !== "def");
    const old = this.#blocks.splice(kept);
    for (const [position, token] of wanted.entries()) {
      const before = old[position];
      let node = before && before.token.raw === token.raw ? before.node : null;
      if (!node && before && isSameCode(before.token, token)) {
        node = before.node;
        /** @type {any} */ (node).querySelector("code").textContent = token.text;
      }
      node ??= block(token);
      if (!before) this.element.appendChild(node);
      else if (before.node !== node) this.element.replaceChild(node, before.node);
      this.#blocks.push({ token, node });
    }
    for (const { node } of old.slice(wanted.length)) this.element.removeChild(node);
  }
}

/** @param {any[]} tokens */
function offsetOfLast(tokens) {
  const last = tokens.findLastIndex((token) => token.type !== "space" && token.type !== "def");
  return tokens.slice(0, Math.max(last, 0)).reduce((sum, token) => sum + token.raw.length, 0);
}

/**
 * @param {any} before
 * @param {any} after
 */
function isSameCode(before, after) {
  return before.type === "code" && after.type === "code" && before.lang === after.lang;
}

/**
 * @param {any} token
 * @returns {Node}
 */
function block(token) {
  switch (token.type) {
    case "heading":
      // The page itself uses the first two levels of headings, so headings of an answer begin at the third level.
      return h(`h${Math.min(token.depth + 2, 6)}`, { dir: "auto" }, ...inline(token.tokens));
    case "paragraph":
      return h("p", { dir: "auto" }, ...inline(token.tokens));
    case "text":
      return h("p", { dir: "auto" }, ...inline(token.tokens ?? [token]));
    case "code":
      return code(token);
    case "blockquote":
      return h("blockquote", {}, ...blocks(token.tokens));
    case "hr":
      return h("hr");
    case "list": {
      const list = h(token.ordered ? "ol" : "ul", {}, ...token.items.map(item));
      if (token.ordered && token.start !== 1) list.start = token.start;
      return list;
    }
    case "table":
      return table(token);
    case "html":
      return h("p", { class: "raw", dir: "auto" }, token.raw);
    default:
      return h("p", { dir: "auto" }, token.raw);
  }
}

/** @param {any[]} tokens */
function blocks(tokens) {
  return tokens.filter((token) => token.type !== "space" && token.type !== "def").map(block);
}

/** @param {any} token */
function item(token) {
  const parts = token.tokens.filter((/** @type {any} */ part) => part.type !== "space" && part.type !== "def");
  const contents = parts.flatMap((/** @type {any} */ part) => {
    // The text of a tight list is not a paragraph.
    if (part.type === "text") return inline(part.tokens ?? [part]);
    if (part.type === "checkbox") return [checkbox(part)];
    return [block(part)];
  });
  return h("li", { dir: "auto", class: token.task ? "task" : undefined }, ...contents);
}

/** @param {any} token */
function checkbox(token) {
  const label = token.checked ? "done" : "open";
  return h("input", { type: "checkbox", checked: token.checked, disabled: true, "aria-label": label });
}

/** @param {any} token */
function table(token) {
  const cell = (/** @type {string} */ tag) => (/** @type {any} */ cell) =>
    h(tag, { class: cell.align ? `align-${cell.align}` : undefined, dir: "auto" }, ...inline(cell.tokens));
  const rows = token.rows.map((/** @type {any[]} */ row) => h("tr", {}, ...row.map(cell("td"))));
  return h(
    "div",
    { class: "table", tabIndex: 0, role: "group", "aria-label": "Table" },
    h("table", {}, h("thead", {}, h("tr", {}, ...token.header.map(cell("th")))), h("tbody", {}, ...rows)),
  );
}

/** @param {any} token */
function code(token) {
  const language = (token.lang ?? "").trim().split(/\s+/)[0];
  const content = h("code", {}, token.text);
  const label = h("span", {}, "Copy");
  const copy = h("button", { type: "button", class: "copy" }, icon("copy"), label);
  copy.addEventListener("click", async () => {
    label.textContent = (await copyText(content.textContent)) ? "Copied" : "Not copied";
    setTimeout(() => (label.textContent = "Copy"), 1500);
  });
  return h(
    "div",
    { class: "code" },
    h("div", { class: "code-head" }, h("span", { class: "language" }, language || "text"), copy),
    h("pre", { tabIndex: 0, role: "group", "aria-label": language ? `Code: ${language}` : "Code", dir: "ltr" }, content),
  );
}

/** @param {string} text */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/**
 * @param {any[]} tokens
 * @returns {(Node | string)[]}
 */
function inline(tokens) {
  return (tokens ?? []).map((token) => {
    switch (token.type) {
      case "strong":
      case "em":
      case "del":
        return h(token.type, {}, ...inline(token.tokens));
      case "codespan":
        return h("code", {}, token.text);
      case "br":
        return h("br");
      case "escape":
        return token.text;
      case "link":
        return link(token.href, inline(token.tokens));
      case "image":
        // Loading an image from another site would reveal the reader to that site, so the image is only linked.
        return link(token.href, [token.text || token.href]);
      case "checkbox":
        return checkbox(token);
      case "text":
        return token.tokens ? h("span", {}, ...inline(token.tokens)) : entities(token.text);
      default:
        return token.raw;
    }
  });
}

/**
 * Returns the address if it is one that may be opened.
 * @param {string} text
 */
export function safeAddress(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/**
 * @param {string} address
 * @param {(Node | string)[]} contents
 */
function link(address, contents) {
  const href = safeAddress(address);
  if (!href) return h("span", {}, ...contents);
  const element = h("a", { href, target: "_blank", rel: "noopener noreferrer nofollow", title: href });
  append(element, ...contents);
  return element;
}

/** @type {Record<string, string>} */
const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", hellip: "…", ndash: "–", mdash: "—" };

/**
 * Replaces character references, which are texts in Markdown too.
 * @param {string} text
 */
function entities(text) {
  return text.replace(/&(#x[0-9a-f]{1,6}|#[0-9]{1,7}|[a-z]+);/gi, (whole, name) => {
    if (name[0] !== "#") return NAMED[name] ?? whole;
    const code = /^#x/i.test(name) ? Number.parseInt(name.slice(2), 16) : Number(name.slice(1));
    return code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff) ? String.fromCodePoint(code) : "\ufffd";
  });
}
