//! An offline demo model. It streams text and calls tools on request, so that all examples work without a key. It is
//! also a small example of a `Provider`.
//!
//! The model calls a tool if the prompt contains the tool's name (`get_weather Oslo`). It also calls a tool if the
//! prompt contains a word of the tool's name together with the input that the tool needs ("What is the weather in Oslo
//! and in Rome?"). The word "then" in a prompt starts another step.

mod call;

use std::{
    env,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use omni_agent::{
    message::{Content, History, Message, Role, ToolUseId, Usage},
    provider::{
        DeltaStream, Provider, ProviderError, ProviderErrorKind, Request, StopReason, ThinkingMode,
        custom::{BlockStart, Delta, MessageDelta, Part, RequestContext},
    },
};
use tokio::time::sleep;

use call::Call;

/// The demo model.
pub(super) struct Demo {
    /// The pause between two words.
    pause: Duration,
    /// The number of responses so far. It varies the words, so that a repeated prompt does not get the same response.
    answers: AtomicUsize,
}

impl Default for Demo {
    fn default() -> Self {
        let millis = env::var("DEMO_PAUSE_MS").ok().and_then(|millis| millis.parse().ok());
        Self { pause: Duration::from_millis(millis.unwrap_or(30)), answers: AtomicUsize::new(0) }
    }
}

/// A block of a response.
enum Block {
    Thinking(String),
    Text(String),
    ToolUse(Call),
}

#[async_trait]
impl Provider for Demo {
    fn name(&self) -> &'static str {
        "demo"
    }

    async fn stream(&self, request: Request, _: RequestContext) -> Result<DeltaStream, ProviderError> {
        if Turn::of(&request.history).asked.trim() == "fail" {
            return Err(ProviderError::new(ProviderErrorKind::Service, "you asked the demo model to fail"));
        }
        let blocks = answer(&request, self.answers.fetch_add(1, Ordering::Relaxed));
        let mut usage = Usage::default().with_input(request.history.iter().map(|m| tokens(&m.text())).sum());
        usage.input += request.system.as_deref().map_or(0, tokens);
        // The usage is sent first, because services also count the input of an interrupted response.
        let usage_so_far = MessageDelta::default().with_usage(usage);
        let mut deltas = vec![Delta::Message(Box::new(usage_so_far))];
        let mut stop = StopReason::Stop;
        for (index, block) in blocks.into_iter().enumerate() {
            let (block, parts) = match block {
                Block::Text(text) => {
                    usage.output += tokens(&text);
                    (BlockStart::Text, words(&text).map(Part::Text).collect())
                }
                Block::Thinking(text) => {
                    usage.output += tokens(&text);
                    usage.reasoning += tokens(&text);
                    (BlockStart::Thinking, words(&text).map(Part::Text).collect())
                }
                Block::ToolUse(call) => {
                    stop = StopReason::ToolUse;
                    // The length of the history makes the id unique in the conversation.
                    let id = ToolUseId::from(format!("demo-{}-{index}", request.history.len()));
                    let input = call.input.to_string();
                    usage.output += tokens(&input);
                    (BlockStart::ToolUse { id, name: call.name }, vec![Part::Input(input)])
                }
            };
            deltas.push(Delta::Start { index, block });
            deltas.extend(Vec::into_iter(parts).map(|part| Delta::Extend { index, part }));
            deltas.push(Delta::End { index });
        }
        // The last delta has a stop reason, because a response without one counts as truncated.
        deltas
            .push(Delta::Message(Box::new(MessageDelta::default().with_usage(usage).with_stop_reason(stop))));
        let pause = self.pause;
        Ok(Box::pin(stream::iter(deltas).then(move |delta| async move {
            if matches!(delta, Delta::Extend { .. }) {
                sleep(pause).await;
            }
            Ok(delta)
        })))
    }
}

/// The current turn, as the demo model sees it. The model derives the turn from the history alone.
struct Turn {
    /// The text of the last user message that has text.
    asked: String,
    /// The tool results since the last user message with text.
    results: Vec<String>,
    /// The number of the model's responses since the last user message with text.
    steps: usize,
    /// Whether the history contains a response of the model.
    met: bool,
}

impl Turn {
    fn of(history: &History) -> Self {
        let mut turn = Self { asked: String::new(), results: Vec::new(), steps: 0, met: false };
        for message in history {
            let text = message.text();
            match message.role {
                Role::Assistant => {
                    turn.steps += 1;
                    turn.met = true;
                }
                Role::User if text.is_empty() => turn.results.extend(results(message)),
                _ => turn = Self { asked: text, results: Vec::new(), steps: 0, met: turn.met },
            }
        }
        turn
    }
}

fn results(message: &Message) -> impl Iterator<Item = String> {
    message.tool_results().map(|result| {
        let word = if result.is_error { "failed:" } else { "returned" };
        format!("{} {word} {}", result.name, result.text())
    })
}

/// Returns the blocks of the response to request number `nth`, counted from 0.
fn answer(request: &Request, nth: usize) -> Vec<Block> {
    let turn = Turn::of(&request.history);
    let all: Vec<String> = request.history.iter().flat_map(|message| results(message)).collect();
    if turn.asked.contains("Write this summary now") {
        return vec![Block::Text(summary(&request.history))];
    }
    let calls = call::find(request, &turn.asked, turn.steps, &all.join("; "));
    let mut blocks = Vec::new();
    if !matches!(request.options.thinking(), None | Some(ThinkingMode::Off)) {
        let plan = match calls.as_slice() {
            [] if !turn.results.is_empty() => "The tools have returned results. I repeat them.".to_owned(),
            [] => "This prompt names no tool. I answer with text.".to_owned(),
            calls => {
                let names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
                format!("This is a request to call {}.", names.join(" and "))
            }
        };
        blocks.push(Block::Thinking(plan));
    }
    if !calls.is_empty() {
        blocks.extend(calls.into_iter().map(Block::ToolUse));
        return blocks;
    }
    let text = match request.options.output() {
        Some(output) => call::sample(output.schema.as_value(), "made up").to_string(),
        None if !turn.results.is_empty() => format!("Here is what I got: {}", turn.results.join("; ")),
        None => talk(request, &turn, nth),
    };
    blocks.push(Block::Text(text));
    blocks
}

/// Returns the first words of the last prompts, as a summary.
fn summary(history: &History) -> String {
    let prompts = history.iter().filter(|message| message.role == Role::User).map(|message| message.text());
    let prompts: Vec<String> = prompts.filter(|text| !text.is_empty()).collect();
    let firsts = prompts.iter().rev().skip(1).take(5).rev();
    let firsts = firsts.map(|text| text.split_whitespace().take(6).collect::<Vec<_>>().join(" "));
    format!(
        "You have sent {} messages. The last ones: {}.",
        prompts.len() - 1,
        firsts.collect::<Vec<_>>().join("; ")
    )
}

/// Returns the text of a response without tool uses.
fn talk(request: &Request, turn: &Turn, nth: usize) -> String {
    let lower = turn.asked.to_lowercase();
    let mut numbers =
        lower.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u32>().ok());
    if let (true, Some(last)) = (lower.contains("count"), numbers.next_back()) {
        let numbers: Vec<String> = (1..=last.min(20_000)).map(|number| number.to_string()).collect();
        return numbers.join(" ");
    }
    let seen = request.history.iter().filter(|message| message.role == Role::User).count();
    let pictures = request
        .history
        .last()
        .is_some_and(|message| message.content.iter().any(|block| matches!(block, Content::Attachment(_))));
    let asked = turn.asked.trim();
    let mut text = match nth % 3 {
        _ if !turn.met => format!(
            "I am not an LLM but a demo model for the examples. I cannot answer. I repeat your message (“{asked}”) \
             and call a tool if the message contains its name."
        ),
        0 => format!("Your message {seen} is “{asked}”."),
        1 => format!("I have received “{asked}” as message {seen}."),
        _ => format!("You have sent {seen} messages. The last one is “{asked}”."),
    };
    if pictures {
        text.push_str(" I cannot read images.");
    }
    let names: Vec<&str> = request.tools.iter().map(|tool| tool.name()).collect();
    if !names.is_empty() && !turn.met {
        text.push_str(" My tools are: ");
        text.push_str(&names.join(", "));
        text.push('.');
    }
    text
}

/// Returns the words of the text, each with the white space that follows it.
fn words(text: &str) -> impl Iterator<Item = String> {
    text.split_inclusive(char::is_whitespace).map(str::to_owned)
}

/// Counts words instead of tokens.
fn tokens(text: &str) -> u64 {
    u64::try_from(text.split_whitespace().count()).unwrap_or(u64::MAX)
}
