//! Reads a posted request: the user's newest message, and the part of the conversation that the response shows.

use serde::Deserialize;
use serde_json::Value;

use super::{
    AiSdkRunToStream,
    exchange::{PromptExchange, base_id, exchanges, stored_base, stored_id, version_id},
};
use crate::{
    agent::Status,
    message::{Attachment, Content, MessageId, ResultBlock, Text, ToolResult, ToolUse, ToolUseId},
    run::{ErrorKind, PendingUse, Prompt, PromptId},
    session::{SessionCommand, SessionSnapshot},
    tool::Decision,
    web::{
        Problem,
        front::intent::{
            PostedMessageUse, PostedRequest, RequestIntent, StoredMessageRef, decide, intent, open_uses,
            pause_id,
        },
        front::media_types::more_exact,
        requests::prompt_of,
    },
};

/// The beginning of the id of a prompt that contains only results of client tools.
const RESULTS: &str = "results";

/// The body of a posted request. Other fields are ignored, because applications may add their own.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::web) struct AiSdkPostBody {
    /// The id of the conversation.
    pub(in crate::web) id: String,
    messages: Vec<AiSdkPostedMessage>,
    trigger: AiSdkTrigger,
    #[serde(default)]
    message_id: Option<String>,
    /// Whether `messages` is everything that the chat shows. Then a list with only a new message begins a branch.
    #[serde(default)]
    whole: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum AiSdkTrigger {
    SubmitMessage,
    RegenerateMessage,
}

impl AiSdkPostBody {
    /// Returns whether the request can begin a conversation: its last user message has content that can be read.
    pub(in crate::web) fn has_prompt(&self) -> bool {
        let last = self.messages.iter().rfind(|message| message.role == "user");
        last.is_some_and(|last| last.blocks().is_ok_and(|blocks| !blocks.is_empty()))
    }

    /// Returns whether the request asks for something new: it is not the repetition of one whose prompt was accepted
    /// before, and it is not refused, except because a run is active.
    pub(in crate::web) fn is_new(&self, snapshot: &SessionSnapshot) -> bool {
        match read(self, snapshot) {
            Ok((commands, _)) => self.trigger == AiSdkTrigger::RegenerateMessage || !commands.is_empty(),
            Err(problem) => problem.code() == ErrorKind::Busy.code(),
        }
    }
}

/// A message of the request.
#[derive(Debug, Deserialize)]
struct AiSdkPostedMessage {
    id: String,
    role: String,
    #[serde(default)]
    parts: Vec<Value>,
}

/// Reads a request. Returns its commands, and the part of the conversation that the response shows. The first of two
/// commands contains the decisions of earlier messages, whose tool uses still wait.
///
/// # Errors
///
/// Fails if the request does not fit the conversation.
pub(in crate::web) fn read(
    post: &AiSdkPostBody,
    snapshot: &SessionSnapshot,
) -> Result<(Vec<SessionCommand>, AiSdkRunToStream), Problem> {
    let is_again = post.trigger == AiSdkTrigger::RegenerateMessage;
    // The client cuts the list at the answer that it wants to replace. So the last user message is the one to answer,
    // unless the list was shortened on the way.
    let last = |message: &AiSdkPostedMessage| !is_again || message.role == "user";
    let count = post.messages.iter().rposition(last).map_or(0, |last| last + 1);
    let (newest, before) = post.messages[..count].split_last().unzip();
    let before = before.unwrap_or_default();
    let earlier = before.iter().map(AiSdkPostedMessage::name).collect();
    // A client also names the last message that it has. Only the name of a user message means an edit.
    let is_answer =
        |id: &&str| post.messages.iter().any(|message| message.id == *id && message.role == "assistant");
    let named = post.message_id.as_deref().filter(|id| is_again || !is_answer(id));
    let is_user = newest.is_none_or(|newest| newest.role == "user");
    let (trigger, blocks) = match newest {
        _ if is_again => {
            (PostedMessageUse::Again, newest.map_or(Ok(Vec::new()), AiSdkPostedMessage::blocks)?)
        }
        Some(newest) if is_user => (
            if named.is_some() { PostedMessageUse::Instead } else { PostedMessageUse::Submit },
            newest.blocks()?,
        ),
        Some(_) if snapshot.agent.status == Status::Paused => {
            (PostedMessageUse::Decide(decisions(&post.messages[..count], snapshot)), Vec::new())
        }
        Some(newest) => (PostedMessageUse::Results, newest.results(snapshot)),
        None => return Err(Problem::invalid_body(&"`messages` is empty")),
    };
    let has_nothing_new = match &trigger {
        PostedMessageUse::Results => blocks.is_empty(),
        PostedMessageUse::Decide(decisions) => decisions.is_empty(),
        _ => false,
    };
    if let Some(id) = newest.filter(|_| has_nothing_new).and_then(|newest| newest.known_results(snapshot)) {
        return Ok((Vec::new(), AiSdkRunToStream::Results(id)));
    }
    let newest_name = match (&trigger, newest) {
        (PostedMessageUse::Again | PostedMessageUse::Submit, Some(newest)) => Some(newest.name()),
        _ => named.map(|id| name(id, is_again)),
    };
    let id = newest.map_or(named.unwrap_or_default(), |newest| &newest.id);
    // Results have no id of their own: the newest message is the answer with the tool uses.
    let base = if matches!(trigger, PostedMessageUse::Results) { RESULTS } else { id };
    let fresh = PromptId::new(version_id(base, &snapshot.last.to_string()));
    let id = PromptId::new(stored_id(id));
    let (whole, newest) = (post.whole, newest_name);
    let mut commands = Vec::new();
    if matches!(trigger, PostedMessageUse::Submit) {
        commands.extend(decide(decisions(before, snapshot), snapshot));
    }
    let last = before.iter().rfind(|message| message.role == "assistant").filter(|_| is_user);
    let results = last.map_or_else(Vec::new, |message| message.results(snapshot));
    let posted = PostedRequest { before: earlier, whole, newest, trigger, blocks, results, id, fresh };
    let found = intent(posted, snapshot)?.ok_or_else(|| {
        if is_again {
            return Problem::nothing_here("There is no such message.");
        }
        let pauses = snapshot.agent.pauses.iter();
        Problem::stale_decision(pauses.map(|pause| pause_id(&pause.tool_use.id, pause.turn)).collect())
    })?;
    let target = match found {
        RequestIntent::Join(None) => AiSdkRunToStream::InFlight,
        RequestIntent::Join(Some(id)) => AiSdkRunToStream::Prompt(id),
        RequestIntent::Ended(id, outcome) => AiSdkRunToStream::Ended(id, outcome),
        RequestIntent::Perform(mut command) => {
            let target = target(&mut command);
            commands.push(*command);
            target
        }
    };
    Ok((commands, target))
}

/// Returns the part of the conversation that the response to a command shows.
fn target(command: &mut SessionCommand) -> AiSdkRunToStream {
    let Some(Prompt { id, content, .. }) = prompt_of(command) else { return AiSdkRunToStream::Decisions };
    match id.clone() {
        Some(id) if content.0.iter().all(|block| matches!(block, Content::ToolResult(_))) => {
            AiSdkRunToStream::Results(id)
        }
        Some(id) => AiSdkRunToStream::Prompt(id),
        None => AiSdkRunToStream::Again,
    }
}

/// Reads the decisions about tool uses that wait. The last part with the id of a pause counts. In the newest answer, a
/// client can also cancel a call that waits, for example because its user sends a message instead of a decision.
fn decisions(messages: &[AiSdkPostedMessage], snapshot: &SessionSnapshot) -> Vec<(ToolUseId, Decision)> {
    let pauses = snapshot.agent.pauses.iter();
    let mut waiting: Vec<_> = pauses.map(|pause| (pause_id(&pause.tool_use.id, pause.turn), pause)).collect();
    if waiting.is_empty() {
        return Vec::new();
    }
    let answer = exchanges(snapshot).last().and_then(PromptExchange::answer_id);
    let mut decisions = Vec::new();
    let parts =
        messages.iter().rev().flat_map(|message| message.parts.iter().rev().map(move |part| (message, part)));
    for (message, part) in parts {
        if waiting.is_empty() {
            break;
        }
        let (state, approval) = (part["state"].as_str(), &part["approval"]);
        let is_cancelled = state == Some("output-error") && answer.as_ref() == Some(&message.id);
        let is_named = |id: &str, pause: &PendingUse| match approval["id"].as_str() {
            Some(own) => own == id,
            None => is_cancelled && part["toolCallId"] == pause.call().as_str(),
        };
        let named: Vec<_> = waiting.extract_if(.., |(id, pause)| is_named(id, pause)).collect();
        let decision = match (state, approval["approved"].as_bool()) {
            (Some("approval-responded"), Some(true)) => Decision::Execute,
            (Some("approval-responded"), Some(false)) => {
                Decision::reject(approval["reason"].as_str().unwrap_or("The user denied this use."))
            }
            _ if is_cancelled => {
                Decision::reject(part["errorText"].as_str().unwrap_or("The user cancelled this use."))
            }
            _ => continue,
        };
        decisions.extend(named.iter().map(|(_, pause)| (pause.tool_use.id.clone(), decision.clone())));
    }
    decisions.reverse();
    decisions
}

/// Returns the stored message to which an id of the client belongs.
fn name(id: &str, is_answer: bool) -> StoredMessageRef {
    let id = id.strip_prefix("a-").filter(|_| is_answer).unwrap_or(id);
    let turn = id.parse().ok().filter(|_| is_answer && id.len() == 32);
    let node = || id.strip_prefix("n-").and_then(|node| node.parse().ok());
    let of_turn = turn.map(StoredMessageRef::Turn).or_else(|| node().map(StoredMessageRef::Node));
    of_turn.unwrap_or_else(|| {
        let id = if is_answer { base_id(id).into() } else { stored_base(id) };
        StoredMessageRef::Message(MessageId::new(&*id))
    })
}

impl AiSdkPostedMessage {
    fn name(&self) -> StoredMessageRef {
        name(&self.id, self.role == "assistant")
    }

    /// Reads the results of the tool uses that the last turn has left open.
    fn results(&self, snapshot: &SessionSnapshot) -> Vec<Content> {
        let result = |part: &Value| {
            let id = part.get("toolCallId")?.as_str()?;
            let tool_use = open_uses(snapshot).find(|tool_use| tool_use.id.as_str() == id)?;
            result(part, tool_use).map(Content::from)
        };
        self.parts.iter().filter_map(result).collect()
    }

    /// Returns the prompt that contains the results in the last step, if the conversation contains them already. The
    /// client sends a request again if it has lost the answer to it.
    fn known_results(&self, snapshot: &SessionSnapshot) -> Option<PromptId> {
        let step = self.parts.iter().rposition(|part| part["type"] == "step-start").unwrap_or_default();
        let is_posted = |known: &ToolResult| {
            let id = known.tool_use_id.as_str();
            let part = self.parts[step..].iter().find(|part| part["toolCallId"] == id);
            let same = part.and_then(|part| result(part, &ToolUse::new(id, "", Value::Null)));
            same.is_some_and(|same| (same.is_error, &same.content) == (known.is_error, &known.content))
        };
        let all = exchanges(snapshot);
        let exchange = all.iter().rfind(|exchange| exchange.answer_id().as_ref() == Some(&self.id))?;
        let known = exchange.rest.iter().rev().map(|entry| entry.message).find_map(|message| {
            let id = message.id.as_ref()?.to_string();
            (base_id(&id) == RESULTS && id != RESULTS).then_some((id, message))
        });
        let (id, message) = known?;
        // The results of the server's own tools are not the client's.
        let uses = || exchange.rest.iter().flat_map(|entry| entry.message.tool_uses());
        let is_own = |known: &&ToolResult| {
            uses().any(|tool_use| tool_use.id == known.tool_use_id && tool_use.decided.is_some())
        };
        message.tool_results().filter(|known| !is_own(known)).all(is_posted).then(|| PromptId::new(id))
    }

    /// Reads the content of a user message. Parts of other kinds are ignored.
    fn blocks(&self) -> Result<Vec<Content>, Problem> {
        let mut blocks = Vec::new();
        for part in &self.parts {
            let text = |name: &str| part.get(name).and_then(Value::as_str);
            match text("type") {
                Some("text") => {
                    let text = text("text");
                    let text = text.ok_or_else(|| Problem::invalid_body(&"a text part has no `text`"))?;
                    blocks.extend((!text.is_empty()).then(|| Content::from(text)));
                }
                Some("file") => {
                    let (Some(url), Some(media_type)) = (text("url"), text("mediaType")) else {
                        return Err(Problem::invalid_body(&"a file part needs `url` and `mediaType`"));
                    };
                    let mut file = file(url, media_type)?;
                    file.name = text("filename").map(str::to_owned);
                    blocks.push(file.into());
                }
                _ => {}
            }
        }
        Ok(blocks)
    }
}

/// Returns the result of a client tool that a part contains.
fn result(part: &Value, tool_use: &ToolUse) -> Option<ToolResult> {
    match part.get("state")?.as_str()? {
        "output-error" => {
            let text = part.get("errorText").and_then(Value::as_str);
            Some(ToolResult::error(tool_use, text.unwrap_or("The tool failed.")))
        }
        "output-available" => {
            let text = match part.get("output")? {
                Value::String(text) => text.clone(),
                value => value.to_string(),
            };
            Some(ToolResult::ok(tool_use, ResultBlock::from(Text::new(text))))
        }
        _ => None,
    }
}

fn file(url: &str, media_type: &str) -> Result<Attachment, Problem> {
    let Some(data) = url.strip_prefix("data:") else {
        if url.contains(':') && !url.starts_with("https://") && !url.starts_with("http://") {
            return Err(Problem::invalid_body(&format!("the file address `{url}` is not usable")));
        }
        return Ok(Attachment::url(media_type, url));
    };
    let Some((head, data)) = data.split_once(',') else {
        return Err(Problem::invalid_body(&"the data URL of a file has no data"));
    };
    if !head.ends_with(";base64") {
        return Err(Problem::invalid_body(&"the data URL of a file is not in base64"));
    }
    let own = head.split(';').next().unwrap_or_default();
    Ok(Attachment::base64(more_exact(media_type, own), data))
}
