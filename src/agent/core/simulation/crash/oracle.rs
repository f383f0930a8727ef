//! The promises that hold over all lives.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde_json::Value;

use crate::{
    actor::simulation::{Check, ensure},
    agent::{Durable, phase::ToolCall},
    message::{History, TurnId},
    tool::Replay,
};

#[derive(Default)]
pub(super) struct Oracle {
    /// The calls of each key: their number, and the input of the first one.
    calls: HashMap<Arc<str>, (usize, Value)>,
    /// The number of additional calls that persons have allowed, by key.
    allowed: HashMap<String, usize>,
    /// The requests that were sent: the turn and the step of each.
    requests: HashSet<(TurnId, u32)>,
    /// The prompts whose acceptance was acknowledged.
    acknowledged: HashSet<String>,
    /// The prompts that a stored end of a run has returned.
    returned: HashSet<String>,
}

impl Oracle {
    pub(super) fn starts(&mut self, call: &ToolCall, replay: Replay) -> Check {
        if replay == Replay::Safe {
            return Ok(());
        }
        let input = call.tool_use.input.clone();
        let (count, first) =
            self.calls.entry(Arc::clone(&call.idempotency_key)).or_insert_with(|| (0, input.clone()));
        *count += 1;
        ensure!(*first == input, "{call:?} was begun with {first} before");
        let allowed = 1 + self.allowed.get(&*call.idempotency_key).copied().unwrap_or_default();
        ensure!(replay != Replay::Never || *count <= allowed, "{call:?} begins {count} times");
        Ok(())
    }

    /// Records that a person allows another call with this key.
    pub(super) fn allow(&mut self, key: &str) {
        *self.allowed.entry(key.to_owned()).or_default() += 1;
    }

    pub(super) fn requests(&mut self, turn: TurnId, step: u32, replay: Replay) -> Check {
        let is_new = self.requests.insert((turn, step));
        ensure!(is_new || replay != Replay::Never, "the request of step {step} is sent again");
        Ok(())
    }

    pub(super) fn acknowledge(&mut self, prompt: String) {
        self.acknowledged.insert(prompt);
    }

    pub(super) fn returns(&mut self, prompts: impl IntoIterator<Item = String>) {
        self.returned.extend(prompts);
    }

    pub(super) fn check_end(&self, history: &History, level: Durable, is_plain: bool) -> Check {
        history.check().map_err(|error| error.to_string())?;
        let texts: Vec<_> = history.iter().map(|message| message.text()).collect();
        let count = |prompt: &String| texts.iter().filter(|text| *text == prompt).count();
        for prompt in &self.acknowledged {
            let count = count(prompt);
            ensure!(count <= 1, "{prompt} was used {count} times");
            let is_kept = count == 1 || self.returned.contains(prompt);
            ensure!(is_kept || level < Durable::InFlight, "{prompt} was acknowledged and is lost");
        }
        if is_plain && level == Durable::InFlight {
            let keyed = self.calls.values().count();
            let results = history.iter().flat_map(|message| message.tool_results());
            let ran = results.filter(|result| result.name == "put" && !result.is_error).count();
            ensure!(keyed == ran, "{keyed} calls have different keys, but {ran} results are kept");
        }
        Ok(())
    }
}
