use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{
    StoreError, Summary,
    words::{SearchWord, words},
};
use crate::{
    message::{Content, Message},
    tree::NodeId,
};

/// The words and phrases of a search, for implementations of [`Store::search`](super::Store::search).
///
/// All words must occur. A word of two or more characters also finds longer words that begin with it. Text in double
/// quotes is a phrase, whose words must occur whole and follow each other. No other character has a special meaning.
/// Words are compared without regard to case, and without the marks of Latin, Greek and Cyrillic letters. In a script
/// without spaces, such as Han, kana and Thai, any two letters or more are found.
///
/// ```
/// use omni_agent::store::Query;
///
/// let query: Query = r#"mount "blue lake""#.parse()?;
/// assert!(query.is_in("A mountain above a blue lake"));
/// assert!(!query.is_in("A blue mountain, a lake"));
/// assert!("天气".parse::<Query>()?.is_in("今天天气很好"));
/// assert!(r#"an "open quote"#.parse::<Query>().is_err());
/// # Ok::<(), omni_agent::store::StoreError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    text: String,
    phrases: Vec<SearchPhrase>,
}

/// Words that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SearchPhrase {
    words: Vec<String>,
    /// Whether the last word may be the beginning of a longer word.
    is_open: bool,
}

impl SearchPhrase {
    /// Returns the phrases of a part of a query. Words that join each other form one phrase.
    fn all(part: &str, is_quoted: bool) -> Vec<Self> {
        let mut phrases: Vec<Self> = Vec::new();
        for word in words(part) {
            if let Some(phrase) = phrases.last_mut().filter(|_| is_quoted || word.joins) {
                phrase.words.push(word.text);
                phrase.is_open = !is_quoted;
            } else {
                let is_open = !is_quoted && word.text.chars().nth(1).is_some();
                phrases.push(Self { words: vec![word.text], is_open });
            }
        }
        phrases
    }

    /// Returns the index of the word at which the phrase begins.
    fn place_in(&self, words: &[SearchWord]) -> Option<usize> {
        let (last, before) = self.words.split_last()?;
        words.windows(self.words.len()).position(|window| {
            let end = &window[before.len()].text;
            let ends = if self.is_open { end.starts_with(last) } else { end == last };
            ends && before.iter().zip(window).all(|(wanted, word)| *wanted == word.text)
        })
    }
}

impl Query {
    /// The maximum length of a query in bytes.
    pub const LONGEST: usize = 1024;
    /// The maximum number of words. Letters of a script without spaces that follow each other count as one word.
    pub const MOST_WORDS: usize = 32;

    /// Returns the words and phrases in the form in which words are compared. A single word is returned as a phrase of
    /// one word. The flag states whether the last word of the phrase may be the beginning of a longer word. Words
    /// contain only letters, digits and marks.
    pub fn phrases(&self) -> impl Iterator<Item = (&[String], bool)> {
        self.phrases.iter().map(|phrase| (phrase.words.as_slice(), phrase.is_open))
    }

    /// Returns whether the text contains all words and phrases. Only the first 256 KiB of the text are examined.
    pub fn is_in(&self, text: &str) -> bool {
        let words = words(text);
        self.phrases.iter().all(|phrase| phrase.place_in(&words).is_some())
    }

    /// Returns a part of the text, around the first place where a word or phrase of the query occurs.
    pub(super) fn excerpt(&self, text: &str) -> String {
        const BEFORE: usize = 40;
        const LONGEST: usize = 160;
        let words = words(text);
        let first = self.phrases.iter().filter_map(|phrase| phrase.place_in(&words)).min();
        let at = first.map_or(0, |first| words[first].range.start);
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
        let parts = || query.split('"').enumerate();
        let phrases: Vec<SearchPhrase> =
            parts().flat_map(|(index, part)| SearchPhrase::all(part, index % 2 == 1)).collect();
        let count = parts().flat_map(|(_, part)| words(part)).filter(|word| !word.joins).count();
        if query.matches('"').count() % 2 == 1 {
            return invalid("a quote is not closed; add the closing quote".to_owned());
        }
        if count == 0 {
            return invalid("it contains no word; use letters or digits".to_owned());
        }
        if count > Self::MOST_WORDS {
            return invalid(format!("it has {count} words; use at most {}", Self::MOST_WORDS));
        }
        Ok(Self { text: query.to_owned(), phrases })
    }
}

impl fmt::Display for Query {
    /// Writes the query as it was given.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
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
