//! Random commands, and checks of their results.

use std::{sync::Arc, time::Duration};

use super::{Check, agent::random_settings, ensure, model::Kind, world::World};
use crate::{
    agent::FirstMessageOfRun,
    message::{History, Purpose, RequestEnd, Usage, UsageRow},
    run::{Error, ErrorKind, Prompt, RunAt},
    session::core::{HistoryReplacement, PathMove, SessionCore, SessionEffect, branching::unfit},
    store::TitleBy,
    tree::{Node, NodeId},
};

/// A deliberate fault of the core, which the reference model must notice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LeafFault {
    /// A path is extended to an unanswered prompt.
    Extended,
    /// An unanswered prompt closes the tool uses of its parent.
    ClosesUses,
}

impl World {
    pub(super) fn command(&mut self) -> Check {
        match self.rng.below(13) {
            0..3 => self.set_title(),
            3..5 => self.flush(),
            5 => self.set_labels(),
            6 => self.erase(),
            7 => self.spend(),
            _ => self.move_path(),
        }
    }

    /// Records the usage of a request that belongs to no turn.
    fn spend(&mut self) -> Check {
        if self.ledger.owes_configuration() {
            // While the configuration with which the session was started is not stored yet, skip this command, because
            // the row would be written without it.
            return Ok(());
        }
        let usage = Usage::default().with_input(self.rng.pick(&[1, 7]));
        let end = self.rng.pick(&[RequestEnd::Answered, RequestEnd::Failed]);
        let row = UsageRow::new(end, usage).with_purpose(Purpose::Title).with_model("titles".to_owned());
        self.note(|| format!("spent {row:?}"));
        self.model.spent(row.clone());
        self.ledger.note(&self.model, true);
        self.input(vec![Kind::Usage], |core, env, effects| core.spent(row, env, effects))
    }

    fn set_labels(&mut self) -> Check {
        let labels = super::start::random_labels(&mut self.rng);
        self.note(|| format!("labels {labels:?}"));
        let changes = self.model.labels != labels;
        self.model.labels = labels.clone();
        self.ledger.note(&self.model, changes);
        let kinds = if changes { vec![Kind::Labels] } else { vec![] };
        self.input(kinds, |core, env, effects| core.set_labels(labels, env, effects))
    }

    /// Erases a random node, if the agent is idle and everything is saved.
    fn erase(&mut self) -> Check {
        while !self.agent.undelivered.is_empty() {
            self.deliver()?;
        }
        let nodes: Vec<NodeId> = self.model.shown.nodes().map(Node::id).collect();
        let is_saved = self.core.is_safe(self.core.wanted()) && !self.ledger.lost;
        if self.agent.runs || self.ended || !is_saved || nodes.is_empty() {
            return Ok(());
        }
        let node = self.rng.pick(&nodes);
        let mut tree = self.model.shown.clone();
        tree.erase(node).map_err(|error| error.to_string())?;
        self.agent.move_to(tree.history().clone(), None);
        let (id, event, config, _) = self.agent.undelivered.pop_front().ok_or("the agent has not moved")?;
        let (mut kinds, touched) = self.model.event(id, &event, &config);
        self.ledger.note(&self.model, touched);
        let (erased, had_title) = self.model.erase(node);
        self.ledger.note(&self.model, true);
        self.agent_now.take_in(&event);
        kinds.push(Kind::Erased);
        kinds.extend(had_title.then_some(Kind::Title));
        self.note(|| format!("erase {erased:?}"));
        if self.foes > 0 && self.rng.percent(20) {
            // Another writer changes the conversation, so that the erasure meets a conflict.
            self.interfere();
        }
        self.input(kinds, |core, env, effects| {
            core.delivered(Some(&crate::subscription::Numbered { id, event }), None, &config, env, effects);
            core.erased(erased, env, effects);
        })
    }

    fn set_title(&mut self) -> Check {
        let title: Option<Arc<str>> = self.rng.pick(&[None, Some("one"), Some("two")]).map(Arc::from);
        let suggested = title.clone().filter(|_| self.rng.percent(40));
        let suggested = suggested.map(|title| (title, self.random_node()));
        self.note(|| format!("title {title:?}, suggested: {suggested:?}"));
        let by = if suggested.is_some() { TitleBy::Derived } else { TitleBy::Person };
        let of = suggested.as_ref().and_then(|(_, of)| *of);
        let (changes, shows) = self.model.set_title(title.clone(), by, of);
        self.ledger.note(&self.model, changes);
        let kinds = if shows { vec![Kind::Title] } else { vec![] };
        let mut was_set = changes;
        self.input(kinds, |core, env, effects| match suggested {
            Some((title, of)) => was_set = core.suggest_title(title, of, env, effects),
            None => core.set_title(title, TitleBy::Person, env, effects),
        })?;
        ensure!(was_set == changes, "set the title: {was_set}, expected {changes}");
        ensure!(!changes || self.ledger.waiting().is_none(), "a new title does not repeat the failed write");
        Ok(())
    }

    /// Simulates that the timer for repeating a write fires.
    pub(super) fn retry(&mut self) -> Check {
        self.note(|| "retry".to_owned());
        let silent = self.ledger.under_way().cloned().filter(|_| self.left.is_some() && !self.ledger.lost);
        let effects = self.feed(vec![], SessionCore::retry)?;
        let begun = effects.iter().filter(|effect| matches!(effect, SessionEffect::Write(_))).count();
        ensure!(silent.is_none() || begun == 1, "a write without a result is started {begun} times");
        if let Some(job) = silent {
            // The session receives the outcome of only one of the two attempts. The store may perform the other attempt
            // later, or never.
            self.ghosts.push((job, true));
        }
        ensure!(self.ledger.waiting().is_none(), "the failed write is not repeated");
        Ok(())
    }

    /// Saves all changes.
    pub(super) fn save(&mut self) -> Check {
        self.note(|| "save".to_owned());
        self.input(vec![], SessionCore::save)?;
        ensure!(self.ledger.waiting().is_none(), "the failed write is not repeated");
        Ok(())
    }

    /// Starts a flush with or without a deadline. The flush replaces an earlier flush.
    pub(super) fn flush(&mut self) -> Check {
        self.left =
            self.rng.pick(&[None, Some(1), Some(100), Some(3000), Some(60_000)]).map(Duration::from_millis);
        self.note(|| "flush".to_owned());
        self.ledger.hurry(self.left);
        self.input(vec![], SessionCore::hurry)?;
        ensure!(self.ledger.waiting().is_none(), "the failed write is not repeated");
        self.ledger.take_ticket(self.core.wanted());
        Ok(())
    }

    /// Returns the id of a random node, or none. Sometimes no node has this id.
    fn random_node(&mut self) -> Option<NodeId> {
        let nodes: Vec<NodeId> = self.model.shown.nodes().map(Node::id).collect();
        if nodes.is_empty() || self.rng.percent(10) {
            return self.rng.pick(&[None, None, NodeId::new(1_000_000)]);
        }
        Some(self.rng.pick(&nodes))
    }

    /// Processes the agent's events so far. If the agent is then idle, executes a random command that moves the path.
    fn move_path(&mut self) -> Check {
        if self.rng.percent(self.haste) {
            while self.agent.runs && self.agent.act(&mut self.rng) {}
        }
        while !self.agent.undelivered.is_empty() {
            self.deliver()?;
        }
        if self.agent.runs || self.ended {
            return Ok(());
        }
        let node = self.random_node();
        let at = match (self.rng.below(4), node) {
            (0, Some(id)) => RunAt::Again(id),
            (1, Some(id)) => RunAt::Instead(id),
            (2, _) => return self.navigate(node),
            _ => RunAt::Below(node),
        };
        let prompt = self.random_prompt();
        self.note(|| format!("{at:?} {prompt:?}"));
        let with_prompt = |base| (base, FirstMessageOfRun::Prompt(prompt.clone()));
        let expected = match at {
            RunAt::Head => self.model.branch_below(self.core.tree().head()).map(with_prompt),
            RunAt::Again(id) => self.model.regenerate(id, &prompt),
            RunAt::Instead(id) => self.model.edit(id).map(with_prompt),
            RunAt::Below(id) => self.model.branch_below(id).map(with_prompt),
        };
        let given = self.core.begin(at, prompt).and_then(|begun| self.closing(begun));
        match same(expected, given)? {
            Some((base, opening)) => self.set_out(base, Some(opening)),
            None => Ok(()),
        }
    }

    fn navigate(&mut self, node: Option<NodeId>) -> Check {
        self.note(|| format!("navigate {node:?}"));
        let given = self.core.navigate(node).map(|base| self.extended(node, base));
        match same(self.model.navigate(node), given)? {
            Some(Some(base)) => self.set_out(base, None),
            Some(None) | None => Ok(()),
        }
    }

    /// Returns the base of a run, or the error of a faulty core.
    fn closing(
        &self,
        begun: (HistoryReplacement, FirstMessageOfRun),
    ) -> Result<(HistoryReplacement, FirstMessageOfRun), Error> {
        let PathMove::Branch { base: Some(base), answers: None } = begun.0.then else { return Ok(begun) };
        let tree = self.core.tree();
        let is_left_open = tree.node(base).is_some_and(Node::left_open);
        if self.fault == Some(LeafFault::ClosesUses)
            && is_left_open
            && tree.unanswered(Some(base)).next().is_some()
        {
            return Err(unfit(ErrorKind::OpenToolUses, base, "has open tool uses"));
        }
        Ok(begun)
    }

    /// Returns the base of a move, or that of a faulty core.
    fn extended(&self, node: Option<NodeId>, base: Option<HistoryReplacement>) -> Option<HistoryReplacement> {
        let mut tree = self.core.tree().clone();
        let end = base.as_ref().map_or(tree.head(), |base| match base.then {
            PathMove::To(end) => end,
            PathMove::Branch { .. } => None,
        });
        let leaf = node.and(end).and_then(|end| tree.cursor(end));
        match leaf.filter(|_| self.fault == Some(LeafFault::Extended)) {
            Some(leaf) => {
                tree.navigate(leaf).expect("the node exists");
                Some(HistoryReplacement { history: tree.history().clone(), then: PathMove::To(Some(leaf)) })
            }
            None => base,
        }
    }

    fn random_prompt(&mut self) -> Prompt {
        random_settings(&mut self.rng).unwrap_or_default()
    }

    /// Makes the agent move to a new history. If `run` contains a first message, the agent starts a run on this
    /// history.
    fn set_out(
        &mut self,
        HistoryReplacement { history, then }: HistoryReplacement,
        run: Option<FirstMessageOfRun>,
    ) -> Check {
        history.check().map_err(|error| format!("the agent refuses the base: {error}"))?;
        if let Some(FirstMessageOfRun::Message(message, _)) = &run {
            let whole: History = history.iter().chain([message]).cloned().collect();
            whole.check_sendable().map_err(|error| format!("the agent refuses the message: {error}"))?;
        }
        if self.rng.percent(20) {
            // The agent starts a run before the session's request to move reaches it.
            while self.agent.act(&mut self.rng) {}
            if self.rng.percent(50) {
                // The agent refuses to move, because the session knew nothing of the run when it sent the request.
                return Ok(());
            }
        }
        let with = self.agent.move_to(history, run);
        self.moved(with, then)
    }

    fn moved(&mut self, with: crate::subscription::EventId, then: PathMove) -> Check {
        self.note(|| format!("moves with {with}: {then:?}"));
        self.model.moving = Some((with, then.clone()));
        self.core.moved(with, then);
        self.check()
    }
}

/// Checks that the core's reply equals the reply of the reference model. Returns the reply, or `None` if it is an
/// error.
fn same<T: PartialEq + std::fmt::Debug>(
    expected: Result<T, Error>,
    given: Result<T, Error>,
) -> Check<Option<T>> {
    match (expected, given) {
        (Err(expected), Err(error)) => {
            let facts = |error: &Error| (error.kind(), error.member("node").cloned());
            ensure!(facts(&expected) == facts(&error), "the error is {error:?}, not {expected:?}");
            Ok(None)
        }
        (Ok(expected), Ok(given)) if expected == given => Ok(Some(given)),
        (expected, given) => Err(format!("the move starts at {given:?}, not {expected:?}")),
    }
}
