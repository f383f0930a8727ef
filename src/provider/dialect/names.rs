//! Conversion of tool names to names that services accept, for declared tools and for tool uses in a conversation.
//!
//! A model may have called a tool that was never declared, with a name that is invalid for a tool. The call and its
//! error stay in the history. Without the conversion, the service would reject every later request because of this
//! name.

use std::{borrow::Cow, collections::HashMap};

use crate::provider::Request;

/// The maximum length of the name of a schema or a tool, in characters:
/// <https://platform.openai.com/docs/api-reference/chat/create>.
pub(super) const NAME_LIMIT: usize = 64;

/// The names of a request's tools on the wire.
///
/// A name on the wire consists of letters, digits, `_`, `-` and the characters in `also`. It has at most `limit`
/// characters and begins with a letter or `_`. The names of declared tools are distinct. Tools that are called but not
/// declared may share a name, because calls and results are matched by their ids.
pub(super) struct ToolNames<'a> {
    request: &'a Request,
    limit: usize,
    also: &'static str,
    /// Distinct names for declared tools whose names on the wire would otherwise be equal.
    apart: HashMap<&'a str, String>,
}

impl<'a> ToolNames<'a> {
    pub(super) fn of(request: &'a Request, limit: usize, also: &'static str) -> Self {
        let names = request.tools.iter().map(|tool| tool.name());
        let names: Vec<_> = names.map(|name| (name, cleaned(name, limit, also))).collect();
        let mut uses: HashMap<&str, usize> = HashMap::new();
        for (_, clean) in &names {
            *uses.entry(clean).or_default() += 1;
        }
        let shared =
            |(_, clean): &&(&str, Cow<'_, str>)| matches!(clean, Cow::Owned(_)) && uses[&**clean] > 1;
        let apart = names.iter().filter(shared).map(|(name, clean)| {
            let mark = format!("_{:016x}", hash(name));
            let mut distinct: String = clean.chars().take(limit.saturating_sub(mark.len())).collect();
            distinct.push_str(&mark);
            (*name, distinct)
        });
        Self { request, limit, also, apart: apart.collect() }
    }

    /// Returns the name of this tool on the wire.
    pub(super) fn get<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match self.apart.get(name) {
            Some(distinct) => distinct.clone().into(),
            None => cleaned(name, self.limit, self.also),
        }
    }

    /// Returns the declared names by the names on the wire. Only names that differ are included.
    pub(super) fn declared(&self) -> HashMap<String, String> {
        let names = self.request.tools.iter().map(|tool| (self.get(tool.name()), tool.name()));
        let others = names.filter(|(wire, name)| wire != name);
        others.map(|(wire, name)| (wire.into_owned(), name.to_owned())).collect()
    }
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

/// The FNV-1a hash. The function must never change, because its results are part of stored conversations.
pub(super) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
