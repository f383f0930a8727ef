//! The tools of the server, and the operations that need no prompt.

use std::sync::Arc;

use rmcp::model::{CallToolResult, JsonObject, Tool, ToolAnnotations};
use schemars::{JsonSchema, Schema, generate::SchemaSettings, transform::RecursiveTransform};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::caller::{McpCaller, RefusalText};
use crate::{
    access::Action,
    agent::Status,
    error_chain,
    message::{Message, Role, UseDecision},
    session::{Mode, SessionSnapshot},
    store::{ConversationId, Page, Position},
    text::clip,
};

/// The greatest number of conversations on a page, and of messages in an answer.
const MOST: usize = 100;

/// The maximum size of all texts that `read` returns, in bytes.
const LONGEST: usize = 256 * 1024;

#[derive(Deserialize, JsonSchema)]
pub(super) struct AskInput {
    /// The id of the conversation to continue. Without it, a new conversation begins.
    // A model that names the member in another usual way must not begin a new conversation.
    #[serde(alias = "conversation_id", alias = "conversationId")]
    pub(super) conversation: Option<String>,
    /// The message to the agent.
    pub(super) prompt: String,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct AskOutput {
    /// The id of the conversation. Send it with the next prompt to continue the conversation.
    #[schemars(with = "String")]
    pub(super) conversation: ConversationId,
    /// The agent's answer.
    pub(super) answer: String,
    /// The reason why the answer ended: "stop" if it is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stop_reason: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct ListInput {
    /// The greatest number of conversations: 20 by default, 100 at most.
    limit: Option<usize>,
    /// The value of `next` in the previous answer.
    after: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct ListOutput {
    /// The conversations, most recently written first.
    conversations: Vec<ListedConversation>,
    /// The value of `after` for the next page. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct ListedConversation {
    /// The id of the conversation.
    #[schemars(with = "String")]
    conversation: ConversationId,
    /// The title.
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    /// The time of the last write, in the format of RFC 3339.
    updated: String,
}

#[derive(Deserialize, JsonSchema)]
struct ReadInput {
    /// The id of the conversation.
    conversation: String,
    /// The number of messages, counted from the end: 20 by default, 100 at most.
    last: Option<usize>,
}

#[derive(Serialize, JsonSchema)]
struct ReadOutput {
    /// The title.
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<Arc<str>>,
    /// "idle", "busy" while the agent works, or "paused" while it waits for a decision.
    #[schemars(with = "String")]
    status: Status,
    /// The number of earlier messages that are not shown.
    omitted: usize,
    /// The messages, oldest first. Results of tools are not among them.
    messages: Vec<TranscriptLine>,
}

#[derive(Serialize, JsonSchema)]
struct TranscriptLine {
    /// "user" or "assistant".
    #[schemars(with = "String")]
    role: Role,
    /// The text.
    text: String,
    /// The names of the tools that the message uses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<String>,
    /// How tool uses of the message were decided: the names of the tools, each with the kind, the time and the maker
    /// of the decision, and the input that the decision has set, unless it is too large.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<(String, serde_json::Map<String, Value>)>")]
    decisions: Vec<(String, UseDecision)>,
    /// The reason why the message or its turn ended, unless the model has finished. For a prompt without an answer, the
    /// error of its run.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct StopInput {
    /// The id of the conversation.
    conversation: String,
}

#[derive(Serialize, JsonSchema)]
struct StopOutput {
    /// Whether the agent was working.
    stopped: bool,
}

/// Returns the declarations of all tools.
pub(super) fn all() -> Vec<Tool> {
    let reads = || ToolAnnotations::new().read_only(true).open_world(false);
    vec![
        tool::<AskInput, AskOutput>(
            "ask",
            "Sends a message to the agent and waits for its answer. The agent remembers the conversation.",
        ),
        tool::<ListInput, ListOutput>("list", "Lists conversations with the agent, newest first.")
            .with_annotations(reads()),
        tool::<ReadInput, ReadOutput>("read", "Returns the last messages of a conversation with the agent.")
            .with_annotations(reads()),
        tool::<StopInput, StopOutput>(
            "stop",
            "Stops the agent's work in a conversation. Completed steps are kept.",
        )
        .with_annotations(ToolAnnotations::new().destructive(false).idempotent(true).open_world(false)),
    ]
}

fn tool<I: JsonSchema, O: JsonSchema>(name: &'static str, about: &'static str) -> Tool {
    let input = SchemaSettings::draft2020_12();
    let output = SchemaSettings::draft2020_12().for_serialize();
    Tool::new(name, about, schema::<I>(input)).with_raw_output_schema(schema::<O>(output))
}

fn schema<T: JsonSchema>(settings: SchemaSettings) -> Arc<JsonObject> {
    let simple = RecursiveTransform(|schema: &mut Schema| {
        // Clients warn about formats of numbers that they do not know.
        schema.remove("format");
        // Some clients accept only one type. An optional member may be null, but no client needs to know it.
        let kinds = schema.get("type").and_then(Value::as_array);
        if let Some(own) = kinds.and_then(|kinds| kinds.iter().find(|kind| **kind != "null")).cloned() {
            schema.insert("type".to_owned(), own);
        }
    });
    let settings = settings.with(|settings| {
        settings.inline_subschemas = true;
        // Some clients reject a schema that names another draft than theirs.
        settings.meta_schema = None;
    });
    let settings = settings.with_transform(simple);
    match settings.into_generator().into_root_schema_for::<T>().to_value() {
        Value::Object(object) => Arc::new(object),
        _ => Arc::default(),
    }
}

/// Reads the arguments of a call. Unknown members are ignored, because some clients add their own. Some clients send each
/// optional member, so a blank text means that the member is absent. Others send each number as a float.
pub(super) fn input<T: DeserializeOwned + JsonSchema>(mut arguments: JsonObject) -> Result<T, RefusalText> {
    let schema = schema::<T>(SchemaSettings::draft2020_12());
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &String| required.is_some_and(|required| required.iter().any(|own| own == name));
    arguments
        .retain(|name, value| is_required(name) || value.as_str().is_none_or(|text| !text.trim().is_empty()));
    for value in arguments.values_mut() {
        let float = value.as_f64().filter(|_| value.is_f64());
        if let Some(whole) = float.and_then(|float| float.to_string().parse::<u64>().ok()) {
            *value = whole.into();
        }
    }
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| format!("the arguments can't be read: {error}; correct them and call again"))
}

/// Reads the id of a conversation. An invalid id is refused with the reason.
pub(super) fn id(text: &str) -> Result<ConversationId, RefusalText> {
    ConversationId::new(text).map_err(|error| error_chain(&error))
}

fn output(value: &impl Serialize) -> CallToolResult {
    CallToolResult::structured(serde_json::to_value(value).unwrap_or_default())
}

pub(super) async fn list(caller: &McpCaller, arguments: JsonObject) -> Result<CallToolResult, RefusalText> {
    let ListInput { limit, after } = input(arguments)?;
    let limit = limit.unwrap_or(20).clamp(1, MOST);
    let mut page = Page::first(limit);
    if let Some(after) = after {
        let position: Position = serde_json::from_str(&after)
            .map_err(|_| "`after` must be the `next` of the previous answer, unchanged".to_owned())?;
        page = page.after(position);
    }
    let mut listed = caller.client.list(page).await.map_err(caller.refused)?;
    let last = listed.last().filter(|_| listed.len() == limit);
    let next = last.and_then(|last| serde_json::to_string(&Position::from(&last.summary)).ok());
    listed.retain(|listed| caller.client.may_list(&listed.summary.labels));
    let conversations = listed.into_iter().map(|listed| ListedConversation {
        conversation: listed.summary.id,
        title: listed.summary.title,
        updated: listed.summary.updated.rfc_3339(),
    });
    Ok(output(&ListOutput { conversations: conversations.collect(), next }))
}

pub(super) async fn read(caller: &McpCaller, arguments: JsonObject) -> Result<CallToolResult, RefusalText> {
    let ReadInput { conversation, last } = input(arguments)?;
    let (_session, events, _) = caller.open(&id(&conversation)?, Mode::Observer, &[]).await?;
    let snapshot = events.snapshot().ok_or("the conversation has no snapshot")?;
    Ok(output(&shown(snapshot, last.unwrap_or(20).clamp(1, MOST))))
}

/// Returns the last messages, and the newest unanswered prompt. Texts that are too long in sum are omitted, from the oldest message on.
fn shown(snapshot: &SessionSnapshot, last: usize) -> ReadOutput {
    let mut lines: Vec<(_, Option<&Message>)> = Vec::new();
    for message in snapshot.messages().filter(|message| message.compaction.is_none()) {
        match lines.last_mut() {
            Some((_, results)) if message.tool_results().next().is_some() => *results = Some(&**message),
            _ => lines.push((message, None)),
        }
    }
    let unanswered = snapshot.unanswered();
    lines.extend(unanswered.map(|(node, _)| (node.message(), None)));
    let failed = |message: &Arc<Message>| {
        unanswered.and_then(|(node, error)| error.filter(|_| Arc::ptr_eq(node.message(), message)))
    };
    let (mut messages, mut length) = (Vec::new(), 0);
    for (message, results) in lines.iter().rev().take(last) {
        let text = message.text();
        let open = message.tool_uses().filter(|_| results.is_none());
        let decided = results.iter().flat_map(|results| results.tool_results());
        let decided = decided.chain(open.filter_map(|tool_use| tool_use.decided.as_deref()));
        let decisions = decided.filter_map(|result| {
            let mut decision = UseDecision::clone(result.decision.as_deref()?);
            decision.clip();
            Some((result.name.clone(), decision))
        });
        let decisions: Vec<_> = decisions.collect();
        let size = text.len() + decisions.iter().map(|(_, own)| own.weight()).sum::<usize>();
        if length + size > LONGEST && !messages.is_empty() {
            break;
        }
        length += size;
        let tools = message.tool_uses().map(|tool| tool.name.clone()).collect();
        let ended = results.unwrap_or(message).ended.as_ref().or(message.ended.as_ref());
        let ended = ended.map(ToString::to_string).or_else(|| failed(message).map(ToString::to_string));
        let text = clip(&text, LONGEST).into_owned();
        messages.push(TranscriptLine { role: message.role, text, tools, decisions, ended });
    }
    messages.reverse();
    let (title, status) = (snapshot.title.clone(), snapshot.agent.status);
    ReadOutput { title, status, omitted: lines.len() - messages.len(), messages }
}

pub(super) async fn stop(caller: &McpCaller, arguments: JsonObject) -> Result<CallToolResult, RefusalText> {
    let StopInput { conversation } = input(arguments)?;
    let id = id(&conversation)?;
    caller.client.permitted(&id, &[Action::Stop]).await.map_err(caller.refused)?;
    let stopped = match caller.client.manager.get(&id) {
        // An idle agent has nothing to interrupt.
        Some(session) => session.interrupt().await.is_ok(),
        None => false,
    };
    Ok(output(&StopOutput { stopped }))
}

#[cfg(all(test, feature = "test-util"))]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        message::StopReason,
        session::tests::decided::{decided, left_open},
        store::MemoryStore,
    };

    #[tokio::test]
    async fn read_states_the_decisions_about_tool_uses_and_the_unusual_end_of_an_answer() {
        let snapshot = decided(&MemoryStore::new(), StopReason::Length).await.snapshot().await.unwrap();
        let shown = serde_json::to_value(shown(&snapshot, 20)).unwrap();
        let messages = shown["messages"].as_array().unwrap();
        let decisions = messages[1]["decisions"].as_array().unwrap();
        assert_eq!((decisions.len(), &decisions[0][0]), (2, &json!("pay")));
        let changed = &decisions[0][1];
        assert_eq!((&changed["by"], &changed["input"]), (&json!("ann"), &json!({ "eur": 20 })));
        assert_eq!(decisions[1][1]["kind"], "reject");
        assert_eq!(messages[2]["ended"], "length");
        assert_eq!(messages[1].get("ended"), None);
    }

    #[tokio::test]
    async fn read_states_decisions_of_a_turn_that_left_tool_uses_open_without_large_inputs() {
        let snapshot = left_open(&MemoryStore::new()).await.snapshot().await.unwrap();
        let decided = &shown(&snapshot, 20).messages[1].decisions;
        assert_eq!((&*decided[0].0, decided[0].1.by.as_deref()), ("refund", Some("ben")));
        let mut large = UseDecision { input: Some(json!("a".repeat(64 << 10))), ..decided[0].1.clone() };
        large.clip();
        assert_eq!(large, decided[0].1);
    }
}
