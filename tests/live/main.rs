//! Tests of the wire formats with a small real model, served by llama.cpp on this machine.
//!
//! `scripts/live-test.sh` prepares the servers and runs these tests. Without a server, the tests replay the recorded
//! answers in `cassettes`. `OMNI_RECORD=record scripts/live-test.sh` records them again.

#![allow(clippy::unwrap_used, reason = "an unwrap is a failure of the test")]

mod server;

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::Arc,
    time::Duration,
};

use omni_agent::{
    Error, ErrorKind,
    agent::{Agent, AgentBuilder, AgentSubscription, CompactionPolicy, Event},
    message::{Attachment, CompactionTrigger, Content, History, Role, ToolResult},
    provider::{Model, ModelInfo, Options, ProviderError, ProviderErrorKind, StopReason, ToolChoice},
    run::Failure,
    subscription::Update,
    tool::{Tool, ToolContext, ToolError, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;
use server::{Format, Live};

/// Runs a scenario in each wire format. The scenarios run one after the other, because the server is small.
macro_rules! on_each_format {
    ($($test:ident => $scenario:ident;)+) => {$(
        #[test]
        fn $test() {
            server::run(stringify!($scenario), async |live| {
                for format in [Format::ChatCompletions, Format::Responses, Format::Messages] {
                    let scenario = tokio::time::timeout(Duration::from_mins(2), $scenario(live, format));
                    assert!(scenario.await.is_ok(), "{format:?} took longer than two minutes");
                }
            });
        }
    )+};
}

on_each_format! {
    prompt_real_model_streams_the_answer => stream;
    tool_choice_required_real_model_calls_the_tool_and_receives_its_result => tool_round_trip;
    ask_as_real_model_returns_a_value_or_an_error => output_schema;
    cancel_during_the_stream_frees_the_server => cancel;
    prompt_longer_than_the_context_is_context_too_long => overflow;
    error_inside_the_stream_is_a_service_error => error_in_stream;
    request_to_a_dead_server_is_a_transport_error => dead_server;
}

/// Returns options for short answers that vary as little as possible.
fn options(max_tokens: u32) -> Options {
    Options::default().with_max_tokens(max_tokens).with_temperature(0.0)
}

fn agent(live: &Live, format: Format, max_tokens: u32) -> AgentBuilder {
    Agent::builder().model(live.chat(format)).options(options(max_tokens))
}

async fn next(events: &mut AgentSubscription) -> Arc<Event> {
    match events.next().await {
        Some(Update::Event(numbered)) => numbered.event,
        other => panic!("expected an event, got {other:?}"),
    }
}

/// Returns the provider's error with which a run failed.
fn provider_error(result: Result<impl std::fmt::Debug, Error>) -> ProviderError {
    result.unwrap_err().provider_error().unwrap().clone()
}

async fn stream(live: &Live, format: Format) {
    let agent = agent(live, format, 24).system("You are a storyteller.").start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Tell me a long story about a mountain.").await.unwrap();
    let (mut text, mut pieces) = (String::new(), 0);
    let response = loop {
        match &*next(&mut events).await {
            Event::TextDelta { delta, .. } => {
                text.push_str(delta);
                pieces += 1;
            }
            Event::Turn { response, continues: false, .. } => break Arc::clone(response),
            Event::Error { failure, .. } => panic!("{format:?}: {failure:?}"),
            _ => {}
        }
    };
    assert!(pieces > 5, "{format:?}: {pieces} pieces");
    assert_eq!(text, response.text());
    // In the Responses format, llama.cpp reports an answer as complete even if the token limit cut it off.
    let expected = if format == Format::Responses { StopReason::Stop } else { StopReason::Length };
    assert_eq!(response.stop_reason, expected, "{format:?}");
    assert_eq!(response.usage.output, 24);
    assert!(response.usage.prompt() > 10, "{format:?}: {:?}", response.usage);

    let history = agent.state().await.unwrap().history().clone();
    assert_eq!(history.len(), 2);
    assert_eq!(history.check(), Ok(()));
    // In the second turn, the service receives its own first answer.
    let again = agent.ask("Go on.").await.unwrap();
    assert!(!again.text().is_empty());
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum City {
    Oslo,
    Rome,
}

#[derive(Deserialize, JsonSchema)]
struct Place {
    /// One of the cities that have a weather station.
    city: City,
}

fn weather() -> impl Tool {
    tool_fn("get_weather", "The weather in a city.", |place: Place, _: ToolContext| async move {
        Ok::<_, ToolError>(match place.city {
            City::Oslo => "3 degrees and rain",
            City::Rome => "19 degrees and sun",
        })
    })
}

async fn tool_round_trip(live: &Live, format: Format) {
    // The model must call a tool in each step. The second request contains the result of the first call. The calls of
    // the second answer are refused, because the limit of steps is reached.
    let options = options(40).with_tool_choice(ToolChoice::Required);
    let model = live.tools(format);
    let builder = Agent::builder().model(model).options(options).tool(weather()).max_steps(2);
    let agent = builder.start().await.unwrap();
    let response = agent.ask("What is the weather in Rome?").await.unwrap();

    assert_eq!(
        (response.step, &response.stop_reason),
        (2, &StopReason::MaxSteps),
        "{format:?}: {response:?}"
    );
    let roles: Vec<Role> = response.messages.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::User, Role::Assistant, Role::User]);
    let [_, first, results, second, refused] = &response.messages[..] else { unreachable!() };
    // The server enforces the schema, so every complete call is valid. However, its grammar allows any number of calls,
    // so the token limit may have cut off the last call.
    for message in [first, second] {
        let whole: Vec<_> = message.tool_uses().filter(|call| call.malformed.is_none()).collect();
        assert!(!whole.is_empty(), "{format:?}: {message:?}");
        for call in whole {
            let city = call.input["city"].as_str();
            assert!(
                call.name == "get_weather" && matches!(city, Some("oslo" | "rome")),
                "{format:?}: {call:?}"
            );
        }
    }
    assert!(results.tool_results().any(|result| !result.is_error && result.text().contains("degrees")));
    assert!(refused.tool_results().all(|result| result.is_error));
    assert_eq!(agent.state().await.unwrap().history().check(), Ok(()));
}

/// A conversation begins in one format, continues in every other format, and returns to the first format. The server
/// must accept the parts from all formats.
#[test]
fn conversation_with_tools_real_model_continues_in_each_format_and_returns() {
    server::run("change_formats", change_formats);
}

async fn change_formats(live: &Live) {
    let options = options(40).with_tool_choice(ToolChoice::Required);
    let builder = Agent::builder().model(live.tools(Format::ChatCompletions)).options(options);
    let agent = builder.tool(weather()).max_steps(2).start().await.unwrap();
    let mut before = History::new();
    for format in [Format::ChatCompletions, Format::Responses, Format::Messages, Format::ChatCompletions] {
        let model = live.tools(format);
        agent
            .set_state(move |draft| {
                draft.config.model = model;
                Ok(())
            })
            .await
            .unwrap();
        let turn = tokio::time::timeout(Duration::from_mins(2), agent.ask("What is the weather in Rome?"));
        let response = turn.await.expect("the turn takes less than two minutes").unwrap();
        let ends = [StopReason::MaxSteps, StopReason::Length];
        assert!(ends.contains(&response.stop_reason), "{format:?}: {response:?}");
        let answers = response.messages.iter().filter(|message| message.role == Role::Assistant);
        for answer in answers {
            assert!(
                answer.is_native_to(format.name()) && answer.tool_uses().count() > 0,
                "{format:?}: {answer:?}"
            );
        }
        let mut results = response.messages.iter().flat_map(|message| message.tool_results());
        // The small model does not always finish its tool use within the output limit. Then no tool is run.
        let is_answered = |result: &ToolResult| {
            let expected = if result.is_error { "the output limit cut the response" } else { "degrees" };
            result.text().contains(expected)
        };
        assert!(results.any(is_answered), "{format:?}");
        let history = agent.state().await.unwrap().history().clone();
        assert_eq!(history.check(), Ok(()));
        assert_eq!(history.len(), before.len() + response.messages.len());
        assert!(before.iter().eq(history.iter().take(before.len())), "{format:?} changed earlier messages");
        before = history;
    }
}

/// A conversation that is longer than the context window. The test checks the requests and not the answers, because the
/// small model does not use what it reads.
#[test]
fn conversation_of_40_turns_real_model_keeps_a_prompt_over_summaries() {
    server::run("long_conversation", async |live| {
        // On two cores, beside a build of this crate, this took 268 seconds.
        let conversation = tokio::time::timeout(Duration::from_mins(20), long_conversation(live));
        assert!(conversation.await.is_ok(), "the conversation took longer than 20 minutes");
    });
}

async fn long_conversation(live: &Live) {
    const FACT: &str = "The key of Ada is 7319.";
    /// The context window of each conversation on the server.
    const WINDOW: u64 = 4096;
    let (model, requests) = live.watched(Format::ChatCompletions);
    let model = model.with_info(ModelInfo::new("smollm2-135m").with_context_window(WINDOW));
    // The rules fill a third of the window. The server reads them once, so the test takes less time than with long
    // turns.
    let rules = "You help the crew of a small harbour to keep its log of winds, tides and boats. ".repeat(75);
    // A summary may be longer than an answer, so it ends after a sentence.
    let options = options(16).with_stop_sequences(["."]);
    let policy = CompactionPolicy::default().with_kept_prompts();
    let builder = Agent::builder().model(model).options(options).system(rules);
    let agent = builder.compaction(policy).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    let noted = tokio::spawn(async move {
        let (mut failures, mut retries) = (Vec::new(), 0);
        while let Some(Update::Event(numbered)) = events.next().await {
            match &*numbered.event {
                Event::CompactionEnd { failure, .. } => failures.extend(failure.clone()),
                Event::Retry { .. } => retries += 1,
                _ => {}
            }
        }
        (failures, retries)
    });
    for turn in 1..=40 {
        // The prompts are so short that all of them are kept. A file makes each turn longer.
        let prompt = if turn == 2 { FACT.to_owned() } else { format!("Note {turn}.") };
        let file = format!("On day {turn}, the wind blew from the west. ").repeat(4);
        let prompt: Vec<Content> =
            vec![prompt.into(), Attachment::from_bytes("text/plain", file).named("note.txt").into()];
        agent.ask(prompt).await.unwrap();
    }

    let history = agent.state().await.unwrap().history().clone();
    assert_eq!(history.check(), Ok(()));
    let sizes = history.iter().filter_map(|message| message.context_tokens);
    assert!(sizes.max().is_some_and(|largest| u64::from(largest) <= WINDOW));
    let compactions = || history.iter().filter_map(|message| message.compaction.as_deref());
    assert!(compactions().all(|own| own.is_summary && own.trigger == CompactionTrigger::Size));
    assert!(compactions().count() >= 2, "{} summaries", compactions().count());
    agent.stop(Duration::from_secs(10)).await.unwrap();
    let (failures, retries) = noted.await.unwrap();
    // The small model does not always end its summary within the output limit. The next turn asks for it again.
    let no_summary = "the model wrote no summary of the conversation";
    let is_cut =
        |failure: &Failure| matches!(failure, Failure::Provider { error } if error.message == no_summary);
    assert!(failures.iter().all(is_cut), "{failures:?}");
    let requests = std::mem::take(&mut *requests.lock().unwrap());
    assert_eq!(requests.len(), 40 + compactions().count() + failures.len() + retries);
    for request in &requests[1..] {
        let mut texts = request.history.iter().map(|message| message.text());
        assert!(texts.any(|text| text.contains(FACT)), "{request:?}");
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Forecast {
    #[expect(dead_code, reason = "it only has to parse")]
    sunny: bool,
    #[schemars(range(min = 0, max = 40))]
    degrees: u8,
}

async fn output_schema(live: &Live, format: Format) {
    let agent = agent(live, format, 100).start().await.unwrap();
    match (agent.ask_as::<Forecast>("What will the weather be in Rome?").await, format) {
        (Ok(forecast), _) => assert!(forecast.degrees <= 40),
        // llama.cpp does not support an output schema in these formats. The answer is still returned, together with the
        // error of its output.
        (Err(error), Format::Responses | Format::Messages) if error.kind() == ErrorKind::Output => {
            let response = error.response().unwrap();
            assert!(!response.text().is_empty());
            assert!(error.to_string().ends_with(response.output_error.as_ref().unwrap()), "{error}");
        }
        (Err(error), _) => panic!("{format:?}: {error:?}"),
    }
}

async fn cancel(live: &Live, format: Format) {
    // The test sends as many requests as the server can answer at the same time. If these requests were not cancelled,
    // a further request would wait for minutes.
    let mut busy = Vec::new();
    for _ in 0..2 {
        let agent = agent(live, format, 3000).start().await.unwrap();
        let mut events = agent.subscribe().await.unwrap();
        agent.prompt("Write down all numbers from one to a thousand, in words.").await.unwrap();
        for _ in 0..3 {
            while !matches!(*next(&mut events).await, Event::TextDelta { .. }) {}
        }
        busy.push((agent, events));
    }
    for (agent, _) in &busy {
        agent.cancel().await.unwrap();
    }
    for (agent, events) in &mut busy {
        let discarded = loop {
            if let Event::Cancelled { response, .. } = &*next(events).await {
                break Arc::clone(response);
            }
        };
        assert!(!discarded.text().is_empty());
        assert!(agent.state().await.unwrap().history().is_empty());
    }
    let (agent, _) = &busy[0];
    let prompt = omni_agent::run::Prompt::new("Say hello.").with_options(options(3));
    let answer = tokio::time::timeout(Duration::from_secs(20), agent.ask(prompt)).await;
    assert!(
        !answer.expect("the server has stopped working on cancelled requests").unwrap().text().is_empty()
    );
}

async fn overflow(live: &Live, format: Format) {
    let agent = agent(live, format, 10).start().await.unwrap();
    let error = provider_error(agent.ask("word ".repeat(9000)).await);
    assert_eq!(
        (error.kind, error.status, error.retryable),
        (ProviderErrorKind::ContextTooLong, Some(400), false),
        "{error:?}"
    );
    assert!(agent.state().await.unwrap().history().is_empty());
    assert!(!agent.ask("Say hello.").await.unwrap().text().is_empty());
}

async fn error_in_stream(live: &Live, format: Format) {
    // This server's template supports only tools. The server can't parse an answer without a tool call. It then reports
    // an error in a stream that began with status 200.
    let agent = Agent::builder().model(live.tools(format)).options(options(16)).start().await.unwrap();
    let error = provider_error(agent.ask("Say hello.").await);
    assert_eq!(error.kind, ProviderErrorKind::Service, "{format:?}: {error:?}");
    assert!(error.message.contains("does not match"), "{format:?}: {error:?}");
    assert!(agent.state().await.unwrap().history().is_empty());
}

async fn dead_server(_: &Live, format: Format) {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let model = Model::new(Arc::new(format.endpoint(&format!("http://127.0.0.1:{port}"))), "smollm2-135m");
    let agent = Agent::builder().model(model).options(options(10)).start().await.unwrap();
    let error = provider_error(agent.ask("Hello?").await);
    assert_eq!(
        (error.kind, error.status, error.retryable),
        (ProviderErrorKind::Transport, None, true),
        "{error:?}"
    );
}
