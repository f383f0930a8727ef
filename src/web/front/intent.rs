//! The intent of a posted request: the command that it asks for.
//!
//! A client posts its whole list of messages, but the server trusts only its newest message. The messages before show
//! where in the conversation the client is. They can also have decisions about tool uses of the turn in flight.

use std::{collections::HashMap, fmt::Display, iter, sync::Arc};

use super::exchange::{PromptExchange, exchange_of, has_own_content, stored_base};
use crate::{
    agent::Status,
    message::{Blocks, Content, Message, MessageId, Role, ToolUse, ToolUseId, TurnId},
    provider::StopReason,
    run::{Error, ErrorKind, Prompt, PromptId, RunAt, RunOutcome, RunSpec},
    session::{SessionCommand, SessionSnapshot},
    tool::Decision,
    tree::{Node, NodeId},
    web::Problem,
};

/// A posted request.
#[derive(Debug)]
pub(in crate::web) struct PostedRequest {
    /// The messages before the newest one, oldest first.
    pub(in crate::web) before: Vec<StoredMessageRef>,
    /// Whether nothing precedes the newest message if `before` is empty. Otherwise, the list may be incomplete.
    pub(in crate::web) whole: bool,
    /// The newest message, or the message that it replaces.
    pub(in crate::web) newest: Option<StoredMessageRef>,
    pub(in crate::web) trigger: PostedMessageUse,
    /// The content of the newest message, or the results of client tools.
    pub(in crate::web) blocks: Vec<Content>,
    /// The results of client tools in earlier messages. A new message at the head answers the open tool uses with them.
    pub(in crate::web) results: Vec<Content>,
    /// The id of a new prompt.
    pub(in crate::web) id: PromptId,
    /// The id of a prompt whose own id was used before.
    pub(in crate::web) fresh: PromptId,
}

/// The way in which the newest message is used.
#[derive(Debug)]
pub(in crate::web) enum PostedMessageUse {
    /// The message is a prompt. If the tree contains the message with an answer, the request is a repetition.
    Submit,
    /// The message gets another answer. If its content has changed, the message is edited, unless it is staged or in
    /// flight.
    Again,
    /// The message is a prompt. If the tree contains the message, it gets another answer.
    Newest,
    /// The message replaces another one, which must not be staged or in flight.
    Instead,
    /// The message contains results of client tools.
    Results,
    /// The message contains these decisions about tool uses that wait.
    Decide(Vec<(ToolUseId, Decision)>),
}

/// The stored message to which a posted message belongs.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(in crate::web) enum StoredMessageRef {
    /// The message with this id, or another version of it.
    Message(MessageId),
    /// The message without an id at this node.
    Node(NodeId),
    /// The messages of this turn.
    Turn(TurnId),
    /// The message that contains the result for this call of AG-UI: see [`repeated_call`].
    Result(String),
}

impl StoredMessageRef {
    /// Iterates over all names of a stored message.
    fn all_of(message: &Message, node: Option<NodeId>) -> impl Iterator<Item = Self> {
        // Clients do not know compactions, which have the turn of the answer that follows them.
        let id = message.id.as_ref().filter(|_| message.compaction.is_none());
        let version = id.filter(|_| message.role == Role::User).map(|id| {
            let id = id.to_string();
            Self::Message(MessageId::new(&*stored_base(&id)))
        });
        let turn = id.and_then(MessageId::turn).map(Self::Turn);
        let own = id.cloned().map(Self::Message).or(node.map(Self::Node));
        own.into_iter().chain(version).chain(turn)
    }
}

/// The place of a message that the conversation contains.
#[derive(Clone, Copy)]
enum StoredMessagePlace {
    Node(NodeId),
    InFlight,
}

/// The work that a request asks for.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::web) enum RequestIntent {
    /// No command is needed: the prompt was accepted before, and it is staged or its run is active. The id is that of
    /// the staged prompt.
    Join(Option<PromptId>),
    /// No command is needed: the run of the prompt with this message has ended.
    Ended(MessageId, RunOutcome),
    /// This command.
    Perform(Box<SessionCommand>),
}

impl PostedRequest {
    /// Returns whether the newest message is the prompt with this id.
    fn is_of(&self, id: &str) -> bool {
        let is_named = match &self.newest {
            Some(StoredMessageRef::Message(name)) => {
                let name = name.to_string();
                name == id || name == stored_base(id)
            }
            _ => false,
        };
        is_named || self.id.as_str() == id
    }

    /// Fails if the request changes a prompt that is staged or in flight.
    fn check_unchanged(&self, snapshot: &SessionSnapshot) -> Result<(), Problem> {
        let is_empty = self.blocks.is_empty() && !matches!(self.trigger, PostedMessageUse::Instead);
        if is_empty || matches!(self.trigger, PostedMessageUse::Results | PostedMessageUse::Decide(_)) {
            return Ok(());
        }
        let agent = &snapshot.agent;
        let staged = agent.staged.iter();
        let staged =
            staged.filter_map(|prompt| Some((prompt.id.as_ref()?.to_string(), &prompt.content.0[..])));
        let prompts = agent.pending.iter().filter(|message| message.role == Role::User);
        let prompts = prompts.filter(|message| has_own_content(message));
        let in_flight =
            prompts.filter_map(|message| Some((message.id.as_ref()?.to_string(), &message.content[..])));
        if staged.chain(in_flight).all(|(id, content)| !self.is_of(&id) || is_same(&self.blocks, content)) {
            return Ok(());
        }
        let text =
            "the prompt is staged or in flight, so it cannot be changed; stop the run, then edit the prompt";
        Err(Error::new(ErrorKind::Busy, text).with_member("activity", agent.status).into())
    }
}

/// Returns the id of a pause in the protocols of front ends. Some services number their tool uses anew in each turn, so the
/// id of a tool use does not name one pause for ever. Within a turn, the ids of pauses differ.
pub(in crate::web) fn pause_id(tool_use: &ToolUseId, turn: TurnId) -> String {
    format!("{tool_use}@{turn}")
}

/// Returns the id of the tool use of a pause of this turn, which is named by its tool use or as in [`pause_id`].
pub(in crate::web) fn paused_use(id: ToolUseId, turn: TurnId) -> ToolUseId {
    let own = id.as_str().strip_suffix(&pause_id(&ToolUseId::new(""), turn)).map(ToolUseId::from);
    own.unwrap_or(id)
}

/// Returns the command with these decisions about tool uses that wait, or `None` without a decision.
pub(in crate::web) fn decide(
    decisions: Vec<(ToolUseId, Decision)>,
    snapshot: &SessionSnapshot,
) -> Option<SessionCommand> {
    let turn = snapshot.agent.pauses.first().filter(|_| !decisions.is_empty())?.turn;
    Some(SessionCommand::Decide { turn, decisions })
}

/// Returns the intent of a request, or `None` if the request contains nothing that the conversation can use.
///
/// A new prompt continues from the newest earlier message that the tree contains, on whichever branch it is. Messages
/// that the tree does not contain, such as those of a cancelled run, are ignored, and so are unanswered prompts. An
/// unanswered prompt that is posted again gets an answer.
///
/// # Errors
///
/// Fails if the request changes a prompt that is staged or in flight.
pub(in crate::web) fn intent(
    posted: PostedRequest,
    snapshot: &SessionSnapshot,
) -> Result<Option<RequestIntent>, Problem> {
    posted.check_unchanged(snapshot)?;
    Ok(find(posted, snapshot))
}

fn find(posted: PostedRequest, snapshot: &SessionSnapshot) -> Option<RequestIntent> {
    let (agent, tree) = (&snapshot.agent, &snapshot.tree);
    let mut staged = agent.staged.iter().filter_map(|prompt| prompt.id.clone());
    let staged = staged.find(|id| posted.is_of(id.as_str()));
    let PostedRequest { before, whole, newest, trigger, blocks, mut results, id, fresh } = posted;
    let perform = |command| Some(RequestIntent::Perform(Box::new(command)));
    let run = |at, prompt| perform(SessionCommand::Run(RunSpec::new(at, prompt)));
    // A client runs its own tools only, and waits for the results of the others.
    let prompt = |id, blocks| Prompt::new(Blocks(blocks)).with_id(id).with_mixed_steps();
    if let PostedMessageUse::Decide(decisions) = trigger {
        return perform(decide(decisions, snapshot)?);
    }
    let is_edit = matches!(trigger, PostedMessageUse::Instead);
    if staged.is_some() {
        return Some(RequestIntent::Join(staged));
    }
    let places = places(before.iter().chain(&newest), snapshot);
    let place = |name: &StoredMessageRef| places.get(name).copied().flatten();
    let was_tried = || {
        let mut tried = agent.last_run.iter().flat_map(|end| &end.unanswered);
        tried.any(|message| message.id.as_ref().is_some_and(|tried| *tried == MessageId::from(id.clone())))
    };
    let id = match (newest.as_ref().and_then(place), &trigger) {
        (Some(StoredMessagePlace::InFlight), _) => return Some(RequestIntent::Join(None)),
        (None, PostedMessageUse::Again) | (_, PostedMessageUse::Results) if blocks.is_empty() => return None,
        (_, PostedMessageUse::Results) => {
            return run(RunAt::Head, prompt(fresh, blocks));
        }
        (Some(StoredMessagePlace::Node(node)), _) => {
            let exchange = exchange_of(tree, node)?;
            let is_own = |node: &&Node| node.message().role == Role::User && has_own_content(node.message());
            let asked = tree.node(node).filter(is_own).or(exchange.prompt.and_then(|entry| entry.node))?;
            if let (PostedMessageUse::Submit, Some(id)) = (&trigger, asked.message().id.clone())
                && !tree.is_unanswered(asked)
            {
                return Some(RequestIntent::Ended(id, outcome(&exchange, snapshot)));
            }
            let node = asked.id();
            let is_same = blocks.is_empty() || is_same(&blocks, &asked.message().content);
            return if is_same && !is_edit {
                run(RunAt::Again(node), Prompt::default().with_mixed_steps())
            } else {
                run(RunAt::Instead(node), prompt(fresh, blocks))
            };
        }
        (None, PostedMessageUse::Submit) => id,
        (None, PostedMessageUse::Newest) if !was_tried() => id,
        _ => fresh,
    };
    // A conversation does not continue from an unanswered prompt.
    let is_answered = |place: &StoredMessagePlace| match place {
        StoredMessagePlace::Node(node) => !tree.node(*node).is_some_and(|node| tree.is_unanswered(node)),
        StoredMessagePlace::InFlight => true,
    };
    let end = match before.iter().rev().find_map(|name| place(name).filter(is_answered)) {
        Some(StoredMessagePlace::Node(node)) => {
            exchange_of(tree, node).and_then(|exchange| exchange.last_node())
        }
        Some(StoredMessagePlace::InFlight) | None => None,
    };
    let is_first = whole && before.is_empty();
    let is_head = end.is_none() && !is_first || end == tree.head();
    if is_head {
        results.extend(blocks);
        return run(RunAt::Head, prompt(id, results));
    }
    run(RunAt::Below(end), prompt(id, blocks))
}

/// Returns whether the conversation contains this message, or a staged prompt with its id.
pub(in crate::web) fn is_known(name: &StoredMessageRef, snapshot: &SessionSnapshot) -> bool {
    let is_staged = |prompt: &Arc<Prompt>| {
        prompt.id.as_ref().is_some_and(|id| *name == StoredMessageRef::Message(MessageId::from(id.clone())))
    };
    places(iter::once(name), snapshot).values().any(Option::is_some)
        || snapshot.agent.staged.iter().any(is_staged)
}

/// Looks up where the conversation contains these messages. If a message has several versions, the one on the path
/// counts.
fn places<'a>(
    names: impl Iterator<Item = &'a StoredMessageRef>,
    snapshot: &SessionSnapshot,
) -> HashMap<&'a StoredMessageRef, Option<StoredMessagePlace>> {
    let (agent, tree) = (&snapshot.agent, &snapshot.tree);
    let mut places: HashMap<_, _> = names.map(|name| (name, None)).collect();
    let mut add = |name: StoredMessageRef, place| {
        if let Some(found) = places.get_mut(&name) {
            *found = Some(place);
        }
    };
    for node in tree.nodes().chain(tree.iter()) {
        let place = StoredMessagePlace::Node(node.id());
        StoredMessageRef::all_of(node.message(), Some(node.id())).for_each(|name| add(name, place));
    }
    for message in &agent.pending {
        StoredMessageRef::all_of(message, None).for_each(|name| add(name, StoredMessagePlace::InFlight));
    }
    let answer = agent
        .answer
        .clone()
        .map(StoredMessageRef::Message)
        .into_iter()
        .chain(agent.turn.map(StoredMessageRef::Turn));
    answer.for_each(|name| add(name, StoredMessagePlace::InFlight));
    add_results(&mut places, snapshot);
    places
}

/// Returns the id of the call for a tool use in `message`, if an earlier message contains the same id.
pub(in crate::web) fn repeated_call(tool_use: &ToolUseId, message: &dyn Display) -> String {
    format!("{tool_use}~{message}")
}

/// Looks up where the conversation contains the results of calls. The first call for a tool use has the id of this tool
/// use, so the first result on the path counts.
fn add_results(
    places: &mut HashMap<&StoredMessageRef, Option<StoredMessagePlace>>,
    snapshot: &SessionSnapshot,
) {
    if !places.keys().any(|name| matches!(name, StoredMessageRef::Result(_))) {
        return;
    }
    let (pending, tree) = (&snapshot.agent.pending, &snapshot.tree);
    let mut add = |calls: Vec<String>, place| {
        for call in calls {
            if let Some(found) = places.get_mut(&StoredMessageRef::Result(call)) {
                *found = Some(place);
            }
        }
    };
    let path: Vec<_> = tree.iter().collect();
    for (index, message) in pending.iter().enumerate().rev() {
        let before = pending[..index].iter().rev().chain(path.iter().rev().map(|node| node.message()));
        add(answered_calls(message, before), StoredMessagePlace::InFlight);
    }
    let above = |node: &Node| node.parent().and_then(|parent| tree.node(parent));
    for node in tree.nodes().chain(path.iter().rev().copied()) {
        let before = iter::successors(above(node), |node| above(node)).map(Node::message);
        add(answered_calls(node.message(), before), StoredMessagePlace::Node(node.id()));
    }
}

/// Returns the ids of the calls whose results a message contains. `before` are the messages before it, newest first.
fn answered_calls<'a>(message: &Message, mut before: impl Iterator<Item = &'a Arc<Message>>) -> Vec<String> {
    let results: Vec<_> = message.tool_results().map(|result| &result.tool_use_id).collect();
    let Some(first) = results.first() else { return Vec::new() };
    let answer = before.find(|message| message.tool_uses().any(|tool_use| tool_use.id == **first));
    let answer = answer.and_then(|answer| answer.id.as_ref());
    let repeated = results.iter().filter_map(|tool_use| Some(repeated_call(tool_use, answer?)));
    repeated.chain(results.iter().map(ToString::to_string)).collect()
}

/// Returns whether posted content has the text of stored content and the same number of files. The files are not
/// compared, because a client may have shortened forms of them.
fn is_same(blocks: &[Content], stored: &[Content]) -> bool {
    let files =
        |blocks: &[Content]| blocks.iter().filter(|block| matches!(block, Content::Attachment(_))).count();
    let text = |blocks: &[Content]| blocks.iter().filter_map(Content::as_text).collect::<String>();
    text(blocks) == text(stored) && files(blocks) == files(stored)
}

/// Returns the outcome of the run of an exchange. Only the outcome of the last run is recorded, so an earlier run counts
/// as complete.
fn outcome(exchange: &PromptExchange<'_>, snapshot: &SessionSnapshot) -> RunOutcome {
    let mut turns = exchange.rest.iter().filter_map(|entry| entry.message.id.as_ref()?.turn());
    let last = snapshot.agent.last_run.as_deref();
    match last.filter(|end| turns.any(|turn| end.turn == Some(turn))) {
        Some(end) => end.outcome.clone(),
        None => RunOutcome::Stopped { stop_reason: StopReason::Stop },
    }
}

/// Iterates over the tool uses that the last turn has left to the client. A client can't answer uses of tools that have a
/// handler.
pub(in crate::web) fn open_uses(snapshot: &SessionSnapshot) -> impl Iterator<Item = &ToolUse> {
    let tools = &snapshot.agent.state.tools;
    let is_own = |tool_use: &&ToolUse| tools.iter().any(|own| own.name == tool_use.name && own.has_handler);
    let is_idle = snapshot.agent.status == Status::Idle;
    let last = snapshot.tree.history().last().filter(|_| is_idle);
    let uses = last.into_iter().flat_map(|message| message.tool_uses());
    uses.filter(|tool_use| tool_use.decided.is_none()).filter(move |tool_use| !is_own(tool_use))
}
