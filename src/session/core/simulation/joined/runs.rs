//! The requests of the user that start runs.

use super::{Common, Regenerated, Start, life::Life};
use crate::{
    actor::simulation::{Check, ensure},
    agent::{Durable, Status, process::Reply},
    message::Role,
    run::{Next, Prompt, RunAt},
    session::core::HistoryReplacement,
    tree::{Node, NodeId},
};

impl Life {
    /// Sends the next request, unless an earlier process has served it and its reply was lost.
    pub(super) fn start(&mut self, common: &mut Common) -> Check {
        let number = common.sent;
        let start = common.starts[number];
        let is_idle = self.process.is_idle();
        let text = format!("prompt {number}");
        let is_recognised = common.has_ids && matches!(start, Start::Prompt | Start::Ask);
        if !is_recognised && common.place.contains(&text) {
            common.sent += 1;
            return Ok(());
        }
        match start {
            Start::Regenerate | Start::Edit if !is_idle => Ok(()),
            Start::Prompt | Start::Ask => {
                let is_asked = start == Start::Ask && is_idle;
                let mut prompt = Prompt::new(text.as_str());
                if common.has_ids {
                    prompt = prompt.with_id(text.as_str());
                }
                if !is_idle && common.outside.rng.percent(common.joins) {
                    prompt.next = Next::Step;
                }
                common.sent += 1;
                self.asked = self.asked.filter(|_| self.process.is_asked()).or(is_asked.then_some(number));
                let accepted = self.process.prompt(&mut common.outside, prompt, &text, is_asked)?;
                if self.process.is_dead() || !accepted {
                    // Nobody got a reply, so the prompt is sent again.
                    common.sent = number;
                }
                Ok(())
            }
            Start::Regenerate => self.regenerate(common, number),
            Start::Edit => {
                let Some(user) = self.last_prompt(common)? else { return Ok(()) };
                let prompt = Prompt::new(text.as_str());
                self.begin_run(common, RunAt::Instead(user), prompt, Reply::Prompt(text))
            }
        }
    }

    fn regenerate(&mut self, common: &mut Common, number: usize) -> Check {
        self.catch_up(common)?;
        if self.process.is_dead() {
            return Ok(());
        }
        // A process may have ended before it has stored the message.
        let tree = self.core.tree();
        let text = |node: NodeId| tree.node(node).map(|node| node.message().text());
        common
            .regenerated
            .retain(|known| known.number != number || text(known.user).as_ref() == Some(&known.text));
        let known = common.regenerated.iter().find(|known| known.number == number);
        let (user, before) = if let Some(known) = known {
            (known.user, known.before)
        } else {
            let Some(user) = self.last_prompt(common)? else { return Ok(()) };
            let before = self.responses(user);
            let text = self.core.tree().node(user).map(|node| node.message().text()).unwrap_or_default();
            common.regenerated.push(Regenerated { number, user, text, before });
            (user, before)
        };
        if self.responses(user) > before {
            common.sent += 1;
            return Ok(());
        }
        let reply = Reply::Prompt(format!("regenerate {number}"));
        self.begin_run(common, RunAt::Again(user), Prompt::default(), reply)
    }

    fn responses(&self, user: NodeId) -> usize {
        self.core.tree().children(user).map_or(0, Iterator::count)
    }

    /// Returns the last prompt on the path. Without one, the request is skipped.
    fn last_prompt(&mut self, common: &mut Common) -> Check<Option<NodeId>> {
        self.catch_up(common)?;
        if self.process.is_dead() {
            return Ok(None);
        }
        let tree = self.core.tree();
        let mut node = tree.head().and_then(|head| tree.node(head));
        let is_prompt = |node: &Node| {
            let message = node.message();
            let is_own = message.role == Role::User && message.compaction.is_none();
            is_own && message.tool_results().next().is_none()
        };
        while let Some(other) = node.filter(|node| !is_prompt(node)) {
            node = other.parent().and_then(|parent| tree.node(parent));
        }
        if node.is_none() {
            common.sent += 1;
        }
        Ok(node.map(Node::id))
    }

    /// Starts a run at another node, as the session's task does.
    fn begin_run(&mut self, common: &mut Common, at: RunAt, prompt: Prompt, reply: Reply) -> Check {
        self.catch_up(common)?;
        if self.process.is_dead() || self.process.status() != Status::Idle {
            return Ok(());
        }
        let begun = self.core.begin(at, prompt).map_err(|error| error.to_string())?;
        let (HistoryReplacement { history, then }, opening) = begun;
        let begun = self.process.begin(&mut common.outside, history, opening)?;
        if self.process.is_dead() {
            return Ok(());
        }
        let with = begun.map_err(|error| error.to_string())?;
        while !self.process.is_dead() && !self.process.has_replied_to_owner(&common.outside) {
            let proceeds = self.process.proceed(&mut common.outside)?;
            ensure!(proceeds, "a gate does not open: the session waits for the agent, and performs no write");
        }
        if self.process.is_dead() {
            return Ok(());
        }
        self.core.moved(with, then);
        while self.core.seen().number < with.number && !self.process.is_dead() {
            ensure!(self.deliver(common)?, "the event of the new history does not arrive");
        }
        if self.process.is_dead() { Ok(()) } else { self.acknowledge_run(common, reply) }
    }

    /// Replies to the user when the turn in flight is stored.
    fn acknowledge_run(&mut self, common: &mut Common, reply: Reply) -> Check {
        common.sent += 1;
        if common.outside.script.level != Durable::InFlight {
            return Ok(());
        }
        self.begun.push((u64::MAX, reply));
        self.catch_up(common)?;
        let wanted = self.core.wanted();
        if let Some(begun) = self.begun.last_mut() {
            begun.0 = wanted;
        }
        Ok(())
    }
}
