//! Prompts while the agent is busy or paused.

use crate::{
    agent::{
        Accepted, AgentCallbacks, ErrorDecision, Event, Failure, Next, Prompt, PromptState, Response,
        RunOutcome, State, ToolDecision, TurnDecision,
    },
    provider::{Options, StopReason},
    run::ErrorKind,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Tool, tool_fn},
};
use serde_json::{Value, json};

use super::{
    hooks::{Hooks, Log, Watched, brief, noting, reached, sent, stopped, tokens, turns},
    support::{names, returned, scripted},
};

/// Returns an agent that is streaming its first answer and waits at the gate.
async fn busy(hooks: Hooks, rest: impl IntoIterator<Item = Step>) -> (Watched, ScriptedProvider, Gate) {
    let gate = Gate::new();
    let first = Step::new().usage(tokens(10)).gate(&gate).then_text(["One"]).stop();
    let (provider, builder) = scripted(std::iter::once(first).chain(rest));
    let agent = Watched::start(builder.max_steps(3).callbacks(hooks)).await;
    assert!(matches!(agent.agent.prompt("Hi").await.unwrap(), Accepted::Started { .. }));
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
    assert!(matches!(accepted, Accepted::Staged { ahead: 0, .. }), "{accepted:?}");
    assert_eq!(agent.agent.snapshot().await.unwrap().staged[0].content, "And now".into());
    gate.open();
    let events = agent.end().await;
    let names: Vec<_> = names(&events).into_iter().filter(|name| !name.starts_with("text")).collect();
    assert_eq!(
        names,
        [
            "status(busy)",
            "message(user)",
            "step_start",
            "prompt(staged)",
            "message(assistant)",
            "step",
            "turn(continue)",
            "prompt(in_flight)",
            "message(user)",
            "step_start",
            "message(assistant)",
            "step",
            "status(idle)",
            "prompt(ended)",
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
    assert!(matches!(accepted, Accepted::Staged { ahead: 0, .. }), "{accepted:?}");
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
    assert!(matches!(accepted, Accepted::Staged { ahead: 0, .. }), "the other prompt has already started");
    second.open();
    let events = agent.end().await;
    let ends: Vec<_> = events
        .iter()
        .filter_map(|event| match &**event {
            Event::Turn { response, continues, .. } => Some((!continues, response.text())),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [(false, "One".into()), (false, "Two".into()), (true, "Three".into())]);
}

/// Returns the texts of the staged prompts.
async fn staged(agent: &Watched) -> Vec<String> {
    let staged = agent.agent.snapshot().await.unwrap().staged;
    staged
        .iter()
        .map(|prompt| prompt.content.0.iter().filter_map(|block| block.as_text()).collect())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn staged_prompts_start_one_turn_each_in_order() {
    let rest = ["Two", "Three", "Four"].map(Step::text);
    let (mut agent, _, gate) = busy(Hooks::new(), rest).await;
    for (n, text) in ["B", "C", "D"].into_iter().enumerate() {
        let accepted = agent.agent.prompt(text).await.unwrap();
        assert!(matches!(accepted, Accepted::Staged { ahead, .. } if ahead == n), "{accepted:?}");
    }
    assert_eq!(staged(&agent).await, ["B", "C", "D"]);
    gate.open();
    let events = agent.end().await;
    assert_eq!(turns(&events).len(), 4);
    let history = agent.history().await;
    let users: Vec<_> = history.iter().filter(|message| message.starts_with("user")).collect();
    assert_eq!(users, ["user: Hi", "user: B", "user: C", "user: D"]);
}

#[tokio::test(start_paused = true)]
async fn prompt_beyond_the_limit_of_the_queue_is_refused() {
    let gate = Gate::new();
    let (_, builder) = scripted([Step::new().gate(&gate).then_text(["One"]).stop(), Step::text("Two")]);
    let mut agent = Watched::start(builder.max_staged(1)).await;
    agent.agent.prompt("Hi").await.unwrap();
    reached(&gate).await;
    agent.agent.prompt("B").await.unwrap();
    let refused = agent.agent.prompt("C").await.unwrap_err();
    assert_eq!((refused.kind(), refused.is_unavailable()), (ErrorKind::QueueFull, true));
    assert_eq!(
        refused.to_string(),
        "1 prompts are staged, which is the maximum; wait for the next turn, or unstage one"
    );
    gate.open();
    agent.end().await;
    assert_eq!(agent.history().await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn unstage_returns_the_prompt_and_keeps_the_others() {
    let (mut agent, _, gate) = busy(Hooks::new(), [Step::text("Two")]).await;
    let accepted = agent.agent.prompt(Prompt::new("B").with_max_steps(2)).await.unwrap();
    let Accepted::Staged { id, .. } = accepted else { panic!("{accepted:?}") };
    agent.agent.prompt(Prompt::new("C").with_id("c")).await.unwrap();
    let prompt = agent.agent.unstage(id.clone()).await.unwrap();
    assert_eq!((prompt.content.clone(), prompt.max_steps), ("B".into(), Some(2)));
    let again = agent.agent.unstage(id.clone()).await.unwrap_err();
    assert_eq!((again.kind(), again.is_conflict()), (ErrorKind::NotStaged, true));
    assert_eq!(again.member("prompt").unwrap(), id.as_str());
    assert_eq!(staged(&agent).await, ["C"]);
    let order = names(&agent.until("prompt(returned)").await);
    assert_eq!(order[order.len() - 3..], ["prompt(staged)", "prompt(staged)", "prompt(returned)"]);
    gate.open();
    agent.end().await;
    assert_eq!(agent.history().await[2..], ["user: C", "assistant: Two"]);
}

#[tokio::test(start_paused = true)]
async fn prompt_repeated_with_its_id_is_known_and_runs_once() {
    let (mut agent, provider, gate) = busy(Hooks::new(), [Step::text("Two"), Step::text("Three")]).await;
    let order = || Prompt::new("Order").with_id("order");
    agent.agent.prompt(order()).await.unwrap();
    let state = |accepted| match accepted {
        Accepted::Known { state } => state,
        other => panic!("{other:?}"),
    };
    assert_eq!(state(agent.agent.prompt(order()).await.unwrap()), PromptState::Staged);
    let other = Prompt::new("").with_id("order").with_max_steps(0);
    assert_eq!(state(agent.agent.prompt(other).await.unwrap()), PromptState::Staged, "content is not read");
    let asked = agent.agent.ask(order()).await.unwrap_err();
    assert_eq!(
        (asked.kind(), asked.member("state")),
        (ErrorKind::KnownPrompt, Some(&serde_json::json!({ "state": "staged" }))),
        "{asked:?}"
    );
    gate.open();
    agent.end().await;
    let outcome = RunOutcome::Stopped { stop_reason: StopReason::Stop };
    assert_eq!(state(agent.agent.prompt(order()).await.unwrap()), PromptState::Ended { outcome });
    assert_eq!(provider.requests().len(), 2);
    let texts: Vec<_> = agent.history().await;
    assert_eq!(texts.iter().filter(|text| *text == "user: Order").count(), 1);
    agent.run(Prompt::new("Other").with_id("other")).await;
}

#[tokio::test(start_paused = true)]
async fn prompt_whose_id_was_withdrawn_or_carried_back_runs_again() {
    let (mut agent, _, _) = busy(Hooks::new(), [Step::text("Two")]).await;
    agent.agent.prompt(Prompt::new("B").with_id("b")).await.unwrap();
    agent.agent.unstage("b").await.unwrap();
    let again = agent.agent.prompt(Prompt::new("B").with_id("b")).await.unwrap();
    assert!(matches!(again, Accepted::Staged { .. }), "{again:?}");
    agent.agent.cancel().await.unwrap();
    agent.end().await;
    assert!(matches!(
        agent.agent.prompt(Prompt::new("B").with_id("b")).await.unwrap(),
        Accepted::Started { .. }
    ));
    agent.end().await;
    assert_eq!(agent.history().await, ["user: B", "assistant: Two"]);
}

#[tokio::test(start_paused = true)]
async fn prompt_that_was_cancelled_stays_known() {
    let (_, builder) = scripted([Step::new().hang()]);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt(Prompt::new("A").with_id("a")).await.unwrap();
    agent.agent.cancel().await.unwrap();
    agent.end().await;
    let known = agent.agent.prompt(Prompt::new("A").with_id("a")).await.unwrap();
    let state = PromptState::Ended { outcome: RunOutcome::Cancelled };
    assert_eq!(known, Accepted::Known { state });
}

#[tokio::test(start_paused = true)]
async fn prompt_ids_beyond_the_last_32_are_forgotten() {
    let (_, builder) = scripted((0..40).map(|n| Step::text(n.to_string())));
    let mut agent = Watched::start(builder).await;
    for n in 0..33 {
        agent.run(Prompt::new("Go").with_id(format!("p{n}"))).await;
    }
    let newest = agent.agent.prompt(Prompt::new("Go").with_id("p1")).await.unwrap();
    assert!(matches!(newest, Accepted::Known { .. }), "{newest:?}");
    assert!(matches!(
        agent.agent.prompt(Prompt::new("Go").with_id("p0")).await.unwrap(),
        Accepted::Started { .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn prompt_with_an_empty_or_long_id_is_refused() {
    let (_, builder) = scripted([Step::text("One")]);
    let agent = Watched::start(builder).await;
    for (id, length) in [(String::new(), 0), ("é".repeat(33), 66)] {
        let refused = agent.agent.prompt(Prompt::new("Go").with_id(id)).await.unwrap_err();
        let text = format!("the prompt's id has {length} bytes; use an id of 1 to 64 bytes");
        assert_eq!((refused.kind(), refused.to_string()), (ErrorKind::InvalidPrompt, text));
    }
    agent.agent.prompt(Prompt::new("Go").with_id("é".repeat(32))).await.unwrap();
}

/// A tool that waits at the gate.
fn slow(gate: &Gate) -> impl Tool + use<> {
    let gate = gate.clone();
    tool_fn("slow", "Waits.", move |_: Value, _| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok("done")
        }
    })
}

/// Returns an agent whose tool waits at the gate, and whose model uses the tool once and then answers.
async fn in_a_tool(rest: impl IntoIterator<Item = Step>) -> (Watched, ScriptedProvider, Gate) {
    let gate = Gate::new();
    let steps = std::iter::once(Step::tool_use("t", "slow", json!({}))).chain(rest);
    let (provider, builder) = scripted(steps);
    let agent = Watched::start(builder.tool(slow(&gate))).await;
    agent.agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    (agent, provider, gate)
}

#[tokio::test(start_paused = true)]
async fn prompt_for_the_next_step_joins_the_turn_after_the_tools() {
    let (mut agent, provider, gate) = in_a_tool([Step::text("One"), Step::text("Two")]).await;
    agent.agent.prompt("Later").await.unwrap();
    let joins = |text: &str| Prompt::new(text).at(Next::Step);
    let accepted = agent.agent.prompt(joins("Now")).await.unwrap();
    assert!(matches!(accepted, Accepted::Staged { ahead: 1, .. }), "{accepted:?}");
    agent.agent.prompt(joins("And this").with_id("this")).await.unwrap();
    gate.open();
    let events = agent.end().await;
    let order: Vec<_> = names(&events).into_iter().filter(|name| !name.starts_with("text")).collect();
    let joined = order.iter().position(|name| name == "tool_result(t)").unwrap();
    assert_eq!(
        order[joined..joined + 12],
        [
            "tool_result(t)",
            "message(user)",
            "prompt(in_flight)",
            "message(user)",
            "prompt(in_flight)",
            "message(user)",
            "step_start",
            "message(assistant)",
            "step",
            "prompt(ended)",
            "prompt(ended)",
            "turn(continue)"
        ]
    );
    let asked = sent(&provider.requests()[1]);
    assert_eq!(asked[2..], ["user: result t", "user: Now", "user: And this"]);
    let steps = super::hooks::steps(&events);
    let second: Vec<_> = steps[1].messages.iter().map(|message| brief(message)).collect();
    assert_eq!(second, ["user: result t", "user: Now", "user: And this", "assistant: One"]);
    assert_eq!(steps[1].step, 2, "the step count continues");
    let history = agent.history().await;
    let said =
        ["user: Go", "assistant: use t", "user: result t", "user: Now", "user: And this", "assistant: One"];
    assert_eq!((&history[..6], &history[6]), (&said.map(String::from)[..], &"user: Later".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn prompt_for_the_next_step_without_a_further_step_starts_the_next_turn() {
    let (mut agent, provider, gate) = busy(Hooks::new(), [Step::text("Two")]).await;
    agent.agent.prompt(Prompt::new("Now").at(Next::Step)).await.unwrap();
    gate.open();
    let events = agent.end().await;
    assert_eq!(turns(&events).len(), 2);
    assert_eq!(sent(&provider.requests()[1]), ["user: Hi", "assistant: One", "user: Now"]);
}

#[tokio::test(start_paused = true)]
async fn prompt_for_the_next_step_while_idle_starts_a_run() {
    let (_, builder) = scripted([Step::text("One")]);
    let mut agent = Watched::start(builder).await;
    let prompt = Prompt::new("Now").at(Next::Step).with_max_steps(1);
    assert!(matches!(agent.agent.prompt(prompt).await.unwrap(), Accepted::Started { .. }));
    agent.end().await;
}

#[tokio::test(start_paused = true)]
async fn prompt_for_the_next_step_with_settings_is_refused() {
    let (agent, _, _) = busy(Hooks::new(), []).await;
    let prompt = Prompt::new("Now").at(Next::Step).with_max_steps(1);
    let refused = agent.agent.prompt(prompt).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotAtStep, "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn interrupt_before_the_answer_carries_joined_prompts_back() {
    let hangs = Gate::new();
    let (mut agent, _, gate) = in_a_tool([Step::new().gate(&hangs).hang()]).await;
    agent.agent.prompt(Prompt::new("Now").at(Next::Step).with_id("now")).await.unwrap();
    agent.agent.prompt("Later").await.unwrap();
    gate.open();
    reached(&hangs).await;
    agent.agent.interrupt().await.unwrap();
    let events = agent.end().await;
    let Some(Event::Turn { response, continues: false }) = events.last().map(|event| &**event) else {
        panic!("{:?}", names(&events))
    };
    let carried: Vec<_> = returned(&events).iter().map(|prompt| prompt.content.clone()).collect();
    assert_eq!(carried, ["Now".into(), "Later".into()]);
    assert_eq!(response.messages.len(), 3, "the turn ends with the results");
    assert_eq!(agent.history().await, ["user: Go", "assistant: use t", "user: result t"]);
    let again = agent.agent.prompt(Prompt::new("Now").with_id("now")).await.unwrap();
    assert!(matches!(again, Accepted::Started { .. }), "the prompt never ran");
}

#[tokio::test(start_paused = true)]
async fn interrupt_in_the_answer_keeps_joined_prompts() {
    let hangs = Gate::new();
    let (mut agent, _, gate) = in_a_tool([Step::new().then_text(["Half"]).gate(&hangs).hang()]).await;
    agent.agent.prompt(Prompt::new("Now").at(Next::Step)).await.unwrap();
    gate.open();
    reached(&hangs).await;
    agent.agent.interrupt().await.unwrap();
    agent.end().await;
    assert_eq!(agent.history().await[3..], ["user: Now", "assistant: Half"]);
}

#[tokio::test(start_paused = true)]
async fn cancel_after_a_prompt_has_joined_discards_it_with_the_turn() {
    let hangs = Gate::new();
    let (mut agent, _, gate) = in_a_tool([Step::new().gate(&hangs).hang()]).await;
    agent.agent.prompt(Prompt::new("Now").at(Next::Step)).await.unwrap();
    gate.open();
    reached(&hangs).await;
    agent.agent.cancel().await.unwrap();
    let events = agent.end().await;
    let Some(Event::Cancelled { response }) = events.last().map(|event| &**event) else { panic!() };
    assert!(returned(&events).is_empty());
    let discarded: Vec<_> = response.messages.iter().map(|message| brief(message)).collect();
    assert_eq!(discarded, ["user: Go", "assistant: use t", "user: result t", "user: Now"]);
}

#[tokio::test(start_paused = true)]
async fn retry_repeats_the_step_with_the_prompts_that_have_joined() {
    let fails = Step::error(crate::provider::ProviderError::new(
        crate::provider::ProviderErrorKind::InvalidRequest,
        "once",
    ));
    let gate = Gate::new();
    let (provider, builder) = scripted([Step::tool_use("t", "slow", json!({})), fails, Step::text("One")]);
    let hooks = Hooks::new().on_error(|_, _| crate::agent::ErrorDecision::Retry);
    let mut agent = Watched::start(builder.tool(slow(&gate)).callbacks(hooks)).await;
    agent.agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    agent.agent.prompt(Prompt::new("Now").at(Next::Step)).await.unwrap();
    gate.open();
    agent.end().await;
    assert_eq!(sent(&provider.requests()[1]), sent(&provider.requests()[2]));
    assert_eq!(agent.history().await[3..], ["user: Now", "assistant: One"]);
}

/// Callbacks that hang in the first `handle_turn`, and repeat the step when the turn's time limit is reached.
struct HangsOnce(bool);

#[async_trait::async_trait]
impl AgentCallbacks for HangsOnce {
    async fn handle_turn(&mut self, _: &Response, _: &mut State) -> TurnDecision {
        if !std::mem::replace(&mut self.0, true) {
            std::future::pending::<()>().await;
        }
        TurnDecision::Stop
    }

    async fn handle_error(&mut self, _: &Failure, _: &mut State) -> ErrorDecision {
        ErrorDecision::Retry
    }
}

#[tokio::test(start_paused = true)]
async fn interrupt_of_a_step_that_is_repeated_after_its_answer_carries_joined_prompts_back() {
    let (gate, hangs) = (Gate::new(), Gate::new());
    let last = Step::new().gate(&hangs).hang();
    let (_, builder) = scripted([Step::tool_use("t", "slow", json!({})), Step::text("One"), last]);
    let limit = std::time::Duration::from_mins(1);
    let builder = builder.tool(slow(&gate)).turn_timeout(limit).callbacks(HangsOnce(false));
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    agent.agent.prompt(Prompt::new("Now").at(Next::Step)).await.unwrap();
    gate.open();
    agent.until("retry").await;
    reached(&hangs).await;
    agent.agent.interrupt().await.unwrap();
    let events = agent.end().await;
    assert_eq!(names(&events).last().unwrap(), "turn(stop)");
    assert_eq!(returned(&events)[0].content, "Now".into());
    assert_eq!(agent.history().await, ["user: Go", "assistant: use t", "user: result t"]);
    agent.agent.state().await.unwrap().history().check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn prompt_id_is_known_until_its_run_has_ended_even_if_many_are_staged() {
    let gate = Gate::new();
    let first = Step::new().gate(&gate).then_text(["One"]).stop();
    let (provider, builder) = scripted(std::iter::once(first).chain((0..40).map(|_| Step::text("Next"))));
    let mut agent = Watched::start(builder.max_staged(40)).await;
    let numbered = |number: usize| Prompt::new("Hi").with_id(format!("p{number}"));
    let Accepted::Started { turn } = agent.agent.prompt(numbered(0)).await.unwrap() else { panic!() };
    for number in 1..=40 {
        agent.agent.prompt(numbered(number)).await.unwrap();
    }
    for number in 0..=40 {
        let state = if number == 0 { PromptState::InFlight { turn } } else { PromptState::Staged };
        assert_eq!(
            agent.agent.prompt(numbered(number)).await.unwrap(),
            Accepted::Known { state },
            "{number}"
        );
    }
    gate.open();
    agent.end().await;
    assert_eq!(provider.requests().len(), 41);
    // The latest 32 prompts stay known.
    let ended = PromptState::Ended { outcome: RunOutcome::Stopped { stop_reason: StopReason::Stop } };
    let again = agent.agent.prompt(numbered(40)).await.unwrap();
    assert_eq!(again, Accepted::Known { state: ended });
}
