//! What the history's owner may do: replace the history, and begin a run on another one.

use std::sync::Arc;

use super::{Core, Effect, Effects, Env, open, user_message};
use crate::{
    agent::{AgentError, Event, Prompt, phase::Origin},
    message::{Content, History, Message, Role},
};

fn is_blank(block: &Content) -> bool {
    matches!(block, Content::Text(text) if text.text.trim().is_empty())
}

impl Core {
    /// Replaces the history, and tells.
    pub(in crate::agent) fn replace_history(
        &mut self,
        history: History,
        env: &Env<'_>,
        effects: &mut Effects,
    ) -> Result<(), AgentError> {
        self.check_base(&history)?;
        self.history = history;
        self.tell_history(env, effects);
        Ok(())
    }

    /// Begins a run of `prompt` on the history `base`. Unless the run commits a turn, its end brings the history
    /// of before back.
    pub(in crate::agent) fn prompt_on(
        &mut self,
        base: History,
        prompt: Prompt,
        ask: bool,
        env: &Env<'_>,
        effects: &mut Effects,
    ) -> Result<(), AgentError> {
        self.check_base(&base)?;
        prompt.check()?;
        if prompt.content.is_blank() {
            return Err(AgentError::EmptyPrompt);
        }
        let (content, origin) = open(&base, prompt, ask, env)?;
        self.begin_on(base, Arc::new(user_message(content, env)), origin, env, effects);
        Ok(())
    }

    /// As [`prompt_on`](Core::prompt_on), with `message` as it is in place of the content of the prompt.
    pub(in crate::agent) fn answer(
        &mut self,
        base: History,
        message: Arc<Message>,
        settings: Prompt,
        ask: bool,
        env: &Env<'_>,
        effects: &mut Effects,
    ) -> Result<(), AgentError> {
        self.check_base(&base)?;
        settings.check()?;
        if message.role != Role::User {
            return Err(AgentError::NotAPrompt);
        }
        if message.content.iter().all(is_blank) {
            return Err(AgentError::EmptyPrompt);
        }
        let mut whole = base.clone();
        whole.push(Arc::clone(&message));
        whole.check_sendable().map_err(AgentError::InvalidPrompt)?;
        let (_, origin) = open(&History::new(), settings.without_content(), ask, env)?;
        self.begin_on(base, message, origin, env, effects);
        Ok(())
    }

    /// Refuses a history that can't take the place of the committed one now.
    fn check_base(&self, base: &History) -> Result<(), AgentError> {
        self.ensure_idle()?;
        if !base.same(&self.history) {
            base.check()?;
        }
        Ok(())
    }

    fn begin_on(
        &mut self,
        base: History,
        message: Arc<Message>,
        origin: Origin,
        env: &Env<'_>,
        effects: &mut Effects,
    ) {
        self.fallback = Some(Box::new(std::mem::replace(&mut self.history, base)));
        self.tell_history(env, effects);
        self.begin_turn(message, origin, 0, env, effects);
    }

    /// A run has ended without a commit: the history of before it is back, if it was on another one.
    pub(super) fn fall_back(&mut self, env: &Env<'_>, effects: &mut Effects) {
        if let Some(before) = self.fallback.take() {
            self.history = *before;
            self.tell_history(env, effects);
        }
    }

    fn tell_history(&self, env: &Env<'_>, effects: &mut Effects) {
        let state = env.config.view(self.history.clone());
        effects.push(Effect::Emit(Event::State(Arc::new(state))));
    }
}
