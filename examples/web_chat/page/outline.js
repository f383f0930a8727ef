// The map of the tree: all branches of a conversation, as an outline.

import { childrenOf, isUnanswered, nodeOf, pathOf } from "./client.js";
import { byId, h, place, visible } from "./dom.js";
import { textOf } from "./messages.js";

/**
 * @param {import("./client.js").SessionSnapshot} snapshot
 * @param {boolean} isBusy
 * @param {(node: number) => void} navigate
 */
export function showOutline(snapshot, isBusy, navigate) {
  const { tree } = snapshot;
  const onPath = new Set(pathOf(tree).map((node) => node.id));
  // A chain of single children stays on one level, so that only branches are indented.
  const level = (/** @type {readonly number[]} */ roots, /** @type {Element} */ parent) => {
    /** @type {{ ids: readonly number[], parent: Element }[]} */
    const open = [{ ids: roots, parent }];
    while (open.length) {
      const { ids, parent } = /** @type {{ ids: readonly number[], parent: Element }} */ (open.pop());
      for (const id of ids) {
        let list = parent;
        if (ids.length > 1) {
          list = h("ol");
          parent.append(h("li", {}, list));
        }
        let at = id;
        for (;;) {
          const children = childrenOf(tree, at);
          const line = lineOf(tree, at, onPath, isBusy, navigate);
          if (line) list.append(line);
          if (children.length !== 1) {
            if (children.length) open.push({ ids: children, parent: list });
            break;
          }
          at = children[0];
        }
      }
    }
  };
  const outline = byId("outline");
  place(outline, []);
  level(childrenOf(tree, null), outline);
  byId("map").showModal();
  outline.querySelector(".is-head")?.scrollIntoView({ block: "center" });
}

/**
 * @param {import("./client.js").Tree} tree
 * @param {number} id
 * @param {Set<number>} onPath
 * @param {boolean} isBusy
 * @param {(node: number) => void} navigate
 */
function lineOf(tree, id, onPath, isBusy, navigate) {
  const node = nodeOf(tree, id);
  if (!node?.message) return null;
  const { role, content, compaction } = node.message;
  const results = content.filter((block) => block.type === "tool_result");
  if (results.length === content.length && content.length) return null;
  const tools = content.flatMap((block) => (block.type === "tool_use" ? [block.name] : []));
  const files = content.flatMap((block) => (block.type === "attachment" ? [block.name ?? block.media_type] : []));
  const words = textOf(node.message).trim().slice(0, 200) || [...tools, ...files].join(", ") || "(empty)";
  const button = h("button", { type: "button", disabled: isBusy || isUnanswered(tree, node), onclick: () => navigate(id) },
    h("span", { class: "role" }, compaction ? "Summary" : role === "user" ? "You" : "Assistant"), h("bdi", {}, visible(words)));
  if (onPath.has(id)) button.classList.add("on-path");
  if (tree.head === id) {
    button.classList.add("is-head");
    button.setAttribute("aria-current", "true");
  }
  return h("li", {}, button);
}
