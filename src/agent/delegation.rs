//! The connection between an agent and the sub-agents that its running tools start.
//!
//! # Owners
//!
//! ```text
//!  the parent's task ── RunningTools: Arc<DelegatedCalls> ◄──────────────┐
//!        ▲ `Delegated` wakes it                                          │ usage, pauses: written below, taken by the
//!        │                                                               │ task before each input
//!        │                                                               │ decisions: a channel for each call
//!  the call of the tool ── ParentCallEndGuard ── Arc<ParentCall> ──► ToolContext ──► ToolCallAgentLink
//!                                                      ▲
//!  the child's task ── extensions ─────────────────────┘  reads `has_ended`, draws from `account`, reports its rows
//! ```
//!
//! A call owns its child. The child knows the call and never the parent's agent, so nothing keeps a parent alive. Rows
//! and pauses are lists under a lock, and the parent takes them before each of its inputs. So no report waits for a
//! reader, and none is lost while the run lasts.
//!
//! # States of a call
//!
//! `begun` → `ended`. The end is a flag that is set once: when the guard is dropped, when a decision gives the call's
//! result, or when the parent drops its tools. The shells of all descendants read it before they open a request, send
//! one, or run tools. It is set before the parent reports the end of the call, so nothing of a child starts later.
//!
//! # Attacks and answers
//!
//! - The call is dropped at any await: the guard ends it, its channel of decisions is closed, and each decision in it is
//!   answered with `StaleDecision`. The child ends with its last handle.
//! - The process ends: the parent's record has a sum for each running call, which can be behind or ahead of the ledgers.
//!   The repeated call replaces its sum by the stored one before it opens the child. So each request counts once.
//! - The child never answers a decision: the caller waits as with any agent. The end of the call answers it.
//! - Rows that arrive after the call are still taken, until the run has ended. Later rows are missing in the ledger, but
//!   not in the accounts, which the child charges itself.
//! - A call starts several children at once, as a tool around a sub-agent can: each has its own entry, and the list of
//!   the slot is the list of all of them.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use tokio::sync::{
    mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    oneshot,
};

use super::{
    AgentBuilder, Event, OwningSession, PendingUse, RunCommands, RunStarter,
    command::{AgentCommandResult, AgentReplyTx},
    core::{ResumeDecisions, SubAgentDecision},
    phase::OpNumber,
};
use crate::{
    budget::BudgetAccount,
    message::{RequestEnd, UsageRow, UsageSum},
    run::{Error, ErrorKind},
    subscription::EndReason,
    sync::lock,
    tool::ToolContext,
};

/// The agents below an agent that is not a sub-agent. While they only wait for decisions, this agent can end, and leaves all
/// turns in the store. The lock makes sure that no sub-agent starts a tool at the same moment.
#[derive(Debug, Default)]
struct SubAgentActivity(Mutex<SubAgentActivityState>);

#[derive(Debug, Default)]
struct SubAgentActivityState {
    /// The keys of the calls whose sub-agents do not only wait for decisions.
    at_work: HashSet<Arc<str>>,
    /// The number of commands whose decisions are being forwarded.
    decisions: usize,
    /// Whether the sub-agents start no tools any more, because their turns are about to be left.
    is_parked: bool,
}

/// The reports of an agent's running tools about their sub-agents.
#[derive(Default)]
pub(super) struct DelegatedCalls {
    state: Mutex<DelegatedCallsState>,
    /// The session of the agent, if it has one.
    owner: Option<Arc<dyn OwningSession>>,
    /// Whether the turn is left to the next owner of the conversation. Then the turns of the sub-agents are left, too.
    is_leaving: AtomicBool,
    team: Arc<SubAgentActivity>,
}

crate::debug::impl_debug!(DelegatedCalls(self) { state: self.state, .. });

#[derive(Debug, Default)]
struct DelegatedCallsState {
    /// The operation of the tools that have started last.
    op: OpNumber,
    /// The account of the run whose tools run, if a budget applies.
    account: Option<Arc<BudgetAccount>>,
    /// Whether the turn is recorded.
    is_recorded: bool,
    calls: Vec<DelegatedCall>,
    /// The sums of calls with which the turn has started to run its tools, or which the calls have read since. The account
    /// contains them.
    charged: Vec<(Arc<str>, UsageSum)>,
    spent: Vec<SubAgentUsageByKey>,
    /// The calls that must not be repeated any more, with those who wait until this is recorded.
    unrepeatable: Vec<UnrepeatableCall>,
}

/// A call that must not be repeated any more: its operation and slot, and the reply when this is recorded.
pub(super) type UnrepeatableCall = (OpNumber, usize, AgentReplyTx<AgentCommandResult<()>>);

/// The usage of the sub-agent of a call, and of those below it.
#[derive(Debug)]
pub(super) enum DelegatedUsage {
    /// A request has ended.
    Row(Box<UsageRow>),
    /// The usage that was stored before a repeated call has opened its sub-agent.
    Stored(UsageSum),
}

/// A call that runs a sub-agent.
#[derive(Debug)]
struct DelegatedCall {
    op: OpNumber,
    slot: usize,
    has_ended: Arc<AtomicBool>,
    /// The pauses of the sub-agent.
    pauses: Vec<PendingUse>,
    has_changed: bool,
    /// Unbounded, because each entry has a caller who waits for its reply.
    decisions: UnboundedSender<ForwardedDecision>,
}

/// The usage of the sub-agents of the call with this key.
pub(super) type SubAgentUsageByKey = (Arc<str>, DelegatedUsage);

/// The pauses of all sub-agents of a call.
pub(super) type SubAgentPauses = (OpNumber, usize, Vec<PendingUse>);

impl DelegatedCalls {
    /// Returns the delegations of an agent that belongs to this session, and is a sub-agent of the call `above`.
    pub(super) fn of(owner: Option<Arc<dyn OwningSession>>, above: Option<&Arc<ParentCall>>) -> Self {
        let team = above.map(|above| Arc::clone(&above.team)).unwrap_or_default();
        Self { owner, team, ..Self::default() }
    }

    /// Keeps the sub-agents from starting tools, because the turn is about to be left. Returns `false` if one of them is
    /// at work, or gets a decision.
    pub(super) fn park(&self) -> bool {
        let mut team = lock(&self.team.0);
        team.is_parked |= team.at_work.is_empty() && team.decisions == 0;
        team.is_parked
    }

    /// Returns the reply to a command whose decisions are forwarded to sub-agents. Until it is sent, the turn is not left.
    pub(super) fn reply(&self, reply: AgentReplyTx<AgentCommandResult<()>>) -> CombinedDecisionReply {
        lock(&self.team.0).decisions += 1;
        let team = Arc::clone(&self.team);
        CombinedDecisionReply(Arc::new(CombinedDecisionReplyState {
            error: Mutex::default(),
            reply: Some(reply),
            team,
        }))
    }

    /// Sets the account from which the sub-agents of the calls that start now draw, whether the turn is recorded, and the
    /// sums of the calls that it knows. If calls of the operation have started before, the sums are not set again, because
    /// the account has charged these calls since.
    pub(super) fn set_turn(
        &self,
        op: OpNumber,
        account: Option<Arc<BudgetAccount>>,
        is_recorded: bool,
        known: Vec<(Arc<str>, UsageSum)>,
    ) {
        let mut state = lock(&self.state);
        (state.account, state.is_recorded) = (account, is_recorded);
        if std::mem::replace(&mut state.op, op) != op {
            state.charged = known;
        }
    }

    /// Leaves the turns of the sub-agents to the next owners of their conversations.
    pub(super) fn leave(&self) {
        self.is_leaving.store(true, Ordering::Release);
    }

    /// Returns the usage by the keys of calls, the lists of pauses and the calls that must not be repeated, which were not
    /// taken yet.
    pub(super) fn take(&self) -> (Vec<SubAgentUsageByKey>, Vec<SubAgentPauses>, Vec<UnrepeatableCall>) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let mut changed: Vec<SubAgentPauses> = Vec::new();
        for call in &mut state.calls {
            if std::mem::take(&mut call.has_changed) && !changed.iter().any(|own| is_of(call, own.0, own.1)) {
                changed.push((call.op, call.slot, Vec::new()));
            }
        }
        for (op, slot, pauses) in &mut changed {
            let calls = state.calls.iter().filter(|call| is_of(call, *op, *slot));
            pauses.extend(calls.flat_map(|call| call.pauses.iter().cloned()));
        }
        state.calls.retain(|call| !call.has_ended.load(Ordering::Acquire));
        (std::mem::take(&mut state.spent), changed, std::mem::take(&mut state.unrepeatable))
    }

    /// Ends the calls of an operation, or one of them.
    pub(super) fn end(&self, op: OpNumber, slot: Option<usize>) {
        let state = lock(&self.state);
        if self.is_leaving.load(Ordering::Acquire) {
            // The calls of sub-agents that are sessions are repeated. The context of all others is cancelled.
            return;
        }
        let ended =
            state.calls.iter().filter(|call| call.op == op && slot.is_none_or(|slot| slot == call.slot));
        ended.for_each(|call| call.has_ended.store(true, Ordering::Release));
    }

    /// Passes decisions to the calls whose sub-agents wait for them. `reply` is sent when all of them have replied.
    pub(super) fn forward(
        &self,
        op: OpNumber,
        forwards: Vec<SubAgentDecision>,
        by: Option<&Arc<str>>,
        reply: &CombinedDecisionReply,
    ) {
        let mut parts: Vec<(UnboundedSender<ForwardedDecision>, ForwardedDecision)> = Vec::new();
        let state = lock(&self.state);
        for SubAgentDecision { slot, turn, tool_use, decision } in forwards {
            let waits = |pause: &PendingUse| pause.turn == turn && pause.tool_use.id == tool_use;
            let call = state.calls.iter().find(|call| is_of(call, op, slot) && call.pauses.iter().any(waits));
            let Some(call) = call else {
                reply.clone().done(Err(Error::late_decision(tool_use.as_str())));
                continue;
            };
            let same = |(sender, part): &&mut (UnboundedSender<_>, ForwardedDecision)| {
                sender.same_channel(&call.decisions) && part.resume.turn == Some(turn)
            };
            if let Some((_, part)) = parts.iter_mut().find(same) {
                part.resume.decisions.push((tool_use, decision));
                continue;
            }
            let resume =
                ResumeDecisions { decisions: vec![(tool_use, decision)], turn: Some(turn), by: by.cloned() };
            let reply = Some(reply.clone());
            parts.push((call.decisions.clone(), ForwardedDecision { resume, reply }));
        }
        drop(state);
        for (sender, part) in parts {
            // If the call has just ended, the dropped decision is answered.
            drop(sender.send(part));
        }
    }
}

fn is_of(call: &DelegatedCall, op: OpNumber, slot: usize) -> bool {
    call.op == op && call.slot == slot
}

/// Decisions that a sub-agent carries out. If they are dropped, they came too late.
#[derive(Debug)]
pub(crate) struct ForwardedDecision {
    pub(crate) resume: ResumeDecisions,
    reply: Option<CombinedDecisionReply>,
}

impl ForwardedDecision {
    /// Carries the decisions out, and replies.
    pub(crate) async fn decide<F: Future<Output = AgentCommandResult<()>>>(
        mut self,
        decide: impl FnOnce(ResumeDecisions) -> F,
    ) {
        let decided = decide(self.resume.clone()).await;
        if let Some(reply) = self.reply.take() {
            reply.done(decided);
        }
    }
}

impl Drop for ForwardedDecision {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            let first = self.resume.decisions.first().map_or("", |(tool_use, _)| tool_use.as_str());
            reply.done(Err(Error::late_decision(first)));
        }
    }
}

/// A part of the reply to a command with decisions. The reply is sent when all parts are dropped: the first error, or
/// `Ok`.
#[derive(Clone, Debug)]
pub(crate) struct CombinedDecisionReply(Arc<CombinedDecisionReplyState>);

#[derive(Debug)]
struct CombinedDecisionReplyState {
    error: Mutex<Option<Error>>,
    reply: Option<AgentReplyTx<AgentCommandResult<()>>>,
    team: Arc<SubAgentActivity>,
}

impl CombinedDecisionReply {
    /// Returns a part that counts as an error if it is dropped before [`DecisionReplyAfterRecord::release`].
    pub(super) fn hold(self) -> DecisionReplyAfterRecord {
        DecisionReplyAfterRecord(Some(self))
    }

    pub(crate) fn done(self, result: AgentCommandResult<()>) {
        if let Err(error) = result {
            lock(&self.0.error).get_or_insert(error);
        }
    }
}

/// A part of a reply that waits for a record.
pub(super) struct DecisionReplyAfterRecord(Option<CombinedDecisionReply>);

impl DecisionReplyAfterRecord {
    pub(super) fn release(mut self) {
        self.0 = None;
    }
}

impl Drop for DecisionReplyAfterRecord {
    fn drop(&mut self) {
        if let Some(part) = self.0.take() {
            part.done(Err(Error::ended("agent", &EndReason::Killed)));
        }
    }
}

impl Drop for CombinedDecisionReplyState {
    fn drop(&mut self) {
        let result = lock(&self.error).take().map_or(Ok(()), Err);
        lock(&self.team.0).decisions -= 1;
        // A failed reply only means that the caller no longer waits.
        let _ = self.reply.take().map(|reply| reply.send(result));
    }
}

impl Error {
    fn late_decision(tool_use: &str) -> Self {
        let text = format!(
            "the decision about {tool_use} came too late, because its sub-agent no longer waits for it"
        );
        let error = Self::new(ErrorKind::StaleDecision, text).with_member("given", tool_use);
        error.with_member("waiting", Vec::<String>::new())
    }
}

/// The call of a tool that runs an agent, as this agent sees it: in its extensions, so that other agents need no memory
/// for one.
#[derive(Debug)]
pub(crate) struct ParentCall {
    context: ToolContext,
    has_ended: Arc<AtomicBool>,
    account: Option<Arc<BudgetAccount>>,
    /// The number of agents above the child.
    depth: u8,
    /// The id of the child's prompt, which is the same if the call is repeated.
    key: Arc<str>,
    /// Whether the child is a session.
    is_session: bool,
    team: Arc<SubAgentActivity>,
    /// Whether the child is opened, or was opened, for the first time in this process.
    is_first: AtomicBool,
}

/// Ends a call when it is dropped.
#[derive(Debug)]
pub(crate) struct ParentCallEndGuard(pub(crate) Arc<ParentCall>);

impl Drop for ParentCallEndGuard {
    fn drop(&mut self) {
        if !self.0.is_left() {
            self.0.has_ended.store(true, Ordering::Release);
        }
        lock(&self.0.team.0).at_work.remove(&self.0.key);
        let (Some(link), Some(delegations)) = (self.0.context.agent(), delegations(&self.0.context)) else {
            return;
        };
        let mut state = lock(&delegations.state);
        let own = state.calls.iter_mut().find(|call| Arc::ptr_eq(&call.has_ended, &self.0.has_ended));
        // A tool around the call can continue, so the pauses are withdrawn.
        if let Some(call) = own.filter(|call| !call.pauses.is_empty()) {
            call.pauses.clear();
            call.has_changed = true;
        }
        drop(state);
        link.notify();
    }
}

impl ParentCall {
    /// Begins a call that runs an agent, as a session if `is_session` is true. The decisions about the pauses of this
    /// agent arrive at the receiver.
    pub(crate) fn begin(
        context: &ToolContext,
        is_session: bool,
    ) -> (ParentCallEndGuard, UnboundedReceiver<ForwardedDecision>) {
        let (decisions, receiver) = unbounded_channel();
        let has_ended = Arc::<AtomicBool>::default();
        let mut account = None;
        if let (Some(link), Some(delegations)) = (context.agent(), delegations(context)) {
            let mut state = lock(&delegations.state);
            account.clone_from(&state.account);
            state.calls.push(DelegatedCall {
                op: link.op,
                slot: link.slot,
                has_ended: Arc::clone(&has_ended),
                pauses: Vec::new(),
                has_changed: false,
                decisions,
            });
        }
        let depth = Self::depth_below(context);
        let number = context.agent().map_or(0, |link| link.children.fetch_add(1, Ordering::Relaxed));
        let key = Self::child_key(context.idempotency_key(), number).into();
        let is_first = AtomicBool::new(true);
        let team = delegations(context).map(|own| Arc::clone(&own.team)).unwrap_or_default();
        let call =
            Self { context: context.clone(), has_ended, account, depth, key, is_session, team, is_first };
        call.set_at_work(true);
        (ParentCallEndGuard(Arc::new(call)), receiver)
    }

    /// Returns the key of a child. A tool around a sub-agent can call it several times, so the children of a call have
    /// numbers.
    pub(crate) fn child_key(call: &str, number: u32) -> String {
        if number == 0 { call.to_owned() } else { format!("{call}-{number}") }
    }

    /// Returns the number of agents above an agent that this call starts.
    pub(crate) fn depth_below(context: &ToolContext) -> u8 {
        context.extensions().get::<Arc<Self>>().map_or(1, |own| own.depth.saturating_add(1))
    }

    /// Returns whether the call has ended, or one above it. A call whose turn is left to another process has not: its
    /// sub-agent records its turn, and continues there.
    pub(super) fn has_ended(&self) -> bool {
        let is_cancelled = || self.context.is_cancelled() && !self.is_left();
        self.has_ended.load(Ordering::Acquire)
            || is_cancelled()
            || self.above().is_some_and(|above| above.has_ended())
    }

    /// States whether the child is at work. Otherwise, it only waits for decisions, also about tools of agents below it. A
    /// child in memory is always at work, because it would be lost with its parent.
    pub(super) fn set_at_work(&self, is_at_work: bool) {
        let mut team = lock(&self.team.0);
        if is_at_work && !self.has_ended.load(Ordering::Acquire) && !self.is_left() {
            team.at_work.insert(Arc::clone(&self.key));
        } else if !is_at_work && self.is_session {
            team.at_work.remove(&self.key);
        }
    }

    /// Returns whether the child starts no tool any more, because its turn is about to be left.
    pub(crate) fn is_parked(&self) -> bool {
        lock(&self.team.0).is_parked
    }

    fn above(&self) -> Option<&Arc<Self>> {
        self.context.extensions().get()
    }

    /// Returns whether the turn of the sub-agent is left to the next owner of its conversation when the call is dropped.
    pub(crate) fn is_left(&self) -> bool {
        self.is_session
            && delegations(&self.context).is_some_and(|own| own.is_leaving.load(Ordering::Acquire))
    }

    /// Returns the manager that runs the sub-agents of this call as sessions, if there is one.
    pub(super) fn host(context: &ToolContext) -> Option<Arc<dyn SubAgentSessionOpener>> {
        delegations(context)?.owner.as_ref()?.sub_agents()
    }

    /// Declares that the call must not be repeated, because it is about to run a sub-agent in memory, whose tools can have
    /// effects. If the turn is recorded, waits until this is stored.
    pub(super) async fn forbid_repetition(context: &ToolContext) {
        let (Some(link), Some(delegations)) = (context.agent(), delegations(context)) else { return };
        let (reply, stored) = oneshot::channel();
        let is_recorded = {
            let mut state = lock(&delegations.state);
            state.unrepeatable.push((link.op, link.slot, reply));
            state.is_recorded
        };
        link.notify();
        if is_recorded {
            // An error means that the agent has ended, and drops the call.
            let _ = stored.await;
        }
    }

    /// Returns whether the turn of the call is recorded.
    pub(crate) fn is_recorded(&self) -> bool {
        delegations(&self.context).is_some_and(|own| lock(&own.state).is_recorded)
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn context(&self) -> &ToolContext {
        &self.context
    }

    /// Returns whether the call is repeated after a restart, and no session of the child has ended since.
    pub(crate) fn is_restarted(&self) -> bool {
        self.context.is_repeated() && self.is_first.load(Ordering::Acquire)
    }

    /// Called when the child's session has ended and another one continues its turn.
    pub(super) fn reopens(&self) {
        self.is_first.store(false, Ordering::Release);
        self.set_pauses(Vec::new());
    }

    /// Charges the parent's run for everything that the child, and those below it, have stored, in place of the sum that
    /// the parent has recorded for the call. The accounts above the run do the same by the calls of their own runs, and
    /// shared budgets start with what is stored. If the child was not opened, this can be called again.
    pub(crate) fn begin_with(&self, stored: UsageSum) {
        let (Some(link), Some(delegations)) = (self.context.agent(), delegations(&self.context)) else {
            return;
        };
        let mut state = lock(&delegations.state);
        let index = state.charged.iter().position(|(key, _)| *key == self.key).unwrap_or(state.charged.len());
        if index == state.charged.len() {
            state.charged.push((Arc::clone(&self.key), UsageSum::default()));
        }
        let before = std::mem::replace(&mut state.charged[index].1, stored.clone());
        if let Some(account) = &self.account {
            account.replace(&before, &stored);
        }
        state.spent.push((Arc::clone(&self.key), DelegatedUsage::Stored(stored)));
        drop(state);
        link.notify();
    }

    /// Returns the account of the parent's run, from which the child draws.
    pub(super) fn account(&self) -> Option<&Arc<BudgetAccount>> {
        self.account.as_ref()
    }

    /// Reports a request of the child, or of an agent below it, if the event states one. `conversation` is the child's.
    pub(super) fn spent(&self, event: &Event, conversation: Option<&str>) {
        let mut row = match event {
            Event::Step(response) => response.usage_row(),
            Event::Usage(row) => UsageRow::clone(row),
            _ => return,
        };
        let (Some(link), Some(delegations)) = (self.context.agent(), delegations(&self.context)) else {
            return;
        };
        if !row.is_empty() {
            row.conversation = row.conversation.or_else(|| conversation.map(Arc::from));
            if row.end == RequestEnd::Lost
                && self.is_restarted()
                && let Some(account) = &self.account
            {
                // The request was sent by an earlier process, and is in no ledger yet.
                let lost = UsageSum { requests: 1, ..UsageSum::default() };
                account.replace(&UsageSum::default(), &lost);
            }
            let row = DelegatedUsage::Row(Box::new(row));
            lock(&delegations.state).spent.push((Arc::clone(&self.key), row));
            link.notify();
        }
    }

    /// Sets the pauses of the child, which wait as questions of the call. Returns `false` outside an agent, where nobody
    /// can decide.
    pub(crate) fn set_pauses(&self, pauses: Vec<PendingUse>) -> bool {
        let (Some(link), Some(delegations)) = (self.context.agent(), delegations(&self.context)) else {
            return false;
        };
        let mut state = lock(&delegations.state);
        if let Some(call) = state.calls.iter_mut().find(|call| Arc::ptr_eq(&call.has_ended, &self.has_ended))
        {
            (call.pauses, call.has_changed) = (pauses, true);
        }
        drop(state);
        link.notify();
        true
    }
}

fn delegations(context: &ToolContext) -> Option<&DelegatedCalls> {
    context.agent()?.delegations.downcast_ref()
}

// ---- sub-agents that are sessions ----

/// Runs sub-agents as sessions: the manager of the session whose tool is called.
#[async_trait]
pub(crate) trait SubAgentSessionOpener: Send + Sync {
    /// Opens the session of a sub-agent, or creates it. Does not return while the manager is being shut down.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the session is closed.
    async fn open(&self, child: NewSubAgent<'_>) -> Result<RunningSubAgent, Error>;
}

/// A sub-agent whose session is about to be opened.
pub(crate) struct NewSubAgent<'a> {
    /// The name of the tool.
    pub(crate) name: Arc<str>,
    pub(crate) agent: &'a (dyn Fn() -> AgentBuilder + Send + Sync),
    pub(crate) call: Arc<ParentCall>,
    /// Whether the call, or the same call of an earlier process, has opened the session before.
    pub(crate) is_known: bool,
}

/// A sub-agent that runs.
pub(crate) struct RunningSubAgent {
    pub(crate) target: Box<dyn SubAgentHandle>,
    /// The conversation of the sub-agent, if it is a session.
    pub(crate) conversation: Option<Arc<str>>,
    /// Whether the turns of the sub-agent are recorded, so that another session continues them.
    pub(crate) is_recorded: bool,
    pub(crate) end: Box<dyn SubAgentTerminator>,
}

/// The agent or the session of a sub-agent.
pub(crate) trait SubAgentHandle: RunStarter + RunCommands {}

impl<T: RunStarter + RunCommands> SubAgentHandle for T {}

/// Ends a sub-agent. If it is dropped, the sub-agent ends later.
#[async_trait]
pub(crate) trait SubAgentTerminator: Send + Sync {
    /// Ends the sub-agent, and waits until it has ended. If `is_left` is true, the call continues, and a recorded turn of
    /// the sub-agent is left to its next session.
    async fn end(self: Box<Self>, is_left: bool);
}
