//! Names of tools in a conversation, as services take them. A model may have called what nobody declared, by a name that
//! no tool could have: the call and its error stay in the history, and each request after that would be refused.

use std::borrow::Cow;

use crate::provider::Request;

/// The name of a tool that was called: as it is if the request declares it, else in letters, digits, `_`, `-` and what
/// is `also` taken, at most `limit` of them, the first a letter or `_`. Two names may become one: calls and results
/// are matched by their ids.
pub(super) fn tool_name<'a>(request: &Request, name: &'a str, limit: usize, also: &str) -> Cow<'a, str> {
    if name.is_empty() {
        return Cow::Borrowed("tool");
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-') || also.contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if request.tools.get(name).is_some() || (begins && name.len() <= limit && name.chars().all(fits)) {
        return Cow::Borrowed(name);
    }
    let mut clean: String = name.chars().map(|c| if fits(c) { c } else { '_' }).take(limit).collect();
    if !clean.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        clean.insert(0, '_');
        clean.truncate(limit);
    }
    Cow::Owned(clean)
}
