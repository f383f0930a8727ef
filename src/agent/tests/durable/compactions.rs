//! Compactions of an agent that records its turns, and that is killed.

use super::*;
use crate::{
    agent::{Accepted, Compact, CompactionPolicy},
    message::Usage,
    provider::{ModelInfo, ProviderError, ProviderErrorKind},
};

/// Returns an agent with room for 1,000 tokens, which keeps one turn unchanged.
fn compacting(steps: Vec<Step>) -> AgentBuilder {
    let info = ModelInfo::new("small").with_context_window(1_100).with_output_limit(100);
    let model = ScriptedProvider::new(steps).model().with_info(info);
    Agent::builder().model(model).compaction(CompactionPolicy::default().with_kept_turns(1))
}

fn texts(history: &History) -> Vec<String> {
    history.iter().map(|message| message.text()).collect()
}

/// The steps of two runs, after the second of which a summary begins that does not end.
fn held_summary(gate: &Gate) -> Vec<Step> {
    let full = Step::new().usage(Usage::default().with_input(900)).then_text(["A2"]).stop();
    vec![Step::text("A1"), full, Step::new().then_text(["Half"]).gate(gate).stop()]
}

#[tokio::test(start_paused = true)]
async fn kill_during_a_compaction_at_the_end_keeps_the_answer_and_runs_the_staged_prompt() {
    let gate = Gate::new();
    let life = Life::begin(compacting(held_summary(&gate)), Durable::InFlight, &Shelf::default()).await;
    life.agent.ask("Q1").await.unwrap();
    life.agent.prompt("Q2").await.unwrap();
    gate.reached().await;
    let staged = life.agent.prompt("Q3").await.unwrap();
    assert!(matches!(staged, Accepted::Staged { .. }), "{staged:?}");
    let shelf = life.kill().await;
    assert_eq!(texts(&shelf.history()), ["Q1", "A1", "Q2", "A2"]);

    let steps = vec![Step::text("S."), Step::text("A3")];
    let life = Life::begin(compacting(steps), Durable::InFlight, &shelf).await;
    life.idle().await;
    assert_eq!(texts(&life.shelf.history()), ["Q1", "A1", "Q2", "A2", "S.", "Q3", "A3"]);
}

#[tokio::test(start_paused = true)]
async fn kill_during_a_requested_compaction_leaves_the_conversation_as_it_was() {
    let gate = Gate::new();
    let mut steps: Vec<_> = ["A1", "A2"].map(Step::text).into();
    steps.push(Step::new().then_text(["Half"]).gate(&gate).stop());
    let life = Life::begin(compacting(steps), Durable::InFlight, &Shelf::default()).await;
    for prompt in ["Q1", "Q2"] {
        life.agent.ask(prompt).await.unwrap();
    }
    let agent = life.agent.clone();
    let compacting_call = tokio::spawn(async move { agent.compact(Compact::summary()).await });
    gate.reached().await;
    let shelf = life.kill().await;
    compacting_call.abort();

    let life = Life::begin(compacting(vec![Step::text("A3")]), Durable::InFlight, &shelf).await;
    life.idle().await;
    assert_eq!(texts(&life.shelf.history()), ["Q1", "A1", "Q2", "A2"]);
    assert_eq!(life.agent.ask("Q3").await.unwrap().text(), "A3");
}

#[tokio::test(start_paused = true)]
async fn kill_after_a_compaction_of_the_turn_repeats_the_request_without_another() {
    // The compaction keeps the whole second turn. Another compaction would keep its answer alone.
    let words = |count: usize| "word ".repeat(count);
    let policy = CompactionPolicy::default().with_kept_turns(2).with_threshold(0.5);
    let start = |steps: Vec<Step>| {
        let info = ModelInfo::new("small").with_context_window(1_100).with_output_limit(100);
        let provider = ScriptedProvider::new(steps);
        let model = provider.model().with_info(info);
        (provider, Agent::builder().model(model).compaction(policy.clone()))
    };
    let gate = Gate::new();
    let counted = Step::new().usage(Usage::default().with_input(300)).then_text([words(120)]).stop();
    let held = Step::new().gate(&gate).hang();
    let (_, builder) = start(vec![Step::text("A1"), counted, Step::text("S."), held]);
    let life = Life::begin(builder, Durable::InFlight, &Shelf::default()).await;
    life.agent.ask("Q1").await.unwrap();
    life.agent.ask(words(120)).await.unwrap();
    life.agent.prompt(words(300)).await.unwrap();
    gate.reached().await;
    // This record contains the compaction. It is the last one.
    life.agent.prompt("Q4").await.unwrap();
    settle().await;
    let shelf = life.kill().await;

    let (provider, builder) = start(vec![Step::text("A3"), Step::text("S4."), Step::text("A4")]);
    let life = Life::begin(builder, Durable::InFlight, &shelf).await;
    life.idle().await;
    let texts = texts(&life.shelf.history());
    assert_eq!((texts[4].as_str(), texts[6].as_str()), ("S.", "A3"), "{texts:?}");
    let first = &provider.requests()[0].history;
    let last = first.last().unwrap().text();
    assert_eq!((first.len(), last), (4, words(300)), "the summary, the second turn and the prompt");

    // If the service refuses the compacted conversation, the turn fails.
    let too_long = ProviderError::new(ProviderErrorKind::ContextTooLong, "too long");
    let (provider, builder) = start(vec![Step::error(too_long), Step::text("no")]);
    let life = Life::begin(builder, Durable::InFlight, &shelf).await;
    life.idle().await;
    assert_eq!((provider.requests().len(), life.shelf.history().len()), (1, 4));
}
