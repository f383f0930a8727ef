//! Rules that match model ids by family, version and words. They also match ids of models that the catalogue does not
//! list.
//!
//! The first rule that matches counts, so a rule for a future generation is the first line of its family. A fact that
//! could not be verified is omitted, because a wrong limit does more harm than a missing one.

use serde::Deserialize;

/// The rules of one family of models, which have ids of the same form. A rule yields a value of type `T` for the models
/// that it matches.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct Family<T> {
    /// A text that the ids of the family contain.
    pub(super) contains: Option<String>,
    /// The prefixes of the family's names. They are used if `contains` is not set.
    #[serde(default)]
    pub(super) starts: Vec<String>,
    /// The place of the version in the part of the id after the family's name.
    #[serde(default)]
    version: Version,
    /// The rules. The first rule that matches is used.
    pub(super) rules: Vec<Rule<T>>,
}

/// The place of a model's version in the rest of its id, which is the part after the family's name.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Version {
    /// The version is the first part of the rest, such as `2.5`. Parts are separated by `-`.
    #[default]
    First,
    /// The version is in the same place as for `First`, but an id without a version, such as `gemini-flash-latest`,
    /// names the newest model.
    FirstOrNewest,
    /// The version consists of the digits and dots at the start of the rest: `4.5` in `4.5v`.
    Digits,
    /// The version is the first number in any part, together with the number directly after it: `opus-4-8`,
    /// `3-7-sonnet-20250219`. A date is not a version. Parts are separated by any punctuation.
    Anywhere,
}

/// A rule for the models of a family.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule<T> {
    /// Words that must all occur in the part of the id after the family's name. `image|audio` matches either word. `#b`
    /// matches a word that begins with a digit and ends with `b`, such as `32b`. An empty word matches if the family's
    /// name is at the end of the id or directly before a `-`.
    #[serde(default)]
    pub(super) words: Vec<String>,
    /// The lowest version that the rule matches. If this is not set, the rule also matches ids without a version.
    pub(super) since: Option<(u8, u8)>,
    #[serde(rename = "traits", alias = "switches")]
    pub(super) value: T,
}

/// Returns the value of the rule that matches a model. This is the first matching rule of the first family that has
/// one. `name` and `text` are two forms of the model's id: prefixes are compared with `name`, and texts are searched
/// for in `text`.
pub(in crate::provider) fn find<'a, T>(families: &'a [Family<T>], name: &str, text: &str) -> Option<&'a T> {
    families.iter().find_map(|family| family.find(name, text))
}

impl<T> Family<T> {
    fn find(&self, name: &str, text: &str) -> Option<&T> {
        let rest = match &self.contains {
            Some(contained) => text.split_once(contained.as_str())?.1,
            None => self.starts.iter().find_map(|start| name.strip_prefix(start.as_str()))?,
        };
        let any = self.version == Version::Anywhere;
        let parts = || rest.split(move |c: char| if any { !c.is_ascii_alphanumeric() } else { c == '-' });
        let version = self.version.read(rest, parts());
        let is = |word: &str, part: &str| match word.strip_prefix('#') {
            Some(end) => part.ends_with(end) && part.starts_with(|first: char| first.is_ascii_digit()),
            None => word == part,
        };
        let has = |words: &String| parts().any(|part| words.split('|').any(|word| is(word, part)));
        let matches = |rule: &&Rule<T>| {
            rule.since.is_none_or(|since| version.is_some_and(|version| version >= since))
                && rule.words.iter().all(has)
        };
        self.rules.iter().find(matches).map(|rule| &rule.value)
    }
}

impl Version {
    /// Reads the version from the rest of an id, which is also passed as separate parts.
    fn read<'a>(self, rest: &'a str, mut parts: impl Iterator<Item = &'a str>) -> Option<(u8, u8)> {
        if self == Self::Anywhere {
            let number = |part: &str| if part.len() <= 2 { part.parse().ok() } else { None };
            let major = parts.by_ref().find_map(number)?;
            return Some((major, parts.next().and_then(number).unwrap_or(0)));
        }
        let first = match self {
            Self::Digits => rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?,
            _ => parts.next()?,
        };
        let (major, minor) = first.split_once('.').unwrap_or((first, "0"));
        let version = major.parse().ok().zip(minor.parse().ok());
        if self == Self::FirstOrNewest { version.or(Some((u8::MAX, 0))) } else { version }
    }
}
