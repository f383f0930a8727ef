// Texts that try to run scripts, load something, or deceive the reader.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { accessible, fast, fresh, idOf, idle, open, say, shot, step, until } from "./harness.mjs";

const ATTACKS = readFileSync(new URL("./attacks.txt", import.meta.url), "utf8").split("\n").filter((line) => line && !line.startsWith("## "))
  .map((line) => JSON.parse(`"${line}"`));
const GROUPS = Array.from({ length: Math.ceil(ATTACKS.length / 10) }, (_, group) => ATTACKS.slice(10 * group, 10 * group + 10));

/** Checks that no element of the page runs or loads anything. */
async function isInert(page, where) {
  const found = await page.evaluate(() => {
    const bad = [...document.querySelectorAll("#messages script, #messages iframe, #messages object, #messages embed, #messages svg:not(.icon), #messages form, #messages style, #messages base, #messages link, #messages meta, #messages video, #messages audio")].map((element) => element.outerHTML);
    for (const element of document.querySelectorAll("*")) {
      for (const { name, value } of element.attributes) {
        if (/^on/i.test(name) || (/^(href|src|action|formaction|xlink:href)$/i.test(name) && !/^(https?:|mailto:|#|blob:|data:image\/(png|jpeg|gif|webp|avif);base64,|\/agent\/|[a-z]+\.(js|css|svg)$)/.test(value))) bad.push(`${name}=${value}`);
      }
    }
    return globalThis.attacked ? ["a script ran", ...bad] : bad;
  });
  assert.deepEqual(found, [], where);
}

const contents = (page, selector) => page.$$eval(selector, (elements) => elements.map((element) => element.textContent));
/** Returns the texts as the page shows names, inputs of tools and titles: invisible direction marks are made visible. */
const visible = (page, shown) => page.evaluate(async (shown) => {
  const { visible } = await import("./dom.js");
  return shown.map(visible);
}, shown);

await step("attack strings stay texts in prompts and answers", async (made) => {
  assert.ok(ATTACKS.length >= 50, `${ATTACKS.length} strings`);
  const page = await open(made, "", fast);
  // Each string is in the prompt, and the model repeats it as Markdown.
  for (const [number, group] of GROUPS.entries()) {
    await fresh(page);
    await say(page, `Repeat:\n\n${group.join("\n\n")}`);
    await idle(page);
    await isInert(page, `answer ${number}`);
    const [prompt] = await contents(page, ".message.user .plain");
    const [answer] = await contents(page, ".message.answer .markdown");
    for (const attack of group) {
      assert.ok(prompt.includes(attack), `${JSON.stringify(attack)} in ${JSON.stringify(prompt)}`);
      // Markdown changes links and code. HTML stays as it is.
      if (/^<(?!javascript:|https:)/.test(attack)) assert.ok(answer.includes(attack), `${JSON.stringify(attack)} in ${JSON.stringify(answer)}`);
    }
    await shot(page, `18-attacks-${number}`);
  }
  await accessible(page, "attack strings");
});

await step("attack strings stay texts in titles", async (made) => {
  const page = await open(made, "", fast);
  await say(page, "Hello");
  await idle(page);
  const id = await idOf(page);
  for (const [index, title] of (await visible(page, ATTACKS)).entries()) {
    const status = await page.evaluate(async ([id, title]) =>
      (await fetch(`agent/conversations/${id}/commands`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ type: "title", title }) })).status, [id, ATTACKS[index]]);
    if (status === 422) continue;
    assert.equal(status, 200, ATTACKS[index]);
    await page.waitForFunction((title) => ["#title", ".item.current bdi"].every((selector) => document.querySelector(selector).textContent === title), title.trim());
    await isInert(page, `the title ${title}`);
  }
  await shot(page, "18-attacks-title");
});

await step("attack strings stay texts in names of files", async (made) => {
  const page = await open(made, "", fast);
  // The browser may replace characters in the names of files.
  const names = await page.evaluate((attacks) => {
    const data = new DataTransfer();
    for (const attack of attacks) data.items.add(new File(["x"], attack, { type: "text/plain" }));
    document.querySelector("#prompt").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
    return [...data.files].map((file) => file.name);
  }, ATTACKS);
  const shown = await visible(page, names);
  await page.waitForFunction((count) => document.querySelectorAll("#files li").length === count, ATTACKS.length);
  assert.deepEqual(await contents(page, "#files bdi"), shown);
  await isInert(page, "names of attached files");
  await say(page, "Here they are");
  await idle(page);
  await until(async () => assert.deepEqual(await contents(page, ".message.user .file-link bdi"), shown));
  await isInert(page, "names of files");
  await shot(page, "18-attacks-files");
});

await step("attack strings stay texts in inputs and results of tools", async (made) => {
  const page = await open(made, "", fast);
  for (const [number, group] of GROUPS.entries()) {
    const text = group.join("\n");
    await fresh(page);
    await say(page, `send_mail ${JSON.stringify({ text })}`);
    await page.waitForSelector(".tool.waiting");
    await isInert(page, `inputs ${number}`);
    const [input] = await visible(page, [JSON.stringify({ text }, null, 2)]);
    await until(async () => assert.equal((await contents(page, ".tool pre"))[0], input));
    if (number === 0) await shot(page, "18-attacks-tool");
    await page.getByRole("button", { name: "Approve", exact: true }).click();
    await idle(page, 2);
    await isInert(page, `results ${number}`);
    await until(async () => assert.ok((await contents(page, ".tool pre")).at(-1).endsWith(`would have been: ${text}`), text));
  }
});

await step("each file of the page has the policy, which stops scripts in texts", async (made) => {
  const page = await made.newPage();
  await page.goto(fast.address);
  const files = await until(async () => {
    const files = await page.evaluate(() => {
      const loaded = performance.getEntriesByType("resource").map(({ name }) => name);
      return [location.href, ...loaded.filter((name) => !name.includes("/agent/"))];
    });
    // The settings are loaded last.
    for (const name of ["/app.js", "/client.js", "/style.css", "/settings.json", "/vendor/marked.esm.js"]) {
      assert.ok(files.some((file) => file.endsWith(name)), name);
    }
    return files;
  });
  for (const file of files) {
    const headers = (await page.request.get(file)).headers();
    const policy = headers["content-security-policy"].split("; ");
    assert.deepEqual(policy, [
      "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data: blob:", "connect-src 'self'",
      "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'",
    ], file);
    assert.equal(headers["x-content-type-options"], "nosniff", file);
    assert.equal(headers["referrer-policy"], "no-referrer", file);
  }
  await page.evaluate(async () => {
    globalThis.broken = [];
    addEventListener("securitypolicyviolation", ({ violatedDirective }) => globalThis.broken.push(violatedDirective));
    try {
      document.createElement("div").innerHTML = "<b>text</b>";
    } catch (error) {
      globalThis.broken.push(error.name);
    }
    const script = document.createElement("script");
    script.append("globalThis.attacked = 1");
    document.body.append(script);
    const image = new Image();
    image.src = "https://evil.example/pixel.png";
    await new Promise((resolve) => (image.onerror = resolve));
  });
  await until(async () => {
    const broken = await page.evaluate(() => globalThis.broken);
    // The policy on trusted types stops both the markup and the text of the script.
    assert.deepEqual(broken.toSorted(), ["TypeError", "img-src", "require-trusted-types-for", "require-trusted-types-for"]);
  });
  assert.equal(await page.evaluate(() => globalThis.attacked), undefined);
});
