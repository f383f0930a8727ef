// Remembers who has decided on each tool use. Snapshots contain this until the turn ends, and messages do not contain it.
// So the browser stores the newest decisions.

/** @typedef {{ decision: any, by?: string, expired?: boolean, at?: number }} Decided */

const DECIDED = "chat.decided";
const KEPT = 200;

/** @returns {[conversation: string, use: string, decided: Decided][]} */
function read() {
  try {
    return JSON.parse(localStorage.getItem(DECIDED) ?? "[]");
  } catch {
    return [];
  }
}

/**
 * Returns the remembered decisions of a conversation, by tool use.
 * @param {string | null} conversation
 * @returns {Map<string, Decided>}
 */
export function decisionsOf(conversation) {
  return new Map(read().filter(([id]) => id === conversation).map(([, use, decided]) => [use, decided]));
}

/**
 * @param {string} conversation
 * @param {string} use
 * @param {Decided} decided
 */
export function remember(conversation, use, { decision, by, expired, at }) {
  // Results and inputs can be large, and the messages contain them.
  const brief = typeof decision === "object" && !("reject" in decision) ? { [Object.keys(decision)[0]]: null } : decision;
  const others = read().filter(([id, other]) => id !== conversation || other !== use);
  try {
    localStorage.setItem(DECIDED, JSON.stringify([...others.slice(1 - KEPT), [conversation, use, { decision: brief, by, expired, at }]]));
  } catch {
    // Without storage, the page knows this until it is reloaded.
  }
}
