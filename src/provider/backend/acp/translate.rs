//! Converts the agent's updates of a turn to events, and the response that ends the turn. Performs no I/O.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
};

use agent_client_protocol_schema::v1::{
    ContentChunk, MessageId, SessionUpdate, ToolCall, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields,
    ToolKind,
};
use serde_json::{Map, Value, json};

use super::content::{block, words};
use crate::{
    json::halves::{self, SurrogateHalf},
    message::{ResultBlock, Text, ToolResult, ToolUse, ToolUseId, Usage},
    provider::{StopReason, backend::BackendEvent},
};

/// The maximum number of tool calls of earlier turns whose ids are known, so that their late updates are ignored.
const MOST_EARLIER: usize = 1000;

/// The maximum length of such an id in bytes. Longer ids are forgotten.
const LONGEST_ID: usize = 256;

/// Converts a turn's updates to events.
#[derive(Default)]
pub(super) struct AcpTranslator {
    tools: HashMap<String, AcpTool>,
    /// The ids of tool calls of earlier turns, oldest first.
    earlier: VecDeque<String>,
    /// A number that makes the ids of repeated tool uses distinct.
    uses: u64,
    /// Set if the last text ended with the first half of a UTF-16 surrogate pair: whether that text was thinking, and
    /// the half.
    open: Option<(bool, SurrogateHalf)>,
    /// The last text, unless a tool use has followed it: whether the text was thinking, and the id of its message.
    message: Option<(bool, MessageId)>,
}

/// The known parts of a tool call.
#[derive(Clone)]
struct AcpTool {
    id: ToolUseId,
    call: ToolCall,
    /// The input at the last update, if it was known.
    input: Option<Value>,
    /// Whether the tool call was emitted as a tool use.
    used: bool,
    finished: bool,
    /// The last request for permission: its input, and a pointer that is valid while the request is open.
    question: Option<(Value, Weak<()>)>,
}

impl AcpTranslator {
    /// Returns the translator of the next turn.
    pub(super) fn next(self) -> Self {
        let mut earlier = self.earlier;
        earlier.extend(self.tools.into_keys().filter(|id| id.len() <= LONGEST_ID));
        earlier.drain(..earlier.len().saturating_sub(MOST_EARLIER));
        Self { earlier, ..Self::default() }
    }

    /// Returns the events of an update. An unknown update has no events.
    pub(super) fn update(&mut self, update: Value) -> Vec<BackendEvent> {
        let mut events = Vec::new();
        for event in self.events(update) {
            match event {
                BackendEvent::Text(text) => self.join(false, text, &mut events),
                BackendEvent::Thinking(text) => self.join(true, text, &mut events),
                // These events do not end the current text, so a later text can continue it.
                BackendEvent::Status { .. } | BackendEvent::Plan(_) => events.push(event),
                event => {
                    if matches!(event, BackendEvent::ToolUse(_)) {
                        self.message = None;
                    }
                    events.extend(self.finish().into_iter().chain([event]));
                }
            }
        }
        events
    }

    /// Adds the event for a text. If the previous text ended with the first half of a surrogate pair, that half is
    /// joined with the text. The marks that stand for such halves are removed; see [`halves`].
    fn join(&mut self, thinking: bool, text: String, events: &mut Vec<BackendEvent>) {
        if self.open.is_some_and(|(kind, _)| kind != thinking) {
            events.extend(self.finish());
        }
        let before = self.open.take().map(|(_, half)| half);
        let (text, open) = halves::resolved(before, text);
        self.open = open.map(|half| (thinking, half));
        events.push(text_event(thinking, text));
    }

    /// Returns the text that remains at the end of the turn: U+FFFD if the last text ended with the first half of a
    /// surrogate pair.
    pub(super) fn finish(&mut self) -> Option<BackendEvent> {
        let (thinking, _) = self.open.take()?;
        Some(text_event(thinking, char::REPLACEMENT_CHARACTER.to_string()))
    }

    fn events(&mut self, update: Value) -> Vec<BackendEvent> {
        if let Some((name, data)) = status(&update) {
            return vec![BackendEvent::Status { name, data }];
        }
        if update.get("sessionUpdate").is_some_and(|kind| kind == "plan")
            && let Some(entries) = update.get("entries").filter(|entries| entries.is_array())
        {
            // The entries are passed on unchanged, since agents define their own priorities.
            return vec![BackendEvent::Plan(entries.clone())];
        }
        let update = match serde_json::from_value::<SessionUpdate>(update) {
            Ok(update) => update,
            Err(error) => {
                tracing::debug!(%error, "an agent's update can't be parsed");
                return Vec::new();
            }
        };
        match update {
            SessionUpdate::AgentMessageChunk(chunk) => vec![self.text(false, chunk)],
            SessionUpdate::AgentThoughtChunk(chunk) => vec![self.text(true, chunk)],
            SessionUpdate::ToolCall(call) => {
                // If the id of a tool call that has ended occurs again, it belongs to another tool use.
                let again = self.tools.get(&*call.tool_call_id.0).is_some_and(|tool| tool.finished);
                self.tool(call.into(), again)
            }
            SessionUpdate::ToolCallUpdate(update) => {
                let id = &*update.tool_call_id.0;
                if !self.tools.contains_key(id) && self.earlier.iter().any(|earlier| earlier == id) {
                    tracing::debug!(id, "an agent's update is about a tool call of an earlier turn");
                    return Vec::new();
                }
                self.tool(update, false)
            }
            // All other updates have no events. Among them are the user's messages, which are already known.
            _ => Vec::new(),
        }
    }

    /// Returns the event for a text. An empty line separates the texts of two messages.
    fn text(&mut self, thinking: bool, chunk: ContentChunk) -> BackendEvent {
        let mut text = words(chunk.content);
        if !text.is_empty() {
            let message = chunk.message_id.map(|id| (thinking, id));
            if let (Some((kind, earlier)), Some((_, id))) = (&self.message, &message)
                && (*kind, earlier != id) == (thinking, true)
            {
                text.insert_str(0, "\n\n");
            }
            self.message = message;
        }
        text_event(thinking, text)
    }

    /// Records a tool call for which the agent requests permission, and returns it as a tool use to decide on. The caller
    /// must hold the returned pointer while the request is open.
    ///
    /// Some agents request all permissions of a kind with one id. So the tool use gets another id if a request with the
    /// same id is open, or was about another input.
    pub(super) fn asked(&mut self, update: ToolCallUpdate) -> (ToolUse, Arc<()>) {
        let open = Arc::new(());
        let known = self.tools.get(&*update.tool_call_id.0);
        if let Some(mut tool) = known.filter(|tool| tool.is_asked_apart(&update.fields)).cloned() {
            self.uses += 1;
            tool.id = format!("{}#{}", update.tool_call_id.0, self.uses).into();
            tool.change(update.fields);
            return (tool.tool_use(), open);
        }
        let again = known.is_some_and(|tool| tool.finished);
        let tool = self.merge(update, again);
        let tool_use = tool.tool_use();
        tool.question = Some((tool_use.input.clone(), Arc::downgrade(&open)));
        (tool_use, open)
    }

    fn tool(&mut self, update: ToolCallUpdate, again: bool) -> Vec<BackendEvent> {
        let tool = self.merge(update, again);
        if tool.finished {
            return Vec::new();
        }
        let mut events = Vec::new();
        let input = tool.call.raw_input.clone().filter(|input| !is_blank(input));
        let is_known = std::mem::replace(&mut tool.input, input.clone()) == input;
        if !std::mem::replace(&mut tool.used, true) {
            events.push(BackendEvent::ToolUse(tool.tool_use()));
        } else if let Some(input) = input.filter(|_| !is_known) {
            events.push(BackendEvent::ToolInput { id: tool.id.clone(), input });
        }
        events.push(BackendEvent::ToolUpdate { id: tool.id.clone(), data: json!(tool.call) });
        if let Some(result) = tool.result() {
            tool.finished = true;
            events.push(BackendEvent::ToolResult(result));
        }
        events
    }

    /// Merges an update into its tool call. If the tool call is new, it is created.
    fn merge(&mut self, update: ToolCallUpdate, again: bool) -> &mut AcpTool {
        let key = update.tool_call_id.0.to_string();
        if again {
            self.tools.remove(&key);
            self.uses += 1;
        }
        let uses = self.uses;
        let tool = self.tools.entry(key).or_insert_with_key(|key| AcpTool {
            id: if again { format!("{key}#{uses}") } else { key.clone() }.into(),
            call: ToolCall::new(update.tool_call_id.clone(), String::new()),
            input: None,
            used: false,
            finished: false,
            question: None,
        });
        if !tool.finished {
            tool.change(update.fields);
        }
        tool
    }
}

impl AcpTool {
    fn change(&mut self, mut fields: ToolCallUpdateFields) {
        // Some agents repeat a tool call with an empty input.
        if self.call.raw_input.is_some() {
            fields.raw_input = fields.raw_input.filter(|input| !is_blank(input));
        }
        self.call.update(fields);
    }

    /// Returns whether a request for permission with these fields is about another tool use than this one.
    fn is_asked_apart(&self, fields: &ToolCallUpdateFields) -> bool {
        let Some((earlier, open)) = self.question.as_ref().filter(|_| !self.finished) else { return false };
        let input = fields.raw_input.as_ref().filter(|input| !is_blank(input));
        open.strong_count() > 0 || input.is_some_and(|input| input != earlier)
    }

    fn tool_use(&self) -> ToolUse {
        let call = &self.call;
        let input = call.raw_input.clone().filter(|input| !is_blank(input)).unwrap_or_else(|| {
            // If there is no input, the person who decides sees the other parts of the tool call instead.
            let mut input = json!({});
            if !call.title.is_empty() {
                input["title"] = json!(call.title);
            }
            if !call.locations.is_empty() {
                input["locations"] = json!(call.locations);
            }
            if !call.content.is_empty() {
                input["content"] = json!(call.content);
            }
            input
        });
        ToolUse::new(self.id.clone(), self.name(), input)
    }

    /// Returns the tool's name. If it has none, returns its kind, or else its title.
    fn name(&self) -> String {
        let call = &self.call;
        if let Some(name) = call.name.as_ref().filter(|name| !name.is_empty()) {
            return name.clone();
        }
        match (call.kind, json!(call.kind)) {
            (ToolKind::Other, _) if call.title.is_empty() => "tool".to_owned(),
            (ToolKind::Other, _) => call.title.clone(),
            (_, kind) => kind.as_str().unwrap_or("tool").to_owned(),
        }
    }

    /// Returns the result of the tool call, if the call has ended.
    fn result(&self) -> Option<ToolResult> {
        let is_error = match self.call.status {
            ToolCallStatus::Completed => false,
            ToolCallStatus::Failed => true,
            _ => return None,
        };
        let mut content: Vec<ResultBlock> = self.call.content.iter().map(block).collect();
        if content.is_empty() {
            let raw = self.call.raw_output.as_ref().filter(|raw| !raw.is_null());
            content.extend(raw.map(|raw| {
                let text = raw.as_str().map_or_else(|| raw.to_string(), str::to_owned);
                ResultBlock::Text(Text::new(text))
            }));
        }
        Some(ToolResult {
            tool_use_id: self.id.clone(),
            name: self.name(),
            content,
            is_error,
            decision: None,
        })
    }
}

/// Returns whether an input contains nothing.
fn is_blank(input: &Value) -> bool {
    input.is_null() || input.as_object().is_some_and(Map::is_empty)
}

fn text_event(thinking: bool, text: String) -> BackendEvent {
    if thinking { BackendEvent::Thinking(text) } else { BackendEvent::Text(text) }
}

/// If an update is about the session as a whole, returns it as a status with a name. An update of an unknown kind is a
/// status too.
pub(super) fn status(update: &Value) -> Option<(String, Value)> {
    let kind = update.get("sessionUpdate")?.as_str()?;
    let (name, member) = match kind {
        "user_message_chunk"
        | "agent_message_chunk"
        | "agent_thought_chunk"
        | "tool_call"
        | "tool_call_update"
        | "plan" => return None,
        "available_commands_update" => ("commands", Some("availableCommands")),
        "current_mode_update" => ("mode", Some("currentModeId")),
        "config_option_update" => ("options", Some("configOptions")),
        "usage_update" => ("usage", None),
        "session_info_update" => ("session", None),
        other => (other, None),
    };
    let mut data = member.map_or(Some(update), |member| update.get(member))?.clone();
    if let (None, Some(members)) = (member, data.as_object_mut()) {
        members.shift_remove("sessionUpdate");
    }
    Some((name.to_owned(), data))
}

/// Returns the text that an update appends to the response, or `None` if the update appends no text.
pub(super) fn late_text(update: &Value) -> Option<&str> {
    let is_answer = update.get("sessionUpdate")? == "agent_message_chunk";
    update.get("content")?.get("text")?.as_str().filter(|_| is_answer)
}

/// Returns the reason why the turn ended, or `None` if the response to the prompt is not valid.
pub(super) fn stop_reason(answer: &Value) -> Option<StopReason> {
    Some(match answer.get("stopReason")?.as_str()? {
        "end_turn" => StopReason::Stop,
        "max_tokens" => StopReason::Length,
        "max_turn_requests" => StopReason::MaxSteps,
        "refusal" => StopReason::Refusal,
        "cancelled" => StopReason::Cancelled,
        other => StopReason::Other(other.to_owned()),
    })
}

/// Returns the usage of the turn, which some agents report although the protocol does not define it yet.
pub(super) fn usage(answer: &Value) -> Option<Usage> {
    let usage = answer.get("usage")?.as_object()?;
    let count = |name: &str| usage.get(name).and_then(Value::as_u64);
    let (input, output) = (count("inputTokens")?, count("outputTokens")?);
    Some(Usage {
        input,
        output,
        reasoning: count("thoughtTokens").unwrap_or(0).min(output),
        cache_read: count("cachedReadTokens").unwrap_or(0),
        cache_write: count("cachedWriteTokens").unwrap_or(0),
        cost: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emitted(updates: impl IntoIterator<Item = Value>) -> Vec<String> {
        let mut translator = AcpTranslator::default();
        let events = updates.into_iter().flat_map(|update| translator.update(update));
        events
            .map(|event| match event {
                BackendEvent::Text(text) => format!("text {text}"),
                BackendEvent::Thinking(text) => format!("thinking {text}"),
                BackendEvent::ToolUse(tool_use) => {
                    format!("use {} {} {}", tool_use.id, tool_use.name, tool_use.input)
                }
                BackendEvent::ToolInput { id, input } => format!("input {id} {input}"),
                BackendEvent::ToolUpdate { id, data } => format!("update {id} {}", data["title"]),
                BackendEvent::ToolResult(result) => {
                    format!("result {} {} {}", result.tool_use_id, result.is_error, result.text())
                }
                BackendEvent::Plan(plan) => format!("plan {plan}"),
                BackendEvent::Status { name, data } => format!("status {name} {data}"),
                other => format!("{other:?}"),
            })
            .collect()
    }

    fn chunk(kind: &str, content: &Value) -> Value {
        json!({ "sessionUpdate": kind, "content": content, "_meta": { "any": 1 }, "more": true })
    }

    #[test]
    fn texts_are_emitted_in_order() {
        let text = |text: &str| json!({ "type": "text", "text": text });
        let updates = [
            chunk("agent_thought_chunk", &text("Hm")),
            chunk("user_message_chunk", &text("known")),
            chunk("agent_message_chunk", &text("Yes")),
            chunk(
                "agent_message_chunk",
                &json!({ "type": "resource_link", "name": "a", "uri": "file:///a" }),
            ),
            chunk("agent_message_chunk", &json!({ "type": "hologram" })),
        ];
        assert_eq!(emitted(updates), ["thinking Hm", "text Yes", "text [a](file:///a)"]);
    }

    #[test]
    fn texts_of_different_messages_are_separated() {
        let said = |kind: &str, id: Value, text: &str| {
            let content = json!({ "type": "text", "text": text });
            json!({ "sessionUpdate": kind, "messageId": id, "content": content })
        };
        let text = |id: &str, text: &str| said("agent_message_chunk", json!(id), text);
        let thought = |id: &str, text: &str| said("agent_thought_chunk", json!(id), text);
        let tool = |status: &str| json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t", "status": status });
        let emitted = emitted([
            text("a", "Checking"),
            text("a", " it."),
            text("b", ""),
            text("b", "Fine."),
            said("agent_message_chunk", Value::Null, " Yes."),
            thought("c", "Hm."),
            thought("d", "So."),
            text("d", "Now"),
            tool("in_progress"),
            text("e", "It"),
            tool("completed"),
            text("e", " works"),
            text("f", "Done."),
        ]);
        let texts = emitted.iter().filter(|event| event.starts_with("te") || event.starts_with("th"));
        let expected = [
            "text Checking",
            "text  it.",
            "text ",
            "text \n\nFine.",
            "text  Yes.",
            "thinking Hm.",
            "thinking \n\nSo.",
            "text Now",
            "text It",
            "text  works",
            "text \n\nDone.",
        ];
        assert!(texts.eq(&expected), "{emitted:?}");
    }

    #[test]
    fn repeated_updates_of_a_tool_emit_one_use() {
        let updates = [
            json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": "List", "kind": "execute",
                "rawInput": { "command": "ls" } }),
            json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": "List all" }),
            json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed",
                "content": [{ "type": "content", "content": { "type": "text", "text": "a b" } }, { "type": "odd" }] }),
            json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "failed" }),
            json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": "Again", "status": "failed" }),
        ];
        let expected = [
            r#"use t execute {"command":"ls"}"#,
            r#"update t "List""#,
            r#"update t "List all""#,
            r#"update t "List all""#,
            "result t false a b",
            r#"use t#1 Again {"title":"Again"}"#,
            r#"update t#1 "Again""#,
            "result t#1 true ",
        ];
        assert_eq!(emitted(updates), expected);
    }

    #[test]
    fn input_that_becomes_known_after_the_use_is_emitted_once() {
        let update = |more: Value| {
            let mut update = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t" });
            update.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            update
        };
        let text = json!([{ "type": "content", "content": { "type": "text", "text": "a b" } }]);
        let updates = [
            json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": "Run", "rawInput": {} }),
            update(json!({ "rawInput": { "command": "ls" } })),
            update(json!({ "rawInput": {} })),
            update(json!({ "rawInput": { "command": "ls" }, "status": "completed", "content": text })),
        ];
        let expected = [
            r#"use t Run {"title":"Run"}"#,
            r#"update t "Run""#,
            r#"input t {"command":"ls"}"#,
            r#"update t "Run""#,
            r#"update t "Run""#,
            r#"update t "Run""#,
            "result t false a b",
        ];
        assert_eq!(emitted(updates), expected);
    }

    #[test]
    fn update_of_an_unannounced_tool_announces_it() {
        let update = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "x", "status": "completed",
            "rawOutput": { "exit": 0 } });
        assert_eq!(emitted([update]), ["use x tool {}", r#"update x """#, r#"result x false {"exit":0}"#]);
    }

    #[test]
    fn permission_before_the_announcement_is_for_the_same_tool() {
        let mut translator = AcpTranslator::default();
        let update = json!({ "toolCallId": "x", "title": "Delete", "kind": "delete" });
        let (tool_use, _) = translator.asked(serde_json::from_value(update).unwrap());
        assert_eq!((tool_use.id.as_str(), tool_use.name.as_str()), ("x", "delete"));
        let announced = json!({ "sessionUpdate": "tool_call", "toolCallId": "x", "title": "Delete" });
        let events = translator.update(announced);
        assert!(matches!(&events[0], BackendEvent::ToolUse(tool_use) if tool_use.id.as_str() == "x"));
    }

    #[test]
    fn permissions_with_one_id_are_for_one_tool_only_if_they_are_about_one_input() {
        let mut translator = AcpTranslator::default();
        let mut asked = |input: &str| {
            let call = json!({ "toolCallId": "w", "title": input, "rawInput": { "path": input } });
            translator.asked(serde_json::from_value(call).unwrap())
        };
        let told = |tool_use: ToolUse| format!("{} {}", tool_use.id, tool_use.input["path"]);
        let (first, open) = asked("a");
        let (second, _) = asked("b");
        let (third, _) = asked("a");
        drop(open);
        let (again, _) = asked("a");
        let (other, _) = asked("b");
        let expected = [r#"w "a""#, r#"w#1 "b""#, r#"w#2 "a""#, r#"w "a""#, r#"w#3 "b""#];
        assert_eq!([first, second, third, again, other].map(told), expected);
    }

    #[test]
    fn permission_with_an_empty_input_is_for_the_known_input() {
        let asked = |updates: &[Value], call: Value| {
            let mut translator = AcpTranslator::default();
            for update in updates {
                translator.update(update.clone());
            }
            translator.asked(serde_json::from_value(call).unwrap()).0.input
        };
        let command = json!({ "command": "echo 'foo'" });
        let updates = [
            json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": "Run", "rawInput": {} }),
            json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t", "rawInput": command }),
        ];
        for input in [json!({}), json!(null)] {
            assert_eq!(asked(&updates, json!({ "toolCallId": "t", "rawInput": input })), command);
            let unknown = asked(&updates[..1], json!({ "toolCallId": "t", "rawInput": input }));
            assert_eq!(unknown, json!({ "title": "Run" }));
        }
        assert_eq!(asked(&updates, json!({ "toolCallId": "t", "rawInput": { "a": 1 } })), json!({ "a": 1 }));
    }

    #[test]
    fn session_updates_are_statuses_and_invalid_updates_are_ignored() {
        let updates = [
            json!({ "sessionUpdate": "available_commands_update", "availableCommands": [{ "name": "plan" }] }),
            json!({ "sessionUpdate": "current_mode_update", "currentModeId": "ask" }),
            json!({ "sessionUpdate": "usage_update", "used": 1, "size": 2 }),
            json!({ "sessionUpdate": "from_the_future", "x": 1 }),
            json!({ "sessionUpdate": "tool_call" }),
            json!({ "sessionUpdate": 3 }),
            json!([]),
            json!({ "sessionUpdate": "plan", "entries": [{ "content": "Look", "priority": "high", "status": "pending" }] }),
        ];
        let expected = [
            r#"status commands [{"name":"plan"}]"#,
            r#"status mode "ask""#,
            r#"status usage {"used":1,"size":2}"#,
            r#"status from_the_future {"x":1}"#,
            r#"plan [{"content":"Look","priority":"high","status":"pending"}]"#,
        ];
        assert_eq!(emitted(updates), expected);
    }
}
