//! The turn in flight, the run that it belongs to, and its messages.
//!
//! The history of the turn is the committed history, followed by the pending messages. A request clones it, a commit
//! moves it to the place of the committed history, and a cancel drops it. Each of these is O(1).
//!
//! The id of a message is the id of its turn and a number, so it is unique without a registry. Retries do not reset the
//! number, so a discarded response and the next one have different ids.

use std::{ops::Add, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    agent::{Failure, Prompt, Response},
    budget::Budget,
    message::{
        CompactionTrigger, History, Message, MessageId, Role, ToolUseId, TurnId, Usage, UsageSum, UseDecision,
    },
    provider::{Options, OutputRetryMessages, OutputSchema, StopReason},
    tool::Replay,
};

/// The origin of a run: the settings of its prompt, and the responses for the caller of `ask`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunPromptState {
    /// The prompt without its content, because the content has become a message.
    pub(crate) prompt: Arc<Prompt>,
    /// The provider to which the prompt's API key and headers belong, if the prompt has any.
    #[serde(skip)]
    pub(crate) secrets_of: Option<Box<str>>,
    /// The limit of requests that is in force for the prompt.
    pub(crate) max_steps: Option<u32>,
    /// The first turn of the prompt, by which the shell knows the account of the prompt. Not recorded, because no
    /// account outlives the process.
    #[serde(skip)]
    pub(crate) first_turn: TurnId,
    /// The usage of the earlier turns of the prompt, with that of sub-agents.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub(crate) spent: Usage,
    /// The number of requests of sub-agents for the prompt, except those of [`Turn::calls`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) delegated: u64,
    /// The index of the backup model in use. `None` if the first model is in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) backup: Option<u8>,
    /// The responses for the caller of `ask`, if an `ask` started the run. The serialised form contains no responses,
    /// because the caller does not outlive the process.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "flag",
        deserialize_with = "unflag"
    )]
    pub(crate) asked: Option<AskTurnResponses>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::ref_option, reason = "serde passes a reference")]
fn flag<S: Serializer>(asked: &Option<AskTurnResponses>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(asked.is_some())
}

fn unflag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<AskTurnResponses>, D::Error> {
    Ok(bool::deserialize(deserializer)?.then(AskTurnResponses::default))
}

/// The responses of the turns that an `ask` has completed so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AskTurnResponses {
    turns: Vec<Arc<Response>>,
}

impl AskTurnResponses {
    pub(crate) fn add(&mut self, response: &Arc<Response>) {
        self.turns.push(Arc::clone(response));
    }

    /// Returns the last turn's response, but with the messages and the usage of all turns. Returns `None` before the
    /// first turn is complete.
    pub(crate) fn response(&self) -> Option<Arc<Response>> {
        Some(match &*self.turns {
            [] => return None,
            [only] => Arc::clone(only),
            [.., last] => Arc::new(Response {
                messages: self.turns.iter().flat_map(|turn| turn.messages.iter().cloned()).collect(),
                usage: self.turns.iter().map(|turn| turn.usage).sum(),
                delegated: self.turns.iter().map(|turn| turn.delegated).sum(),
                ..Response::clone(last)
            }),
        })
    }
}

/// The turn in flight. The serialised form excludes its id and its messages, which are stored separately.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Turn {
    /// The id of the turn, unique across restarts.
    #[serde(skip)]
    pub(crate) id: TurnId,
    /// The number of the run, counted from the agent's start. After a restart, the count continues from the recorded
    /// turn.
    pub(crate) run: u32,
    pub(crate) origin: RunPromptState,
    /// The committed history and the pending messages.
    #[serde(skip)]
    pub(crate) working: HistoryWithPendingMessages,
    /// The number of requests made for the prompt.
    pub(crate) step: u32,
    /// The number of messages that were pending when the current request began.
    pub(crate) step_start: usize,
    pub(crate) usage: Usage,
    /// The usage of sub-agents that are sessions, except that of `calls`.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub(crate) delegated: Usage,
    /// The requests of sub-agents that are sessions, by the keys of the calls of the current step. A call that is repeated
    /// after a restart replaces its sum by the stored one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) calls: Vec<(Arc<str>, UsageSum)>,
    /// The model of the last response, as the service reports it.
    pub(crate) model: Option<String>,
    /// The id of the model to which the last request was sent. A callback may have changed the configured model since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) requested: Option<Arc<str>>,
    /// The id of the model whose service has counted the tokens of the last answer in the conversation, if it is known.
    /// Models count differently. Not recorded: after a restart, it is not known.
    #[serde(skip)]
    pub(crate) counted_by: Option<Arc<str>>,
    pub(crate) warnings: Vec<String>,
    /// The responses that did not match the output schema.
    #[serde(default, skip_serializing_if = "OutputRetryMessages::is_empty")]
    pub(crate) corrections: OutputRetryMessages,
    /// The requirements for the response to the last request.
    #[serde(default, skip_serializing_if = "OutputRequirement::is_unset")]
    pub(crate) wanted: OutputRequirement,
    /// Whether the service enforced the output schema for the last response.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) output_enforced: bool,
    /// The prompts that have joined the turn for the current step. A response to the step answers them, but a
    /// repetition of the step discards that response.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) joined: Vec<Arc<Prompt>>,
    /// The positions of the current step's tool uses whose tools were running when an earlier process ended. It is not
    /// known whether these tools took effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) uncertain: Vec<usize>,
    /// The number from which the next message id is made. Retries do not reset it. The number 0 is reserved for the
    /// turn's first message.
    pub(crate) next_id: u32,
    /// The id of the response that was requested and is not a message yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<MessageId>,
    /// Whether the turn is recorded. If so, effects wait for records until the run ends.
    #[serde(skip)]
    pub(crate) recorded: bool,
    /// Whether the service has refused a request of the current step because of its content. If so, no response to the
    /// step has begun since, and no other model was asked. Not recorded: after a restart, only the failure that
    /// `handle_error` gets is known.
    #[serde(skip)]
    pub(crate) refused: bool,
    /// The budget that has refused the request of the current step. Not recorded.
    #[serde(skip)]
    pub(crate) refused_by: Option<Budget>,
    /// Whether the conversation was compacted for the next answer. Not recorded: a repeated step compacts again.
    #[serde(skip)]
    pub(crate) compacted: CompactionAttemptState,
    /// Set if the turn consists of a compaction alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) compaction: Option<Box<CompactionTurn>>,
    /// The number of tool uses and questions of this turn that have waited for decisions. A record contains their ids.
    #[serde(skip)]
    pub(crate) waits: usize,
    /// The decisions that were made under a name, in the order in which they were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) decisions: Vec<(ToolUseId, UseDecision)>,
    /// The facts about the last request that decide whether it may be repeated, if the turn is recorded.
    #[serde(default)]
    pub(crate) request: RequestReplaySafety,
}

/// Whether a conversation was compacted for the next answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum CompactionAttemptState {
    #[default]
    No,
    /// It was, so that it is not compacted again before the answer.
    Once,
    /// A compaction has failed, so it is not tried again before the answer.
    Failed,
    /// A compaction has failed for an earlier answer, so that the size triggers none any more in this turn.
    NotBySize,
}

/// The part of a turn that consists of a compaction alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CompactionTurn {
    /// Whether no run has come before the compaction, because it was requested.
    #[serde(default)]
    pub(crate) is_alone: bool,
    /// The stop reason of the turn that was answered before.
    pub(crate) stop_reason: StopReason,
    /// The response of the turn that was answered before. A record does not contain it.
    #[serde(skip)]
    pub(crate) answered: Option<Arc<Response>>,
}

/// The plan of a compaction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CompactionPlan {
    pub(crate) trigger: CompactionTrigger,
    /// The index of the compaction among the pending messages.
    pub(crate) at: usize,
    /// The estimated size of the request before the compaction.
    pub(crate) size: u64,
    pub(crate) kept: u32,
    pub(crate) cleared: u32,
    /// If no model has to be asked, the text of the compaction, and whether it is a summary.
    pub(crate) ready: Option<(bool, String)>,
    /// The conversation to be summarised, with the instruction at its end.
    pub(crate) history: History,
    /// Whether this conversation begins with the summary of an earlier compaction.
    pub(crate) has_summary: bool,
    /// The number of its messages that the summary replaces. The others are kept anyway.
    pub(crate) replaced: usize,
    /// The number of times that the writer has refused the request because of its size. Each one halves the next request.
    pub(crate) shortened: u8,
    /// The text that is added to the summary.
    pub(crate) prompts: String,
    /// Whether the model must not use tools, because it has used tools instead of writing a summary.
    pub(crate) forbids_tools: bool,
    /// The index of the backup model that writes the summary, because others have failed.
    pub(crate) backup: Option<u8>,
    /// The failure of the request that a service has refused because of its size, if that is the reason.
    pub(crate) refused: Option<Failure>,
}

impl CompactionPlan {
    /// Returns the plan of a compaction that keeps no message, and has no text yet.
    pub(crate) fn new(trigger: CompactionTrigger, size: u64) -> Self {
        Self {
            trigger,
            at: 0,
            size,
            kept: 0,
            cleared: 0,
            ready: None,
            history: History::new(),
            has_summary: false,
            replaced: 0,
            shortened: 0,
            prompts: String::new(),
            forbids_tools: false,
            backup: None,
            refused: None,
        }
    }
}

/// The facts that decide whether a request may be repeated after a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RequestReplaySafety {
    /// The declaration of the request's provider.
    pub(crate) replay: Replay,
    /// Whether the request was sent.
    pub(crate) sent: bool,
    /// Whether the provider was allowed to run a tool for the request.
    pub(crate) ran_tool: bool,
    /// Whether the usage of the request was reported as lost after a restart.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) lost: bool,
}

impl RequestReplaySafety {
    /// Returns whether the request must not be repeated.
    pub(crate) fn is_uncertain(self, provider: Replay) -> bool {
        self.sent && (self.ran_tool || self.replay.max(provider) == Replay::Never)
    }
}

/// The requirements that a request states for its response.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct OutputRequirement {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<OutputSchema>,
    /// The number of times that the response may be requested again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retries: Option<u32>,
}

impl OutputRequirement {
    pub(crate) fn of(options: &Options) -> Self {
        Self { output: options.output().cloned(), retries: options.output_retries() }
    }

    fn is_unset(&self) -> bool {
        *self == Self::default()
    }
}

impl Turn {
    /// Returns a turn without messages, after `step` requests for the same prompt.
    pub(crate) fn new(
        id: TurnId,
        run: u32,
        origin: RunPromptState,
        working: HistoryWithPendingMessages,
        step: u32,
        recorded: bool,
    ) -> Self {
        Self {
            id,
            run,
            origin,
            working,
            step,
            step_start: 0,
            usage: Usage::default(),
            delegated: Usage::default(),
            calls: Vec::new(),
            model: None,
            requested: None,
            counted_by: None,
            warnings: Vec::new(),
            corrections: OutputRetryMessages::default(),
            wanted: OutputRequirement::default(),
            output_enforced: false,
            joined: Vec::new(),
            uncertain: Vec::new(),
            next_id: 1,
            answer: None,
            recorded,
            refused: false,
            refused_by: None,
            compacted: CompactionAttemptState::default(),
            compaction: None,
            waits: 0,
            decisions: Vec::new(),
            request: RequestReplaySafety::default(),
        }
    }

    /// Returns a new id for a message of the turn.
    pub(crate) fn message_id(&mut self) -> MessageId {
        let id = MessageId::made(self.id, self.next_id);
        self.next_id += 1;
        id
    }

    /// Returns the usage of the turn so far, with that of sub-agents.
    pub(crate) fn spent(&self) -> Usage {
        self.usage + self.delegated()
    }

    /// Returns the usage of sub-agents that are sessions.
    pub(crate) fn delegated(&self) -> Usage {
        self.calls.iter().map(|(_, sum)| sum.usage).fold(self.delegated, Usage::add)
    }

    /// Returns the number of requests of sub-agents for the prompt.
    pub(crate) fn delegated_requests(&self) -> u64 {
        self.calls.iter().map(|(_, sum)| sum.requests).fold(self.origin.delegated, u64::saturating_add)
    }

    /// Returns the sum of the call with this key, to be changed. Sums of earlier steps are joined, because their calls are
    /// not repeated any more.
    pub(crate) fn call_mut(&mut self, key: &Arc<str>) -> &mut UsageSum {
        if let Some(index) = self.calls.iter().position(|(own, _)| own == key) {
            return &mut self.calls[index].1;
        }
        let step = self.key_of_step();
        self.join_calls(|key| key.starts_with(&step));
        self.calls.push((Arc::clone(key), UsageSum::default()));
        let last = self.calls.len() - 1;
        &mut self.calls[last].1
    }

    /// Joins the sums of all calls whose keys are not to be kept.
    pub(crate) fn join_calls(&mut self, is_kept: impl Fn(&str) -> bool) {
        for (_, sum) in self.calls.extract_if(.., |(key, _)| !is_kept(key)) {
            self.origin.delegated = self.origin.delegated.saturating_add(sum.requests);
            self.delegated += sum.usage;
        }
    }

    /// Returns the beginning of the keys of all calls of the current step.
    pub(crate) fn key_of_step(&self) -> String {
        format!("{}-{}-", self.id, self.step)
    }

    /// Returns the conversation for the next request.
    pub(crate) fn conversation(&self) -> History {
        self.corrections.after(self.working.sent())
    }

    /// Returns the user messages that the last response answers: the prompt, or the tool results of the previous step
    /// and the prompts that joined the turn after them.
    pub(crate) fn prompts_of_step(&self) -> Vec<Arc<Message>> {
        let is_user = |message: &&Arc<Message>| message.role == Role::User;
        let earlier = self.working.pending().rev().skip_while(|message| !is_user(message));
        let earlier = earlier.take_while(is_user).filter(|message| message.compaction.is_none());
        let mut prompts: Vec<_> = earlier.cloned().collect();
        prompts.reverse();
        prompts
    }

    /// Returns whether the prompt's limit of requests is reached.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.origin.max_steps.is_some_and(|max| self.step >= max)
    }
}

/// The committed history, followed by the pending messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct HistoryWithPendingMessages {
    all: History,
    /// The messages that requests contain, unless these are all messages.
    sent: Option<Box<History>>,
    committed: usize,
    /// The number of pending messages that the last record contains.
    recorded: usize,
    /// The numbers of pending messages and of results when the last record was made.
    last: (usize, usize),
}

impl HistoryWithPendingMessages {
    pub(crate) fn new(committed: &History) -> Self {
        Self::of(committed.clone(), committed.len(), 0, (0, 0))
    }

    fn of(all: History, committed: usize, recorded: usize, last: (usize, usize)) -> Self {
        let sent = all.compaction().is_some().then(|| Box::new(all.sent()));
        Self { all, sent, committed, recorded, last }
    }

    /// Restores the messages of a recorded turn, which follow the committed history. The record contains this number of
    /// results.
    pub(crate) fn restored(committed: &History, pending: Vec<Arc<Message>>, results: usize) -> Self {
        let recorded = pending.len();
        let mut all = committed.clone();
        all.extend(pending);
        Self::of(all, committed.len(), recorded, (recorded, results))
    }

    /// Returns the number of pending messages that the last record contains, the pending messages that it does not
    /// contain, and whether the turn has made progress since. Afterwards, all of them and this number of results count as
    /// recorded.
    pub(crate) fn record(&mut self, results: usize) -> (usize, Vec<Arc<Message>>, bool) {
        let (pending, keep) = (self.pending_len(), self.recorded);
        let has_progressed = pending > keep || keep < self.last.0 || results > self.last.1;
        (self.recorded, self.last) = (pending, (pending, results));
        (keep, self.pending().skip(keep).cloned().collect(), has_progressed)
    }

    pub(crate) fn push(&mut self, message: Arc<Message>) {
        if message.compaction.is_some() {
            self.all.push(message);
            self.sent = Some(Box::new(self.all.sent()));
            return;
        }
        if let Some(sent) = &mut self.sent {
            sent.push(Arc::clone(&message));
        }
        self.all.push(message);
    }

    /// Inserts a message at this index among the pending messages.
    pub(crate) fn insert(&mut self, committed: &History, at: usize, message: Arc<Message>) {
        let mut all = committed.clone();
        all.extend(self.pending().take(at).cloned());
        all.push(message);
        all.extend(self.pending().skip(at).cloned());
        *self = Self::of(all, committed.len(), self.recorded.min(at), self.last);
    }

    /// Returns the number of pending messages that are not compactions.
    pub(crate) fn own_len(&self) -> usize {
        self.pending().filter(|message| message.compaction.is_none()).count()
    }

    /// Returns the messages that the next request contains.
    pub(crate) fn sent(&self) -> &History {
        self.sent.as_deref().unwrap_or(&self.all)
    }

    /// Returns all messages, committed and pending.
    pub(crate) fn all(&self) -> &History {
        &self.all
    }

    pub(crate) fn pending(&self) -> impl DoubleEndedIterator<Item = &Arc<Message>> {
        (self.committed..self.all.len()).filter_map(|index| self.all.get(index))
    }

    pub(crate) fn pending_len(&self) -> usize {
        self.all.len() - self.committed
    }

    /// Replaces the committed part, and keeps the first `keep` pending messages, or all of them if there are fewer.
    pub(crate) fn rebase(&mut self, committed: &History, keep: usize) {
        let mut all = committed.clone();
        all.extend(self.pending().take(keep).cloned());
        let recorded = self.recorded.min(all.len() - committed.len());
        *self = Self::of(all, committed.len(), recorded, self.last);
    }
}

impl HistoryWithPendingMessages {
    /// Returns the last pending message that is not a compaction.
    pub(crate) fn last(&self) -> Option<&Arc<Message>> {
        self.pending().rfind(|message| message.compaction.is_none())
    }

    /// Replaces the last pending message that is not a compaction.
    pub(crate) fn replace_last(&mut self, committed: &History, message: Arc<Message>) {
        let behind = self.pending().rev().take_while(|message| message.compaction.is_some()).count();
        let place = self.pending_len().saturating_sub(behind + 1);
        let behind: Vec<_> = self.pending().skip(place + 1).cloned().collect();
        self.rebase(committed, place);
        self.push(message);
        for compaction in behind {
            self.push(compaction);
        }
    }
}

impl PartialEq for HistoryWithPendingMessages {
    fn eq(&self, other: &Self) -> bool {
        self.pending().eq(other.pending())
    }
}
