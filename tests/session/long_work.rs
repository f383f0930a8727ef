//! Conversations that are longer than the context window of their model.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use omni_agent::{
    Agent,
    agent::{AgentBuilder, CompactionPolicy, Event},
    message::{Message, Purpose, Usage},
    provider::{ModelInfo, ProviderError, ProviderErrorKind, Request},
    session::{Mode, Session},
    store::MemoryStore,
    subscription::Update,
    testing::{ScriptedProvider, Step},
    tool::{Schema, ToolContext, ToolError, tool_fn_with_schema},
};
use serde_json::{Value, json};

use crate::support::secs;

const SUMMARY: &str = "Write this summary now";

fn tokens(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap().div_ceil(4)
}

/// The parts of a request as a service caches them: the system prompt with the tools, and each message.
fn parts(request: &Request) -> Vec<String> {
    let tools: Vec<_> = request.tools.iter().map(|tool| tool.name().to_owned()).collect();
    let fixed = format!("{:?} {tools:?}", request.system);
    let messages = request.history.iter().map(|message| content(message));
    [fixed].into_iter().chain(messages).collect()
}

fn content(message: &Message) -> String {
    serde_json::to_string(&(message.role, &message.content)).unwrap()
}

/// Returns the size of the common beginning of two requests.
fn common(one: &[String], other: &[String]) -> u64 {
    one.iter().zip(other).take_while(|(a, b)| a == b).map(|(part, _)| tokens(part)).sum()
}

/// The counts of a service.
#[derive(Default)]
struct Counts {
    /// The last requests, whose beginnings are in the cache.
    cached: Vec<Vec<String>>,
    usage: Usage,
    largest: u64,
    refused: usize,
    summaries: usize,
}

/// Returns a service that counts four characters as a token, caches what earlier requests begin with, and refuses a
/// request that is longer than its window. `answer` adds the content of the steps that are not summaries.
fn service(
    window: u64,
    answer: impl Fn(&Request, Step) -> Step + Send + 'static,
) -> (ScriptedProvider, Arc<Mutex<Counts>>) {
    let counts = Arc::new(Mutex::new(Counts::default()));
    let own = Arc::clone(&counts);
    let provider = ScriptedProvider::from_fn(move |request| {
        let mut counts = own.lock().unwrap();
        let parts = parts(request);
        let size: u64 = parts.iter().map(|part| tokens(part)).sum();
        if size > window {
            counts.refused += 1;
            return Step::error(ProviderError::new(ProviderErrorKind::ContextTooLong, "too long"));
        }
        let cached = counts.cached.iter().map(|other| common(&parts, other)).max().unwrap_or(0);
        let usage = Usage::default().with_input(size - cached).with_cache_read(cached).with_output(20);
        counts.largest = counts.largest.max(size);
        counts.usage += usage;
        counts.cached.push(parts);
        let oldest = counts.cached.len().saturating_sub(4);
        counts.cached.drain(..oldest);
        let is_summary = request.history.last().is_some_and(|last| last.text().contains(SUMMARY));
        counts.summaries += usize::from(is_summary);
        let step = Step::new().usage(usage);
        if is_summary { step.then_text(["The work goes on."]).stop() } else { answer(request, step) }
    });
    (provider, counts)
}

fn agent(provider: &ScriptedProvider, window: u64) -> AgentBuilder {
    let info = ModelInfo::new("small").with_context_window(window).with_output_limit(window / 10);
    Agent::builder().model(provider.model().with_info(info))
}

#[tokio::test(start_paused = true)]
async fn job_of_60_turns_in_a_window_of_160_000_characters_ends_with_one_line() {
    let (provider, counts) = service(40_000, |request, step| {
        let last = request.history.last().unwrap();
        match last.tool_results().next() {
            Some(_) => step.then_text(["Read."]).stop(),
            None => step.then_tool_use(&format!("u{}", request.history.len()), "read", json!({})).stop(),
        }
    });
    let schema = Schema::new(json!({ "type": "object" })).unwrap();
    let read = tool_fn_with_schema("read", "Reads.", schema, async |_: Value, _: ToolContext| {
        Ok::<_, ToolError>("line of the file\n".repeat(360))
    });
    let agent = agent(&provider, 40_000).tool(read).compaction(CompactionPolicy::default());
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    for turn in 0..60 {
        let response = session.ask(format!("Read file {turn}.")).await.unwrap();
        assert_eq!(response.text(), "Read.");
    }
    let tree = session.tree().await.unwrap();
    let history = tree.history();
    let characters: usize = history.iter().map(|message| content(message).len()).sum();
    assert!(characters > 360_000, "{characters}");
    let counts = counts.lock().unwrap();
    assert_eq!(counts.refused, 0);
    assert!(counts.largest <= 40_000, "{}", counts.largest);
}

#[tokio::test(start_paused = true)]
async fn requests_of_200_turns_with_8_summaries_are_read_from_the_cache_to_90_percent() {
    const WINDOW: u64 = 1_900;
    let (provider, counts) =
        service(WINDOW, |_, step| step.then_text(["An answer of several words, as usual in a talk."]).stop());
    let policy = CompactionPolicy::default();
    let system = "You are careful and brief. ".repeat(60);
    let agent = agent(&provider, WINDOW).system(system.as_str()).compaction(policy);
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    let mut updates = session.subscribe(Mode::Observer).await.unwrap();
    let mut told = 0;
    for turn in 0..200 {
        session.ask(format!("Question {turn} about the work, in a sentence of usual length.")).await.unwrap();
        while let Some(Some(Update::Event(event))) = futures_util::FutureExt::now_or_never(updates.next()) {
            if let Some(Event::Usage(row)) = event.event.agent() {
                told += usize::from(row.purpose == Purpose::Summary);
            }
        }
    }
    let (usage, summaries) = {
        let counts = counts.lock().unwrap();
        assert_eq!(counts.refused, 0);
        (counts.usage, counts.summaries)
    };
    assert!(summaries >= 8, "{summaries} summaries");
    assert_eq!(told, summaries, "each summary has a row of its own");
    let share = usage.cache_read * 100 / usage.prompt();
    assert!(share >= 90, "{share} % of {} tokens are read from the cache", usage.prompt());

    // For comparison, a window that moves with each turn: only the system prompt stays in the cache.
    let tree = session.tree().await.unwrap();
    let history = tree.history();
    let own: Vec<String> = history
        .iter()
        .filter(|message| message.compaction.is_none())
        .map(|message| content(message))
        .collect();
    let (mut read, mut all, mut before) = (0, 0, Vec::new());
    for end in (1..own.len()).step_by(2) {
        let mut request = vec![system.clone()];
        request.extend_from_slice(&own[end.saturating_sub(40)..end]);
        read += common(&request, &before);
        all += request.iter().map(|part| tokens(part)).sum::<u64>();
        before = request;
    }
    let moving = read * 100 / all;
    assert!(moving + 20 < share, "{moving} % with a moving window, {share} % with summaries");
    session.stop(secs(1)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requests_after_each_compaction_contain_the_fact_of_turn_2_if_prompts_are_kept() {
    const WINDOW: u64 = 4_096;
    let (provider, counts) = service(WINDOW, |_, step| step.then_text(["word ".repeat(90)]).stop());
    let policy = CompactionPolicy::default().with_kept_prompts();
    let agent = agent(&provider, WINDOW).compaction(policy);
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    for turn in 1..=40 {
        let prompt = if turn == 2 { "Ada's key is 7319.".to_owned() } else { format!("Go on, {turn}.") };
        session.ask(prompt).await.unwrap();
    }
    assert!(counts.lock().unwrap().summaries >= 1);
    assert_eq!(counts.lock().unwrap().refused, 0);
    for request in &provider.requests()[1..] {
        let knows = request.history.iter().any(|message| message.text().contains("Ada's key is 7319."));
        assert!(knows, "{request:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn turn_of_40_steps_behind_a_prompt_of_half_the_room_needs_at_most_10_summaries() {
    const WINDOW: u64 = 8_000;
    let steps = AtomicUsize::new(0);
    let (provider, counts) = service(WINDOW, move |_, step| match steps.fetch_add(1, Ordering::Relaxed) {
        number @ 0..40 => step.then_tool_use(&format!("u{number}"), "read", json!({})).stop(),
        _ => step.then_text(["Done."]).stop(),
    });
    let schema = Schema::new(json!({ "type": "object" })).unwrap();
    let read = tool_fn_with_schema("read", "Reads.", schema, async |_: Value, _: ToolContext| {
        Ok::<_, ToolError>("line of the file\n".repeat(28))
    });
    // The service counts 27 characters as 6.75 tokens, and the room has 7,200 tokens.
    let system = "You are careful and brief. ".repeat(533);
    let agent = agent(&provider, WINDOW).system(system.as_str()).tool(read).max_steps(50);
    let agent = agent.compaction(CompactionPolicy::default()).start().await.unwrap();
    assert_eq!(agent.ask("Read the whole file.").await.unwrap().text(), "Done.");
    let counts = counts.lock().unwrap();
    assert_eq!(counts.refused, 0);
    assert!((1..=10).contains(&counts.summaries), "{} summaries", counts.summaries);
}
