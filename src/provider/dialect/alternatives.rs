use super::lenient::Count;
use crate::provider::Delta;

/// Picks one of several alternative responses, if a service sends more than the one that was requested.
#[derive(Debug, Default)]
pub(super) struct Alternatives {
    /// The index of the chosen response, which is the first response that arrived.
    index: Option<u64>,
    warned: bool,
}

impl Alternatives {
    /// Returns the part of an event that belongs to the chosen response. The first part of another response causes a
    /// warning.
    pub(super) fn pick<T>(
        &mut self,
        parts: Vec<Option<T>>,
        index: impl Fn(&T) -> Count,
        deltas: &mut Vec<Delta>,
    ) -> Option<T> {
        // One event may contain several alternatives in any order, so the smallest index is chosen.
        if self.index.is_none() {
            self.index = parts.iter().flatten().map(|part| index(part).or_zero()).min();
        }
        let mut picked = None;
        for part in parts.into_iter().flatten() {
            if picked.is_none() && self.index == Some(index(&part).or_zero()) {
                picked = Some(part);
            } else if !std::mem::replace(&mut self.warned, true) {
                let warning =
                    "the service sent several alternative responses to one request: only the first is used";
                deltas.push(Delta::warning(warning));
            }
        }
        picked
    }
}
