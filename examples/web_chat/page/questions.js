// The form for a question that a running tool asks the user: fields that a schema describes, a page to open, or a free
// answer.

import { h, place, visible } from "./dom.js";
import { safeAddress } from "./markdown.js";

/** @typedef {import("./client.js").Decision} Decision */

/**
 * Shows the form in `body`.
 * @param {HTMLElement} body
 * @param {any} question The reason of the pause.
 * @param {(decision: Decision) => void} send
 */
export function showQuestion(body, question, send) {
  const button = (/** @type {string} */ text, /** @type {() => void} */ onclick, kind = "") =>
    h("button", { type: "button", class: kind, onclick }, text);
  const decline = button("Decline", () => send({ reject: "The user declined." }));
  const properties = question?.schema?.properties;
  const address = typeof question?.url === "string" ? safeAddress(question.url) : null;
  if (address) {
    place(body, [
      h("p", {}, h("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow", dir: "ltr" }, visible(address))),
      h("div", { class: "buttons" }, button("Done", () => send("execute"), "primary"), decline),
    ]);
  } else if (properties && Object.keys(properties).length) {
    const required = new Set(question.schema.required ?? []);
    const fields = Object.entries(properties).map(([name, schema]) => field(name, /** @type {any} */ (schema), required.has(name)));
    const answer = () => {
      if (!fields.every(({ control }) => control.reportValidity())) return;
      const values = fields.map(({ name, value }) => [name, value()]).filter(([, value]) => value !== undefined);
      send({ execute_with: Object.fromEntries(values) });
    };
    place(body, [
      ...fields.map(({ element }) => element),
      h("div", { class: "buttons" }, button("Answer", answer, "primary"), decline),
    ]);
  } else {
    const area = h("textarea", { dir: "auto" });
    place(body, [
      h("label", {}, "Your answer", area),
      h("div", { class: "buttons" },
        button("Answer", () => send(area.value.trim() ? { execute_with: area.value.trim() } : "execute"), "primary"), decline),
    ]);
  }
}

/**
 * @param {string} name
 * @param {any} schema
 * @param {boolean} required
 */
function field(name, schema, required) {
  const label = visible(schema.title ?? name);
  const note = schema.description && h("span", { class: "note", dir: "auto" }, visible(schema.description));
  const choices = schema.enum ?? (schema.oneOf ?? schema.anyOf)?.map((/** @type {any} */ choice) => choice.const);
  if (schema.type === "boolean") {
    const control = h("input", { type: "checkbox", checked: schema.default === true });
    return { name, control, value: () => control.checked, element: h("label", { class: "check" }, control, label, note) };
  }
  if (choices) {
    const options = [...(required ? [] : [""]), ...choices];
    const control = h("select", {}, ...options.map((choice) => h("option", { value: choice, selected: choice === schema.default }, visible(String(choice)))));
    return { name, control, value: () => control.value || undefined, element: h("label", {}, label, control, note) };
  }
  const isNumber = ["integer", "number"].includes(schema.type);
  const control = h("input", {
    type: isNumber ? "number" : "text", required, value: schema.default ?? "", dir: "auto",
    ...(isNumber && { step: schema.type === "integer" ? 1 : "any", min: schema.minimum ?? "", max: schema.maximum ?? "" }),
  });
  const value = () => (control.value === "" ? undefined : isNumber ? Number(control.value) : control.value);
  return { name, control, value, element: h("label", {}, label, control, note) };
}
