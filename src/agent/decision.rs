//! The decisions about the turn in flight that somebody made under a name.

use super::Decided;
use crate::message::{ToolUseId, UseDecision};

/// The maximum number of decisions that a turn and its snapshot contain. Older decisions are forgotten.
pub(super) const MAX_NAMED: usize = 256;

/// Adds a decision to the list of its turn, if it was made under a name. The list contains no inputs, because the
/// messages and the started tools contain them.
pub(super) fn add_named(list: &mut Vec<(ToolUseId, UseDecision)>, decided: &Decided) {
    if decided.by.is_none() {
        return;
    }
    if list.len() >= MAX_NAMED {
        list.remove(0);
    }
    list.push((decided.tool_use_id.clone(), decided.as_use_decision()));
}
