use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{StoreError, Summary};
use crate::{
    message::{Content, Message},
    tree::NodeId,
};

/// The words and phrases of a search, for implementations of [`Store::search`](super::Store::search).
///
/// All words must occur. Text in double quotes is a phrase, whose words must follow each other. No other character has
/// a special meaning. Words are compared without regard to case.
///
/// ```
/// use omni_agent::store::Query;
///
/// let query: Query = r#"mountain "blue lake""#.parse()?;
/// assert!(query.is_in("A mountain above a blue lake"));
/// assert!(!query.is_in("A blue mountain, a lake"));
/// assert!(r#"an "open quote"#.parse::<Query>().is_err());
/// # Ok::<(), omni_agent::store::StoreError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query(Vec<Vec<String>>);

impl Query {
    /// The maximum length of a query in bytes.
    pub const LONGEST: usize = 1024;
    /// The maximum number of words.
    pub const MOST_WORDS: usize = 32;

    /// Returns the words and phrases in lower case. A single word is returned as a phrase of one word. Words contain
    /// only letters and digits.
    pub fn phrases(&self) -> impl Iterator<Item = &[String]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// Returns whether the text contains all words and phrases.
    pub fn is_in(&self, text: &str) -> bool {
        let words: Vec<String> = words(text).map(str::to_lowercase).collect();
        let contains = |phrase: &Vec<String>| words.windows(phrase.len()).any(|window| window == *phrase);
        self.0.iter().all(contains)
    }

    /// Returns a part of the text, around the first place where a word of the query occurs.
    pub(super) fn excerpt(&self, text: &str) -> String {
        const BEFORE: usize = 40;
        const LONGEST: usize = 160;
        let is_wanted = |word: &&str| {
            let word = word.to_lowercase();
            self.0.iter().flatten().any(|wanted| *wanted == word)
        };
        let at =
            words(text).find(is_wanted).map_or(0, |word| word.as_ptr() as usize - text.as_ptr() as usize);
        let mut start = text.floor_char_boundary(at.saturating_sub(BEFORE));
        if start > 0 {
            // The excerpt begins with a whole word.
            let space = text[start..at].char_indices().find(|(_, c)| c.is_whitespace());
            start += space.map_or(0, |(index, c)| index + c.len_utf8());
        }
        let end = text.floor_char_boundary((start + LONGEST).min(text.len()));
        let (before, after) = (if start > 0 { "… " } else { "" }, if end < text.len() { " …" } else { "" });
        let part: Vec<&str> = text[start..end].split_whitespace().collect();
        format!("{before}{}{after}", part.join(" "))
    }
}

impl FromStr for Query {
    type Err = StoreError;

    /// Parses a query.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::InvalidQuery`] if the query contains no word or too many words, is too long, or
    /// contains a quote that is not closed.
    fn from_str(query: &str) -> Result<Self, StoreError> {
        let invalid = |problem: String| Err(StoreError::InvalidQuery { problem });
        if query.len() > Self::LONGEST {
            return invalid(format!("it has {} bytes; use at most {}", query.len(), Self::LONGEST));
        }
        let mut phrases = Vec::new();
        for (index, part) in query.split('"').enumerate() {
            let words = words(part).map(str::to_lowercase);
            if index % 2 == 1 {
                phrases.push(words.collect());
            } else {
                phrases.extend(words.map(|word| vec![word]));
            }
        }
        phrases.retain(|phrase: &Vec<String>| !phrase.is_empty());
        let count = phrases.iter().map(Vec::len).sum::<usize>();
        if query.matches('"').count() % 2 == 1 {
            return invalid("a quote is not closed; add the closing quote".to_owned());
        }
        if count == 0 {
            return invalid("it contains no word; use letters or digits".to_owned());
        }
        if count > Self::MOST_WORDS {
            return invalid(format!("it has {count} words; use at most {}", Self::MOST_WORDS));
        }
        Ok(Self(phrases))
    }
}

impl fmt::Display for Query {
    /// Writes the query with every word and phrase in quotes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted: Vec<String> = self.0.iter().map(|phrase| format!("\"{}\"", phrase.join(" "))).collect();
        f.write_str(&quoted.join(" "))
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
}

/// Returns the text of a message that searches look at: its text blocks, without thinking, tools and attachments.
pub(super) fn searched_text(message: &Message) -> String {
    let texts = message.content.iter().filter_map(|block| match block {
        Content::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// The conversations in which the words of a search occur.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Found {
    /// The conversations, sorted by their last write, newest first.
    pub hits: Vec<Hit>,
    /// Whether the index contains all conversations. `false` while a store builds its index, when older conversations
    /// may be missing.
    pub complete: bool,
}

impl Found {
    /// Returns these hits of a complete index.
    pub const fn new(hits: Vec<Hit>) -> Self {
        Self { hits, complete: true }
    }
}

/// A conversation in which the words of a search occur.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Hit {
    /// The conversation.
    pub conversation: Summary,
    /// The last message that contains all words. `None` if only the title does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// A part of the message's text, or the title.
    pub excerpt: String,
}

impl Hit {
    /// Returns a hit in a title.
    pub fn title(conversation: Summary) -> Self {
        let excerpt = conversation.title.clone().unwrap_or_default();
        Self { conversation, node: None, excerpt }
    }

    /// Returns a hit in a message.
    pub fn message(conversation: Summary, node: NodeId, message: &Message, query: &Query) -> Self {
        Self { conversation, node: Some(node), excerpt: query.excerpt(&searched_text(message)) }
    }
}
