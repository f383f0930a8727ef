//! Names of tools as services take them: those that are declared, and those in a conversation. A model may have called what
//! nobody declared, by a name that no tool could have: the call and its error stay in the history, and each request
//! after that would be refused.

use std::{borrow::Cow, collections::HashMap};

use crate::provider::{
    BlockStart, Delta, ProviderError, Request,
    dialect::{Decoder, Frame, ids::hash},
};

/// The name of a tool, in letters, digits, `_`, `-` and what is `also` taken, at most `limit` of them, the first a
/// letter or `_`. No two tools that the request declares have the same. What was called and is not declared may share one:
/// calls and results are matched by their ids.
pub(super) fn tool_name<'a>(request: &Request, name: &'a str, limit: usize, also: &str) -> Cow<'a, str> {
    let clean = cleaned(name, limit, also);
    let is_taken = |clean: &str| {
        let mut others = request.tools.iter().map(|tool| tool.name()).filter(|other| *other != name);
        others.any(|other| cleaned(other, limit, also) == clean)
    };
    if matches!(clean, Cow::Borrowed(_)) || request.tools.get(name).is_none() || !is_taken(&clean) {
        return clean;
    }
    let mark = format!("_{:016x}", hash(name));
    let mut distinct: String = clean.chars().take(limit.saturating_sub(mark.len())).collect();
    distinct.push_str(&mark);
    distinct.into()
}

fn cleaned<'a>(name: &'a str, limit: usize, also: &str) -> Cow<'a, str> {
    if name.is_empty() {
        return Cow::Borrowed("tool");
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-') || also.contains(c);
    let begins = |name: &str| name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if begins(name) && name.len() <= limit && name.chars().all(fits) {
        return Cow::Borrowed(name);
    }
    let mut clean: String = name.chars().map(|c| if fits(c) { c } else { '_' }).take(limit).collect();
    if !begins(&clean) {
        clean.insert(0, '_');
        clean.truncate(limit);
    }
    Cow::Owned(clean)
}

/// A decoder that gives tools the names again by which they are declared.
pub(super) struct Named<D> {
    inner: D,
    /// By the names that the service knows them by, where these are others.
    declared: HashMap<String, String>,
}

/// The decoder `inner` of an answer to `request`, whose tools are named to the service as by [`tool_name`].
pub(super) fn named<D: Decoder>(inner: D, request: &Request, limit: usize, also: &str) -> Named<D> {
    let names = request.tools.iter().map(|tool| (tool_name(request, tool.name(), limit, also), tool.name()));
    let others = names.filter(|(wire, name)| wire != name);
    Named { inner, declared: others.map(|(wire, name)| (wire.into_owned(), name.to_owned())).collect() }
}

impl<D> Named<D> {
    fn rename(&self, deltas: &mut [Delta]) {
        for delta in deltas {
            if let Delta::Start { block: BlockStart::ToolUse { name, .. }, .. } = delta
                && let Some(declared) = self.declared.get(name)
            {
                name.clone_from(declared);
            }
        }
    }
}

impl<D: Decoder> Decoder for Named<D> {
    fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
        let before = deltas.len();
        let decoded = self.inner.decode(frame, deltas);
        self.rename(&mut deltas[before..]);
        decoded
    }

    fn is_done(&self) -> bool {
        self.inner.is_done()
    }

    fn end(&mut self, deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
        let before = deltas.len();
        let ended = self.inner.end(deltas);
        self.rename(&mut deltas[before..]);
        ended
    }
}
