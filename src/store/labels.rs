use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{Page, StoreError};
use crate::run::{Error, ErrorKind};

/// The labels of a conversation, such as its tenant, user, kind or tags. Each label has a name and a value.
///
/// Labels are stored with the conversation. A [`Filter`] lists the conversations with certain labels. Clones share
/// their content.
///
/// A conversation has at most [`Labels::MOST`] labels. A name has 1 to 32 of the characters `a` to `z`, `0` to `9`,
/// `_`, `.` and `-`. A value has 1 to 128 bytes and no control characters. Names that begin with `omni.` are reserved
/// for this crate. Labels with these names do not count towards the maximum.
///
/// ```
/// use omni_agent::store::Labels;
///
/// let labels = Labels::new([("tenant", "acme"), ("user", "ann")])?;
/// assert_eq!(labels.get("tenant"), Some("acme"));
/// assert!(Labels::new([("Tenant", "acme")]).is_err());
/// # Ok::<(), omni_agent::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(
        description = "The labels of a conversation, such as its tenant, user, kind or tags. A conversation has at most 8 \
                       labels. A name has 1 to 32 of the characters `a` to `z`, `0` to `9`, `_`, `.` and `-`. A value has \
                       1 to 128 bytes and no control characters. Names that begin with `omni.` are reserved and do not \
                       count.",
        extend(
            "propertyNames" = { "pattern": "^[a-z0-9_.-]{1,32}$" },
            "additionalProperties" = {
                "type": "string",
                "maxLength": 128,
                "pattern": r"^[^\u0000-\u001f\u007f-\u009f]+$"
            }
        )
    )
)]
pub struct Labels(
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, String>"))]
    Option<Arc<BTreeMap<String, String>>>,
);

impl Labels {
    pub(super) const NONE: Self = Self(None);

    /// The maximum number of labels of a conversation.
    pub const MOST: usize = 8;

    /// The label of a sub-agent's conversation with the id of the conversation whose tool has started it.
    pub(crate) const PARENT: &'static str = "omni.parent";
    /// The label of a sub-agent's conversation with the id of the conversation that is above all others.
    pub(crate) const ROOT: &'static str = "omni.root";
    /// The label of a sub-agent's conversation with the id of the tool use.
    pub(crate) const CALL: &'static str = "omni.call";

    /// Returns one of these labels alone.
    pub(crate) fn place(name: &str, conversation: &super::ConversationId) -> Self {
        Self(Some(Arc::new(BTreeMap::from([(name.to_owned(), conversation.to_string())]))))
    }

    /// Returns these labels of a root with the places of a sub-agent, which `own` contains.
    pub(crate) fn of_sub_agent<'a>(
        &'a self,
        own: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Error> {
        let is_place = |(name, _): &(&str, &str)| [Self::ROOT, Self::PARENT, Self::CALL].contains(name);
        Self::new(self.iter().filter(|label| !is_place(label)).chain(own.into_iter().filter(is_place)))
    }

    /// Returns these labels without the places of a sub-agent.
    pub(crate) fn without_places(&self) -> Self {
        self.without(&[Self::ROOT, Self::PARENT, Self::CALL])
    }

    /// Returns these labels without those that have one of these names.
    pub(super) fn without(&self, names: &[&str]) -> Self {
        let kept = self.iter().filter(|(name, _)| !names.contains(name));
        let kept: BTreeMap<_, _> = kept.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self((!kept.is_empty()).then(|| Arc::new(kept)))
    }

    /// Returns these labels. If a name occurs twice, the last value counts.
    ///
    /// # Errors
    ///
    /// Fails if a name or value is invalid, or if there are too many labels.
    pub fn new<N: Into<String>, V: Into<String>>(
        labels: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, Error> {
        let labels = labels.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self::checked(labels.collect())
    }

    fn checked(labels: BTreeMap<String, String>) -> Result<Self, Error> {
        let invalid = |text: String| Error::new(ErrorKind::Config, text);
        for (name, value) in &labels {
            let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-');
            if !(1..=32).contains(&name.len()) || !name.bytes().all(is_allowed) {
                let name: String = name.chars().take(64).collect();
                return Err(invalid(format!(
                    "{name:?} is not a valid name of a label: use 1 to 32 of the characters a-z, 0-9, _, . and -"
                )));
            }
            if !(1..=128).contains(&value.len()) || value.chars().any(char::is_control) {
                return Err(invalid(format!(
                    "the value of label {name:?} is not valid: use 1 to 128 bytes without control characters"
                )));
            }
        }
        let count = labels.keys().filter(|name| !name.starts_with("omni.")).count();
        if count > Self::MOST || labels.len() - count > Self::MOST {
            let (most, count) = (Self::MOST, labels.len());
            return Err(invalid(format!("a conversation can have {most} labels; these are {count}")));
        }
        Ok(Self((!labels.is_empty()).then(|| Arc::new(labels))))
    }

    /// Returns the value of the label with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.as_ref()?.get(name).map(String::as_str)
    }

    /// Iterates over the labels, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|labels| labels.iter()).map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns whether there are no labels.
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the number of labels.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |labels| labels.len())
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::checked(BTreeMap::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// A condition on the labels of conversations.
///
/// ```
/// use omni_agent::store::{Filter, Labels};
///
/// let filter = Filter::with(Labels::new([("tenant", "acme")])?).without("archived");
/// assert!(filter.matches(&Labels::new([("tenant", "acme"), ("user", "ann")])?));
/// assert!(!filter.matches(&Labels::new([("tenant", "acme"), ("archived", "yes")])?));
/// # Ok::<(), omni_agent::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Filter {
    /// The labels that a conversation must have, with these values.
    pub labels: Labels,
    /// The names of labels that a conversation must not have, with any value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
}

impl Filter {
    /// Returns a filter for conversations with all of these labels.
    pub const fn with(labels: Labels) -> Self {
        Self { labels, without: Vec::new() }
    }

    /// Returns the filter, which now also excludes conversations that have a label with this name.
    pub fn without(mut self, name: impl Into<String>) -> Self {
        self.without.push(name.into());
        self
    }

    /// Returns whether every conversation matches.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.without.is_empty()
    }

    /// Returns whether a conversation with these labels matches.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.labels.iter().all(|(name, value)| labels.get(name) == Some(value))
            && self.without.iter().all(|name| labels.get(name).is_none())
    }
}

impl From<Labels> for Filter {
    fn from(labels: Labels) -> Self {
        Self::with(labels)
    }
}

/// A part of a list, possibly with a filter. [`Manager::list`](crate::manager::Manager::list) accepts a [`Page`], a
/// [`Filter`] or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(description = "A part of a list of conversations, possibly with a filter.")
)]
#[serde(default)]
#[non_exhaustive]
pub struct Listing {
    /// The conversations to list.
    pub filter: Filter,
    /// The part of the list.
    pub page: Page,
}

impl Listing {
    /// Returns the page. Stores without labels call this, so that no filter is ignored.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Unsupported`] if there is a filter.
    pub fn unfiltered(&self) -> Result<&Page, StoreError> {
        if self.filter.is_empty() { Ok(&self.page) } else { Err(StoreError::unsupported("lists by labels")) }
    }
}

impl From<Page> for Listing {
    fn from(page: Page) -> Self {
        Self { filter: Filter::default(), page }
    }
}

impl From<Filter> for Listing {
    /// Returns the first 50 conversations that match.
    fn from(filter: Filter) -> Self {
        Self { filter, page: Page::default() }
    }
}

impl From<(Filter, Page)> for Listing {
    fn from((filter, page): (Filter, Page)) -> Self {
        Self { filter, page }
    }
}
