//! Generated titles.
//!
//! A generated title is a suggestion: the session takes it only if it has no title at that moment. The task that
//! generates it keeps the session open like a controller.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::StreamExt;

use crate::{
    message::{History, Message, Purpose, RequestEnd, Role, Timestamp, UsageRow},
    provider::{Completion, Delta, Fold, Model, Options, ProviderError, Request, StopReason},
};

/// How untitled conversations get their titles after the first committed turn.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Titles {
    /// Takes the beginning of the first user message.
    #[default]
    Heuristic,
    /// Asks a model for three to six words. A model that gives no title is asked again after the next turn. After three
    /// failures while a conversation is open, the title is that of [`Heuristic`](Self::Heuristic).
    Model(Model),
    /// Calls the application's generator.
    Own(Arc<dyn TitleGenerator>),
    /// Generates no titles.
    Off,
}

/// Generates titles for conversations.
#[async_trait]
pub trait TitleGenerator: Send + Sync + 'static {
    /// Returns a title for a conversation with this history, or `None` if it is too early for a title.
    ///
    /// If the generator returns `None` or an error, it is called again after the next turn. A call that takes longer
    /// than a minute is given up.
    ///
    /// # Errors
    ///
    /// May return any error. The manager logs the error.
    async fn generate(
        &self,
        history: &History,
    ) -> Result<Option<String>, Box<dyn std::error::Error + Send + Sync>>;
}

/// The time limit of a request to a model for a title.
const MODEL_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of an application's generator.
const OWN_TIMEOUT: Duration = Duration::from_mins(1);
/// The maximum number of tokens that a model may generate for a title. It is generous, because some models think first.
const MODEL_TOKENS: u32 = 1024;
/// The maximum number of characters of each message that are sent to the model.
const EXCERPT: usize = 2000;
/// The maximum length of a heuristic title in characters, without its ellipsis.
const HEURISTIC: usize = 50;
/// The maximum length of a model's title in characters.
const LONGEST: usize = 100;
/// The number of failures of a model after which the title is a heuristic one.
pub(super) const MAX_FAILURES: u32 = 3;

impl Titles {
    pub(super) fn is_off(&self) -> bool {
        matches!(self, Self::Off)
    }

    /// Generates a title for a conversation. The title is `None` if none can be made.
    pub(super) async fn make(&self, history: &History) -> TitleGenerationResult {
        let title = match self {
            Self::Off => Ok(None),
            Self::Heuristic => Ok(heuristic(history)),
            Self::Own(generator) => by_application(&**generator, history).await,
            Self::Model(model) => return by_model(model, history).await,
        };
        TitleGenerationResult { title, usage: Vec::new() }
    }
}

/// The result of an attempt to make a title.
pub(super) struct TitleGenerationResult {
    pub(super) title: Result<Option<String>, TitleGenerationError>,
    /// The usage of the requests to the model, even if the requests failed.
    pub(super) usage: Vec<UsageRow>,
}

type TitleGenerationError = Box<dyn std::error::Error + Send + Sync>;

async fn by_application(
    generator: &dyn TitleGenerator,
    history: &History,
) -> Result<Option<String>, TitleGenerationError> {
    let title = tokio::time::timeout(OWN_TIMEOUT, generator.generate(history)).await??;
    Ok(title.and_then(|title| tidy(&title)))
}

/// Returns the first nonempty text of the user on one line, shortened between words.
pub(super) fn heuristic(history: &History) -> Option<String> {
    let users = history.iter().filter(|message| message.role == Role::User && message.compaction.is_none());
    let text = users.map(|message| message.text()).find(|text| !text.trim().is_empty())?;
    Some(shorten(&text, HEURISTIC))
}

/// Puts a text on one line of at most `limit` characters plus an ellipsis, without control characters. The text is cut
/// between words if possible.
fn shorten(text: &str, limit: usize) -> String {
    let mut short = String::new();
    let mut length = 0;
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        let more = word.chars().count() + usize::from(length > 0);
        if length + more > limit {
            if length == 0 {
                short.push_str(beginning(word, limit));
            }
            short.push('…');
            return short;
        }
        if length > 0 {
            short.push(' ');
        }
        short.push_str(word);
        length += more;
    }
    short
}

/// Returns at most `limit` characters of a word. The cut is never inside of what a reader takes for one character, such
/// as a letter with an accent, a flag, or an emoji with a skin tone.
fn beginning(word: &str, limit: usize) -> &str {
    let (mut end, mut before, mut flags) = (0, ' ', 0);
    for (at, c) in word.char_indices().take(limit + 1) {
        let is_flag = matches!(c, '\u{1f1e6}'..='\u{1f1ff}');
        // `escape_debug` escapes the characters that extend another one, and those that cannot be seen.
        let extends = c.escape_debug().len() > 4 || matches!(c, '\u{1f3fb}'..='\u{1f3ff}');
        if !extends && before != '\u{200d}' && !(is_flag && flags % 2 == 1) {
            end = at;
        }
        flags = if is_flag { flags + 1 } else { 0 };
        before = c;
    }
    let whole = word.char_indices().nth(limit).map_or(word.len(), |(at, _)| at);
    &word[..if end == 0 { whole } else { end }]
}

async fn by_model(model: &Model, history: &History) -> TitleGenerationResult {
    let part = |role: Role, name: &str| {
        let own = history.iter().filter(|message| message.role == role && message.compaction.is_none());
        let is_model = role == Role::Assistant;
        own.map(|message| message.text()).find_map(|text| {
            let text = if is_model { without_reasoning(&text)? } else { &text };
            let excerpt = || format!("{name}: {}", text.chars().take(EXCERPT).collect::<String>());
            (!text.trim().is_empty()).then(excerpt)
        })
    };
    let Some(question) = part(Role::User, "User") else {
        return TitleGenerationResult { title: Ok(None), usage: Vec::new() };
    };
    let answer = part(Role::Assistant, "Assistant").unwrap_or_default();
    let system = "Give the conversation that you are shown a title of three to six words, in its own language. \
                  Answer with the title alone: no quotation marks, no full stop, nothing else.";
    let asked = History::from_iter([Message::user(format!("{question}\n\n{answer}"))]);
    let request = Request::new(asked)
        .with_system(system)
        .with_options(Options::default().with_max_tokens(MODEL_TOKENS).with_timeout(MODEL_TIMEOUT));
    let mut usage = Vec::new();
    let title = match generate(model, request, &mut usage).await {
        Err(error) => Err(error.into()),
        Ok(generated) if generated.stop_reason == StopReason::Length => {
            Err(format!("the model used all {MODEL_TOKENS} tokens before the title was complete; choose another model for titles").into())
        }
        Ok(generated) => match tidy(&generated.message.text()) {
            None => Err("the answer of the model contains no title; choose another model for titles".into()),
            title => Ok(title),
        },
    };
    TitleGenerationResult { title, usage }
}

/// Sends a request, and adds the usage of each attempt to `rows`.
async fn generate(
    model: &Model,
    request: Request,
    rows: &mut Vec<UsageRow>,
) -> Result<Completion, ProviderError> {
    let mut add = |fold: &mut Fold, end: RequestEnd| {
        let usage = fold.take_usage();
        let name = fold.message().model.clone().unwrap_or_else(|| model.id().to_string());
        if !usage.is_zero() {
            let row = UsageRow::new(end, usage).with_purpose(Purpose::Title);
            rows.push(row.with_at(Timestamp::now()).with_model(name));
        }
    };
    let mut stream = model.stream(request);
    let mut fold = Fold::default();
    while let Some(delta) = stream.next().await {
        // If the service itself starts its answer again, the usage is still that of one request.
        let is_retry = matches!(delta, Ok(Delta::Retry { .. })) && fold.blocks().is_empty();
        if let Err(error) = delta.and_then(|delta| fold.apply(delta)) {
            add(&mut fold, RequestEnd::Failed);
            return Err(error);
        }
        if is_retry {
            add(&mut fold, RequestEnd::Void);
        }
    }
    let is_complete = fold.message().stop_reason.is_some();
    add(&mut fold, if is_complete { RequestEnd::Answered } else { RequestEnd::Failed });
    fold.finish(Timestamp::now())
}

/// Returns a model's text without the reasoning at its beginning, which local and compatible services send between tags.
/// Returns `None` if the reasoning has no end.
fn without_reasoning(text: &str) -> Option<&str> {
    const TAGS: [&str; 2] = ["<think>", "</think>"];
    // The ASCII letters of both texts are at the same places.
    let lower = text.to_ascii_lowercase();
    if !lower.trim_start().starts_with(TAGS[0]) {
        return Some(text);
    }
    Some(&text[lower.find(TAGS[1])? + TAGS[1].len()..])
}

/// Returns the first nonempty line after the reasoning, without the quotation marks and markup that models put around a
/// title.
fn tidy(text: &str) -> Option<String> {
    let around = |c: char| {
        c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '*' | '#' | '“' | '”' | '„' | '«' | '»')
    };
    let bare = |line: &'_ str| -> String {
        let line = line.trim_matches(around);
        let line = line.strip_prefix("Title:").unwrap_or(line);
        line.trim_start_matches(around).trim_end_matches(|c| around(c) || c == '.').to_owned()
    };
    let line = without_reasoning(text)?.lines().map(bare).find(|line| !line.is_empty())?;
    Some(shorten(&line, LONGEST))
}

impl fmt::Debug for Titles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Heuristic => "Heuristic",
            Self::Model(_) => "Model",
            Self::Own(_) => "Own",
            Self::Off => "Off",
        })
    }
}
