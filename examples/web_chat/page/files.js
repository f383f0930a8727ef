// Attachments: shown in messages, and chosen, dropped or pasted by the user.

import { h, icon, visible } from "./dom.js";
import { size } from "./format.js";
import { safeAddress } from "./markdown.js";

const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"];
/**
 * The maximum total size of a message's files in bytes. The server accepts commands of up to 8 MiB, and base64 needs a
 * third more than the bytes.
 */
export const LIMIT = 6_000_000;

/**
 * Returns the element of an attachment.
 * @param {import("./client.js").Attachment} file
 */
export function attachment(file) {
  const { source, media_type: type } = file;
  const name = visible(file.name ?? type);
  const isImage = IMAGES.includes(type.toLowerCase());
  if (source.type === "base64") {
    if (isImage) return figure(`data:${type.toLowerCase()};base64,${source.data}`, name, file.name);
    const link = h("a", { class: "file-link", href: "#", download: file.name ?? "file" });
    link.append(icon("save"), h("bdi", {}, name), h("span", {}, size(bytesOf(source.data))));
    link.addEventListener("click", (/** @type {Event} */ event) => {
      event.preventDefault();
      const bytes = Uint8Array.from(atob(source.data), (char) => char.charCodeAt(0));
      save(new Blob([bytes], { type: "application/octet-stream" }), file.name ?? "file");
    });
    return link;
  }
  // Addresses of other servers are only linked, because loading them would reveal the reader.
  const isLocal = isOwn(source.url);
  if (isLocal && isImage) return figure(source.url, name, file.name);
  const href = isLocal ? source.url : safeAddress(source.url);
  if (!href) return h("span", { class: "chip" }, name);
  return h("a", { class: "file-link", href, target: "_blank", rel: "noopener noreferrer", download: isLocal ? (file.name ?? "file") : undefined },
    icon("save"), h("bdi", {}, name));
}

/**
 * Returns the content with the data of the files that the server has sent as addresses. Nobody but this page can read
 * these addresses, so a new message must contain the data.
 * @template {import("./client.js").Content} T
 * @param {T[]} content
 * @returns {Promise<T[]>}
 */
export function withData(content) {
  return Promise.all(content.map(async (block) => {
    if (block.type !== "attachment" || block.source.type !== "url" || !isOwn(block.source.url)) return block;
    const response = await fetch(block.source.url);
    if (!response.ok) throw new Error(`The file ${visible(block.name ?? block.media_type)} cannot be read any more. Attach it again.`);
    const { source } = await read(new File([await response.blob()], block.name ?? ""));
    return { ...block, source };
  }));
}

/**
 * Returns whether a path leads to this server.
 * @param {string} url
 */
const isOwn = (url) => url.startsWith("/") && !url.startsWith("//");

/**
 * Returns the number of bytes of a text in base64.
 * @param {string} data
 */
export const bytesOf = (data) => Math.floor(data.length * 0.75) - (data.endsWith("==") ? 2 : data.endsWith("=") ? 1 : 0);

/**
 * @param {string} src
 * @param {string} name
 * @param {string | undefined} caption
 */
function figure(src, name, caption) {
  return h("figure", { class: "attachment" }, h("img", { src, alt: name, loading: "lazy", decoding: "async" }),
    caption && h("figcaption", {}, h("bdi", {}, name)));
}

/**
 * Saves data as a file.
 * @param {Blob} blob
 * @param {string} name
 */
export function save(blob, name) {
  const href = URL.createObjectURL(blob);
  h("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

/**
 * Reads a file as an attachment.
 * @param {File} file
 * @returns {Promise<import("./client.js").Attachment>}
 */
export async function read(file) {
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
  const data = url.slice(url.indexOf(",") + 1);
  const media_type = file.type || "application/octet-stream";
  return { type: "attachment", source: { type: "base64", data }, media_type, ...(file.name && { name: file.name }) };
}
