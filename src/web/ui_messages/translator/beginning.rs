//! The frames that a snapshot causes.

use serde_json::json;

use super::{
    super::{
        exchange::{Exchange, answer_id, exchanges, ui_id},
        writer::Writer,
    },
    Phase, Translator,
};
use crate::{
    agent::Status,
    message::{Content, Message, MessageId, Role},
    run::RunOutcome,
    session::SessionSnapshot,
};

impl Translator {
    pub(super) fn start(&mut self) {
        self.phase = Phase::Running;
        self.writer.frame(json!({ "type": "start", "messageId": self.answer }));
    }

    /// Shows the answer in flight from its start.
    pub(super) fn replay(&mut self, snapshot: &SessionSnapshot) {
        self.start();
        if let Some(exchange) = exchanges(snapshot).last() {
            replay_messages(&mut self.writer, exchange.rest.iter().map(|entry| &**entry.message));
        }
        let agent = &snapshot.agent;
        if let Some(answer) = &agent.answer {
            self.writer.step_start(agent.step, Some(answer.clone()));
            for (index, block) in agent.partial.iter().enumerate() {
                self.writer.partial(index, block);
            }
        }
        if agent.status == Status::Paused {
            self.phase = Phase::Pausing { pauses: agent.pauses.clone(), until: Some(snapshot.last) };
            self.settle();
        }
    }

    /// Records the content that the client already has, without sending it again.
    pub(super) fn continue_answer(&mut self, snapshot: &SessionSnapshot) {
        self.start();
        let agent = &snapshot.agent;
        if let Some(answer) = &agent.answer {
            self.writer.continue_step(agent.step, Some(answer.clone()));
            for (index, block) in agent.partial.iter().enumerate() {
                self.writer.continue_block(index, block);
            }
        } else if let Some(message) = agent.pending.last() {
            message.content.iter().for_each(|block| self.writer.note(block));
        }
        agent.pauses.iter().for_each(|pause| self.writer.note_pause(pause));
        if agent.status == Status::Paused {
            // Only some of the waiting tool uses were decided. If no further decision arrives, the response ends at
            // once.
            self.phase = Phase::Pausing { pauses: agent.pauses.clone(), until: None };
        }
    }

    /// Shows the end of a run.
    pub(super) fn replay_ended(
        &mut self,
        snapshot: &SessionSnapshot,
        prompt: &MessageId,
        outcome: &RunOutcome,
    ) {
        let all = exchanges(snapshot);
        let asked = |message: &Message| message.id.as_ref() == Some(prompt);
        let found = all.iter().rfind(|exchange| exchange.prompt.is_some_and(|entry| asked(entry.message)));
        let mut nodes = Vec::new();
        // If the turn was discarded, only the end of the last run names it.
        let last = snapshot.agent.last_run.as_deref();
        let last = last.filter(|end| end.unanswered.iter().any(|message| asked(message)));
        let discarded = last.and_then(|end| end.turn).map(answer_id);
        let id = found.and_then(Exchange::answer_id).or(discarded);
        self.answer = id.unwrap_or_else(|| answer_id(prompt));
        if let Some(exchange) = found {
            nodes = exchange.rest.iter().filter_map(|entry| entry.node).map(crate::tree::Node::id).collect();
        }
        self.start();
        if let Some(exchange) = found {
            replay_messages(&mut self.writer, exchange.rest.iter().map(|entry| &**entry.message));
        }
        match outcome {
            RunOutcome::Stopped { stop_reason } => {
                self.writer.seal();
                self.nodes = nodes;
                let reason = self.reason(stop_reason);
                self.end(reason, json!({ "stopReason": stop_reason.to_string() }));
            }
            RunOutcome::Cancelled => self.discarded("The run was cancelled."),
            RunOutcome::Failed { failure } => {
                self.writer.seal();
                self.error(&failure.to_string());
            }
            RunOutcome::Abandoned => self.abandoned(),
            RunOutcome::Discarded => self.discarded("The run was discarded."),
        }
    }
}

/// Writes the results in a message, unless earlier events contained them.
pub(super) fn write_results(writer: &mut Writer, message: &Message) {
    for (index, block) in message.content.iter().enumerate() {
        if let Content::ToolResult(result) = block {
            writer.result(result, message.id.as_ref().map(|id| (id, index)));
        }
    }
}

/// Writes whole messages of an answer: each assistant message is a step.
pub(in super::super) fn replay_messages<'a>(
    writer: &mut Writer,
    messages: impl Iterator<Item = &'a Message>,
) {
    let mut step = 0;
    for message in messages {
        if message.role == Role::Assistant {
            step += 1;
            writer.step_start(step, message.id.clone());
            message.content.iter().enumerate().for_each(|(index, block)| writer.block(index, block));
            writer.step_end();
            // If a step ended while some tool uses were open, its other tool uses contain their results, because no
            // message contains them yet.
            let decided = message.tool_uses().filter_map(|tool_use| tool_use.decided.as_deref());
            decided.for_each(|result| writer.result(result, None));
        } else {
            write_results(writer, message);
            writer.step_over();
            let is_joined = message.tool_results().next().is_none();
            if is_joined && message.content.iter().any(|block| !matches!(block, Content::ToolResult(_))) {
                writer.steering(&ui_id(message, None), message);
            }
        }
    }
}
