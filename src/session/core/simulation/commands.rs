//! Random commands, and what must become of each.

use std::{sync::Arc, time::Duration};

use super::{Check, ensure, model::Kind, world::World};
use crate::{
    session::{
        SessionError,
        core::{Base, Core, Effect, Move},
    },
    tree::{Node, NodeId},
};

impl World {
    pub(super) fn command(&mut self) -> Check {
        match self.rng.below(10) {
            0..3 => self.set_title(),
            3..5 => self.flush(),
            _ => self.move_path(),
        }
    }

    fn set_title(&mut self) -> Check {
        let title: Option<Arc<str>> = self.rng.pick(&[None, Some("one"), Some("two")]).map(Arc::from);
        self.note(|| format!("title {title:?}"));
        let changes = self.model.title != title;
        self.model.title.clone_from(&title);
        self.ledger.note(&self.model, changes);
        let told = if changes { vec![Kind::Title] } else { vec![] };
        self.input(told, |core, env, effects| core.set_title(title, env, effects))?;
        ensure!(!changes || self.ledger.waiting().is_none(), "a new title does not have the write repeated");
        Ok(())
    }

    /// The timer of a retry.
    pub(super) fn retry(&mut self) -> Check {
        self.note(|| "retry".to_owned());
        let silent = self.ledger.under_way().cloned().filter(|_| self.left.is_some() && !self.ledger.lost);
        let effects = self.feed(vec![], Core::retry)?;
        let begun = effects.iter().filter(|effect| matches!(effect, Effect::Write(_))).count();
        ensure!(silent.is_none() || begun == 1, "a silent write is begun {begun} times");
        if let Some(job) = silent {
            // One of the two attempts comes back. The store may perform the other one later, or never.
            self.ghosts.push((job, true));
        }
        ensure!(self.ledger.waiting().is_none(), "the write that failed is not repeated");
        Ok(())
    }

    /// Saves what is unsaved.
    pub(super) fn save(&mut self) -> Check {
        self.note(|| "save".to_owned());
        self.input(vec![], Core::save)?;
        ensure!(self.ledger.waiting().is_none(), "the write that failed is not repeated");
        Ok(())
    }

    /// A flush begins, with a deadline or without one, in place of an earlier flush.
    pub(super) fn flush(&mut self) -> Check {
        self.left =
            self.rng.pick(&[None, Some(1), Some(100), Some(3000), Some(60_000)]).map(Duration::from_millis);
        self.note(|| "flush".to_owned());
        self.ledger.hurry(self.left);
        self.input(vec![], Core::hurry)?;
        ensure!(self.ledger.waiting().is_none(), "the write that failed is not repeated");
        self.ledger.take_ticket(self.core.wanted());
        Ok(())
    }

    /// Any node, or none; sometimes one that is not there.
    fn random_node(&mut self) -> Option<NodeId> {
        let nodes: Vec<NodeId> = self.model.shown.nodes().map(Node::id).collect();
        if nodes.is_empty() || self.rng.percent(10) {
            return self.rng.pick(&[None, None, NodeId::new(1_000_000)]);
        }
        Some(self.rng.pick(&nodes))
    }

    /// The session comes to where the agent is, and moves it if it is idle there.
    fn move_path(&mut self) -> Check {
        if self.rng.percent(self.haste) {
            while self.agent.runs && self.agent.act(&mut self.rng) {}
        }
        while !self.agent.told.is_empty() {
            self.deliver()?;
        }
        if self.agent.runs || self.ended {
            return Ok(());
        }
        let node = self.random_node();
        let (expected, begun, run) = match (self.rng.below(3), node) {
            (0, Some(id)) => {
                self.note(|| format!("regenerate {id}"));
                (self.model.regenerate(id).map(Some), self.core.regenerate(id).map(Some), true)
            }
            (1, _) => {
                self.note(|| format!("navigate {node:?}"));
                (self.model.navigate(node), self.core.navigate(node), false)
            }
            _ => {
                self.note(|| format!("branch {node:?}"));
                (self.model.branch_below(node).map(Some), self.core.branch_below(node).map(Some), true)
            }
        };
        let Some(Base { history, message, then }) = same_base(expected, begun)? else {
            return Ok(());
        };
        history.check().map_err(|error| format!("a base that the agent refuses: {error}"))?;
        if self.rng.percent(20) {
            // Something begins in the agent before it is asked to move.
            while self.agent.act(&mut self.rng) {}
            if self.rng.percent(50) {
                // It refuses, since the session does not know of it.
                return Ok(());
            }
        }
        let with = self.agent.move_to(history, run, message);
        self.moved(with, then)
    }

    fn moved(&mut self, with: crate::subscription::EventId, then: Move) -> Check {
        self.note(|| format!("moves with {with}: {then:?}"));
        self.model.moving = Some((with, then.clone()));
        self.core.moved(with, then);
        self.check()
    }
}

/// The core says where a move begins as the model does.
fn same_base(
    expected: Result<Option<Base>, SessionError>,
    begun: Result<Option<Base>, SessionError>,
) -> Check<Option<Base>> {
    match (expected, begun) {
        (Err(expected), Err(error)) => {
            let (expected, error) = (format!("{expected:?}"), format!("{error:?}"));
            ensure!(expected == error, "{error}, not {expected}");
            Ok(None)
        }
        (Ok(expected), Ok(begun)) if expected == begun => Ok(begun),
        (expected, begun) => Err(format!("a move begins at {begun:?}, not {expected:?}")),
    }
}
