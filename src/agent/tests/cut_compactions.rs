//! Compactions whose turn is cut short, that take too long, and that would be the second one before an answer.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::json;
use tokio::time::advance;

use super::{
    compaction::{agent, compactions, counted, refused, too_long, without_preamble},
    hooks::{Hooks, Log, Watched, failed, reached, sent, stopped},
    support::{names, returned},
};
use crate::{
    agent::{CompactionPolicy, ErrorDecision, Event, Failure, Next, Prompt, Response},
    message::Usage,
    provider::{Options, ProviderErrorKind, StopReason},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Tool, tool_fn},
};

fn policy(kept_turns: u32) -> CompactionPolicy {
    CompactionPolicy::default().with_kept_turns(kept_turns)
}

/// Returns how many compactions have started.
fn started(events: &[Arc<Event>]) -> usize {
    events.iter().filter(|event| matches!(&***event, Event::CompactionStart { .. })).count()
}

/// Returns a text of this many tokens, roughly.
fn words(tokens: usize) -> String {
    "word ".repeat(tokens)
}

/// An answer of 120 words, after which the service has counted this many tokens.
fn long_answer(context: u64) -> Step {
    Step::new().usage(Usage::default().with_input(context)).then_text([words(120)]).stop()
}

/// Callbacks that log each failure, and repeat the step after the first ones.
fn failures(repeats: usize) -> (Hooks, Log<Failure>) {
    let log = Log::default();
    let seen = log.clone();
    let hooks = Hooks::new().on_error(move |failure, _| {
        seen.push(failure.clone());
        if seen.all().len() > repeats { ErrorDecision::Stop } else { ErrorDecision::Retry }
    });
    (hooks, log)
}

// ---- prompts that have joined the turn ----

/// A tool that waits at the gate.
pub(super) fn slow(gate: &Gate) -> impl Tool + use<> {
    let gate = gate.clone();
    tool_fn("slow", "Waits.", move |_: BTreeMap<String, u8>, _| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok::<_, crate::tool::ToolError>("done")
        }
    })
}

/// Runs a turn that two prompts join after the results of its first step, and that is then compacted. The last of the
/// `steps` ends or hangs while it is awaited for these prompts.
async fn joined(steps: impl IntoIterator<Item = Step>, hooks: Hooks) -> (ScriptedProvider, Watched) {
    let gate = Gate::new();
    let full = Usage::default().with_input(900);
    let asking = Step::new().usage(full).then_tool_use("a", "slow", json!({})).stop();
    let provider = ScriptedProvider::new([Step::text("A1"), asking].into_iter().chain(steps));
    let builder = agent(&provider, policy(1)).tool(slow(&gate)).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    agent.run("Q1").await;
    agent.agent.prompt("Q2").await.unwrap();
    reached(&gate).await;
    for prompt in ["Now", "Then"] {
        agent.agent.prompt(Prompt::new(prompt).with_id(prompt).at(Next::Step)).await.unwrap();
    }
    gate.open();
    (provider, agent)
}

const WITHOUT_JOINED: [&str; 5] =
    ["user: Q1", "assistant: A1", "user: Q2", "assistant: use a", "user: result a"];

/// Checks that the joined prompts were carried back, and that neither they nor the compaction behind them are part of the
/// history.
async fn assert_left(agent: &Watched, events: &[Arc<Event>], response: &Response) {
    let carried: Vec<_> = returned(events).iter().map(|prompt| prompt.content.clone()).collect();
    assert_eq!(carried, ["Now".into(), "Then".into()]);
    assert_eq!(agent.history().await, WITHOUT_JOINED);
    assert_eq!(response.messages.len(), 3, "{:?}", response.messages);
    assert!(response.messages.iter().all(|message| message.compaction.is_none()));
}

#[tokio::test(start_paused = true)]
async fn interrupt_behind_a_compaction_after_joined_prompts_removes_it_with_them() {
    let hangs = Gate::new();
    let last = Step::new().gate(&hangs).hang();
    let (provider, mut agent) =
        joined([Step::text("S."), last, Step::text("S."), Step::text("A3")], Hooks::new()).await;
    let before = agent.until("compaction_end").await;
    assert_eq!(compactions(&before)[0].as_ref().unwrap().text(), "S.");
    reached(&hangs).await;
    let pending = agent.agent.snapshot().await.unwrap().pending;
    assert!(pending.last().is_some_and(|last| last.compaction.is_some()), "it stands behind the prompts");
    agent.agent.interrupt().await.unwrap();
    let events = agent.end().await;
    let response = stopped(&events);
    assert_eq!(response.stop_reason, StopReason::Interrupted);
    assert_left(&agent, &events, &response).await;

    // The next request contains what was kept, and the prompts only once they are sent again.
    agent.run("Now").await;
    let texts = without_preamble(sent(&provider.last_request().unwrap()));
    assert_eq!(texts.iter().filter(|text| text.contains("Now")).count(), 1, "{texts:?}");
    assert_eq!(texts[0], "summary: S.");
}

#[tokio::test(start_paused = true)]
async fn interrupt_during_a_summary_after_joined_prompts_carries_them_back() {
    let writes = Gate::new();
    let held = Step::new().then_text(["S."]).gate(&writes).stop();
    let (_, mut agent) = joined([held], Hooks::new()).await;
    reached(&writes).await;
    agent.agent.interrupt().await.unwrap();
    let events = agent.end().await;
    assert_left(&agent, &events, &stopped(&events)).await;
}

#[tokio::test(start_paused = true)]
async fn failure_behind_a_compaction_after_joined_prompts_removes_it_with_them() {
    let (_, mut agent) = joined([Step::text("S."), refused()], Hooks::new()).await;
    let events = agent.end().await;
    assert_eq!((started(&events), compactions(&events).len()), (1, 1));
    let (failure, response) = failed(&events);
    assert_eq!(failure, too_long().into());
    // The service has refused the results too, so they are cleared.
    assert_left(&agent, &events, &response).await;
}

#[tokio::test(start_paused = true)]
async fn interrupt_behind_a_compaction_before_an_unanswered_prompt_drops_both() {
    let hangs = Gate::new();
    let last = Step::new().gate(&hangs).hang();
    let provider = ScriptedProvider::new([counted("A1", 900), Step::text("S."), last]);
    let mut agent = Watched::start(agent(&provider, policy(1))).await;
    agent.run("Q1").await;
    agent.agent.prompt("Q2").await.unwrap();
    reached(&hangs).await;
    agent.agent.interrupt().await.unwrap();
    let events = agent.end().await;
    assert_eq!(compactions(&events).len(), 1);
    assert!(matches!(&**events.last().unwrap(), Event::Cancelled { .. }), "{:?}", names(&events));
    assert_eq!(agent.history().await, ["user: Q1", "assistant: A1"]);
}

// ---- one compaction until the next answer ----

#[tokio::test(start_paused = true)]
async fn overflow_after_a_compaction_by_size_for_the_same_answer_is_not_compacted_again() {
    // The compaction before the third turn keeps the whole second one. Another compaction would keep its answer alone.
    for repeats in [0, 1] {
        let answer = long_answer(700);
        let steps = [counted("A1", 300), answer, Step::text("S1."), refused(), refused(), Step::text("no")];
        let provider = ScriptedProvider::new(steps);
        let (hooks, log) = failures(repeats);
        let policy = policy(2).without_clearing();
        let builder = agent(&provider, policy).callbacks(hooks);
        let mut agent = Watched::start(builder).await;
        agent.run("Q1").await;
        let mut events = agent.run(words(120)).await;
        events.extend(agent.run(words(300)).await);
        assert_eq!(started(&events), 1, "{:?}", names(&events));
        assert_eq!(failed(&events).0, too_long().into());
        assert_eq!(log.all(), vec![Failure::from(too_long()); repeats + 1]);
    }
}

#[tokio::test(start_paused = true)]
async fn overflow_after_a_failed_compaction_by_size_for_the_same_answer_is_not_compacted() {
    let failing = Step::text(" ");
    let steps = [counted("A1", 900), failing, refused(), refused(), Step::text("no")];
    let provider = ScriptedProvider::new(steps);
    let (hooks, log) = failures(1);
    let mut agent = Watched::start(agent(&provider, policy(0)).callbacks(hooks)).await;
    agent.run("Q1").await;
    let events = agent.run("Q2").await;
    assert_eq!((started(&events), compactions(&events)[0].is_err()), (1, true));
    assert_eq!((failed(&events).0, log.all().len()), (too_long().into(), 2));
}

#[tokio::test(start_paused = true)]
async fn prompt_that_is_too_large_after_a_compaction_at_the_end_of_a_run_is_sent_without_another() {
    let steps = [counted("A1", 300), long_answer(900), Step::text("S."), Step::text("A3"), Step::text("S3.")];
    let provider = ScriptedProvider::new(steps);
    let mut agent = Watched::start(agent(&provider, policy(1))).await;
    agent.run("Q1").await;
    let second = words(120);
    let events = agent.run(second.as_str()).await;
    assert_eq!(compactions(&events).len(), 1, "at the end of the run");
    agent.agent.prompt(words(800)).await.unwrap();
    let events = agent.until("turn").await;
    assert_eq!(started(&events), 0, "{:?}", names(&events));
    let texts = without_preamble(sent(&provider.requests()[3]));
    assert_eq!((texts.len(), texts[0].as_str()), (4, "summary: S."));
    assert_eq!(texts[1], format!("user: {second}"), "the kept turn is sent unchanged");
    // After the answer, the size counts again.
    let events = agent.end().await;
    assert_eq!(compactions(&events).len(), 1, "{:?}", names(&events));
}

// ---- summaries that take too long ----

fn is_timeout(failure: &Failure) -> bool {
    matches!(failure, Failure::Provider { error } if error.kind == ProviderErrorKind::Timeout)
}

fn with_timeout() -> Options {
    Options::default().with_timeout(Duration::from_secs(5))
}

fn hanging() -> Step {
    Step::new().usage(Usage::default().with_input(3)).then_text(["S."]).hang()
}

#[tokio::test(start_paused = true)]
async fn summary_that_exceeds_the_timeout_of_requests_leaves_the_request_as_it_is() {
    let provider = ScriptedProvider::new([counted("A1", 900), hanging(), Step::text("A2")]);
    let (hooks, log) = failures(0);
    let builder = agent(&provider, policy(0)).options(with_timeout()).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    agent.run("Q1").await;
    let events = agent.run("Q2").await;
    let ends = compactions(&events);
    assert!(matches!(&ends[..], [Err(failure)] if is_timeout(failure)), "{ends:?}");
    let response = stopped(&events);
    assert_eq!((response.text().as_str(), response.usage.input), ("A2", 3), "the usage counts");
    assert_eq!(sent(&provider.last_request().unwrap()), ["user: Q1", "assistant: A1", "user: Q2"]);
    assert_eq!(log.all(), [], "the run has not failed");
}

#[tokio::test(start_paused = true)]
async fn summary_at_the_end_of_a_run_that_exceeds_the_timeout_of_requests_leaves_the_answer() {
    let provider = ScriptedProvider::new([counted("A1", 300), counted("A2", 900), hanging()]);
    let (hooks, log) = failures(0);
    let builder = agent(&provider, policy(1)).options(with_timeout()).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    agent.run("Q1").await;
    let handle = agent.agent.clone();
    let asked = tokio::spawn(async move { handle.ask("Q2").await });
    let events = agent.end().await;
    assert_eq!(asked.await.unwrap().unwrap().text(), "A2");
    let ends = compactions(&events);
    assert!(matches!(&ends[..], [Err(failure)] if is_timeout(failure)), "{ends:?}");
    let last = stopped(&events);
    assert_eq!((last.text().as_str(), last.messages.len(), last.usage.input), ("A2", 0, 3));
    assert_eq!(agent.history().await, ["user: Q1", "assistant: A1", "user: Q2", "assistant: A2"]);
    assert_eq!(log.all(), []);
}

#[tokio::test(start_paused = true)]
async fn summary_after_an_overflow_that_exceeds_the_timeout_of_requests_fails_with_the_overflow() {
    let provider = ScriptedProvider::new([counted("A1", 300), refused(), hanging()]);
    let (hooks, log) = failures(0);
    let builder = agent(&provider, policy(0)).options(with_timeout()).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    agent.run("Q1").await;
    let events = agent.run("Q2").await;
    let ends = compactions(&events);
    assert!(matches!(&ends[..], [Err(failure)] if is_timeout(failure)), "{ends:?}");
    assert_eq!((failed(&events).0, log.all()), (too_long().into(), vec![too_long().into()]));
}

#[tokio::test(start_paused = true)]
async fn turn_timeout_during_a_summary_repeats_the_step_without_another_summary() {
    let writes = Gate::new();
    let held = Step::new().then_text(["S."]).gate(&writes).stop();
    let provider = ScriptedProvider::new([counted("A1", 900), held, Step::text("A2")]);
    let (hooks, log) = failures(1);
    let limit = Duration::from_secs(10);
    let builder = agent(&provider, policy(0)).turn_timeout(limit).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    agent.run("Q1").await;
    agent.agent.prompt("Q2").await.unwrap();
    reached(&writes).await;
    advance(limit).await;
    let events = agent.end().await;
    let timed_out = Failure::TimeLimit { limit };
    assert_eq!((stopped(&events).text().as_str(), log.all()), ("A2", vec![timed_out.clone()]));
    assert_eq!((started(&events), compactions(&events)), (1, vec![Err(timed_out)]));
    let end = names(&events);
    let end = end.iter().position(|name| name == "compaction_end").map(|at| end[at + 1].as_str());
    assert_eq!(end, Some("retry"));
    assert_eq!(sent(&provider.last_request().unwrap()).len(), 3);
}
