//! Operations that the owner of the history (a session) requests: random histories, the expected results, and the
//! effect of each operation on the model.

use std::sync::Arc;

use serde_json::json;

use super::{
    Check,
    commands::{random_history, same_error},
    ensure,
    model::Model,
    world::World,
};
use crate::{
    agent::core::{AgentCore, AgentEffect},
    message::{
        Blocks, Content, History, Message, Text, Timestamp, ToolResult, ToolUse, answer_open_tool_uses,
    },
    run::{Error, ErrorKind},
};

impl World {
    /// Returns a random history, which may be invalid.
    fn random_base(&mut self) -> History {
        let committed = &self.model.committed;
        match self.rng.below(8) {
            0..3 => random_history(&mut self.rng),
            3 => committed.clone(),
            _ => {
                let keep = self.rng.below(committed.len() + 1);
                committed.iter().take(keep).cloned().collect()
            }
        }
    }

    /// Returns a message that starts a run on `base`: the committed message that follows `base`, another committed
    /// message, or a new message, which may be invalid.
    fn random_message(&mut self, base: &History) -> Arc<Message> {
        if let Some(next) = self.model.committed.get(base.len()).filter(|_| self.rng.percent(40)) {
            return Arc::clone(next);
        }
        self.prompts += 1;
        let text: Content = Text::new(format!("anew {}", self.prompts)).into();
        let stray = ToolUse::new("stray", "search", json!({}));
        let message = match self.rng.below(20) {
            0 => Message::user(" "),
            1 => Message::assistant([text]),
            2 => Message::user(vec![text, stray.into()]),
            3 => Message::user(vec![ToolResult::ok(&stray, Text::new("stray")).into(), text]),
            4..10 if !self.model.committed.is_empty() => {
                let place = self.rng.below(self.model.committed.len());
                return Arc::clone(self.model.committed.get(place).expect("the index is below the length"));
            }
            _ => Message::user([text]),
        };
        Arc::new(Message { timestamp: Timestamp(0), ..message })
    }

    fn expect_base(&self, base: &History) -> Result<(), Error> {
        if self.model.is_running() {
            return Err(Error::busy("agent", self.model.status));
        }
        Ok(base.check()?)
    }

    /// Starts a run on another history.
    pub(super) fn prompt_on(&mut self) -> Check {
        let base = self.random_base();
        let prompt = self.random_prompt_on(&base);
        self.note(|| format!("owner: prompt {prompt:?} on {base:?}"));
        let expected = self.expect_base(&base).and_then(|()| {
            if let Some(state) = self.known(&prompt) {
                return Err(Error::known_prompt(&state));
            }
            prompt.check()?;
            if prompt.content.is_blank() {
                return Err(Error::empty_prompt());
            }
            let fits = answer_open_tool_uses(&base, prompt.content.clone());
            fits.map(drop).map_err(Error::unfit_prompt)
        });
        let (on, given) = (base.clone(), prompt.clone());
        let ask = self.rng.percent(40);
        let (begun, effects) = self.feed(|core, cx| core.prompt_on(on, given, ask, cx));
        if begun.is_ok() {
            if ask {
                self.asks.begin();
            }
            (self.model.base, self.model.starting) = (Some(base), Some(Arc::new(prompt)));
        }
        self.check_done(&expected, &begun.map(drop), effects)
    }

    /// Starts a run that answers a message which the owner supplies, on a random history.
    pub(super) fn answer_anew(&mut self) -> Check {
        let base = self.random_base();
        let message = self.random_message(&base);
        let settings = self.random_prompt();
        self.note(|| format!("owner: answer {message:?} on {base:?} with {settings:?}"));
        let expected = self.expect_base(&base).and_then(|()| {
            settings.check()?;
            if message.role != crate::message::Role::User {
                return Err(Error::new(ErrorKind::NotAPrompt, "the message is not a prompt"));
            }
            if Blocks(message.content.clone()).is_blank() {
                return Err(Error::empty_prompt());
            }
            let whole: History = base.iter().chain([&message]).cloned().collect();
            whole.check_sendable().map_err(Error::unfit_prompt)
        });
        let (on, given, with) = (base.clone(), Arc::clone(&message), settings.clone());
        let ask = self.rng.percent(40);
        let (begun, effects) = self.feed(|core, cx| core.answer(on, given, with, ask, cx));
        if begun.is_ok() {
            if ask {
                self.asks.begin();
            }
            (self.model.base, self.model.answering) = (Some(base), Some((message, settings)));
        }
        self.check_done(&expected, &begun.map(drop), effects)
    }

    /// Replaces the history.
    pub(super) fn replace_history(&mut self) -> Check {
        let history = self.random_base();
        self.note(|| format!("owner: set {history:?}"));
        let expected = self.expect_base(&history);
        let given = history.clone();
        let (set, effects) = self.feed(|core, cx| core.replace_history(given, cx));
        if set.is_ok() {
            self.model.base = Some(history);
        }
        self.check_done(&expected, &set, effects)
    }

    fn check_done(
        &mut self,
        expected: &Result<(), Error>,
        done: &Result<(), Error>,
        effects: Vec<AgentEffect>,
    ) -> Check {
        match (expected, done) {
            (Ok(()), Ok(())) => {
                let reported =
                    matches!(effects.first(), Some(AgentEffect::Emit(crate::agent::Event::State(_))));
                ensure!(reported, "the first event is not the history: {:?}", effects.first());
            }
            (Err(expected), Err(error)) => same_error(expected.kind(), error, effects.is_empty())?,
            _ => return Err(format!("the owner gets {done:?}, not {expected:?}")),
        }
        self.perform_all(effects)
    }
}

impl Model {
    /// Checks that a `state` event reports a history that was replaced or restored.
    pub(super) fn history_told(&mut self, told: &History) -> Check {
        ensure!(!self.run, "a history is emitted within a run");
        let begins = self.starting.is_some() || self.answering.is_some();
        let (history, restored) = match (self.owed.take(), self.base.take()) {
            (Some(before), _) => (before, true),
            (None, Some(base)) => (base, false),
            (None, None) => return Err("a history is emitted that was not set".to_owned()),
        };
        ensure!(*told == history, "{told:?} is emitted, not {history:?}");
        let former = std::mem::replace(&mut self.committed, history);
        if begins && !restored {
            self.before = Some(former);
        }
        Ok(())
    }

    pub(super) fn check_histories(&self, core: &AgentCore) -> Check {
        ensure!(self.base.is_none(), "a replaced history was not emitted");
        ensure!(self.owed.is_none(), "the previous history was not restored");
        let fallback = core.fallback.as_ref();
        ensure!(self.before.as_ref() == fallback, "the fallback is {fallback:?}, not {:?}", self.before);
        ensure!(self.before.is_none() || self.run, "a fallback without a run");
        Ok(())
    }
}
