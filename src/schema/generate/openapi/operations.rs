//! The operations of the OpenAPI document: their parameters, bodies and answers.

use schemars::{JsonSchema, Schema};
use serde_json::Value;

use super::problems::{
    BODY, BUSY, COMMAND, CONVERSATION, CREATE, FORK, Kinds, MODEL, OPEN, QUERY, SEARCH, STALE, START, STORE,
    STREAM, SUB_AGENT, SUMS, TITLE, UNSUPPORTED, WRITE,
};
use crate::{
    message::UsageSum,
    schema::generate::SchemaDocument,
    session::{SessionAnswer, SessionCommand, SessionSnapshot},
    store::{ConversationId, Found},
    web::{
        ApprovalPage, Created, ListPage, ListQuery, MessagePage, MessagesQuery, NewConversation, NewFork,
        PeriodQuery, RowsPage, SearchQuery, UsageRowsQuery, WatchQuery,
    },
};

/// A function that adds a type to a document and returns the reference to it.
pub(super) type Type = fn(&mut SchemaDocument) -> Schema;

/// An operation: a route with its documentation.
pub(super) struct Operation {
    /// The method and the path.
    pub(super) route: &'static str,
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) description: &'static str,
    pub(super) query: Option<Type>,
    pub(super) body: Option<Type>,
    pub(super) answer: SuccessResponse,
    pub(super) problems: &'static [Kinds],
}

/// The answer to a request that succeeds.
pub(super) enum SuccessResponse {
    Json(Type),
    Created(Type),
    Nothing,
    Stream,
    File,
}

/// The contents of a stream: the list of conversations, the events of at least one conversation, or both.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "describes the query that the handler reads as a list of pairs")]
struct EventsQuery {
    /// Whether the stream carries the list of conversations.
    list: Option<bool>,
    /// The conversations of the stream, at most eight. The parameter occurs once per conversation.
    #[schemars(default, extend("maxItems" = 8))]
    watch: Vec<ConversationId>,
    /// The maximum number of messages in a snapshot of a conversation: the last ones of the path. Without it, all
    /// messages are sent.
    #[schemars(range(min = 1, max = 500))]
    messages: Option<usize>,
}

const PLAIN: Operation = Operation {
    route: "",
    id: "",
    summary: "",
    description: "",
    query: None,
    body: None,
    answer: SuccessResponse::Nothing,
    problems: &[],
};

pub(super) const OPERATIONS: &[Operation] = &[
    Operation {
        route: "GET /conversations",
        id: "listConversations",
        summary: "Lists the principal's conversations, most recently written first.",
        query: Some(SchemaDocument::include::<ListQuery>),
        answer: SuccessResponse::Json(SchemaDocument::include::<ListPage>),
        problems: &[QUERY, STORE, UNSUPPORTED],
        ..PLAIN
    },
    Operation {
        route: "POST /conversations",
        id: "createConversation",
        summary: "Creates a conversation.",
        body: Some(SchemaDocument::include::<NewConversation>),
        answer: SuccessResponse::Created(SchemaDocument::include::<Created>),
        problems: &[BODY, STORE, OPEN, START, CREATE, MODEL, TITLE, WRITE],
        ..PLAIN
    },
    Operation {
        route: "GET /conversations/{id}",
        id: "readConversation",
        summary: "Returns the snapshot of a conversation.",
        description: "The parts that the server's view hides are empty or absent.",
        answer: SuccessResponse::Json(SchemaDocument::include::<SessionSnapshot>),
        problems: &[CONVERSATION, STORE, OPEN, SUB_AGENT],
        ..PLAIN
    },
    Operation {
        route: "DELETE /conversations/{id}",
        id: "deleteConversation",
        summary: "Deletes a conversation.",
        description: "If the conversation is open, it is closed first, and its streams end.",
        problems: &[CONVERSATION, STORE, OPEN, SUB_AGENT, BUSY, WRITE],
        ..PLAIN
    },
    Operation {
        route: "POST /conversations/{id}/commands",
        id: "performCommand",
        summary: "Runs a command of a conversation.",
        description: "The answer is sent when the command is accepted. The stream of the conversation shows the command's \
                      effects. If an answer is lost, a prompt with an id can be sent again.",
        body: Some(SchemaDocument::include::<SessionCommand>),
        answer: SuccessResponse::Json(SchemaDocument::include::<SessionAnswer>),
        problems: &[
            CONVERSATION,
            BODY,
            STORE,
            OPEN,
            SUB_AGENT,
            START,
            COMMAND,
            MODEL,
            TITLE,
            BUSY,
            STALE,
            UNSUPPORTED,
            WRITE,
        ],
        ..PLAIN
    },
    Operation {
        route: "POST /conversations/{id}/forks",
        id: "forkConversation",
        summary: "Copies the path to a message into a new conversation.",
        description: "The new conversation belongs to the principal. The original does not change.",
        body: Some(SchemaDocument::include::<NewFork>),
        answer: SuccessResponse::Created(SchemaDocument::include::<Created>),
        problems: &[CONVERSATION, BODY, STORE, OPEN, START, FORK, MODEL, TITLE, WRITE],
        ..PLAIN
    },
    Operation {
        route: "GET /conversations/{id}/messages",
        id: "readMessages",
        summary: "Returns the messages before a node, on the node's branch.",
        description: "A page has at most 4 MiB, but at least one message. The parts that the server's view hides are empty \
                      or absent.",
        query: Some(SchemaDocument::include::<MessagesQuery>),
        answer: SuccessResponse::Json(SchemaDocument::include::<MessagePage>),
        problems: &[CONVERSATION, QUERY, STORE, OPEN, SUB_AGENT],
        ..PLAIN
    },
    Operation {
        route: "GET /conversations/{id}/usage",
        id: "readLedger",
        summary: "Returns the usage ledger of a conversation, newest first.",
        description: "The first page also contains the usage of the sub-agents below the conversation.",
        query: Some(SchemaDocument::include::<UsageRowsQuery>),
        answer: SuccessResponse::Json(SchemaDocument::include::<RowsPage>),
        problems: &[CONVERSATION, QUERY, STORE, UNSUPPORTED],
        ..PLAIN
    },
    Operation {
        route: "GET /conversations/{id}/files/{message}/{block}",
        id: "readFile",
        summary: "Returns the bytes of an attachment.",
        description: "In snapshots and streams, this address replaces an attachment of more than 64 KiB.",
        answer: SuccessResponse::File,
        problems: &[CONVERSATION, STORE, OPEN, SUB_AGENT],
        ..PLAIN
    },
    Operation {
        route: "GET /conversations/{id}/events",
        id: "watchConversation",
        summary: "Streams the updates of a conversation.",
        description: "The stream begins with a snapshot, or continues after `last-event-id`. With `messages`, all nodes \
                      except the last ones of the path and the unanswered prompts below them are outlines, without a \
                      message. If the path moves, the client gets a new snapshot.",
        query: Some(SchemaDocument::include::<WatchQuery>),
        answer: SuccessResponse::Stream,
        problems: &[CONVERSATION, QUERY, STORE, OPEN, SUB_AGENT, START, STREAM],
        ..PLAIN
    },
    Operation {
        route: "GET /events",
        id: "watch",
        summary: "Streams the updates of the list and of several conversations.",
        description: "The updates of the list and of each conversation begin with a snapshot. With `last-event-id`, the \
                      updates of a conversation can continue after this event instead. If a conversation cannot be \
                      opened, the event `refused` is sent.",
        query: Some(SchemaDocument::include::<EventsQuery>),
        answer: SuccessResponse::Stream,
        problems: &[CONVERSATION, QUERY, STORE, START, STREAM],
        ..PLAIN
    },
    Operation {
        route: "GET /approvals",
        id: "listApprovals",
        summary: "Lists the tool uses that wait for decisions in the principal's conversations.",
        description: "The list contains the tool uses that the server has stored, also those of conversations that are not \
                      open. The limit counts turns. All tool uses of a turn are on one page.",
        query: Some(SchemaDocument::include::<ListQuery>),
        answer: SuccessResponse::Json(SchemaDocument::include::<ApprovalPage>),
        problems: &[QUERY, STORE, UNSUPPORTED],
        ..PLAIN
    },
    Operation {
        route: "GET /search",
        id: "search",
        summary: "Searches the titles and messages of the principal's conversations.",
        query: Some(SchemaDocument::include::<SearchQuery>),
        answer: SuccessResponse::Json(SchemaDocument::include::<Found>),
        problems: &[QUERY, STORE, UNSUPPORTED, SEARCH],
        ..PLAIN
    },
    Operation {
        route: "GET /usage",
        id: "sumUsage",
        summary: "Returns the usage of all conversations of the principal, by model.",
        description: "The usage of deleted conversations is included.",
        query: Some(SchemaDocument::include::<PeriodQuery>),
        answer: SuccessResponse::Json(SchemaDocument::include::<Vec<UsageSum>>),
        problems: &[QUERY, SUMS, STORE, UNSUPPORTED],
        ..PLAIN
    },
    Operation {
        route: "GET /schema/updates",
        id: "readUpdateSchema",
        summary: "Returns the JSON Schema of updates.",
        answer: SuccessResponse::Json(SchemaDocument::include::<Value>),
        ..PLAIN
    },
    Operation {
        route: "GET /schema/commands",
        id: "readCommandSchema",
        summary: "Returns the JSON Schema of commands.",
        answer: SuccessResponse::Json(SchemaDocument::include::<Value>),
        ..PLAIN
    },
    Operation {
        route: "GET /openapi.json",
        id: "readOpenApi",
        summary: "Returns this document.",
        answer: SuccessResponse::Json(SchemaDocument::include::<Value>),
        ..PLAIN
    },
];
