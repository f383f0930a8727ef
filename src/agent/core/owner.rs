//! Operations of the history's owner: replacing the history, and starting a run on another history.

use std::sync::Arc;

use super::{AgentCore, CoreInputContext, open, origin};
use crate::{
    agent::{Event, Prompt, phase::RunPromptState},
    message::{Content, History, Message, Role, TurnId},
    run::{Error, ErrorKind},
};

fn is_blank(block: &Content) -> bool {
    matches!(block, Content::Text(text) if text.text.trim().is_empty())
}

impl AgentCore {
    /// Replaces the history and emits a `state` event.
    pub(in crate::agent) fn replace_history(
        &mut self,
        history: History,
        cx: &mut CoreInputContext<'_>,
    ) -> Result<(), Error> {
        self.check_base(&history)?;
        self.set_history(history);
        self.emit_history(cx);
        Ok(())
    }

    /// Replaces the history after messages were erased. Forgets the outcome of the last run, because it may contain an
    /// erased message, and erases the texts of failures in the states of prompts.
    pub(in crate::agent) fn replace_erased(
        &mut self,
        history: History,
        cx: &mut CoreInputContext<'_>,
    ) -> Result<(), Error> {
        self.replace_history(history, cx)?;
        self.last_run = None;
        self.erase_texts();
        Ok(())
    }

    /// Starts a run of `prompt` on the history `base`, and returns its first turn. If the run ends without committing a
    /// turn, the previous history is restored.
    pub(in crate::agent) fn prompt_on(
        &mut self,
        base: History,
        prompt: Prompt,
        ask: bool,
        cx: &mut CoreInputContext<'_>,
    ) -> Result<TurnId, Error> {
        self.check_base(&base)?;
        self.ensure_new(prompt.id.as_ref())?;
        prompt.check()?;
        if prompt.content.is_blank() {
            return Err(Error::empty_prompt());
        }
        let turn = (cx.turn_id)();
        let (message, origin) = open(&base, prompt, turn, ask, cx)?;
        self.begin_on(base, turn, message, origin, cx);
        Ok(turn)
    }

    /// Like [`prompt_on`](Core::prompt_on), but the run starts with the unchanged `message` instead of a message made
    /// from the prompt's content.
    pub(in crate::agent) fn answer(
        &mut self,
        base: History,
        message: Arc<Message>,
        settings: Prompt,
        ask: bool,
        cx: &mut CoreInputContext<'_>,
    ) -> Result<TurnId, Error> {
        self.check_base(&base)?;
        settings.check()?;
        if message.role != Role::User || message.compaction.is_some() {
            return Err(Error::new(ErrorKind::NotAPrompt, "only a user message can start a run again"));
        }
        if message.content.iter().all(is_blank) {
            return Err(Error::empty_prompt());
        }
        let mut whole = base.clone();
        whole.push(Arc::clone(&message));
        whole.check_sendable().map_err(Error::unfit_prompt)?;
        let turn = (cx.turn_id)();
        // The message is not that of a prompt, so an id has no meaning.
        self.begin_on(base, turn, message, origin(Prompt { id: None, ..settings }, ask, cx), cx);
        Ok(turn)
    }

    /// Returns an error if `base` cannot replace the committed history now.
    fn check_base(&self, base: &History) -> Result<(), Error> {
        self.ensure_idle()?;
        if !base.same(&self.history) {
            base.check()?;
        }
        Ok(())
    }

    fn begin_on(
        &mut self,
        base: History,
        turn: TurnId,
        message: impl Into<Arc<Message>>,
        origin: RunPromptState,
        cx: &mut CoreInputContext<'_>,
    ) {
        self.fallback = Some(std::mem::take(&mut self.history));
        self.set_history(base);
        self.emit_history(cx);
        self.begin_turn(turn, message, origin, 0, false, cx);
    }

    /// Restores the previous history after a run on another history that ended without a commit.
    pub(super) fn fall_back(&mut self, cx: &mut CoreInputContext<'_>) {
        if let Some(before) = self.fallback.take() {
            self.set_history(before);
            self.emit_history(cx);
        }
    }

    fn emit_history(&self, cx: &mut CoreInputContext<'_>) {
        let state = cx.config.view(self.history.clone());
        cx.emit(Event::State(Arc::new(state)));
    }
}
