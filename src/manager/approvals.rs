//! Approvals: tool uses that wait for a decision, whether or not their conversations are open.

use std::{
    collections::HashMap,
    fmt::{self, Write as _},
    future::ready,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tokio::time::{Instant, sleep_until};

use super::{
    Manager, ManagerShared,
    opening::{aborted, in_a_task},
    recovery::USUAL_LEASE,
};
use crate::{
    agent::check_decisions,
    error::InvalidId,
    message::{ToolUseId, TurnId},
    run::{Decided, Error, ErrorKind, PendingUse, TurnRecord},
    session::{ConversationLease, Session, SessionCommand, damaged_turn},
    store::{
        Change, Commit, ConversationId, Filter, InapplicableDecisionReason, Labels, Owner, Page, Position,
        StoreError, StoredTurn, TurnSummary, Turns, Version, Write,
    },
    time::moment_after,
    tool::Decision,
};

/// A tool use that waits for a decision, as [`Manager::pending_approvals`] lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Approval {
    /// The id, with which [`Manager::decide`] finds the tool use.
    pub id: ApprovalId,
    /// The labels of the conversation.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The current owner of the conversation, if the conversation is open and the store supports ownership.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The tool use, the reason for the pause, and its times by the store's clock. They are members of this object in
    /// JSON.
    #[serde(flatten)]
    pub pending: PendingUse,
    /// The position of the turn in the list, after which the next page begins.
    pub position: Position,
}

impl Approval {
    /// Returns the approvals of a turn.
    pub(crate) fn all_of(mut turn: TurnSummary) -> impl Iterator<Item = Self> {
        std::mem::take(&mut turn.approvals).into_iter().map(move |pending| Self {
            id: ApprovalId::new(turn.id.clone(), turn.turn, pending.tool_use.id.clone()),
            labels: turn.labels.clone(),
            owner: turn.owner.clone(),
            pending,
            position: turn.position.clone(),
        })
    }
}

impl From<&Approval> for Position {
    fn from(approval: &Approval) -> Self {
        approval.position.clone()
    }
}

/// The place where a decision was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DecisionPlace {
    /// The conversation is open in this manager, and its session has the decision.
    InSession,
    /// The conversation is not open, and the store has the decision. The turn continues when the conversation is opened
    /// the next time.
    InStore,
}

impl Manager {
    /// Returns the tool uses that wait for decisions in the conversations that match a filter, oldest first, without
    /// opening the conversations.
    ///
    /// The list contains the approvals that the store has recorded, so it needs a store that [keeps
    /// turns](crate::store::custom::StoreTraits::turns) and sessions that record them. If a tool use waits in the
    /// middle of a model's answer, its approval is lost when the process ends. Such an approval is listed only while
    /// its conversation is open.
    ///
    /// The page counts turns, and all approvals of a turn are on one page. To continue, pass the last [`Approval`] to
    /// [`Page::after`]. The labels of open sessions count as in [`list`](Self::list), so a page may lack the turns of
    /// conversations whose labels have changed.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, such as [`ErrorKind::Unsupported`] if the store does not keep turns, or if
    /// there is a filter and the store does not support labels.
    pub async fn pending_approvals(&self, filter: &Filter, page: Page) -> Result<Vec<Approval>, Error> {
        let mut page = page;
        loop {
            let turns = self.waiting_turns(filter, page.clone()).await?;
            let last = turns.last().filter(|_| turns.len() >= page.limit).map(|last| last.position.clone());
            let approvals = turns.into_iter().filter(|turn| filter.matches(&turn.labels));
            let approvals: Vec<_> = approvals.flat_map(Approval::all_of).collect();
            match last {
                // Turns that can't be read have no approvals. A page of such turns is not the end of the list.
                Some(last) if approvals.is_empty() && page.after.as_ref() != Some(&last) => {
                    page = Page::first(page.limit).after(last);
                }
                _ => return Ok(approvals),
            }
        }
    }

    /// Returns the turns that [`pending_approvals`](Self::pending_approvals) lists, with those that can't be read, and
    /// with those whose labels have changed. The labels are those of the open session.
    pub(crate) async fn waiting_turns(&self, filter: &Filter, page: Page) -> Result<Vec<TurnSummary>, Error> {
        self.0.begin_sweeping();
        let mut turns = self.0.store.turns(Turns::Waiting, &self.0.checked((filter.clone(), page))?).await?;
        {
            let registry = self.0.registry();
            for turn in &mut turns {
                if let Some(open) = registry.open_session(&turn.id) {
                    turn.labels = open.labels;
                }
            }
        }
        // The approvals of sub-agents belong to those who own the root. Without a root, nobody sees them.
        let mut roots: HashMap<String, Option<Labels>> = HashMap::new();
        for turn in turns.iter_mut().filter(|turn| turn.labels.get(Labels::PARENT).is_some()) {
            let root = turn.labels.get(Labels::ROOT).unwrap_or_default().to_owned();
            let of_root = match roots.get(&root) {
                Some(known) => known.clone(),
                None => self.0.root_labels(&root).await?,
            };
            match &of_root {
                Some(of_root) => turn.labels = of_root.of_sub_agent(turn.labels.clone().iter())?,
                None => turn.approvals.clear(),
            }
            roots.insert(root, of_root);
        }
        Ok(turns)
    }

    /// Decides on a tool use that waits, whether or not its conversation is open. `by` is the name of the person or
    /// system that decided, with at most 256 bytes. An application that performs a decision for a user must first check
    /// that the conversation belongs to this user.
    ///
    /// If the conversation is open in this manager, its session gets the decision. Otherwise, the decision is stored
    /// without loading the conversation, and it takes effect when the conversation is opened the next time. A manager
    /// with a [starter](super::ManagerBuilder::starter) opens it after the last decision. Each tool use accepts one
    /// decision. If the time limit of the tool use has passed, the decision for the end of the time limit applies
    /// instead, and the call fails.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::StaleDecision`] if the tool use does not wait for a decision. It was decided by somebody else,
    ///   its time limit has passed, or its turn has ended.
    /// - [`ErrorKind::OpenElsewhere`] if the conversation is open in another process. Decide there. The call first
    ///   waits for the [decide timeout](super::ManagerBuilder::decide_timeout), because the process may have crashed,
    ///   and its lease then ends.
    /// - [`ErrorKind::InvalidDecision`] if the name is too long, or if the decision has more than 64 levels of arrays and
    ///   objects.
    /// - [`ErrorKind::DamagedTurn`] if the recorded turn can't be read.
    /// - [`ErrorKind::NotFound`], or another error of the store. If the outcome of a write is unknown, the decision
    ///   may have been stored. A repetition then fails with [`ErrorKind::StaleDecision`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the decision may still take effect.
    pub async fn decide(
        &self,
        id: &ApprovalId,
        decision: Decision,
        by: Option<&str>,
    ) -> Result<DecisionPlace, Error> {
        self.decide_all(&id.conversation, id.turn, vec![(id.tool_use.clone(), decision)], by, || {
            ready(Ok(()))
        })
        .await
    }

    /// Decides on several tool uses of a turn, like [`decide`](Self::decide). If one of the decisions does not apply,
    /// none applies. Before each attempt, `check` decides whether the decisions are still permitted.
    pub(crate) async fn decide_all<F: Future<Output = Result<(), Error>>>(
        &self,
        id: &ConversationId,
        turn: TurnId,
        decisions: Vec<(ToolUseId, Decision)>,
        by: Option<&str>,
        check: impl Fn() -> F,
    ) -> Result<DecisionPlace, Error> {
        self.0.begin_sweeping();
        self.0.decide(id, turn, decisions, by, check).await
    }

    /// Returns the recorded turns that nobody works on, oldest first. The conversation of such a turn is not open. In
    /// addition, the turn needs more than decisions about its own tools, or the time limit of one of its approvals has
    /// passed. So a turn whose sub-agents wait for decisions is listed.
    ///
    /// A page may contain fewer turns than its limit, because turns of conversations that are open in this manager are
    /// left out.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`pending_approvals`](Self::pending_approvals).
    pub async fn left(&self, filter: &Filter, page: Page) -> Result<Vec<TurnSummary>, Error> {
        let mut left = self.0.store.turns(Turns::Left, &self.0.checked((filter.clone(), page))?).await?;
        let registry = self.0.registry();
        // A store without owners does not know which conversations are open, so remove the open ones here.
        left.retain(|turn| registry.look(&turn.id).is_none());
        Ok(left)
    }
}

/// The maximum number of times that a decision is applied to a newer state of its turn after a conflict.
const MAX_CONFLICTS: usize = 8;
/// The time for which a decision waits beyond the duration of a lease, if the application sets no other time.
const LEASE_MARGIN: Duration = Duration::from_secs(5);
/// The delay before the second attempt to own a conversation that another process owns. Each following delay is twice as
/// long. Most processes own a conversation for a long time, but some only while they store a decision.
const OWNED_DELAY: Duration = Duration::from_millis(10);
/// The longest delay between two attempts to own a conversation.
const LONGEST_OWNED_DELAY: Duration = Duration::from_secs(1);

/// The outcome of an attempt to decide on a tool use of a conversation that is not open in this manager. If another
/// process owns the conversation, the outcome is an error with the turn and the error of the store.
type DecisionAttemptResult = Result<(), Box<(StoredTurn, StoreError)>>;

impl ManagerShared {
    async fn decide<F: Future<Output = Result<(), Error>>>(
        self: &Arc<Self>,
        id: &ConversationId,
        turn: TurnId,
        decisions: Vec<(ToolUseId, Decision)>,
        by: Option<&str>,
        check: impl Fn() -> F,
    ) -> Result<DecisionPlace, Error> {
        check_decisions(&decisions, by)?;
        let by: Option<Arc<str>> = by.map(Into::into);
        let lease = self.store.traits().lease;
        let limit = self.decide_timeout;
        let limit = limit.unwrap_or_else(|| lease.unwrap_or(USUAL_LEASE).saturating_add(LEASE_MARGIN));
        let (begun, until) = (Instant::now(), moment_after(limit));
        let (mut known, mut delay) = (None, OWNED_DELAY);
        loop {
            let (claim, session) = self.claim(id).await;
            check().await?;
            if let Some(session) = session {
                // The reply may wait for the store. The id is released so that other callers can close the session.
                drop(claim);
                match decide_in(&session, turn, &decisions, by.as_deref()).await {
                    Err(error) if error.kind() == ErrorKind::Ended => {
                        self.settled(id).await;
                        continue;
                    }
                    decided => return decided.map(|()| DecisionPlace::InSession),
                }
            }
            let now = Instant::now();
            let (inner, wanted) = (Arc::clone(self), id.clone());
            let (decisions, by) = (decisions.clone(), by.clone());
            let attempt = in_a_task(self.patience(), async move {
                let decided = inner.decide_stored(&wanted, turn, &decisions, by, known).await;
                drop(claim);
                if matches!(decided, Ok(Ok(()))) {
                    inner.continue_decided(&wanted);
                }
                decided
            });
            let attempt = attempt.await;
            let attempt = attempt.unwrap_or_else(|reason| Err(aborted(id, &reason)));
            let Err(owned) = attempt? else { return Ok(DecisionPlace::InStore) };
            let (mut stored, error) = *owned;
            if now >= until || self.shutting.is_cancelled() {
                return Err(with_left(error, lease, begun.elapsed()));
            }
            // The id is released meanwhile, so that other callers need not wait for the other process.
            tokio::select! {
                biased;
                // The shutdown does not wait for another attempt, so its lease could outlive the process.
                () = self.shutting.cancelled() => {
                    return Err(with_left(error, lease, begun.elapsed()));
                }
                () = sleep_until(until.min(now + delay)) => {}
            }
            delay = (delay * 2).min(LONGEST_OWNED_DELAY);
            stored.now = stored.now.after(now.elapsed());
            known = Some(stored);
        }
    }

    /// Decides on tool uses of a conversation that is not open in this manager. `known` is the turn as an earlier
    /// attempt has read it. If the turn has changed since, the store rejects the write, and the turn is read again.
    async fn decide_stored(
        &self,
        id: &ConversationId,
        turn: TurnId,
        decisions: &[(ToolUseId, Decision)],
        by: Option<Arc<str>>,
        mut known: Option<StoredTurn>,
    ) -> Result<DecisionAttemptResult, Error> {
        let mut conflicts = 0;
        loop {
            let approval = |tool_use: &ToolUseId| ApprovalId::new(id.clone(), turn, tool_use.clone());
            // `check_decisions` has refused an empty list.
            let nothing_waits = || stale(&approval(&decisions[0].0), &[]);
            if !self.store.traits().turns {
                return Err(nothing_waits());
            }
            let stored = match known.take() {
                Some(stored) => stored,
                None => self.store.turn(id).await?.ok_or_else(nothing_waits)?,
            };
            let stale = |tool_use| stale(&approval(tool_use), &open_uses(&stored));
            let decided = decisions.iter().map(|(tool_use, decision)| Decided {
                turn,
                tool_use_id: tool_use.clone(),
                decision: decision.clone(),
                by: by.clone(),
                expired: false,
                at: stored.now,
            });
            let (record, result) = match stored.decide(decided.collect()) {
                Ok(record) => (record, Ok(())),
                Err(InapplicableDecisionReason::Expired(tool_use, record)) => {
                    (*record, Err(stale(&tool_use)))
                }
                Err(InapplicableDecisionReason::Stale(tool_use)) => return Err(stale(&tool_use)),
                Err(InapplicableDecisionReason::Damaged(problem)) => {
                    return Err(damaged_turn(&problem));
                }
            };
            match self.record(&stored, id, record).await {
                Err(StoreError::Conflict { .. }) if conflicts < MAX_CONFLICTS => conflicts += 1,
                Err(error @ StoreError::Owned { .. }) => return Ok(Err(Box::new((stored, error)))),
                written => return written.map_err(Error::from).and(result).map(Ok),
            }
        }
    }

    /// Writes a record of a turn whose conversation nobody has open. If the turn has changed since it was read, the
    /// version of the write makes the store reject the write.
    pub(super) async fn record(
        &self,
        turn: &StoredTurn,
        id: &ConversationId,
        record: TurnRecord,
    ) -> Result<(), StoreError> {
        let commit = Commit::new(record.head).with_usage([]).with_turn(record);
        self.commit(turn.version, id, commit).await
    }

    /// Writes a commit of a conversation that nobody has open, on this version.
    pub(super) async fn commit(
        &self,
        version: Version,
        id: &ConversationId,
        commit: Commit,
    ) -> Result<(), StoreError> {
        // If this future is dropped, the tenure releases the conversation.
        let tenure = self.setup.acquire(&self.store, id).await?;
        let write = Write::on(version);
        let lease = tenure.as_ref().map(ConversationLease::lease).transpose()?;
        let write = lease.map_or(write, |lease| write.under(&lease));
        let written = self.store.write(id, &write, &Change::Commit(commit)).await;
        if let Some(tenure) = tenure {
            tenure.end(None).await;
        }
        written.map(|_| ())
    }
}

async fn decide_in(
    session: &Session,
    turn: TurnId,
    decisions: &[(ToolUseId, Decision)],
    by: Option<&str>,
) -> Result<(), Error> {
    let command = SessionCommand::Decide { turn, decisions: decisions.to_vec() };
    let performed = session.perform(command, by).await.map(|_| ());
    performed.map_err(|error| match error.kind() {
        ErrorKind::NotPaused | ErrorKind::StaleDecision => {
            let given = error.typed("given").unwrap_or_else(|| decisions[0].0.clone());
            stale(&ApprovalId::new(session.id().clone(), turn, given), &error.waiting())
        }
        _ => error,
    })
}

/// Returns the error for a decision about a tool use that does not wait. `waiting` lists those that do.
fn stale(id: &ApprovalId, waiting: &[ToolUseId]) -> Error {
    let list = waiting.iter().map(ToolUseId::as_str).collect::<Vec<_>>().join(", ");
    let others = if waiting.is_empty() { list } else { format!("; decide on {list}") };
    let text = format!(
        "no decision is needed for {}: the tool use does not wait for a decision{others}",
        id.tool_use
    );
    Error::new(ErrorKind::StaleDecision, text).with_member("waiting", waiting).with_member("approval", id)
}

/// Adds the maximum time until the lease expires, because the conversation is open elsewhere. `lease` is the duration of
/// leases. A lease that was not renewed while the caller has `waited` lasts for the rest of it. If this caller has waited
/// for longer than the duration, the lease was renewed.
fn with_left(error: StoreError, lease: Option<Duration>, waited: Duration) -> Error {
    let error = Error::from(error);
    let Some(lease) = lease else { return error };
    let left = lease.checked_sub(waited).unwrap_or(lease);
    let text = format!("{error}, in at most {left:?}");
    error.worded(text).with_member("retry_after", left)
}

/// Returns the tool uses of a stored turn that still wait for decisions when no process has the conversation open.
fn open_uses(turn: &StoredTurn) -> Vec<ToolUseId> {
    let waiting = turn.record.waiting.iter().filter(|waiting| waiting.survives);
    waiting.map(|waiting| waiting.tool_use.id.clone()).collect()
}

// ---- id ----

/// The id of a tool use that waits for a decision, unique over all conversations and turns.
///
/// Its text form, which is also its JSON form, needs no escaping in a URL. The id is not a secret: an application that
/// receives it from a user must check that the conversation belongs to this user.
///
/// ```
/// use omni_agent::{manager::ApprovalId, store::ConversationId};
///
/// let turn = "00112233445566778899aabbccddeeff".parse()?;
/// let id = ApprovalId::new(ConversationId::new("chat.1")?, turn, "call 7");
/// assert_eq!(id.to_string(), "00112233445566778899aabbccddeeff.call~207.chat.1");
/// assert_eq!(id.to_string().parse(), Ok(id));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ApprovalId {
    /// The id of the conversation.
    pub conversation: ConversationId,
    /// The id of the turn.
    pub turn: TurnId,
    /// The id of the tool use within the turn.
    pub tool_use: ToolUseId,
}

impl ApprovalId {
    /// Returns the id of this tool use of a turn.
    pub fn new(conversation: ConversationId, turn: TurnId, tool_use: impl Into<ToolUseId>) -> Self {
        Self { conversation, turn, tool_use: tool_use.into() }
    }
}

/// Writes the turn, the tool use and the conversation, separated by dots. Only the conversation may contain dots. In
/// the tool use, a byte that is not a letter, a digit, `-` or `_` is written as `~` and two hexadecimal digits.
impl fmt::Display for ApprovalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.", self.turn)?;
        for byte in self.tool_use.as_str().bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
                f.write_char(byte.into())?;
            } else {
                write!(f, "~{byte:02x}")?;
            }
        }
        write!(f, ".{}", self.conversation)
    }
}

impl FromStr for ApprovalId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let invalid = || InvalidId::ApprovalId { text: text.to_owned() };
        let mut parts = text.splitn(3, '.');
        let (Some(turn), Some(tool_use), Some(conversation)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(invalid());
        };
        let id = Self {
            conversation: ConversationId::new(conversation)?,
            turn: turn.parse().map_err(|_| invalid())?,
            tool_use: unescaped(tool_use).ok_or_else(invalid)?.into(),
        };
        // Refuse other spellings, so that each id has exactly one text.
        if id.to_string() == text { Ok(id) } else { Err(invalid()) }
    }
}

fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'~' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

impl Serialize for ApprovalId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ApprovalId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
