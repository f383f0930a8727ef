use super::lenient::Count;
use crate::provider::{Delta, MessageDelta};

/// Picks the one answer that is asked for, where the format has room for several.
#[derive(Debug, Default)]
pub(super) struct Alternatives {
    /// The index of the answer that is read: the first one that came.
    index: Option<u64>,
    warned: bool,
}

impl Alternatives {
    /// The part of the answer among the parts of an event. The first part of another answer makes a warning.
    pub(super) fn pick<T>(
        &mut self,
        parts: Vec<Option<T>>,
        index: impl Fn(&T) -> Count,
        deltas: &mut Vec<Delta>,
    ) -> Option<T> {
        // Several at once need not come in order.
        if self.index.is_none() {
            self.index = parts.iter().flatten().map(|part| index(part).or_zero()).min();
        }
        let mut picked = None;
        for part in parts.into_iter().flatten() {
            if picked.is_none() && self.index == Some(index(&part).or_zero()) {
                picked = Some(part);
            } else if !std::mem::replace(&mut self.warned, true) {
                let warning = "the service sent several answers to one request: only the first one is read";
                let warnings = vec![warning.to_owned()];
                deltas.push(Delta::Message(Box::new(MessageDelta { warnings, ..MessageDelta::default() })));
            }
        }
        picked
    }
}
