//! The conversations of sub-agents below a conversation: their labels, their deletion and their recorded turns.

use std::{
    collections::{HashMap, HashSet},
    future::ready,
    sync::Arc,
};

use super::{at_work, call_label, child_id, is_of_call, last_snapshot, turn_of};
use crate::{
    agent::ParentCall,
    manager::{Activity, ManagerShared, closing::TitleOrLabels},
    message::{MessageId, TurnId, UsageSum},
    run::{Error, RunEnd, RunOutcome},
    session::{Session, closed},
    store::{Commit, ConversationId, Filter, Labels, Owner, Page, Position, StoreError, StoredTurn, Summary},
};

/// The number of conversations that are listed at once.
const PAGE: usize = 64;

impl ManagerShared {
    /// Returns the stored conversations of all sub-agents below a conversation, parents first.
    pub(in crate::manager) async fn descendants(
        &self,
        id: &ConversationId,
    ) -> Result<Vec<Summary>, StoreError> {
        let mut found: Vec<Summary> = Vec::new();
        if !self.store.traits().labels {
            return Ok(found);
        }
        // All sub-agents below a root name it, so one list has them. Those below a sub-agent are listed by their parents.
        let is_root = !id.is_of_sub_agent();
        let mut below: HashMap<_, Vec<_>> = HashMap::new();
        if is_root {
            for child in self.labelled(Labels::ROOT, id).await? {
                below.entry(child.labels.get(Labels::PARENT).map(str::to_owned)).or_default().push(child);
            }
        }
        let (mut parent, mut next, mut known) = (id.clone(), 0, HashSet::from([id.clone()]));
        loop {
            let children = if is_root {
                below.remove(&Some(parent.to_string())).unwrap_or_default()
            } else {
                self.labelled(Labels::PARENT, &parent).await?
            };
            // Labels that form a circle must not keep this from ending.
            found.extend(children.into_iter().filter(|child| known.insert(child.id.clone())));
            let Some(following) = found.get(next) else { return Ok(found) };
            (parent, next) = (following.id.clone(), next + 1);
        }
    }

    /// Returns the sum of what a sub-agent and all sub-agents below it have stored.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OpenElsewhere`] while another process can add to it.
    pub(super) async fn stored_usage(&self, child: &ConversationId) -> Result<UsageSum, Error> {
        let mut sum = UsageSum::default();
        let own = match self.store.summary(child).await {
            Err(StoreError::NotFound { .. }) => return Ok(sum),
            own => own?,
        };
        let all: Vec<_> = std::iter::once(own).chain(self.descendants(child).await?).collect();
        for Summary { id, owner, .. } in &all {
            // The processes of earlier lives end parents before children. An earlier life of this process has ended, but a
            // call of this one may still be closing its session.
            let can_add = |owner: &&Owner| {
                owner.name != self.owner.name || id != child && self.registry().calls.has(id)
            };
            if let Some(owner) = owner.as_ref().filter(can_add)
                && (id == child || self.call_turn(id).await?.is_some())
            {
                return Err(StoreError::Owned { id: id.clone(), owner: owner.clone() }.into());
            }
        }
        for Summary { id, .. } in all {
            match self.store.load(&id).await {
                Ok(stored) => sum.add(stored.used.requests, stored.used.usage),
                // Neither can have a turn that continues.
                Err(StoreError::NotFound { .. } | StoreError::Damaged { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(sum)
    }

    /// Returns the stored conversations of the sub-agents whose label with this name has this conversation's id.
    async fn labelled(&self, name: &str, id: &ConversationId) -> Result<Vec<Summary>, StoreError> {
        let filter = Filter::with(Labels::place(name, id));
        let (mut found, mut page) = (Vec::new(), Page::first(PAGE));
        loop {
            let stored = match self.store.list(&(filter.clone(), page).into()).await {
                // Without lists by labels, nothing can be found.
                Err(StoreError::Unsupported { .. }) => return Ok(found),
                stored => stored?,
            };
            let last = stored.last().filter(|_| stored.len() >= PAGE).map(Position::from);
            found.extend(stored);
            match last {
                Some(last) => page = Page::first(PAGE).after(last),
                None => return Ok(found),
            }
        }
    }

    /// Gives all sub-agents below a root its labels. Continues after an error, and returns the first one.
    pub(in crate::manager) async fn label_descendants(
        self: &Arc<Self>,
        root: &ConversationId,
    ) -> Result<(), Error> {
        let mut given = HashMap::new();
        loop {
            let (mut is_changed, mut failed) = (false, None);
            for child in self.descendants(root).await? {
                let Some(labels) = self.root_labels(root.as_str()).await? else { return Ok(()) };
                let labels = labels.of_sub_agent(child.labels.iter())?;
                // A call that still prepares this sub-agent reads the labels afterwards. It can even wait for this.
                if labels == child.labels || self.registry().calls.is_prepared(&child.id) {
                    continue;
                }
                let change = TitleOrLabels::Labels(labels.clone());
                match self.describe_one(&child.id, change, || ready(Ok(()))).await {
                    // The session of another process can set others again and again.
                    Ok(()) => is_changed |= given.insert(child.id, labels.clone()) != Some(labels),
                    // It was deleted in the meantime.
                    Err(error) if error.is_not_found() => {}
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            // A list misses a sub-agent that is stored while the pages of the list are read.
            if !is_changed {
                return failed.map_or(Ok(()), Err);
            }
        }
    }

    /// Returns the labels with which the conversation of a session is created. Those of a sub-agent may have changed since
    /// its call has read them.
    pub(in crate::manager) async fn labels_at_creation(
        &self,
        child: &ConversationId,
        own: Labels,
    ) -> Result<Labels, Error> {
        let Some(root) = own.get(Labels::PARENT).and_then(|_| own.get(Labels::ROOT)) else { return Ok(own) };
        {
            let mut registry = self.registry();
            if !registry.calls.has(child) {
                return Ok(own);
            }
            // From here on, `set_labels` waits for the call.
            registry.calls.set_prepared(child, false);
        }
        match self.root_labels(root).await? {
            Some(labels) => labels.of_sub_agent(own.iter()),
            None => Ok(own),
        }
    }

    /// Gives the labels of its root to a sub-agent whose call was dropped before it could compare them.
    pub(super) async fn label_late(self: &Arc<Self>, child: &ConversationId) -> Result<(), Error> {
        let labels = match self.own_labels(child).await {
            Ok(labels) => labels,
            Err(StoreError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        match labels.get(Labels::ROOT).and_then(|root| ConversationId::new(root).ok()) {
            Some(root) if self.store.traits().labels => self.label_descendants(&root).await,
            _ => Ok(()),
        }
    }

    /// Deletes the sub-agent of a call that has ended, if the conversation of the call was deleted in the meantime.
    pub(super) async fn delete_without_parent(
        self: &Arc<Self>,
        child: &ConversationId,
        parent: &ConversationId,
    ) -> Result<(), Error> {
        // An open conversation can be without a stored one until its first turn ends.
        let is_open = self.registry().get(parent).is_some();
        if is_open || !self.store.traits().labels {
            return Ok(());
        }
        match self.store.summary(parent).await {
            Err(StoreError::NotFound { .. }) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        self.delete_child(child, parent.as_str()).await
    }

    /// Deletes a sub-agent of this parent. Does nothing if it is deleted already.
    pub(in crate::manager) async fn delete_child(
        self: &Arc<Self>,
        child: &ConversationId,
        parent: &str,
    ) -> Result<(), Error> {
        let check = async {
            // Somebody else can have a conversation with this id.
            let is_own = self.own_labels(child).await?.get(Labels::PARENT) == Some(parent);
            if is_own { Ok(()) } else { Err(StoreError::NotFound { id: child.clone() }.into()) }
        };
        match Box::pin(self.delete(child, check)).await {
            Err(error) if error.is_not_found() => Ok(()),
            deleted => deleted,
        }
    }

    /// Deletes the sub-agents of a turn that was discarded, when its end is stored. If it is not, another process can have
    /// completed the turn.
    pub(in crate::manager) async fn delete_children_of(
        self: &Arc<Self>,
        turn: TurnId,
        session: &Session,
    ) -> Result<(), Error> {
        if !self.store.traits().labels {
            return Ok(());
        }
        let in_flight = last_snapshot(session).await?.agent.turn;
        self.calls_left(session.id(), in_flight, self.close_timeout).await;
        let mut children = self.labelled(Labels::PARENT, session.id()).await?;
        children.retain(|child| turn_of(&child.id) == Some(turn));
        if children.is_empty() || !self.is_flushed(session).await? {
            return Ok(());
        }
        for child in children {
            self.delete_child(&child.id, session.id().as_str()).await?;
        }
        Ok(())
    }

    /// Deletes the sub-agents whose tool use is not in the conversation, because it was erased.
    pub(in crate::manager) async fn delete_erased(self: &Arc<Self>, session: &Session) -> Result<(), Error> {
        if !self.store.traits().labels {
            return Ok(());
        }
        // A call of an earlier turn may still be closing its session.
        let in_flight = session.snapshot().await?.agent.turn;
        self.calls_left(session.id(), in_flight, self.close_timeout).await;
        let children = self.labelled(Labels::PARENT, session.id()).await?;
        if children.is_empty() {
            return Ok(());
        }
        let snapshot = session.snapshot().await?;
        let uses = snapshot.tree.nodes().flat_map(|node| {
            let turn = node.message().id.as_ref().and_then(MessageId::turn);
            node.message().tool_uses().filter_map(move |own| Some((turn?, call_label(&own.id))))
        });
        let uses: HashSet<_> = uses.collect();
        for Summary { id: child, labels, .. } in children {
            let Some(turn) = turn_of(&child).filter(|turn| snapshot.agent.turn != Some(*turn)) else {
                continue;
            };
            let call = labels.get(Labels::CALL).unwrap_or_default();
            if !uses.contains(&(turn, call.to_owned())) {
                self.delete_child(&child, session.id().as_str()).await?;
            }
        }
        Ok(())
    }

    /// Checks whether a user may open the conversation of a sub-agent, which the caller has claimed. If the turn of its
    /// call is in flight, and no call continues it any more, discards the turn.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::SubAgent`] if a call is at work, or may be repeated.
    pub(in crate::manager) async fn check_opening(&self, id: &ConversationId) -> Result<(), Error> {
        self.check_uncalled(id).await?;
        self.discard_claimed(id).await
    }

    /// Checks whether no call continues the conversation of a sub-agent, and none can be repeated.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::SubAgent`] if a call is at work, or may be repeated.
    pub(in crate::manager) async fn check_uncalled(&self, id: &ConversationId) -> Result<(), Error> {
        let labels = match self.store.summary(id).await {
            Ok(summary) => summary.labels,
            Err(StoreError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if labels.get(Labels::PARENT).is_none() {
            return Ok(());
        }
        if self.registry().calls.has(id) || self.is_called(id, &labels).await? {
            let todo =
                "watch it while its parent has it open, or open it when the turns of its parents have ended";
            return Err(at_work(id, &labels, todo));
        }
        Ok(())
    }

    /// Checks whether a user may delete the conversation of a sub-agent alone. If its call is repeated, the call must find the
    /// conversation, because otherwise everything runs again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::SubAgent`] if a call is at work, or may be repeated.
    pub(in crate::manager) async fn check_deletion(&self, id: &ConversationId) -> Result<(), Error> {
        if !id.is_of_sub_agent() {
            return Ok(());
        }
        let labels = match self.own_labels(id).await {
            Ok(labels) => labels,
            // A damaged conversation can be deleted.
            Err(StoreError::NotFound { .. } | StoreError::Damaged { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let is_opening = {
            let registry = self.registry();
            registry.calls.has(id) && registry.get(id).is_none()
        };
        if is_opening || self.is_called(id, &labels).await? {
            let todo = "delete the conversation of the root, or delete this one when the turns of its parents have ended";
            return Err(at_work(id, &labels, todo));
        }
        Ok(())
    }

    /// Returns whether an agent above a sub-agent with these labels may repeat its call: it has a turn in flight, here or
    /// in the store. If the turn of the call is recorded, an agent that another process has open counts, too.
    pub(in crate::manager) async fn is_called(
        &self,
        child: &ConversationId,
        labels: &Labels,
    ) -> Result<bool, Error> {
        let mut above = labels.get(Labels::PARENT).map(str::to_owned);
        // The parent repeats the call only in the turn of the call.
        let mut of_call = turn_of(child);
        for _ in 0..=u8::MAX {
            let Some(id) = above.and_then(|id| ConversationId::new(id).ok()) else { return Ok(false) };
            let (open, session) = {
                let registry = self.registry();
                (registry.open_session(&id), registry.get(&id))
            };
            let of_call = of_call.take();
            let is_meant = |turn| of_call.is_none_or(|of_call| of_call == turn);
            let labels = match open {
                Some(open) => {
                    if open.activity != Activity::Idle
                        && let Some(session) = session
                    {
                        // A session that is not idle and has no state was killed, so its recorded turn counts.
                        let turn = last_snapshot(&session).await.map(|snapshot| snapshot.agent.turn);
                        if turn.is_ok_and(|turn| turn.is_none_or(is_meant)) {
                            return Ok(true);
                        }
                    }
                    open.labels
                }
                None => match self.store.summary(&id).await {
                    Ok(summary) => {
                        let is_elsewhere =
                            summary.owner.as_ref().is_some_and(|owner| owner.name != self.owner.name);
                        if is_elsewhere && self.call_turn(child).await?.is_some() {
                            return Ok(true);
                        }
                        summary.labels
                    }
                    Err(StoreError::NotFound { .. }) => return Ok(false),
                    Err(error) => return Err(error.into()),
                },
            };
            if self.recorded(&id).await?.is_some_and(|turn| is_meant(turn.record.turn)) {
                return Ok(true);
            }
            above = labels.get(Labels::PARENT).map(str::to_owned);
        }
        Ok(true)
    }

    /// Returns whether the turn in flight of a conversation needs nothing but decisions about tools of its sub-agents, and
    /// no time limit for them has passed.
    pub(in crate::manager) async fn waits_below(&self, id: &ConversationId) -> Result<bool, StoreError> {
        if !self.store.traits().labels {
            return Ok(false);
        }
        let Some(turn) = self.recorded(id).await? else { return Ok(false) };
        let (mut turns, mut seen) = (vec![turn], HashSet::new());
        while let Some(turn) = turns.pop() {
            if turn.record.only_waits() {
                if turn.approvals().iter().any(|approval| approval.has_expired(turn.now)) {
                    return Ok(false);
                }
                continue;
            }
            let Some(calls) = turn.record.delegated_calls() else { return Ok(false) };
            for key in calls {
                // A damaged record can name itself, or very many calls.
                if !seen.insert(key.clone()) || seen.len() > 1024 {
                    return Ok(false);
                }
                let before = turns.len();
                for number in 0..u32::from(u8::MAX) {
                    let Ok(child) = child_id(&ParentCall::child_key(&key, number)) else { return Ok(false) };
                    match self.store.turn(&child).await {
                        Ok(turn) => turns.extend(turn),
                        Err(StoreError::NotFound { .. }) => break,
                        Err(error) => return Err(error),
                    }
                }
                if turns.len() == before {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Returns the recorded turn of a conversation, if it exists and has one.
    pub(in crate::manager) async fn recorded(
        &self,
        id: &ConversationId,
    ) -> Result<Option<StoredTurn>, StoreError> {
        if !self.store.traits().turns {
            return Ok(None);
        }
        match self.store.turn(id).await {
            Err(StoreError::NotFound { .. }) => Ok(None),
            turn => turn,
        }
    }

    /// Returns the recorded turn of a sub-agent, if it is the turn of its call.
    pub(in crate::manager) async fn call_turn(
        &self,
        child: &ConversationId,
    ) -> Result<Option<StoredTurn>, StoreError> {
        Ok(self.recorded(child).await?.filter(|turn| is_of_call(child, turn)))
    }

    /// Ends the turn of a sub-agent's call, if it is in flight and no session continues it.
    pub(in crate::manager) async fn discard(self: &Arc<Self>, id: &ConversationId) -> Result<(), Error> {
        let (_claim, session) = self.claim(id).await;
        if session.is_some() || self.registry().is_shut {
            return Ok(());
        }
        self.discard_claimed(id).await
    }

    /// Ends the turn of a sub-agent's call, if it is in flight. The caller has the claim of the conversation.
    async fn discard_claimed(&self, id: &ConversationId) -> Result<(), Error> {
        let Some(turn) = self.call_turn(id).await? else { return Ok(()) };
        self.discard_turn(id, turn).await
    }

    /// Ends the recorded turn of a conversation that is about to be deleted, if it has one. Otherwise, a sweep would
    /// repeat the calls of sub-agents that are deleted already. The caller has the claim of the conversation.
    pub(in crate::manager) async fn discard_deleted(&self, id: &ConversationId) -> Result<(), Error> {
        let Some(turn) = self.recorded(id).await? else { return Ok(()) };
        self.discard_turn(id, turn).await
    }

    async fn discard_turn(&self, id: &ConversationId, turn: StoredTurn) -> Result<(), Error> {
        let end = RunEnd::new(RunOutcome::Discarded).with_turn(turn.record.turn);
        let end = closed(end.with_prompts(turn.record.prompts.clone()));
        let commit = Commit::new(turn.record.head).with_usage([]).with_run_end(end);
        match self.commit(turn.version, id, commit).await {
            // Another process has opened the conversation, or has ended its turn.
            Ok(()) | Err(StoreError::Conflict { .. } | StoreError::Owned { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
