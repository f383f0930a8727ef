//! Checks the ids of messages.

use std::collections::HashSet;

use super::{Check, ensure, model::Model};
use crate::{
    agent::{Prompt, core::AgentCore},
    message::{Message, MessageId},
};

/// The ids of messages that were emitted.
#[derive(Default)]
pub(super) struct Ids {
    /// The ids that the agent has made. None of them may be used twice.
    made: HashSet<MessageId>,
    /// The id of the requested response.
    pub(super) answer: Option<MessageId>,
    /// Whether `answer` was announced and the request for this response was not sent yet.
    announced: bool,
}

impl Ids {
    /// Records an id, and checks that it was never used before.
    fn make(&mut self, id: &MessageId) -> Check {
        ensure!(self.made.insert(id.clone()), "{id} is used twice");
        Ok(())
    }

    /// Records the id that was announced for the response to the next request, or to another attempt at a request.
    pub(super) fn announce(&mut self, id: &MessageId) -> Check {
        self.make(id)?;
        ensure!(self.answer.is_none(), "{id} is announced after {:?}", self.answer);
        (self.answer, self.announced) = (Some(id.clone()), true);
        Ok(())
    }

    /// Checks that the id of the response was announced before the request is sent.
    pub(super) fn opened(&mut self) -> Check {
        ensure!(std::mem::take(&mut self.announced), "a request is sent without an id for its response");
        Ok(())
    }

    /// Checks the id and the data of a user message. Only the message of a prompt can have data.
    pub(super) fn user(&mut self, message: &Message, prompt: Option<&Prompt>) -> Check {
        let id = message.id.as_ref().ok_or_else(|| format!("{message:?} has no id"))?;
        match prompt.and_then(|prompt| prompt.id.clone()) {
            Some(given) => ensure!(*id == given.clone().into(), "the message of {given} is {id}"),
            None => self.make(id)?,
        }
        Ok(())
    }

    /// Checks the id of a response.
    pub(super) fn assistant(&mut self, message: &Message) -> Check {
        ensure!(self.answer.is_some(), "{message:?} was not announced");
        let announced = self.answer.take();
        ensure!(message.id == announced, "{message:?} is emitted, but {announced:?} was announced");
        Ok(())
    }

    pub(super) fn check_rest(&self, core: &AgentCore) -> Check {
        let answer = core.phase().turn().and_then(|turn| turn.answer.as_ref());
        ensure!(answer == self.answer.as_ref(), "the answer is {answer:?}, not {:?}", self.answer);
        Ok(())
    }
}

impl Model {
    /// Checks the event that announces a step and the id of its response.
    pub(super) fn step_starts(&mut self, step: u32, id: &MessageId) -> Check {
        use super::model::TurnStage;
        self.ids.announce(id)?;
        self.check_step(step)?;
        let turn = self.turn()?;
        ensure!(turn.place == TurnStage::Asking && turn.blocks.is_empty(), "a step at {:?}", turn.place);
        Ok(())
    }
}
