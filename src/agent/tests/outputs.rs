//! Answers that must match an output schema. If an answer does not match, the model is asked again. The history
//! contains neither that answer nor the note that asks again.

use crate::{
    agent::{Accepted, ErrorDecision, Event, Failure, Prompt, Status},
    message::{History, Role},
    provider::{MessageDelta, Options, OutputSchema, ProviderError, ProviderErrorKind, StopReason},
    run::ErrorKind,
    testing::{Gate, Step},
    tool::Schema,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{
    hooks::{Hooks, Log, Watched, brief, in_time, noting, reached, tokens},
    support::{names, returned, scripted},
};

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct City {
    name: String,
    people: u32,
}

const OSLO: &str = r#"{"name": "Oslo", "people": 709000}"#;

fn oslo() -> City {
    City { name: "Oslo".into(), people: 709_000 }
}

fn said(history: &History) -> Vec<String> {
    history.iter().map(|message| brief(message)).collect()
}

fn with_schema() -> Options {
    Options::default().with_output(OutputSchema::of::<City>())
}

fn answering(text: &str, usage: u64) -> Step {
    Step::new().usage(tokens(usage)).then_text([text]).stop()
}

#[tokio::test(start_paused = true)]
async fn answer_that_does_not_fit_is_requested_again_outside_the_history() {
    let (provider, builder) =
        scripted([answering("Oslo", 1), answering(r#"{"name": "Oslo"}"#, 10), answering(OSLO, 100)]);
    let mut agent = Watched::start(builder).await;
    assert_eq!(agent.agent.ask_as::<City>("A city?").await.unwrap(), oslo());
    let events = agent.end().await;
    let brief_events = [
        "status(busy)",
        "message(user)",
        "step_start",
        "text_start",
        "text_delta",
        "usage",
        "retry",
        "step_start",
        "text_start",
        "text_delta",
        "usage",
        "retry",
        "step_start",
        "text_start",
        "text_delta",
        "text_end",
        "message(assistant)",
        "step",
        "status(idle)",
        "turn(stop)",
    ];
    assert_eq!(names(&events), brief_events);
    let Event::Retry { failure, delay, pending, complete: false, step, .. } = &*events[11] else {
        panic!("{:?}", events[11])
    };
    assert!(matches!(failure, Failure::Output { message } if message.contains("people")), "{failure:?}");
    assert_eq!((delay.as_secs(), *pending, *step), (0, 1, 3));
    let response = super::hooks::stopped(&events);
    assert_eq!((response.usage, response.step, response.messages.len()), (tokens(111), 3, 2));
    assert_eq!(agent.history().await, ["user: A city?".to_owned(), format!("assistant: {OSLO}")]);

    let requests = provider.requests();
    assert_eq!(requests.iter().map(|request| request.history.len()).collect::<Vec<_>>(), [1, 3, 5]);
    let last = &requests[2].history;
    assert_eq!((last.get(1).unwrap().text().as_str(), last.get(3).unwrap().role), ("Oslo", Role::Assistant));
    assert!(
        last.get(2).unwrap().text().contains("not JSON") && last.get(4).unwrap().text().contains("people")
    );
    assert!(requests.iter().all(|request| request.history.check_sendable().is_ok()));
}

#[tokio::test(start_paused = true)]
async fn answer_that_never_fits_is_returned_unchanged_at_the_limit() {
    for (limit, requests) in [(None, 4), (Some(1), 2), (Some(0), 1)] {
        let (provider, builder) = scripted((0..4).map(|n| Step::text(format!("No {n}"))));
        let mut options = Options::default();
        options.set_output_retries(limit);
        let agent = builder.options(options).start().await.unwrap();
        let error = agent.ask_as::<City>("A city?").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Output);
        assert!(error.to_string().contains("not JSON"), "{error}");
        assert_eq!(error.response().unwrap().stop_reason, StopReason::Stop);
        assert_eq!(provider.requests().len(), requests);
        let last = format!("assistant: No {}", requests - 1);
        assert_eq!(said(agent.state().await.unwrap().history()), ["user: A city?".to_owned(), last]);
    }
}

#[tokio::test(start_paused = true)]
async fn answer_cut_or_refused_is_not_requested_again() {
    for reason in
        [StopReason::Length, StopReason::ContextLength, StopReason::Refusal, StopReason::StopSequence]
    {
        let (provider, builder) =
            scripted([Step::new().then_text([r#"{"name": "#]).stop_with(reason.clone()), Step::text(OSLO)]);
        let agent = builder.start().await.unwrap();
        let error = agent.ask_as::<City>("A city?").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Output);
        let response = error.response().unwrap();
        assert_eq!((response.stop_reason.clone(), provider.requests().len()), (reason, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn max_steps_includes_the_repeated_requests() {
    let (provider, builder) = scripted([Step::text("No"), Step::text("Never"), Step::text(OSLO)]);
    let agent = builder.max_steps(2).start().await.unwrap();
    let error = agent.ask_as::<City>("A city?").await.unwrap_err();
    assert_eq!((error.kind(), error.response().unwrap().text().as_str()), (ErrorKind::Output, "Never"));
    assert_eq!((provider.requests().len(), provider.steps_left()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn only_the_final_answer_has_to_fit() {
    let (provider, builder) = scripted([
        Step::new().then_text(["Let me look."]).then_tool_use("a", "look", json!({})).stop(),
        Step::text("It is Oslo."),
        Step::tool_use("b", "look", json!({})),
        Step::text(OSLO),
    ]);
    let agent = builder.tool(noting("look", &Log::default())).start().await.unwrap();
    assert_eq!(agent.ask_as::<City>("A city?").await.unwrap(), oslo());
    let lengths: Vec<usize> = provider.requests().iter().map(|request| request.history.len()).collect();
    // When the model uses its tools again, the request no longer contains the answer that did not match and the note
    // about it.
    assert_eq!(lengths, [1, 3, 5, 5]);
    assert_eq!(agent.state().await.unwrap().history().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn value_among_words_is_accepted_only_if_the_service_does_not_enforce_the_schema() {
    let fenced = format!("Here it is:\n```json\n{OSLO}\n```\nAnything else?");
    let among = format!("I thought of {{}} first. It is {OSLO}, I think.");
    for words in [fenced, among] {
        let (provider, builder) = scripted([Step::text(words)]);
        let agent = builder.start().await.unwrap();
        assert_eq!(agent.ask_as::<City>("A city?").await.unwrap(), oslo());
        assert_eq!(provider.requests().len(), 1);
    }
    let enforced = MessageDelta::default().with_output_enforced(true);
    let loose = Step::new().data(enforced).then_text([format!("It is {OSLO}")]).stop();
    let (provider, builder) = scripted([loose, Step::output(&serde_json::from_str(OSLO).unwrap())]);
    let agent = builder.start().await.unwrap();
    assert_eq!(agent.ask_as::<City>("A city?").await.unwrap(), oslo());
    assert_eq!(provider.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn cancel_while_an_answer_is_repeated_keeps_only_the_staged_prompt() {
    let gate = Gate::new();
    let again = Step::new().usage(tokens(4)).then_text(["{"]).gate(&gate).hang();
    let (_, builder) = scripted([answering("No", 3), again]);
    let mut agent = Watched::start(builder.options(with_schema())).await;
    agent.agent.prompt("A city?").await.unwrap();
    in_time(reached(&gate)).await;
    let staged = agent.agent.prompt("Another?").await.unwrap();
    assert!(matches!(staged, Accepted::Staged { ahead: 0, .. }), "{staged:?}");
    agent.agent.cancel().await.unwrap();
    let events = agent.end().await;
    let Some(Event::Cancelled { response }) = events.last().map(|event| &**event) else {
        panic!("{events:?}")
    };
    assert_eq!((response.usage, response.step), (tokens(7), 2));
    assert_eq!(returned(&events)[0].content, "Another?".into());
    let messages: Vec<_> = response.messages.iter().map(|message| brief(message)).collect();
    assert_eq!(messages, ["user: A city?", "assistant: {"], "the rejected answer is void");
    assert!(agent.history().await.is_empty());
    assert_eq!(agent.agent.status().await.unwrap(), Status::Idle);
}

#[tokio::test(start_paused = true)]
async fn interrupt_while_an_answer_is_repeated_keeps_the_partial_answer() {
    let gate = Gate::new();
    let again = Step::new().then_text([r#"{"name""#]).gate(&gate).hang();
    let (_, builder) = scripted([Step::text("No"), again]);
    let mut agent = Watched::start(builder.options(with_schema())).await;
    agent.agent.prompt("A city?").await.unwrap();
    in_time(reached(&gate)).await;
    agent.agent.interrupt().await.unwrap();
    let events = agent.end().await;
    let response = super::hooks::stopped(&events);
    assert_eq!(response.stop_reason, StopReason::Interrupted);
    assert!(response.output_error.is_some());
    assert_eq!(agent.history().await, ["user: A city?", r#"assistant: {"name""#]);
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_follows_a_repeated_answer() {
    let gate = Gate::new();
    let first = Step::new().gate(&gate).then_text(["No"]).stop();
    let (_, builder) = scripted([first, Step::text(OSLO), Step::text("And Rome.")]);
    let agent = builder.start().await.unwrap();
    agent.prompt(Prompt::new("A city?").with_options(with_schema())).await.unwrap();
    in_time(reached(&gate)).await;
    agent.prompt("Another?").await.unwrap();
    gate.open();
    agent.wait_until_idle().await.unwrap();
    let said = said(agent.state().await.unwrap().history());
    assert_eq!(
        said,
        [
            "user: A city?".into(),
            format!("assistant: {OSLO}"),
            "user: Another?".into(),
            "assistant: And Rome.".into()
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn failure_while_an_answer_is_repeated_is_retried_with_the_correction() {
    let down = ProviderError::new(ProviderErrorKind::InvalidRequest, "down");
    let (provider, builder) = scripted([Step::text("No"), Step::error(down), Step::text(OSLO)]);
    let hooks = Hooks::new().on_error(|_, _| ErrorDecision::Retry);
    let agent = builder.callbacks(hooks).start().await.unwrap();
    assert_eq!(agent.ask_as::<City>("A city?").await.unwrap(), oslo());
    let lengths: Vec<usize> = provider.requests().iter().map(|request| request.history.len()).collect();
    assert_eq!(lengths, [1, 3, 3]);
}

#[tokio::test(start_paused = true)]
async fn answer_paused_by_the_service_is_parsed_when_complete() {
    let paused = || Step::new().then_text(["I search."]).stop_with(StopReason::Pause);
    let (_, builder) = scripted([paused(), Step::text(OSLO)]);
    let mut agent = Watched::start(builder.options(with_schema())).await;
    let events = agent.run("A city?").await;
    let ends = events.iter().filter_map(|event| match &**event {
        Event::Step(step) => {
            Some((step.stop_reason.clone(), step.output.is_some(), step.output_error.is_some()))
        }
        _ => None,
    });
    let ends: Vec<_> = ends.collect();
    assert_eq!(ends, [(StopReason::Pause, false, false), (StopReason::Stop, true, false)]);
    assert!(super::hooks::stopped(&events).output.is_some());

    // If the limit of requests is reached, the incomplete answer is final.
    let (_, builder) = scripted([paused()]);
    let agent = builder.options(with_schema()).max_steps(1).start().await.unwrap();
    let response = agent.ask("A city?").await.unwrap();
    assert_eq!((&response.stop_reason, response.output_error.is_some()), (&StopReason::MaxSteps, true));
}

#[tokio::test(start_paused = true)]
async fn continuation_has_a_separate_limit() {
    let steps = [Step::text("No"), Step::text(OSLO), Step::text("No"), Step::text(OSLO)];
    let (provider, builder) = scripted(steps);
    let options = with_schema().with_output_retries(1);
    let agent =
        builder.options(options).callbacks(Hooks::new().continuing(["Another?"])).start().await.unwrap();
    let response = agent.ask("A city?").await.unwrap();
    assert!(response.output.is_some());
    assert_eq!((provider.requests().len(), response.messages.len()), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn value_wrapped_in_an_object_by_the_service_is_unwrapped() {
    let schema = Schema::new(json!({ "type": "array", "items": { "type": "integer" } })).unwrap();
    let options = Options::default().with_output(OutputSchema::new("numbers", schema));
    let (_, builder) = scripted([Step::text(r#"{"value": [1, 2]}"#)]);
    let response = builder.options(options).start().await.unwrap().ask("Numbers?").await.unwrap();
    assert_eq!(response.output, Some(json!([1, 2])));
}

#[tokio::test(start_paused = true)]
async fn null_for_an_optional_field_is_removed() {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string" },
            "nick": { "type": "string" },
            "born": { "type": ["integer", "null"] },
            "home": { "$ref": "#/$defs/place" },
        },
        "required": ["name"],
        "$defs": { "place": {
            "type": "object", "properties": { "city": { "type": "string" }, "zip": { "type": "string" } },
            "required": ["city"],
        } },
    });
    let options = Options::default().with_output(OutputSchema::new("person", Schema::new(schema).unwrap()));
    let answer =
        json!({ "name": "Ada", "nick": null, "born": null, "home": { "city": "London", "zip": null } });
    let (_, builder) = scripted([Step::output(&answer)]);
    let response = builder.options(options).start().await.unwrap().ask("Who?").await.unwrap();
    assert_eq!(response.output, Some(json!({ "name": "Ada", "born": null, "home": { "city": "London" } })));
}

#[tokio::test(start_paused = true)]
async fn schema_set_while_a_request_is_prepared_applies_to_later_requests() {
    let (provider, builder) = scripted([Step::text("Plain"), Step::text(OSLO)]);
    let hooks = Hooks::new().on_prepare(|_, state| state.config_mut().settings.options = with_schema());
    let agent = builder.callbacks(hooks).start().await.unwrap();
    let plain = agent.ask("Hi").await.unwrap();
    assert_eq!((plain.output.as_ref(), plain.output_error.as_ref()), (None, None));
    assert_eq!(provider.requests().len(), 1, "the request had no schema yet");
    assert!(agent.ask("A city?").await.unwrap().output.is_some());
}

#[tokio::test(start_paused = true)]
async fn answer_is_checked_against_the_schema_of_its_request() {
    let (provider, builder) = scripted([Step::text("Plain"), Step::text(OSLO)]);
    let hooks = Hooks::new().on_prepare(|request, _| request.options.set_output(None));
    let agent = builder.options(with_schema()).callbacks(hooks).start().await.unwrap();
    let response = agent.ask("Hi").await.unwrap();
    assert_eq!((response.text().as_str(), response.output_error.as_ref()), ("Plain", None));
    assert_eq!(provider.requests().len(), 1, "the answer was requested without a schema");

    let (provider, builder) = scripted([Step::text("Plain"), Step::text(OSLO), Step::text("Plain")]);
    let mut retries = [1, 0].into_iter();
    let hooks = Hooks::new().on_prepare(move |request, _| {
        request.options = with_schema();
        request.options.set_output_retries(retries.next().or(Some(0)));
    });
    let agent = builder.callbacks(hooks).start().await.unwrap();
    assert!(agent.ask("A city?").await.unwrap().output.is_some());
    assert!(agent.ask("A city?").await.unwrap().output_error.is_some());
    assert_eq!(provider.requests().len(), 3, "the number of retries is that of the request");
}
