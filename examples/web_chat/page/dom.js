// Helpers for elements. Texts are always set as texts, never parsed as HTML.

/**
 * Creates an element. Properties that start with `on` are listeners, `class` and names with a dash are attributes, and
 * all others are properties of the element.
 * @param {string} tag
 * @param {Record<string, any>} [properties]
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {any}
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class" || name === "role" || name.includes("-")) element.setAttribute(name, String(value));
    else /** @type {any} */ (element)[name] = value;
  }
  append(element, ...children);
  return element;
}

/**
 * @param {Node} parent
 * @param {...(Node | string | null | undefined | false)} children
 */
export function append(parent, ...children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    parent.appendChild(typeof child === "string" ? document.createTextNode(child) : child);
  }
}

/**
 * Makes these nodes the children of the parent, in this order. Nodes that are already in place are not touched, so that
 * they keep the focus, the selection and the state of their controls.
 * @param {Element} parent
 * @param {Node[]} wanted
 */
export function place(parent, wanted) {
  const isWanted = new Set(wanted);
  for (const child of [...parent.childNodes]) if (!isWanted.has(child)) child.remove();
  let at = parent.firstChild;
  for (const node of wanted) {
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
}

/**
 * Sets a text only if it differs, so that a screen reader does not read it again.
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Returns whether a key belongs to an input method. Safari ends a composition before it reports the key that ends it, so
 * only the code shows this.
 * @param {KeyboardEvent} event
 */
export const isComposing = (event) => event.isComposing || event.keyCode === 229;

/** @param {string} id */
export function byId(id) {
  return /** @type {any} */ (document.getElementById(id));
}

const ICONS = {
  plus: "M12 5v14M5 12h14",
  menu: "M4 7h16M4 12h16M4 17h16",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v10H9zM5 15V5h10",
  edit: "M4 20l1-4L16 5l3 3L8 19z",
  trash: "M5 7h14M9 7V4h6v3M7 7l1 13h8l1-13M10 11v5M14 11v5",
  fork: "M6 4v6a4 4 0 0 0 4 4h9M15 10l4 4-4 4M6 10v10",
  redo: "M19 12a7 7 0 1 1-2.5-5.4M17 2v5h-5",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  map: "M6 4v10M6 14a3 3 0 1 0 0 6 3 3 0 0 0 0-6M18 10a3 3 0 1 0 0-6 3 3 0 0 0 0 6M18 10c0 5-6 3-9 6",
  save: "M12 4v11M7 11l5 5 5-5M5 20h14",
  clip: "M8 12l6-6a3 3 0 0 1 4 4l-8 8a5 5 0 0 1-7-7l8-8",
  close: "M6 6l12 12M18 6L6 18",
  down: "M12 5v14M6 13l6 6 6-6",
  check: "M5 13l4 4L19 7",
};

/** @param {keyof typeof ICONS} name */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.appendChild(path);
  return svg;
}

/**
 * A button that shows only an icon. The label is its accessible name and its tooltip.
 * @param {keyof typeof ICONS} name
 * @param {string} label
 * @param {() => void} onclick
 * @param {string} [extra]
 */
export function iconButton(name, label, onclick, extra = "") {
  return h("button", { type: "button", class: `icon-button ${extra}`, title: label, "aria-label": label, onclick }, icon(name));
}

/**
 * Returns the text with codes instead of the characters that change the direction of a text. Names and inputs of tools
 * are shown in this form, because a person decides on them.
 * @param {string} text
 */
export function visible(text) {
  return text.replace(/[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]/g, (mark) => {
    return `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`;
  });
}
