// Files, drafts, the list of conversations, models, and the gauge.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { LONG, accessible, context, fast, fresh, idOf, idle, open, pass, saved, say, shot, slow, step, stopClock, streams, texts, until } from "./harness.mjs";

const PNG = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAgAAAAIAQMAAAD+wSzIAAAABlBMVEX///+/v7+jQ3Y5AAAADklEQVQI12P4AIX8EAgALgAD/aNpbtEAAAAASUVORK5CYII", "base64");

await step("files are chosen, dropped, pasted and removed", async (made) => {
  const page = await open(made);
  await page.setInputFiles("#file", [{ name: "picture.png", mimeType: "image/png", buffer: PNG }, { name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("note") }]);
  await page.waitForFunction(() => document.querySelectorAll("#files li").length === 2);
  const transfer = await page.evaluateHandle(() => {
    const data = new DataTransfer();
    data.items.add(new File(["dropped"], "dropped.csv", { type: "text/csv" }));
    return data;
  });
  await page.dispatchEvent("#main", "dragenter", { dataTransfer: transfer });
  await page.waitForSelector("#drop:not([hidden])");
  await shot(page, "10-drop");
  await page.dispatchEvent("#main", "drop", { dataTransfer: transfer });
  await page.waitForFunction(() => document.querySelectorAll("#files li").length === 3);
  await page.evaluate(() => {
    const clipboardData = new DataTransfer();
    clipboardData.items.add(new File(["pasted"], "pasted.md", { type: "text/markdown" }));
    document.querySelector("#prompt").dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
  });
  await page.waitForFunction(() => document.querySelectorAll("#files li").length === 4);
  await shot(page, "10-files");
  await accessible(page, "files");
  await page.getByRole("button", { name: "Remove dropped.csv" }).click();
  await say(page, "What is this?");
  await idle(page);
  await page.waitForFunction(() => document.querySelector(".message.user img")?.naturalWidth === 8);
  await until(async () => assert.deepEqual(await texts(page, ".message.user .file-link bdi"), ["notes.txt", "pasted.md"]));
  await page.getByRole("button", { name: "Leave out" }).first().click();
  await page.locator(".message.user .omitted img").waitFor();
  await page.getByRole("button", { name: "Include again" }).click();
  await page.waitForFunction(() => !document.querySelector(".omitted"));
  const download = page.waitForEvent("download");
  await page.locator(".file-link").first().click();
  assert.equal((await download).suggestedFilename(), "notes.txt");
  await page.setInputFiles("#file", { name: "big.bin", mimeType: "application/octet-stream", buffer: Buffer.alloc(7_000_000) });
  await page.locator("#notice", { hasText: "too large" }).waitFor();
  // The server replaces large images with links. The page shows these images too.
  await page.setInputFiles("#file", { name: "large.png", mimeType: "image/png", buffer: Buffer.concat([PNG, Buffer.alloc(100_000)]) });
  await page.waitForSelector("#files li");
  await say(page, "A large one");
  await idle(page, 2);
  await page.reload();
  await page.waitForFunction(() => [...document.querySelectorAll(".message.user img")].some((image) => image.src.includes("/files/") && image.naturalWidth === 8));
});

await step("stored decisions count until the conversation is opened", async (made) => {
  const page = await open(made);
  const shown = await page.evaluate(async () => {
    const { Sidebar } = await import("./sidebar.js");
    const item = { summary: { id: "a", title: "A", updated: 1, damage: null, waiting: 1 }, presence: "stored" };
    const sidebar = new Sidebar({ conversations: async () => ({ items: [item], next: null }) }, { changed() {} });
    await sidebar.refresh();
    const isPaused = () => {
      // The page has a sidebar too, which shows its items in the same place.
      sidebar.render();
      return document.querySelector("#list .meta").classList.contains("paused");
    };
    const after = (open, type) => {
      sidebar.take({ last: "1-1", open, waiting: [] }, { type: "event", id: "1-1", event: { type, id: "a" } });
      return isPaused();
    };
    return [isPaused(), after([{ id: "a", title: "A", activity: "busy" }], "opened"), after([], "closed")];
  });
  assert.deepEqual(shown, [true, false, false]);
});

await step("news is marked when a run ends while its conversation is not on screen", async (made) => {
  const page = await open(made);
  const shown = await page.evaluate(async () => {
    const { Sidebar } = await import("./sidebar.js");
    let updated = 1;
    let presence = "stored";
    let fails = false;
    const conversations = async () => {
      if (fails) throw new TypeError("the network is down");
      return { items: [{ summary: { id: "a", title: "A", updated, damage: null }, presence }], next: null };
    };
    const made = () => new Sidebar({ conversations }, { changed() {}, fail() {} });
    let sidebar = made();
    const isUnread = async () => {
      // Lets the sidebar load the list.
      await new Promise((resolve) => setTimeout(resolve));
      // The page has a sidebar too, which shows its items in the same place.
      sidebar.render();
      return document.querySelector("#list .item").classList.contains("unread");
    };
    const take = (activity, type = "status", isSwitch = false) => {
      const update = type === "resync" ? { type } : { type: "event", id: "1-1", event: { type, id: "a", activity } };
      const open = activity ? [{ id: "a", title: "A", activity }] : [];
      sidebar.take({ last: "1-1", open, waiting: [] }, update, isSwitch);
      return isUnread();
    };
    const seen = {};
    await sidebar.refresh();
    seen.first = [await isUnread(), await take("busy"), await take("idle")];
    sidebar.current = "a";
    sidebar.read("a");
    seen.onScreen = [await isUnread(), await take("busy"), await take("idle")];
    // The last write of the run on screen follows after the user has chosen another conversation.
    sidebar.current = null;
    updated = 2;
    seen.left = [await take("idle", "resync", true)];
    // A title follows while the list cannot be loaded.
    updated = 3;
    fails = true;
    seen.titled = [await take("idle", "title")];
    fails = false;
    seen.titled.push(await take("idle", "resync", true));
    // A queued prompt is withdrawn.
    seen.withdrawn = [await take("queued"), await take("idle")];
    // A run has begun and ended while the page was not connected, and the first list cannot be loaded.
    updated = 4;
    fails = true;
    seen.missed = [await take("idle", "resync")];
    fails = false;
    seen.missed.push(await take("idle", "title"));
    sidebar.read("a");
    seen.missed.push(await isUnread());
    // Another process runs the conversation.
    presence = "elsewhere";
    seen.elsewhere = [await take(null, "closed")];
    [updated, presence] = [5, "stored"];
    await sidebar.refresh();
    seen.elsewhere.push(await isUnread());
    sidebar.read("a");
    // The page is loaded again after a run during which the list was loaded.
    await take("busy");
    updated = 6;
    await sidebar.refresh();
    sidebar = made();
    await sidebar.refresh();
    seen.loaded = [await isUnread()];
    return seen;
  });
  assert.deepEqual(shown, {
    first: [false, false, true],
    onScreen: [false, false, false],
    left: [false],
    titled: [false, false],
    withdrawn: [false, false],
    missed: [false, true, false],
    elsewhere: [false, true],
    loaded: [true],
  });
});

await step("drafts are kept per conversation", async (made) => {
  const page = await open(made);
  // The page changes conversations after the click, not during it.
  const draft = (text) => page.waitForFunction((text) => document.querySelector("#prompt").value === text, text);
  await say(page, "Hello");
  await idle(page);
  const first = await idOf(page);
  await page.fill("#prompt", "a draft");
  await fresh(page);
  await draft("");
  await page.fill("#prompt", "another draft");
  await shot(page, "10-draft");
  await page.locator(`.item a[href="#/${first}"]`).click();
  await draft("a draft");
  await page.reload();
  await page.waitForSelector(".message.answer");
  await draft("a draft");
  await fresh(page);
  await draft("another draft");
});

await step("conversations are renamed, searched, marked as unread, exported and deleted", async (made) => {
  const page = await open(made);
  await say(page, "Tell me about zebras");
  await idle(page);
  const first = await idOf(page);
  const item = page.locator(".item", { has: page.locator(`a[href="#/${first}"]`) });
  await item.hover();
  await item.getByRole("button", { name: /^Rename/ }).click();
  await page.fill("#ask-input", "Stripes and hooves");
  await shot(page, "11-rename");
  await accessible(page, "a dialog");
  await page.keyboard.press("Enter");
  await page.locator("#title", { hasText: "Stripes and hooves" }).waitFor();
  await item.locator("bdi", { hasText: "Stripes and hooves" }).waitFor();
  await say(page, LONG);
  await streams(page, " 12 ");
  await fresh(page);
  await item.locator(".meta.busy").waitFor();
  // The answer ends while another conversation is on screen.
  await page.evaluate((id) => fetch(`agent/conversations/${id}/commands`, { method: "POST", headers: { "content-type": "application/json" }, body: '{"type":"interrupt"}' }), first);
  await item.and(page.locator(".unread")).waitFor();
  await until(async () => assert.match(await item.innerText(), /new$/));
  await shot(page, "11-unread");
  await page.keyboard.press("Control+k");
  await page.keyboard.type("hooves");
  await page.waitForFunction(() => document.querySelectorAll("#list .item").length === 1);
  await shot(page, "12-search");
  await page.fill("#search", "nothing has this title");
  await page.getByText("Nothing found.").waitFor();
  await accessible(page, "a search");
  await page.fill("#search", "");
  await item.locator("a").click();
  await page.waitForSelector(".message.answer");
  await until(async () => assert.equal(await item.and(page.locator(".unread")).count(), 0));
  const download = page.waitForEvent("download");
  await page.getByRole("button", { name: "Export as JSON" }).click();
  const exported = JSON.parse(readFileSync(await (await download).path(), "utf8"));
  assert.equal(exported.title, "Stripes and hooves");
  assert.equal(exported.tree.nodes.length, 4);
  await item.hover();
  await item.getByRole("button", { name: /^Delete/ }).click();
  await page.locator("#ask-ok").click();
  await item.waitFor({ state: "detached" });
  await until(async () => assert.equal(await idOf(page), ""));
  await page.goto(`${slow.address}#/${first}`);
  await page.getByText("This conversation does not exist").waitFor();
  await shot(page, "13-not-found");
});

await step("the gauge and numbers follow the locale", async () => {
  for (const [locale, size] of [["en-US", "12.3K tokens"], ["de-DE", "12.345 Tokens"]]) {
    const made = await context({ locale });
    const page = await open(made);
    const formats = await page.evaluate(async () => {
      const { duration, money, number } = await import("./format.js");
      return [money(1234.5), number(12345), ...[1234, 9960, 59_499, 59_500, 61_400, 119_600].map(duration)];
    });
    const [money, number, seconds] = locale === "de-DE" ? ["1.234,50\u00a0$", "12.345", "1,2 s"] : ["$1,234.50", "12,345", "1.2 s"];
    assert.deepEqual(formats, [money, number, seconds, "10 s", "59 s", "1 min 0 s", "1 min 1 s", "2 min 0 s"], size);
    await made.close();
  }
  // The demo model has no price. The costs are therefore checked with the stored conversation `long`.
  for (const [locale, text, took] of [["en-US", "12.3K tokens, $6.00", /^failed · 1\.2 s$/], ["de-DE", "12.345 tokens, 6,00\u00a0$", /^failed · 1,2 s$/]]) {
    const made = await context({ locale });
    const page = await open(made, "#/long");
    await page.locator("#gauge").waitFor();
    await page.waitForFunction((text) => document.querySelector("#gauge").innerText.trim() === text, text);
    await shot(page, `14-gauge-${locale}`);
    await fresh(page);
    await say(page, "Hello");
    await idle(page);
    await stopClock(page);
    await say(page, 'book_table "Luigi"');
    await page.getByText("Which table at Luigi?").waitFor();
    await pass(page, 1234);
    await page.getByRole("button", { name: "Decline" }).click();
    await page.locator(".badge", { hasText: took }).waitFor();
    await made.close();
  }
  const made = await context();
  await made.route("**/settings.json", (route) => route.fulfill({ json: { models: [{ name: "demo:parrot", context: 200 }] } }));
  const page = await open(made);
  await say(page, "Hello");
  await idle(page);
  await page.locator("#gauge", { hasText: /^context \d+ ?%$/ }).waitFor();
  await page.reload();
  await page.locator("#gauge", { hasText: /^context \d+ ?%$/ }).waitFor();
  await shot(page, "14-gauge");
  await accessible(page, "the gauge");
  await made.close();
});

await step("the keyboard is enough", async (made) => {
  const page = await open(made);
  await page.waitForFunction(() => document.activeElement?.id === "prompt");
  await page.keyboard.type(LONG);
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("please");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".message.live .markdown");
  await page.waitForFunction(() => document.activeElement?.id === "prompt");
  await page.keyboard.press("Escape");
  await idle(page);
  await until(async () => assert.equal((await texts(page, ".message.user .plain"))[0], `${LONG}\nplease`));
  for (const name of ["Edit and send again", "Answer again"]) await page.getByRole("button", { name }).waitFor();
  const reached = new Set();
  for (let press = 0; press < 200; press += 1) {
    await page.keyboard.press("Tab");
    const name = await page.evaluate(() => document.activeElement?.getAttribute("aria-label") ?? document.activeElement?.id);
    if (name === "Answer again" && !reached.has(name)) await shot(page, "15-keyboard");
    reached.add(name);
  }
  for (const name of ["new", "search", "model", "All branches", "Edit and send again", "Copy the answer", "Answer again", "prompt", "Attach files"]) {
    assert.ok(reached.has(name), `${name} is not reached by Tab: ${[...reached].join(", ")}`);
  }
  // Screen readers do not announce the streamed text, because it is not in a live region.
  assert.equal(await page.evaluate(() => document.querySelector("#messages").closest("[aria-live]")), null);
});


await step("texts are searched where the store can search", async (made) => {
  const page = await open(made, "", fast);
  await say(page, "Hello");
  await idle(page);
  await say(page, "The quokka hides here");
  await idle(page, 2);
  await saved(page);
  const id = await idOf(page);
  await fresh(page);
  await page.fill("#search", "quokka");
  await page.locator("#search-note", { hasText: /^1 found$/ }).waitFor();
  const item = page.locator("#list .item");
  await until(async () => assert.equal(await item.count(), 1));
  await item.locator(".meta", { hasText: "quokka" }).waitFor();
  await shot(page, "12-search-texts");
  await accessible(page, "a search of texts");
  await item.locator("a").click();
  await page.waitForSelector(".message.answer");
  await until(async () => assert.equal(await idOf(page), id));
});

await step("older conversations are shown on demand", async (made) => {
  const page = await open(made, "", fast);
  await page.evaluate(async () => {
    for (let number = 0; number < 60; number += 1) {
      await fetch("agent/conversations", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ title: `Number ${number}` }) });
    }
  });
  await page.reload();
  const items = page.locator("#list .item");
  await page.waitForFunction(() => document.querySelectorAll("#list .item").length === 50);
  await page.getByText("Number 59", { exact: true }).waitFor();
  assert.equal(await page.getByText("Number 0", { exact: true }).count(), 0);
  await page.getByRole("button", { name: "Show older conversations" }).scrollIntoViewIfNeeded();
  await shot(page, "12-older");
  await page.getByRole("button", { name: "Show older conversations" }).click();
  await page.getByText("Number 0", { exact: true }).waitFor();
  await page.waitForSelector("#more[hidden]", { state: "attached" });
  await until(async () => assert.ok((await items.count()) >= 60));
});

await step("the model is chosen before and within a conversation, but not during an answer", async (made) => {
  const page = await open(made, "", fast);
  const model = page.getByLabel("Model");
  const isChosen = (name) => page.waitForFunction((name) => document.querySelector("#model").value === name, name);
  await isChosen("demo:macaw");
  await model.selectOption("demo:parrot");
  await say(page, "Hello");
  await idle(page);
  const used = () => page.evaluate(async () => (await (await fetch(`agent/conversations/${location.hash.slice(2)}`)).json()).agent.state.model);
  await until(async () => assert.equal(await used(), "demo:parrot"));
  await model.focus();
  await shot(page, "13-model");
  const changed = page.waitForResponse((response) => response.url().endsWith("/commands"));
  await model.selectOption("demo:macaw");
  assert.equal((await changed).status(), 200);
  await page.reload();
  await isChosen("demo:macaw");
  await until(async () => assert.equal(await used(), "demo:macaw"));
  await say(page, "send_mail `one`");
  await page.waitForSelector(".tool.waiting");
  await until(async () => assert.ok(await model.isDisabled()));
  await page.getByRole("button", { name: "Approve" }).click();
  await idle(page, 3);
  await until(async () => assert.ok(await model.isEnabled()));
});
