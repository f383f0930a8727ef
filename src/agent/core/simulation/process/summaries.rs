//! Compactions of a simulated process: small rooms, summaries that fail, and compactions by request.

use std::sync::Arc;

use super::{Check, OpNumber, Outside, Process, ensure};
use crate::{
    actor::random::Rng,
    agent::{Compact, CompactionPolicy, Config, ResolvedCompactionPolicy, phase::AgentTurnStage},
    message::History,
    provider::{
        BlockStart, Delta, ModelInfo, Part, ProviderError, ProviderErrorKind, StopReason, estimated_tokens,
    },
    run::ErrorKind,
};

/// How often a process ends while a summary is written, in percent.
const CRASHES: usize = 8;

impl Outside {
    /// Gives the agents a random policy, and a model with room for a few messages.
    pub(crate) fn compact(&mut self, rng: &mut Rng) {
        let policy = CompactionPolicy::default()
            .with_threshold(rng.pick(&[0.5, 0.9]))
            .with_kept_turns(rng.pick(&[0, 1, 2]));
        let policy = if rng.percent(50) { policy.without_clearing() } else { policy };
        self.compact_within(20 + rng.below(150) as u64, policy);
    }

    /// Gives the agents a policy with which each answer is followed by a compaction.
    pub(crate) fn compact_always(&mut self) {
        let policy = CompactionPolicy::default().with_threshold(0.5).with_kept_turns(0).without_clearing();
        self.compact_within(0, policy);
    }

    /// Gives the agents a policy, and a model with room for this number of tokens besides the tools.
    fn compact_within(&mut self, tokens: u64, policy: CompactionPolicy) {
        let room = estimated_tokens(None, &self.tools, &History::new()) + tokens;
        let info = ModelInfo::new("model").with_context_window(room + 1).with_output_limit(1);
        let mut config = Config::clone(&self.config);
        config.model = config.model.with_info(info);
        config.set_compactor(Some(ResolvedCompactionPolicy { policy, model: None, acts_at_end: true }));
        config.tools = self.tools.clone();
        self.config = Arc::new(config);
    }

    /// Returns whether the agents have a policy.
    pub(crate) fn compacts(&self) -> bool {
        self.config.compactor().is_some()
    }
}

impl Process {
    /// Returns whether a summary is being written.
    pub(crate) fn is_summarising(&self) -> bool {
        matches!(self.core.phase().stage(), Some(AgentTurnStage::Compacting { .. }))
    }

    /// Returns whether the turn in flight consists of a compaction alone.
    pub(crate) fn compacts_alone(&self) -> bool {
        self.core.phase().turn().is_some_and(|turn| turn.compaction.is_some())
    }

    /// Returns whether a prompt is staged.
    pub(crate) fn has_staged(&self) -> bool {
        !self.core.staged.is_empty()
    }

    /// Requests a compaction. It is refused unless the agent is idle, or if it would change nothing.
    pub(crate) fn compact(&mut self, outside: &mut Outside) -> Check {
        let compact = outside.rng.pick(&[Compact::summary(), Compact::clear(), Compact::undo()]);
        outside.note(|| format!("{compact:?}"));
        let is_idle = self.is_idle();
        self.requests_compaction = is_idle;
        let begun = self.input(outside, |core, cx| core.compact_on_request(&compact, cx))?;
        let Err(error) = begun else {
            ensure!(is_idle, "a compaction begins at {}", self.phase());
            return Ok(());
        };
        self.requests_compaction = false;
        let expected = if is_idle { ErrorKind::NotCompactable } else { ErrorKind::Busy };
        ensure!(error.kind() == expected, "the compaction is refused with {error:?}");
        Ok(())
    }

    /// Lets the model write a summary. Sometimes it fails, or the process ends meanwhile.
    pub(super) fn summarise(&mut self, outside: &mut Outside, op: OpNumber) -> Check {
        if self.may_crash(outside, CRASHES) {
            return Ok(());
        }
        let text = |text: &str| {
            [
                Delta::Start { index: 0, block: BlockStart::Text },
                Delta::Extend { index: 0, part: Part::Text(text.to_owned()) },
            ]
        };
        let use_tool = [Delta::Start {
            index: 0,
            block: BlockStart::ToolUse { id: "0".into(), name: "read".to_owned() },
        }];
        let deltas = match outside.rng.below(10) {
            _ if outside.script.plot.summaries_succeed => text("summary").to_vec(),
            0 => {
                self.stream = None;
                let error = ProviderError::new(ProviderErrorKind::Truncated, "gone");
                return self.input(outside, |core, cx| core.stream_failed(op, error.into(), cx));
            }
            1 => text(" ").to_vec(),
            2 => use_tool.to_vec(),
            _ => text(&format!("summary {}", outside.clock)).to_vec(),
        };
        for delta in deltas.into_iter().chain([Delta::stop(StopReason::Stop)]) {
            self.input(outside, |core, cx| core.delta(op, delta, cx))?;
            if self.is_dead() || self.may_crash(outside, CRASHES) {
                return Ok(());
            }
        }
        self.stream = None;
        self.input(outside, |core, cx| core.stream_ended(op, cx))
    }
}
