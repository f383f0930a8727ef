//! A run from its prompt to its end: the order of its events, and the content of its responses.

use std::time::Duration;

use crate::{
    agent::{Event, Failure, TurnDecision},
    message::{Attachment, Blocks, Content, Text, ToolResult, ToolUse, Usage},
    provider::{BlockStart, Delta, MessageDelta, Part, StopReason},
    testing::{Gate, Step},
    tool::{ToolContext, ToolError, tool_fn},
};
use serde_json::{Value, json};

use super::{
    hooks::{Hooks, Log, Watched, brief, failed, noting, results, sent, steps, stopped, tokens, turns},
    support::{names, scripted},
};

#[tokio::test(start_paused = true)]
async fn prompt_simple_answer_events_in_order() {
    let (_, builder) = scripted([Step::text("Hello!")]);
    let mut agent = Watched::start(builder).await;
    let events = agent.run("Hi").await;
    assert_eq!(
        names(&events),
        [
            "status(busy)",
            "message(user)",
            "step_start",
            "text_start",
            "text_delta",
            "text_end",
            "message(assistant)",
            "step",
            "status(idle)",
            "turn(stop)"
        ]
    );
    let response = stopped(&events);
    assert_eq!(
        (response.text().as_str(), &response.stop_reason, response.step),
        ("Hello!", &StopReason::Stop, 1)
    );
    assert_eq!(agent.history().await, ["user: Hi", "assistant: Hello!"]);
}

#[tokio::test(start_paused = true)]
async fn turn_event_received_history_contains_its_messages() {
    let (_, builder) = scripted([Step::text("One"), Step::text("Two")]);
    let mut agent = Watched::start(builder.callbacks(Hooks::new().continuing(["More"]))).await;
    agent.agent.prompt("Hi").await.unwrap();
    agent.until("turn(continue)").await;
    assert!(agent.history().await.starts_with(&["user: Hi".to_owned(), "assistant: One".to_owned()]));
    agent.end().await;
}

#[tokio::test(start_paused = true)]
async fn prompt_all_blocks_stream_in_place() {
    let step = Step::new()
        .then_thinking("Hm.", "signed")
        .then_text(["Look", "ing"])
        .delta(Delta::End { index: 1 })
        .delta(Delta::Start {
            index: 2,
            block: BlockStart::Attachment(Attachment::url("image/png", "http://x/y")),
        })
        .stop();
    let (_, builder) = scripted([step]);
    let mut agent = Watched::start(builder).await;
    let events = agent.run("Hi").await;
    assert_eq!(
        names(&events)[3..events.len() - 4],
        [
            "thinking_start",
            "thinking_delta",
            "thinking_end",
            "text_start",
            "text_delta",
            "text_delta",
            "text_end",
            "attachment"
        ]
    );
    let message = stopped(&events).message.clone().unwrap();
    assert!(matches!(&message.content[0], Content::Thinking(thinking) if thinking.is_signed()));
    assert_eq!(message.content[1], Content::Text(Text::new("Looking")));
    assert!(matches!(&message.content[2], Content::Attachment(_)));
}

#[tokio::test(start_paused = true)]
async fn prompt_with_tools_events_in_order() {
    let step = Step::new().then_text(["Let me see."]).then_tool_use("a", "look", json!({})).stop();
    let (provider, builder) = scripted([step, Step::text("A cat.")]);
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default()))).await;
    let events = agent.run("What is it?").await;
    assert_eq!(
        names(&events),
        [
            "status(busy)",
            "message(user)",
            "step_start",
            "text_start",
            "text_delta",
            "tool_use_start",
            "tool_use_delta",
            "text_end",
            "tool_use_end",
            "message(assistant)",
            "step",
            "tool_start(a)",
            "tool_end(a)",
            "tool_result(a)",
            "message(user)",
            "step_start",
            "text_start",
            "text_delta",
            "text_end",
            "message(assistant)",
            "step",
            "status(idle)",
            "turn(stop)"
        ]
    );
    let conversation =
        ["user: What is it?", "assistant: Let me see., use a", "user: result a", "assistant: A cat."];
    assert_eq!(agent.history().await, conversation);
    assert_eq!(sent(&provider.requests()[1]), conversation[..3]);
}

#[tokio::test(start_paused = true)]
async fn parallel_tools_results_come_in_the_order_of_their_uses() {
    let step = Step::new()
        .then_tool_use("slow", "slow", json!({}))
        .then_tool_use("fails", "fails", json!({}))
        .then_tool_use("quick", "quick", json!({}))
        .stop();
    let (provider, builder) = scripted([step, Step::text("Done.")]);
    let (log, gate) = (Log::default(), Gate::new());
    let held = gate.clone();
    let slow = tool_fn("slow", "Waits.", move |_: Value, _| {
        let gate = held.clone();
        async move {
            gate.pass().await;
            Ok("slow done")
        }
    });
    let opener = gate.clone();
    let quick = noting("quick", &log);
    let fails = tool_fn("fails", "Fails.", move |_: Value, _: ToolContext| {
        // This tool lets the slow tool finish, which works only if both tools run concurrently.
        opener.open();
        async move { Err::<String, _>(ToolError::new("broken")) }
    });
    let mut agent = Watched::start(builder.tool(slow).tool(fails).tool(quick)).await;
    let events = agent.run("Go").await;
    let order: Vec<_> =
        results(&events).into_iter().map(|(result, _)| (result.text(), result.is_error)).collect();
    assert_eq!(order, [("slow done".into(), false), ("broken".into(), true), ("quick done".into(), false)]);
    assert_eq!(
        brief(provider.requests()[1].history.last().unwrap()),
        "user: result slow, result fails, result quick"
    );
    let names = names(&events);
    let first = names.iter().position(|name| name == "tool_result(slow)").unwrap();
    assert_eq!(names[first + 1..first + 4], ["tool_result(fails)", "tool_result(quick)", "message(user)"]);
}

#[tokio::test(start_paused = true)]
async fn parallel_tools_take_as_long_as_the_longest() {
    let step =
        (0..10).fold(Step::new(), |step, n| step.then_tool_use(&format!("{n}"), "nap", json!({}))).stop();
    let (_, builder) = scripted([step, Step::text("Done.")]);
    let nap = tool_fn("nap", "Sleeps.", |_: Value, _| async move {
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok("slept")
    });
    let mut agent = Watched::start(builder.tool(nap)).await;
    let start = tokio::time::Instant::now();
    agent.run("Go").await;
    assert_eq!(start.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn unknown_tool_gets_an_error_result_and_the_turn_continues() {
    let (_, builder) = scripted([Step::tool_use("a", "fly", json!({})), Step::text("Sorry.")]);
    let mut agent = Watched::start(builder.tool(noting("walk", &Log::default()))).await;
    let events = agent.run("Go").await;
    let (result, _) = results(&events).remove(0);
    assert!(result.is_error);
    assert!(result.text().contains("fly") && result.text().contains("walk"), "{}", result.text());
    assert_eq!(stopped(&events).text(), "Sorry.");
}

#[tokio::test(start_paused = true)]
async fn malformed_and_invalid_input_get_error_results_and_the_turn_continues() {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct City {
        city: String,
    }
    let step = Step::new()
        .then_raw_tool_use("torn", "weather", &["{\"city\": \"Os"])
        .then_tool_use("invalid", "weather", json!({ "town": "Oslo" }))
        .then_tool_use("valid", "weather", json!({ "city": "Oslo" }))
        .stop();
    let (provider, builder) = scripted([step, Step::text("Cold.")]);
    let weather =
        tool_fn(
            "weather",
            "The weather.",
            |City { city }: City, _| async move { Ok(format!("{city}: cold")) },
        );
    let mut agent = Watched::start(builder.tool(weather)).await;
    let events = agent.run("Go").await;
    let results = results(&events);
    assert_eq!(results.iter().map(|(result, _)| result.is_error).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(results[2].0.text(), "Oslo: cold");
    let uses: Vec<_> = provider.requests()[1].history.get(1).unwrap().tool_uses().cloned().collect();
    assert_eq!((&uses[0].input, uses[0].malformed.as_deref()), (&json!({}), Some("{\"city\": \"Os")));
    assert_eq!((&uses[1].input, uses[1].malformed.as_deref()), (&json!({ "town": "Oslo" }), None));
}

/// A response with a whole tool use and a tool use that was cut off.
fn cut_uses(id: &str, reason: StopReason) -> Step {
    let whole = Step::new().then_tool_use(id, "note", json!({ "n": 1 }));
    whole.then_raw_tool_use(&format!("{id}-cut"), "note", &["{\"n\": "]).stop_with(reason)
}

#[tokio::test(start_paused = true)]
async fn tool_uses_of_a_cut_response_do_not_run_and_the_model_is_asked_again() {
    let steps =
        [cut_uses("a", StopReason::Length), Step::tool_use("b", "note", json!({})), Step::text("Done.")];
    let (provider, builder) = scripted(steps);
    let ran = Log::default();
    let mut agent = Watched::start(builder.tool(noting("note", &ran))).await;
    let events = agent.run("Go").await;
    assert_eq!(ran.all(), ["note {}"]);
    let results = results(&events);
    for (result, _) in &results[..2] {
        assert!(result.is_error && result.text().contains("output limit"), "{}", result.text());
    }
    assert!(!results[2].0.is_error);
    let response = stopped(&events);
    assert_eq!((response.text().as_str(), response.step), ("Done.", 3));
    let steps: Vec<_> = steps_of(&events);
    assert_eq!(steps, [(StopReason::Length, 1), (StopReason::ToolUse, 2), (StopReason::Stop, 3)]);
    assert_eq!(provider.requests()[1].history.last().unwrap().tool_results().count(), 2);
}

#[tokio::test(start_paused = true)]
async fn tool_uses_of_a_second_cut_response_end_the_turn_with_length() {
    // A response that is not cut lies between the first two cut responses.
    let cut = |id| cut_uses(id, StopReason::Length);
    let steps = [cut("a"), Step::tool_use("b", "note", json!({})), cut("c"), cut("d"), Step::text("Hello.")];
    let (provider, builder) = scripted(steps);
    let ran = Log::default();
    let mut agent = Watched::start(builder.tool(noting("note", &ran))).await;
    let response = stopped(&agent.run("Go").await);
    assert_eq!(
        (response.stop_reason.clone(), response.step, ran.all()),
        (StopReason::Length, 4, vec!["note {}".to_owned()])
    );
    assert_eq!(provider.requests().len(), 4);
    // The tool uses have results, so the next prompt can be sent.
    assert_eq!(stopped(&agent.run("Hi").await).text(), "Hello.");
}

#[tokio::test(start_paused = true)]
async fn tool_uses_of_a_cut_response_at_another_limit_end_the_turn() {
    let cases = [
        (StopReason::Length, 1, StopReason::MaxSteps, "output limit"),
        (StopReason::ContextLength, 9, StopReason::ContextLength, "context window"),
    ];
    for (reason, max_steps, ends, word) in cases {
        let (provider, builder) = scripted([cut_uses("a", reason)]);
        let ran = Log::default();
        let builder = builder.tool(noting("note", &ran)).max_steps(max_steps);
        let events = Watched::start(builder).await.run("Go").await;
        assert_eq!(
            (stopped(&events).stop_reason.clone(), ran.all().len(), provider.requests().len()),
            (ends, 0, 1)
        );
        let results = results(&events);
        assert!(
            results.iter().all(|(result, _)| result.is_error && result.text().contains(word)),
            "{results:?}"
        );
    }
}

fn steps_of(events: &[std::sync::Arc<Event>]) -> Vec<(StopReason, u32)> {
    steps(events).iter().map(|step| (step.stop_reason.clone(), step.step)).collect()
}

#[tokio::test(start_paused = true)]
async fn handle_turn_sees_the_whole_turn() {
    let step = Step::new().usage(tokens(10)).then_tool_use("a", "look", json!({})).stop();
    let (_, builder) = scripted([step, Step::new().usage(tokens(5)).then_text(["A cat."]).stop()]);
    let seen = Log::<(Vec<String>, Usage, String, u32, usize)>::default();
    let noted = seen.clone();
    let hooks = Hooks::new().on_turn(move |response, state| {
        let messages = response.messages.iter().map(|message| brief(message)).collect();
        noted.push((messages, response.usage, response.text(), state.step(), state.history().len()));
        TurnDecision::Stop
    });
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default())).callbacks(hooks)).await;
    let events = agent.run("Look").await;
    let (messages, usage, text, step, committed) = seen.all().remove(0);
    assert_eq!(messages, ["user: Look", "assistant: use a", "user: result a", "assistant: A cat."]);
    assert_eq!((usage, text.as_str(), step, committed), (tokens(15), "A cat.", 2, 0));
    let response = stopped(&events);
    assert_eq!((response.usage, response.messages.len(), response.step), (tokens(15), 4, 2));
}

#[tokio::test(start_paused = true)]
async fn step_event_carries_the_prompting_message_and_the_answer() {
    let step = Step::new().usage(tokens(10)).then_tool_use("a", "look", json!({})).stop();
    let (_, builder) = scripted([step, Step::new().usage(tokens(5)).then_text(["A cat."]).stop()]);
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default()))).await;
    agent.run("Old").await;
    let (provider, builder) = scripted([
        Step::new().usage(tokens(10)).then_tool_use("a", "look", json!({})).stop(),
        Step::new().usage(tokens(5)).then_text(["A cat."]).stop(),
        Step::new().usage(tokens(3)).then_text(["Sure."]).stop(),
    ]);
    let hooks = Hooks::new().continuing(["Sure?"]);
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default())).callbacks(hooks)).await;
    let steps = steps(&agent.run("Look").await);
    let seen: Vec<Vec<_>> =
        steps.iter().map(|step| step.messages.iter().map(|m| brief(m)).collect()).collect();
    assert_eq!(
        seen,
        [
            ["user: Look", "assistant: use a"],
            ["user: result a", "assistant: A cat."],
            ["user: Sure?", "assistant: Sure."]
        ]
    );
    assert_eq!(steps.iter().map(|step| step.usage).collect::<Vec<_>>(), [tokens(10), tokens(5), tokens(3)]);
    let reasons: Vec<_> = steps.iter().map(|step| step.stop_reason.clone()).collect();
    assert_eq!(reasons, [StopReason::ToolUse, StopReason::Stop, StopReason::Stop]);
    assert_eq!(steps.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(provider.steps_left(), 0);
}

#[tokio::test(start_paused = true)]
async fn continuation_events_in_order_each_turn_with_its_own_messages_and_usage() {
    let (provider, builder) = scripted([
        Step::new().usage(tokens(10)).then_text(["One"]).stop(),
        Step::new().usage(tokens(5)).then_text(["Two"]).stop(),
    ]);
    let mut agent = Watched::start(builder.callbacks(Hooks::new().continuing(["More"]))).await;
    let events = agent.run("Hi").await;
    let names: Vec<_> = names(&events).into_iter().filter(|name| !name.starts_with("text")).collect();
    assert_eq!(
        names,
        [
            "status(busy)",
            "message(user)",
            "step_start",
            "message(assistant)",
            "step",
            "turn(continue)",
            "message(user)",
            "step_start",
            "message(assistant)",
            "step",
            "status(idle)",
            "turn(stop)"
        ]
    );
    let turns = turns(&events);
    let messages: Vec<Vec<_>> =
        turns.iter().map(|turn| turn.messages.iter().map(|m| brief(m)).collect()).collect();
    assert_eq!(messages, [["user: Hi", "assistant: One"], ["user: More", "assistant: Two"]]);
    assert_eq!(
        turns.iter().map(|turn| (turn.usage, turn.step)).collect::<Vec<_>>(),
        [(tokens(10), 1), (tokens(5), 2)]
    );
    assert_eq!(sent(&provider.requests()[1]), ["user: Hi", "assistant: One", "user: More"]);
}

#[tokio::test(start_paused = true)]
async fn usage_reported_in_parts_is_counted_once() {
    // A service may report its usage more than once, each time as the total so far.
    let step = Step::new().usage(tokens(10)).then_text(["One"]).usage(tokens(12)).stop();
    let (_, builder) = scripted([step]);
    let mut agent = Watched::start(builder).await;
    let events = agent.run("Hi").await;
    assert_eq!((steps(&events)[0].usage, stopped(&events).usage), (tokens(12), tokens(12)));
}

#[tokio::test(start_paused = true)]
async fn handle_turn_blank_continuation_fails_the_run() {
    let (provider, builder) = scripted([Step::text("One"), Step::text("Two")]);
    let blank = Hooks::new().on_turn(|_, _| TurnDecision::Continue(Blocks::from("  ")));
    let mut agent = Watched::start(builder.callbacks(blank)).await;
    let events = agent.run("Hi").await;
    let (failure, discarded) = failed(&events);
    let Failure::Callback { callback, .. } = failure else { panic!("{failure:?}") };
    assert_eq!(callback, "handle_turn");
    assert_eq!(discarded.text(), "One");
    assert!(agent.history().await.is_empty(), "the history is unchanged");
    assert_eq!(provider.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn handle_turn_continuation_to_an_invalid_history_fails_the_run() {
    let (_, builder) = scripted([Step::text("One")]);
    let stray = ToolResult::ok(&ToolUse::new("x", "look", json!({})), "seen");
    let hooks = Hooks::new().on_turn(move |_, _| TurnDecision::continue_with(stray.clone()));
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    let (failure, _) = failed(&agent.run("Hi").await);
    assert!(matches!(failure, Failure::Callback { .. }), "{failure:?}");
    assert!(agent.history().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn refusal_is_a_stop_reason_and_is_committed() {
    let step = Step::new().then_text(["I won't."]).stop_with(StopReason::Refusal);
    let (_, builder) = scripted([step]);
    let seen = Log::<StopReason>::default();
    let noted = seen.clone();
    let hooks = Hooks::new().on_turn(move |response, _| {
        noted.push(response.stop_reason.clone());
        TurnDecision::Stop
    });
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    let events = agent.run("Rob a bank").await;
    assert_eq!(stopped(&events).stop_reason, StopReason::Refusal);
    assert_eq!(seen.all(), [StopReason::Refusal]);
    assert_eq!(agent.history().await, ["user: Rob a bank", "assistant: I won't."]);
}

#[tokio::test(start_paused = true)]
async fn refusal_with_tool_uses_runs_none_and_leaves_a_valid_history() {
    let step = Step::new().then_tool_use("a", "look", json!({})).stop_with(StopReason::Refusal);
    let (_, builder) = scripted([step]);
    let log = Log::default();
    let mut agent = Watched::start(builder.tool(noting("look", &log))).await;
    let events = agent.run("Go").await;
    assert!(log.all().is_empty());
    assert_eq!(stopped(&events).stop_reason, StopReason::Refusal);
    assert!(results(&events)[0].0.is_error);
    assert_eq!(agent.history().await, ["user: Go", "assistant: use a", "user: result a"]);
}

#[tokio::test(start_paused = true)]
async fn stop_reasons_reach_the_turn() {
    let reasons = [
        StopReason::Length,
        StopReason::ContextLength,
        StopReason::StopSequence,
        StopReason::Other("eos".into()),
    ];
    for reason in reasons {
        let (_, builder) = scripted([Step::new().then_text(["Cut"]).stop_with(reason.clone())]);
        let mut agent = Watched::start(builder).await;
        assert_eq!(stopped(&agent.run("Go").await).stop_reason, reason);
    }
}

#[tokio::test(start_paused = true)]
async fn pause_stop_reason_sends_the_answer_back_and_continues() {
    let (provider, builder) = scripted([
        Step::new().then_text(["Half"]).stop_with(StopReason::Pause),
        Step::new().then_text(["Whole"]).stop(),
    ]);
    let mut agent = Watched::start(builder).await;
    let events = agent.run("Go").await;
    assert_eq!(sent(&provider.requests()[1]), ["user: Go", "assistant: Half"]);
    let response = stopped(&events);
    assert_eq!((response.text().as_str(), response.step), ("Whole", 2));
    assert_eq!(agent.history().await, ["user: Go", "assistant: Half", "assistant: Whole"]);
    let seen: Vec<Vec<_>> =
        steps(&events).iter().map(|step| step.messages.iter().map(|m| brief(m)).collect()).collect();
    assert_eq!(seen, [["user: Go", "assistant: Half"], ["user: Go", "assistant: Whole"]]);
}

#[tokio::test(start_paused = true)]
async fn response_has_the_model_name_of_the_service_and_its_warnings() {
    let step_of = |model: &str, warning: &str| {
        let data = MessageDelta::default().with_model(model).with_warnings(vec![warning.into()]);
        Step::new().delta(Delta::Message(Box::new(data)))
    };
    let (_, builder) = scripted([
        step_of("m-2026", "no top_p").then_tool_use("a", "look", json!({})).stop(),
        step_of("m-2027", "no cache").then_text(["Hi"]).stop(),
        Step::text("Hi"),
    ]);
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default()))).await;
    let events = agent.run("Hi").await;
    let response = stopped(&events);
    assert_eq!(
        (response.model.as_str(), &response.warnings[..]),
        ("m-2027", &["no top_p".to_owned(), "no cache".into()][..])
    );
    let steps = steps(&events);
    assert_eq!((steps[0].model.as_str(), &steps[0].warnings[..]), ("m-2026", &["no top_p".to_owned()][..]));
    assert_eq!(stopped(&agent.run("Hi").await).model, "scripted");
}

#[tokio::test(start_paused = true)]
async fn message_events_carry_their_step() {
    let (_, builder) =
        scripted([Step::tool_use("a", "look", json!({})), Step::text("One"), Step::text("Two")]);
    let hooks = Hooks::new().continuing(["More"]);
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default())).callbacks(hooks)).await;
    let events = agent.run("Hi").await;
    let steps = events.iter().filter_map(|event| match &**event {
        Event::Message { step, .. } => Some(*step),
        _ => None,
    });
    assert_eq!(steps.collect::<Vec<_>>(), [1, 1, 2, 2, 3, 3]);
}

#[tokio::test(start_paused = true)]
async fn empty_answer_is_committed_unchanged() {
    let (_, builder) = scripted([Step::new().stop(), Step::text("Hello")]);
    let mut agent = Watched::start(builder).await;
    let events = agent.run("Hi").await;
    assert_eq!((stopped(&events).text(), stopped(&events).messages.len()), (String::new(), 2));
    agent.run("Well?").await;
}

#[tokio::test(start_paused = true)]
async fn signature_is_in_the_end_of_the_block() {
    let step = Step::new().then_text(["Hi"]).more(Part::Signature("sig".into())).stop();
    let (_, builder) = scripted([step]);
    let mut agent = Watched::start(builder).await;
    let events = agent.run("Hi").await;
    let end = events.iter().find_map(|event| match &**event {
        Event::TextEnd { content, .. } => content.signature.clone(),
        _ => None,
    });
    assert_eq!(end.as_deref(), Some("sig"));
    assert!(names(&events).iter().filter(|name| *name == "text_delta").count() == 1);
}
