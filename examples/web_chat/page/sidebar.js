// The list of conversations: live status, unread marks, search, renaming and deletion.

import { byId, h, iconButton, place, setText, visible } from "./dom.js";
import { when } from "./format.js";
import { ProblemError } from "./client.js";

const PAGE = 50;
/** If the store has no search, at most this many conversations are searched by their titles. */
const SEARCHED = 1000;
const UNREAD = "chat.seen";

/**
 * @typedef {object} Item
 * @property {string} id
 * @property {string | null} title
 * @property {number} updated
 * @property {import("./client.js").Activity | "elsewhere" | "waiting" | null} activity
 * @property {string | null} damage
 * @property {number} waiting The number of stored decisions that are needed. It counts while the conversation is not open.
 * @property {boolean} isUnread
 */

export class Sidebar {
  /** @type {Map<string, Item>} */ #items = new Map();
  /** @type {Map<string, { element: HTMLElement, update: (item: Item, isCurrent: boolean) => void }>} */ #views = new Map();
  /** @type {string | null} */ #next = null;
  /** @type {Map<string, import("./client.js").OpenSession>} */ #open = new Map();
  /** The time of the last write that the user has seen, by id. */
  /** @type {Record<string, number>} */ #seen;
  /** @type {{ id: string, excerpt: string }[] | null} */ #hits = null;
  /** The first words of conversations, which are shown as long as the store has no title. */
  words = /** @type {Map<string, string>} */ (new Map());
  #query = "";
  #canSearch = true;
  #refreshing = false;
  #refreshAgain = false;
  /** Whether updates may have been missed since the last list. */
  #hasMissed = false;

  /**
   * @param {import("./client.js").Client} client
   * @param {{ decisions: (id: string) => number, rename: (id: string, title: string | null) => void,
   *   delete: (id: string, title: string) => void, fail: (error: unknown) => void, chosen: () => void,
   *   changed: () => void }} actions
   */
  constructor(client, actions) {
    this.client = client;
    this.actions = actions;
    /** @type {string | null} */
    this.current = null;
    this.#seen = readSeen();
    byId("more").addEventListener("click", () => this.#more());
    let timer = 0;
    byId("search").addEventListener("input", () => {
      clearTimeout(timer);
      timer = window.setTimeout(() => this.#search(byId("search").value.trim()), 200);
    });
  }

  /** @param {string} id */
  item(id) {
    return this.#items.get(id);
  }

  /** @param {{ id: string, title: string | null }} item */
  nameOf({ id, title }) {
    return titleOf({ title: title?.trim() || (this.words.get(id) ?? null) });
  }

  /** The ids of open conversations that wait for a decision. The page watches them to count the decisions. */
  get openPaused() {
    return [...this.#items.values()].filter((item) => item.activity === "paused").map((item) => item.id);
  }

  /** Loads the first page again. */
  async refresh() {
    if (this.#refreshing) {
      this.#refreshAgain = true;
      return;
    }
    this.#refreshing = true;
    let hasMissed = false;
    try {
      do {
        this.#refreshAgain = false;
        hasMissed = this.#hasMissed;
        this.#hasMissed = false;
        const page = await this.client.conversations({ limit: PAGE });
        if (this.#items.size <= PAGE) {
          // A conversation that is not listed any more was deleted.
          const ids = new Set(page.items.map(({ summary }) => summary.id));
          for (const id of this.#items.keys()) if (!ids.has(id)) this.#items.delete(id);
          this.#next = page.next;
        }
        this.#add(page.items, hasMissed);
        hasMissed = false;
      } while (this.#refreshAgain);
    } catch (error) {
      this.#hasMissed ||= hasMissed;
      // The stream reports a lost connection. When the stream is connected again, the list is loaded again.
      if (error instanceof ProblemError) this.actions.fail(error);
    } finally {
      this.#refreshing = false;
    }
    this.render();
    this.actions.changed();
  }

  async #more() {
    if (!this.#next) return;
    try {
      const page = await this.client.conversations({ limit: PAGE, after: this.#next });
      this.#next = page.next;
      this.#add(page.items);
      this.render();
    } catch (error) {
      this.actions.fail(error);
    }
  }

  /**
   * @param {import("./client.js").Listed[]} listed
   * @param {boolean} [hasMissed]
   */
  #add(listed, hasMissed) {
    for (const { summary, presence } of listed) {
      // The list may be older than the stream, which reports each activity in the right order.
      const stored = typeof presence === "object" || presence === "stored" ? null : presence;
      const activity = this.#open.get(summary.id)?.activity ?? stored;
      const { id, title, updated, damage, waiting = 0 } = summary;
      this.#put({ id, title, updated, activity, damage, waiting }, hasMissed);
    }
    writeSeen(this.#seen);
  }

  /**
   * Adds or replaces an item. `take` marks an item as unread when its run ends. The time of the last write marks only an
   * item whose runs the stream has not reported, because a write after the end of a run, such as a generated title, is
   * nothing to read.
   * @param {Omit<Item, "isUnread">} item
   * @param {boolean} [hasMissed] Whether updates of a known item may have been missed.
   */
  #put(item, hasMissed = false) {
    const { id, updated } = item;
    const known = this.#items.get(id);
    const isUnreported = !known || hasMissed || known.activity === "elsewhere" || item.activity === "elsewhere";
    const isNewer = isUnreported && this.#seen[id] < updated;
    const isUnread = id !== this.current && (isNewer || known?.isUnread === true);
    // If the page is closed during a run, the next page finds out that the run has written something.
    const isSeen = !isUnread && (id === this.current || !isRunning(item));
    if (isSeen || this.#seen[id] === undefined) this.#seen[id] = updated;
    this.#items.set(id, { ...item, isUnread });
  }

  /**
   * Applies an update of the list's stream.
   * @param {import("./client.js").ManagerSnapshot} list
   * @param {import("./client.js").ManagerUpdate} update
   * @param {boolean} [isSwitch] Whether the page has connected again only to watch other conversations. Then a resync
   *   does not mean that updates were missed.
   */
  take(list, update, isSwitch = false) {
    const open = (this.#open = new Map(list.open.map((session) => [session.id, session])));
    let isUnknown = [...open.keys()].some((id) => !this.#items.has(id));
    for (const item of this.#items.values()) {
      const session = open.get(item.id);
      const hasEnded = session ? session.activity === "idle" && isRunning(item) : item.activity === "busy";
      if (hasEnded && item.id !== this.current) item.isUnread = true;
      if (session) {
        // When a run ends, its activity is reported before its title and the time of its last write.
        if (hasEnded) isUnknown = true;
        item.activity = session.activity;
        item.title = session.title;
        // This number is from before the conversation was opened.
        item.waiting = 0;
      } else if (item.activity !== "elsewhere") {
        item.activity = list.waiting.includes(item.id) ? "waiting" : null;
      }
    }
    if (update.type === "event") {
      const { event } = update;
      if (event.type === "deleted") this.#items.delete(event.id);
      if (event.type === "closed") isUnknown = true;
      // Somebody has given this user a conversation.
      if (event.type === "labels" && !this.#items.has(event.id)) isUnknown = true;
      const item = this.#items.get(event.id);
      if (event.type === "title" && item) item.title = event.title;
      // The new title is a write too. Its time is not news.
      if (event.type === "title") isUnknown = true;
    }
    this.render();
    this.actions.changed();
    const isResync = update.type === "resync";
    if (isResync && !isSwitch) this.#hasMissed = true;
    if (isUnknown || isResync) this.refresh();
  }

  /**
   * Marks a conversation as read.
   * @param {string} id
   */
  read(id) {
    const item = this.#items.get(id);
    if (!item?.isUnread) return;
    item.isUnread = false;
    this.#seen[id] = item.updated;
    writeSeen(this.#seen);
    // The run's last write may be newer than the list.
    this.refresh();
  }

  /** @param {string} query */
  async #search(query) {
    this.#query = query;
    this.#hits = null;
    setText(byId("search-note"), "");
    if (!query) return this.render();
    if (this.#canSearch) {
      try {
        const { hits, complete } = await this.client.search({ q: query, limit: PAGE });
        if (query !== this.#query) return;
        for (const { conversation: { id, title, updated, damage, waiting = 0 } } of hits) {
          if (!this.#items.has(id)) this.#put({ id, title, updated, activity: null, damage, waiting });
        }
        this.#hits = hits.map(({ conversation, excerpt }) => ({ id: conversation.id, excerpt }));
        setText(byId("search-note"), complete ? "" : "Older messages are not indexed yet.");
      } catch (error) {
        if (error instanceof ProblemError && error.code === "unsupported") this.#canSearch = false;
        else if (error instanceof ProblemError && error.status === 422) setText(byId("search-note"), error.message);
        else this.actions.fail(error);
      }
    }
    if (!this.#canSearch) {
      while (this.#next && this.#items.size < SEARCHED && query === this.#query) await this.#more();
    }
    if (query === this.#query) {
      this.render();
      const found = byId("list").children.length;
      const note = byId("search-note");
      if (!note.textContent) setText(note, found === 0 ? "Nothing found." : this.#canSearch ? `${found} found` : `${found} found in titles`);
    }
  }

  render() {
    const query = this.#query.toLocaleLowerCase();
    let items = [...this.#items.values()].sort((a, b) => b.updated - a.updated || a.id.localeCompare(b.id));
    if (query) {
      const hits = new Set(this.#hits?.map(({ id }) => id));
      items = items.filter((item) => hits.has(item.id) || this.nameOf(item).toLocaleLowerCase().includes(query));
    }
    const elements = [];
    for (const item of items) {
      let view = this.#views.get(item.id);
      if (!view) {
        view = this.#view(item.id);
        this.#views.set(item.id, view);
      }
      view.update(item, item.id === this.current);
      elements.push(view.element);
    }
    for (const id of this.#views.keys()) if (!this.#items.has(id)) this.#views.delete(id);
    place(byId("list"), elements);
    byId("more").hidden = !this.#next || query !== "";
  }

  /** @param {string} id */
  #view(id) {
    const title = h("bdi");
    const meta = h("span", { class: "meta" });
    const link = h("a", { href: `#/${encodeURIComponent(id)}`, onclick: () => this.actions.chosen() },
      h("span", { class: "name" }, title), meta);
    const item = () => /** @type {Item} */ (this.#items.get(id));
    const rename = iconButton("edit", "Rename", () => this.actions.rename(id, item().title));
    const remove = iconButton("trash", "Delete", () => this.actions.delete(id, this.nameOf(item())));
    const element = h("li", { class: "item" }, link, h("div", { class: "actions" }, rename, remove));
    const update = (/** @type {Item} */ item, /** @type {boolean} */ isCurrent) => {
      const name = this.nameOf(item);
      const { isUnread } = item;
      const excerpt = this.#hits?.find((hit) => hit.id === id)?.excerpt;
      setText(title, name);
      setText(meta, this.#query && excerpt && excerpt !== item.title ? excerpt : this.#status(item, isUnread));
      meta.className = `meta ${isPaused(item) ? "paused" : item.activity === "busy" ? "busy" : ""}`;
      element.classList.toggle("current", isCurrent);
      element.classList.toggle("unread", isUnread);
      if (isCurrent) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
      link.title = name;
      rename.setAttribute("aria-label", `Rename ${name}`);
      remove.setAttribute("aria-label", `Delete ${name}`);
    };
    return { element, update };
  }

  /**
   * @param {Item} item
   * @param {boolean} isUnread
   */
  #status(item, isUnread) {
    if (item.damage) return "damaged";
    if (isPaused(item)) {
      const count = item.activity === null ? item.waiting : this.actions.decisions(item.id);
      return count === 0 ? "paused" : count === 1 ? "paused: 1 decision" : `paused: ${count} decisions`;
    }
    switch (item.activity) {
      case "busy": return "answering…";
      case "queued": return "waits for a free slot";
      case "waiting": return "waits to be opened";
      case "elsewhere": return "open in another process";
      default: return isUnread ? `${when(item.updated)} · new` : when(item.updated);
    }
  }
}

/** @param {Pick<Item, "activity">} item */
const isRunning = ({ activity }) => activity === "busy" || activity === "paused";

/** @param {Item} item */
const isPaused = ({ activity, waiting }) => activity === "paused" || (activity === null && waiting > 0);

/** @param {{ title: string | null }} item */
function titleOf(item) {
  return visible(item.title?.trim() || "Untitled");
}

/** @returns {Record<string, number>} */
function readSeen() {
  try {
    return JSON.parse(localStorage.getItem(UNREAD) ?? "{}");
  } catch {
    return {};
  }
}

/** @param {Record<string, number>} seen */
function writeSeen(seen) {
  try {
    // Another window may have shown newer messages.
    for (const [id, time] of Object.entries(readSeen())) seen[id] = Math.max(time, seen[id] ?? 0);
    // Only the newest marks are kept.
    const kept = Object.entries(seen).sort((a, b) => b[1] - a[1]).slice(0, 2000);
    localStorage.setItem(UNREAD, JSON.stringify(Object.fromEntries(kept)));
  } catch {
    // Without storage, the marks are kept only until the page is closed.
  }
}
