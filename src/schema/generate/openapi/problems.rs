//! The problems that the routes answer with.

use schemars::JsonSchema;

use crate::{agent::Status, message::ToolUseId, run::PromptState};

/// An error (RFC 9457). Members that are not listed may occur.
#[derive(JsonSchema)]
#[schemars(rename = "Problem")]
#[expect(dead_code, reason = "describes the JSON of `web::Problem`, which has its members as a map")]
pub(super) struct ProblemBody {
    /// The kind of the problem: `urn:omni-agent:CODE`, with one of the codes of the response.
    r#type: String,
    /// A sentence about the kind of the problem.
    title: String,
    /// The status of the response.
    status: u16,
    /// A sentence about this occurrence of the problem, with a value that caused it or advice.
    #[schemars(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// For the code `busy`: the status of the conversation.
    #[schemars(skip_serializing_if = "Option::is_none")]
    activity: Option<Status>,
    /// For the code `stale-decision`: the ids of the tool uses that wait for a decision.
    #[schemars(skip_serializing_if = "Option::is_none")]
    waiting: Option<Vec<ToolUseId>>,
    /// For the code `known-prompt`: the state of the prompt that was accepted before.
    #[schemars(skip_serializing_if = "Option::is_none")]
    state: Option<PromptState>,
    /// For the code `unknown-model`: the name of the model.
    #[schemars(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// For the code `too-large`: the maximum number of bytes.
    #[schemars(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    /// For the code `unsupported`: the operation that the store does not support.
    #[schemars(skip_serializing_if = "Option::is_none")]
    operation: Option<String>,
    /// For the codes `internal` and `damaged-turn`: the id under which the server has logged the cause.
    #[schemars(skip_serializing_if = "Option::is_none")]
    incident: Option<String>,
}

/// A kind of problem: its status, its code and its cause.
pub(super) struct ProblemKind(pub(super) u16, pub(super) &'static str, pub(super) &'static str);

pub(super) type Kinds = &'static [ProblemKind];

/// The problems of every route.
pub(super) const EVERY: Kinds = &[
    ProblemKind(401, "unauthenticated", "The request is not authenticated."),
    ProblemKind(403, "cross-origin", "The request comes from a page of another site."),
    ProblemKind(421, "wrong-host", "The host of the request is not served here."),
];

/// The problems of a route that uses the store.
pub(super) const STORE: Kinds = &[
    ProblemKind(500, "internal", "The server failed. Its log contains the cause under the incident's id."),
    ProblemKind(503, "shut-down", "The server or the conversation is shut down."),
    ProblemKind(503, "store-unreachable", "The stored conversations cannot be reached now."),
];

/// The problems of a route with the id of a conversation.
pub(super) const CONVERSATION: Kinds = &[
    ProblemKind(400, "invalid-id", "The id in the address is invalid."),
    ProblemKind(403, "forbidden", "The conversation may be read, but this action is not permitted."),
    ProblemKind(404, "not-found", "The conversation, message or file does not exist, or may not be read."),
];

/// The problems of a route that opens the conversation.
pub(super) const OPEN: Kinds = &[
    ProblemKind(421, "open-elsewhere", "Another process has the conversation open."),
    ProblemKind(500, "damaged-turn", "The stored answer in flight is damaged. The operator can discard it."),
    ProblemKind(503, "newer-turn", "A newer version of the server has begun the answer in flight."),
    ProblemKind(503, "no-room", "Too many conversations are open."),
    ProblemKind(503, "unreachable", "The process that has the conversation open cannot be reached."),
    ProblemKind(503, "store-behind", "Too many changes are not stored yet."),
];

/// The problems of a route that opens, deletes or labels a stored conversation.
pub(super) const SUB_AGENT: Kinds =
    &[ProblemKind(409, "sub-agent", "The conversation is that of a sub-agent, and depends on its parent.")];

/// The problems of a route that starts a run or a stream.
pub(super) const START: Kinds = &[ProblemKind(503, "draining", "The server is about to stop.")];

pub(super) const BODY: Kinds = &[
    ProblemKind(400, "invalid-body", "The body is not JSON, or does not fit its schema."),
    ProblemKind(413, "too-large", "The body is too large."),
    ProblemKind(
        429,
        "too-many-bodies",
        "Too many large requests are being processed, in total or for this principal.",
    ),
    ProblemKind(415, "content-type", "The content type of the body is not `application/json`."),
];

pub(super) const QUERY: Kinds =
    &[ProblemKind(400, "invalid-query", "The query of the address cannot be read.")];

pub(super) const MODEL: Kinds = &[ProblemKind(422, "unknown-model", "This model cannot be chosen.")];

pub(super) const TITLE: Kinds = &[ProblemKind(422, "invalid-title", "The title is too long.")];

pub(super) const BUSY: Kinds = &[ProblemKind(409, "busy", "A run is active.")];

pub(super) const STALE: Kinds = &[ProblemKind(
    409,
    "stale-decision",
    "The tool use does not wait for a decision, or belongs to another turn.",
)];

pub(super) const UNSUPPORTED: Kinds = &[ProblemKind(422, "unsupported", "This operation is not supported.")];

pub(super) const SUMS: Kinds = &[ProblemKind(403, "forbidden", "The principal cannot read the usage.")];
pub(super) const CREATE: Kinds =
    &[ProblemKind(403, "forbidden", "The principal cannot create conversations.")];

pub(super) const SEARCH: Kinds = &[ProblemKind(422, "invalid-query", "The search cannot be understood.")];

/// The problems of a route that writes to a conversation.
pub(super) const WRITE: Kinds = &[
    ProblemKind(409, "already-exists", "The conversation already exists."),
    ProblemKind(409, "conflict", "The conversation was changed at the same time."),
    ProblemKind(422, "unstorable", "The store cannot store the content."),
];

pub(super) const STREAM: Kinds = &[
    ProblemKind(400, "invalid-position", "The position in `last-event-id` cannot be read."),
    ProblemKind(429, "too-many-streams", "Too many streams are open, in total or for this principal."),
];

pub(super) const FORK: Kinds = &[
    ProblemKind(422, "not-an-answer", "The message is not an answer."),
    ProblemKind(422, "open-tool-uses", "The message has open tool uses."),
];

pub(super) const COMMAND: Kinds = &[
    ProblemKind(409, "idle", "No run is active."),
    ProblemKind(409, "known-prompt", "A prompt with this id was accepted before."),
    ProblemKind(409, "not-paused", "No tool use waits for a decision."),
    ProblemKind(409, "not-staged", "No prompt with this id is staged."),
    ProblemKind(409, "queue-full", "Too many prompts are staged."),
    ProblemKind(422, "empty-prompt", "The prompt is empty."),
    ProblemKind(422, "invalid-prompt", "The prompt has content or settings that a client cannot send."),
    ProblemKind(422, "not-a-prompt", "The message is not a prompt."),
    ProblemKind(422, "not-an-answer", "The message is not an answer."),
    ProblemKind(422, "not-an-attachment", "The block is not a file."),
    ProblemKind(422, "not-at-step", "The prompt cannot join the turn in flight."),
    ProblemKind(422, "not-compactable", "The conversation cannot be compacted."),
    ProblemKind(422, "open-tool-uses", "The message has open tool uses."),
    ProblemKind(422, "unanswered", "The prompt has no answer."),
];
