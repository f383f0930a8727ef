//! Prompts while the agent is busy or paused.

use crate::{
    agent::{Accepted, Event, Prompt, ToolDecision, TurnDecision, TurnOutcome},
    provider::Options,
    testing::{Gate, ScriptedProvider, Step},
    tool::Decision,
};
use serde_json::{Value, json};

use super::{
    hooks::{Hooks, Log, Watched, brief, noting, reached, sent, stopped, tokens, turns},
    support::{names, scripted},
};

/// Returns an agent that is streaming its first answer and waits at the gate.
async fn busy(hooks: Hooks, rest: impl IntoIterator<Item = Step>) -> (Watched, ScriptedProvider, Gate) {
    let gate = Gate::new();
    let first = Step::new().usage(tokens(10)).gate(&gate).then_text(["One"]).stop();
    let (provider, builder) = scripted(std::iter::once(first).chain(rest));
    let agent = Watched::start(builder.max_steps(3).callbacks(hooks)).await;
    assert_eq!(agent.agent.prompt("Hi").await.unwrap(), Accepted::Started);
    reached(&gate).await;
    (agent, provider, gate)
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_begins_the_next_turn_of_the_same_run() {
    let ended = Log::<String>::default();
    let noted = ended.clone();
    let hooks = Hooks::new().on_turn(move |response, _| {
        noted.push(response.text());
        TurnDecision::Stop
    });
    let second = Step::new().usage(tokens(5)).then_text(["Two"]).stop();
    let (mut agent, provider, gate) = busy(hooks, [second]).await;
    let accepted = agent.agent.prompt("And now").await.unwrap();
    assert_eq!(accepted, Accepted::Staged { replaced: None });
    assert_eq!(*agent.agent.snapshot().await.unwrap().staged.unwrap(), Prompt::new("And now"));
    gate.open();
    let events = agent.end().await;
    let names: Vec<_> = names(&events).into_iter().filter(|name| !name.starts_with("text")).collect();
    assert_eq!(
        names,
        [
            "status(busy)",
            "message(user)",
            "message(assistant)",
            "step",
            "turn(continue)",
            "message(user)",
            "message(assistant)",
            "step",
            "status(idle)",
            "turn(stop)"
        ]
    );
    assert_eq!(ended.all(), ["One", "Two"], "handle_turn still runs");
    let turns = turns(&events);
    let messages: Vec<Vec<_>> =
        turns.iter().map(|turn| turn.messages.iter().map(|m| brief(m)).collect()).collect();
    assert_eq!(messages, [["user: Hi", "assistant: One"], ["user: And now", "assistant: Two"]]);
    assert_eq!(turns.iter().map(|turn| turn.usage).collect::<Vec<_>>(), [tokens(10), tokens(5)]);
    assert_eq!(sent(&provider.requests()[1]), ["user: Hi", "assistant: One", "user: And now"]);
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_takes_precedence_over_a_continuation() {
    let hooks = Hooks::new().continuing(["Continue"]);
    let (mut agent, _, gate) = busy(hooks, [Step::text("Two")]).await;
    agent.agent.prompt("And now").await.unwrap();
    gate.open();
    agent.end().await;
    assert_eq!(agent.history().await, ["user: Hi", "assistant: One", "user: And now", "assistant: Two"]);
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_applies_its_options_and_a_fresh_step_count() {
    let look = || Step::tool_use("a", "look", json!({}));
    let gate = Gate::new();
    let first = Step::new().gate(&gate).then_text(["One"]).stop();
    let (provider, builder) = scripted([first, look(), look(), Step::text("Two"), Step::text("Three")]);
    let builder = builder.max_steps(1).options(Options::default().with_temperature(0.1));
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default()))).await;
    agent.agent.prompt(Prompt::new("Hi").with_options(Options::default().with_max_tokens(9))).await.unwrap();
    reached(&gate).await;
    let staged = Prompt::new("And now").with_max_steps(3).with_options(Options::default().with_top_p(0.5));
    agent.agent.prompt(staged).await.unwrap();
    gate.open();
    let events = agent.end().await;
    assert_eq!((stopped(&events).text().as_str(), stopped(&events).step), ("Two", 3));
    agent.run("Last").await;
    let options: Vec<_> = provider
        .requests()
        .into_iter()
        .map(|request| (request.options.temperature(), request.options.max_tokens(), request.options.top_p()))
        .collect();
    let staged = (Some(0.1), None, Some(0.5));
    assert_eq!(options, [(Some(0.1), Some(9), None), staged, staged, staged, (Some(0.1), None, None)]);
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_replaced_is_returned() {
    let (mut agent, _, gate) = busy(Hooks::new(), [Step::text("Two")]).await;
    agent.agent.prompt(Prompt::new("Older").with_max_steps(2)).await.unwrap();
    let accepted = agent.agent.prompt("Newer").await.unwrap();
    let Accepted::Staged { replaced: Some(replaced) } = accepted else { panic!("{accepted:?}") };
    assert_eq!(*replaced, Prompt::new("Older").with_max_steps(2));
    gate.open();
    agent.end().await;
    assert_eq!(agent.history().await[2..], ["user: Newer", "assistant: Two"]);
}

#[tokio::test(start_paused = true)]
async fn prompt_refused_keeps_the_staged_prompt() {
    let (mut agent, _, gate) = busy(Hooks::new(), [Step::text("Two")]).await;
    agent.agent.prompt("Keep me").await.unwrap();
    assert!(agent.agent.prompt("").await.is_err());
    assert!(agent.agent.prompt(Prompt::new("No").with_max_steps(0)).await.is_err());
    assert!(agent.agent.ask("No").await.is_err());
    gate.open();
    agent.end().await;
    assert_eq!(agent.history().await[2..], ["user: Keep me", "assistant: Two"]);
}

#[tokio::test(start_paused = true)]
async fn prompt_while_paused_is_staged() {
    let (_, builder) =
        scripted([Step::tool_use("a", "look", json!({})), Step::text("One"), Step::text("Two")]);
    let hooks = Hooks::new().deciding([("look", ToolDecision::Pause(Value::Null))]);
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default())).callbacks(hooks)).await;
    agent.agent.prompt("Hi").await.unwrap();
    agent.until("pause").await;
    let accepted = agent.agent.prompt("And now").await.unwrap();
    assert_eq!(accepted, Accepted::Staged { replaced: None });
    assert!(agent.agent.snapshot().await.unwrap().pauses.len() == 1, "still paused");
    agent.agent.resume("a", Decision::Execute).await.unwrap();
    let events = agent.end().await;
    assert_eq!(turns(&events).len(), 2);
    assert_eq!(stopped(&events).text(), "Two");
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_in_a_later_turn_of_the_run_starts_too() {
    let (first, second) = (Gate::new(), Gate::new());
    let held = |gate: &Gate, text: &str| Step::new().gate(gate).then_text([text]).stop();
    let (_, builder) = scripted([held(&first, "One"), held(&second, "Two"), Step::text("Three")]);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt("1").await.unwrap();
    reached(&first).await;
    agent.agent.prompt("2").await.unwrap();
    first.open();
    reached(&second).await;
    let accepted = agent.agent.prompt("3").await.unwrap();
    assert_eq!(accepted, Accepted::Staged { replaced: None }, "the other prompt has already started");
    second.open();
    let events = agent.end().await;
    let ends: Vec<_> = events
        .iter()
        .filter_map(|event| match &**event {
            Event::Turn(turn) => Some((matches!(turn, TurnOutcome::Stop { .. }), turn.response().text())),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [(false, "One".into()), (false, "Two".into()), (true, "Three".into())]);
}
