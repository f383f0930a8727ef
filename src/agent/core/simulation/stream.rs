//! The provider: a random response, delta by delta.

use std::time::Duration;

use serde_json::json;

use super::{Check, ends::some_usage, model::Input, outputs::FITS, world::World};
use crate::actor::random::Rng;
use crate::{
    agent::{Failure, core::AgentCore, phase::OpNumber},
    message::{Attachment, ProviderItem, ToolUse},
    provider::{BlockStart, Delta, MessageDelta, Part, ProviderError, ProviderErrorKind, StopReason},
};

/// A request in flight and the response streamed so far.
pub(super) struct Stream {
    pub(super) op: OpNumber,
    blocks: Vec<Kind>,
    /// Whether the stop reason was sent.
    stopped: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Text,
    Thinking,
    ToolUse,
    Item,
    Whole,
}

/// The provider's next action.
enum Next {
    Delta(Delta),
    Ask,
    Withdraw,
    Fail(Failure),
    End,
}

/// The ids of tool uses. The list is short, so that ids repeat. One id is empty, and some look like generated ids.
const IDS: [&str; 7] = ["a", "b", "c", "", "a_1", "a_1_0", "a?1"];
const NAMES: [&str; 7] = ["search", "search", "search", "write", "unknown", "ask_user", "pick"];

impl Stream {
    pub(super) fn new(op: OpNumber) -> Self {
        Self { op, blocks: Vec::new(), stopped: false }
    }

    fn next(&mut self, rng: &mut Rng, friendly: bool) -> Next {
        if self.stopped && (friendly || rng.percent(80)) {
            return Next::End;
        }
        match rng.below(100) {
            _ if friendly => self.stop(rng, true),
            _ if self.blocks.is_empty() && rng.percent(4) => {
                let kinds = [
                    ProviderErrorKind::InvalidRequest,
                    ProviderErrorKind::Unsupported,
                    ProviderErrorKind::ContextTooLong,
                ];
                Next::Fail(ProviderError::new(rng.pick(&kinds), "refused").into())
            }
            0..18 => self.stop(rng, false),
            18..20 => {
                use ProviderErrorKind::{Auth, ContextTooLong, Overloaded, Quota, Timeout};
                let kind = rng.pick(&[Auth, ContextTooLong, Overloaded, Quota, Timeout]);
                Next::Fail(ProviderError::new(kind, "failed").into())
            }
            20 => Next::Fail(Failure::ProviderPanicked { message: "boom".into() }),
            21..23 => Next::End,
            23..26 => Next::Ask,
            26..29 => Next::Withdraw,
            29..37 => Next::Delta(Delta::Message(Box::new(MessageDelta {
                usage: Some(some_usage(rng.below(50))),
                model: rng.percent(30).then(|| "the-model".to_owned()),
                output_enforced: rng.percent(30),
                ..MessageDelta::default()
            }))),
            37..39 => Next::Delta(self.refused(rng)),
            39..42 => {
                self.blocks.clear();
                let wait = rng.pick(&[None, Some(5), Some(6)]).map(Duration::from_secs);
                let error = ProviderError::new(ProviderErrorKind::Overloaded, "again").with_retry_after(wait);
                Next::Delta(Delta::Retry { error: Box::new(error), delay: Duration::from_secs(1) })
            }
            39..60 if self.blocks.len() < 4 => Next::Delta(self.start(rng)),
            60..70 if !self.blocks.is_empty() => {
                // If the last block has already ended, the core must treat its second `End` as an error.
                Next::Delta(Delta::End { index: self.blocks.len() - 1 })
            }
            _ => self.extend(rng).map_or_else(|| Next::Delta(self.start(rng)), Next::Delta),
        }
    }

    fn stop(&mut self, rng: &mut Rng, friendly: bool) -> Next {
        self.stopped = true;
        let usual = if self.blocks.contains(&Kind::ToolUse) { StopReason::ToolUse } else { StopReason::Stop };
        let reason = match rng.below(20) {
            _ if friendly => usual,
            0..11 => usual,
            11..13 => StopReason::Pause,
            13..16 => StopReason::Length,
            16 => StopReason::Refusal,
            17 => rng.pick(&[StopReason::ToolUse, StopReason::ContextLength]),
            18 => StopReason::Stop,
            _ => StopReason::Other("strange".into()),
        };
        Next::Delta(Delta::stop(reason))
    }

    fn start(&mut self, rng: &mut Rng) -> Delta {
        let (kind, block) = match rng.below(20) {
            0..6 => (Kind::Text, BlockStart::Text),
            6..9 => (Kind::Thinking, BlockStart::Thinking),
            9..18 => {
                let (id, name) = (rng.pick(&IDS).into(), rng.pick(&NAMES).to_owned());
                (Kind::ToolUse, BlockStart::ToolUse { id, name })
            }
            18 => (Kind::Whole, BlockStart::Attachment(Attachment::url("image/png", "https://example.org/"))),
            _ => (Kind::Item, BlockStart::ProviderItem(ProviderItem::new("nobody", json!({ "at": 0 })))),
        };
        self.blocks.push(kind);
        Delta::Start { index: self.blocks.len() - 1, block }
    }

    fn extend(&mut self, rng: &mut Rng) -> Option<Delta> {
        let index = rng.below(self.blocks.len().max(1));
        let part = match self.blocks.get(index)? {
            Kind::Whole => return None,
            Kind::Text => rng.pick(&["word", " ", FITS, "s"].map(|piece| match piece {
                "s" => Part::Signature(piece.into()),
                piece => Part::Text(piece.into()),
            })),
            Kind::Thinking => {
                rng.pick(&[Part::Text("hm".into()), Part::Signature("s".into()), Part::Redacted("r".into())])
            }
            Kind::ToolUse => {
                let piece = rng.pick(&["{}", "{\"n\": 1}", "{\"n\":", " 1}", "{oops"]);
                Part::Input(piece.to_owned())
            }
            Kind::Item => Part::Item(json!({ "at": rng.below(9) })),
        };
        Some(Delta::Extend { index, part })
    }

    fn refused(&self, rng: &mut Rng) -> Delta {
        let index = self.blocks.len();
        match rng.below(3) {
            0 => Delta::Start { index: index + 1, block: BlockStart::Text },
            1 => Delta::Extend { index, part: Part::Text("nowhere".into()) },
            _ => Delta::End { index },
        }
    }
}

impl World {
    /// Performs the provider's next action.
    pub(super) fn stream_outcome(&mut self) -> Check {
        let Some(stream) = &mut self.stream else {
            return Err("no stream is open".to_owned());
        };
        let (op, begun) = (stream.op, !stream.blocks.is_empty());
        match stream.next(&mut self.rng, self.friendly) {
            Next::Delta(delta) => {
                self.note(|| format!("{delta:?}"));
                if let Delta::Message(data) = &delta {
                    self.model.told(data)?;
                }
                let is_summary = self.model.is_summarising();
                if let Delta::Retry { error, .. } = &delta
                    && (is_summary || !self.model.avoids_wait(error))
                {
                    if !is_summary {
                        self.model.input = if begun { Input::Restart } else { Input::NewAttempt };
                    }
                    if !begun {
                        self.attempt();
                    }
                }
                self.input(|core, cx| core.delta(op, delta, cx))
            }
            Next::Ask => self.ask(op),
            Next::Withdraw => {
                if self.question.take().is_none() {
                    return Ok(());
                }
                self.note(|| "the question is withdrawn".to_owned());
                self.input(AgentCore::question_withdrawn)
            }
            Next::Fail(failure) => {
                self.note(|| format!("{failure:?}"));
                self.model.overflow = Some(failure.clone());
                self.input(|core, cx| core.stream_failed(op, failure, cx))
            }
            Next::End => {
                self.note(|| "end of stream".to_owned());
                if !self.model.is_summarising() {
                    self.model.stream_ends();
                }
                (self.stream, self.question) = (None, None);
                self.input(|core, cx| core.stream_ended(op, cx))
            }
        }
    }

    fn ask(&mut self, op: OpNumber) -> Check {
        let tool_use = ToolUse::new(self.rng.pick(&IDS), "served", json!({}));
        self.note(|| format!("the provider asks for {tool_use:?}"));
        if self.core.can_be_asked() {
            self.question = Some(tool_use.clone());
            return self.input(|core, cx| core.asked(op, tool_use, cx));
        }
        // The shell reports no second question while one is open. Even if it did, the second question must not replace
        // the first.
        let ((), effects) = self.feed(|core, cx| core.asked(op, tool_use, cx));
        super::ensure!(effects.is_empty(), "a second question is processed: {effects:?}");
        Ok(())
    }
}
