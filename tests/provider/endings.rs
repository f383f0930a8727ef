//! Answers after whose finish reason the service keeps the connection open.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{task::Poll, time::Duration};

use futures_util::StreamExt;
use omni_agent::{
    message::Timestamp,
    provider::{
        Completion, Options, OutputSchema, Provider, ProviderError, ProviderErrorKind, Request, StopReason,
        custom::{Delta, Part, RequestContext},
        http::Timeouts,
    },
    testing::internals::Fold,
    tool::Schema,
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    server::{Event, Gate, Reply, Server},
    wires::Wire,
};

const SLACK: Duration = Duration::from_secs(1);

/// Returns the frames of an answer up to and including its finish reason.
fn up_to_the_finish_reason(wire: Wire) -> String {
    let finish = wire.end().remove(0);
    let events = [wire.begin(), wire.text(&["Hello"]), vec![finish]].concat();
    events.iter().map(|event| wire.frame(event)).collect()
}

/// Returns the answer from a body that stalls, and how long the reader waited for more data.
async fn stalled(
    wire: Wire,
    reply: Reply,
    request: Request,
    timeouts: Timeouts,
) -> (Result<Completion, ProviderError>, Duration) {
    let mut server = Server::start([reply.stall()]).await;
    let endpoint = wire.endpoint(&server.url()).with_key("key").with_timeouts(timeouts);
    let request = {
        let mut request = request;
        request.model = "m".into();
        request
    };
    let mut stream = endpoint.stream(request, RequestContext::detached()).await.unwrap();
    server.wait_for(Event::Stalled).await;
    tokio::time::pause();
    let start = Instant::now();
    let mut fold = Fold::default();
    let mut failed = None;
    while let Some(delta) = stream.next().await {
        match delta {
            Ok(delta) => fold.apply(delta).unwrap(),
            Err(error) => failed = Some(error),
        }
    }
    let waited = start.elapsed();
    server.wait_for(Event::Closed).await;
    tokio::time::resume();
    (failed.map_or_else(|| fold.finish(Timestamp::now()), Err), waited)
}

#[tokio::test]
async fn answer_left_open_after_its_finish_reason_ends_soon() {
    for (wire, warnings) in [(Wire::Chat, 1), (Wire::Gemini, 0), (Wire::Messages, 0)] {
        let ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
        for rest in ["", "data: {\"half", ": keep-alive\n\n", ping] {
            let reply = wire.reply().piece(up_to_the_finish_reason(wire)).piece(rest);
            let (answer, waited) = stalled(wire, reply, Request::prompt("Hi"), Timeouts::default()).await;
            let answer = answer.unwrap_or_else(|error| panic!("{wire:?} {rest}: {error}"));
            assert_eq!((answer.message.text(), answer.stop_reason), ("Hello".into(), StopReason::Stop));
            assert_eq!(answer.warnings.len(), warnings, "{wire:?} {:?}", answer.warnings);
            assert!(waited <= Duration::from_secs(5) + SLACK, "{wire:?} {waited:?}");
        }
    }
}

#[tokio::test]
async fn answer_with_an_output_schema_left_open_after_its_finish_reason_ends_soon() {
    let schema = Schema::new(json!({"type": "object", "properties": {"a": {"type": "string"}}})).unwrap();
    for wire in [Wire::Chat, Wire::Gemini] {
        let options = Options::default().with_output(OutputSchema::new("Answer", schema.clone()));
        let request = Request::prompt("Hi").with_options(options);
        let reply = wire.reply().piece(up_to_the_finish_reason(wire));
        let (answer, waited) = stalled(wire, reply, request, Timeouts::default()).await;
        assert!(answer.is_ok() && waited <= Duration::from_secs(5) + SLACK, "{wire:?} {waited:?} {answer:?}");
    }
}

#[tokio::test]
async fn answer_left_open_after_its_finish_reason_ends_within_a_shorter_limit() {
    for wire in [Wire::Chat, Wire::Gemini, Wire::Messages] {
        let timeouts = Timeouts::default().with_between_chunks(Duration::from_secs(2));
        let reply = wire.reply().piece(up_to_the_finish_reason(wire));
        let (answer, waited) = stalled(wire, reply, Request::prompt("Hi"), timeouts).await;
        assert_eq!(answer.unwrap().message.text(), "Hello", "{wire:?}");
        assert!(waited <= Duration::from_secs(2) + SLACK, "{wire:?} {waited:?}");
    }
}

/// If no finish reason has arrived, the full limit for the time between two chunks applies.
#[tokio::test]
async fn answer_that_stalls_before_its_finish_reason_waits_for_the_whole_limit() {
    for wire in [Wire::Chat, Wire::Gemini, Wire::Messages] {
        let events = [wire.begin(), wire.text(&["Hello"])].concat();
        let body: String = events.iter().map(|event| wire.frame(event)).collect();
        let (answer, waited) =
            stalled(wire, wire.reply().piece(body), Request::prompt("Hi"), Timeouts::default()).await;
        assert!(answer.is_err() && waited >= Duration::from_mins(5), "{wire:?} {waited:?}");
    }
}

#[tokio::test]
async fn rest_that_arrives_in_time_after_the_finish_reason_is_read() {
    for wire in [Wire::Chat, Wire::Gemini] {
        let gate = Gate::new();
        let (rest, tokens) = match wire {
            Wire::Chat => (wire.end()[1].clone(), 3),
            _ => (r#"{"usageMetadata":{"promptTokenCount":3}}"#.to_owned(), 3),
        };
        let reply = wire.reply().piece(up_to_the_finish_reason(wire)).gate(&gate).piece(wire.frame(&rest));
        let mut server = Server::start([reply]).await;
        let mut request = Request::prompt("Hi");
        request.model = "m".into();
        let endpoint = wire.endpoint(&server.url()).with_key("key");
        let mut stream = endpoint.stream(request, RequestContext::detached()).await.unwrap();
        server.wait_for(Event::Stalled).await;
        let mut fold = Fold::default();
        while let Some(delta) = stream.next().await {
            let delta = delta.unwrap();
            let is_text = matches!(&delta, Delta::Extend { part: Part::Text(_), .. });
            fold.apply(delta).unwrap();
            if is_text {
                gate.open();
            }
        }
        let answer = fold.finish(Timestamp::now()).unwrap();
        assert_eq!((answer.usage.input, answer.warnings), (tokens, vec![]), "{wire:?}");
    }
}

/// A round of the service's own tools may end with a finish reason, although more rounds follow.
#[tokio::test]
async fn answer_that_continues_after_a_round_of_tools_is_read_to_its_end() {
    let chunk = |part: &str| {
        let chunk = format!(r#"{{"candidates":[{{"content":{{"parts":[{part}]}},"finishReason":"STOP"}}]}}"#);
        Wire::Gemini.frame(&chunk)
    };
    let gate = Gate::new();
    let reply = Wire::Gemini
        .reply()
        .piece(chunk(r#"{"text":"I compute."},{"executableCode":{"language":"PYTHON","code":"1+1"}}"#))
        .gate(&gate)
        .piece(chunk(r#"{"text":"It is 2."}"#));
    let mut server = Server::start([reply]).await;
    let mut request = Request::prompt("Hi");
    request.model = "m".into();
    let endpoint = Wire::Gemini.endpoint(&server.url()).with_key("key");
    let mut stream = endpoint.stream(request, RequestContext::detached()).await.unwrap();
    server.wait_for(Event::Stalled).await;
    let mut fold = Fold::default();
    while fold.blocks().len() < 2 {
        fold.apply(stream.next().await.unwrap().unwrap()).unwrap();
    }
    // The reader takes the rest of the chunk, and then waits.
    while let Poll::Ready(delta) = futures_util::poll!(stream.next()) {
        fold.apply(delta.unwrap().unwrap()).unwrap();
    }
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(6)).await;
    tokio::time::resume();
    gate.open();
    while let Some(delta) = stream.next().await {
        fold.apply(delta.unwrap()).unwrap();
    }
    assert_eq!(fold.finish(Timestamp::now()).unwrap().message.text(), "I compute.It is 2.");
}

#[tokio::test]
async fn answer_without_content_left_open_after_its_finish_reason_waits_for_the_whole_limit() {
    for wire in [Wire::Chat, Wire::Gemini] {
        let reply = wire.reply().piece(wire.frame(&wire.end()[0]));
        let (answer, waited) = stalled(wire, reply, Request::prompt("Hi"), Timeouts::default()).await;
        let answer = answer.unwrap_or_else(|error| panic!("{wire:?}: {error}"));
        assert_eq!((answer.message.content.len(), answer.stop_reason), (0, StopReason::Stop), "{wire:?}");
        assert!(waited >= Duration::from_mins(5), "{wire:?} {waited:?}");
    }
}

/// Returns the frames of an answer that continues after its finish reason.
fn continued(wire: Wire) -> String {
    up_to_the_finish_reason(wire) + &wire.frame(&wire.text(&[", wor"]).remove(0))
}

#[tokio::test]
async fn answer_that_stalls_in_text_after_its_finish_reason_fails() {
    for wire in [Wire::Chat, Wire::Gemini, Wire::Messages] {
        let reply = wire.reply().piece(continued(wire));
        let (answer, waited) = stalled(wire, reply, Request::prompt("Hi"), Timeouts::default()).await;
        assert_eq!(answer.unwrap_err().kind, ProviderErrorKind::Timeout, "{wire:?}");
        assert!(waited >= Duration::from_mins(5), "{wire:?} {waited:?}");
        assert_eq!(
            wire.answer(&continued(wire)).await.unwrap_err().kind,
            ProviderErrorKind::Truncated,
            "{wire:?}"
        );
    }
}

#[tokio::test]
async fn answer_with_a_second_finish_reason_is_complete() {
    for wire in [Wire::Chat, Wire::Gemini] {
        let ends = [wire.frame(&wire.end()[0]), wire.frame("[DONE]")];
        for end in ends {
            let answer = wire.answer(&(continued(wire) + &end)).await;
            let answer = answer.unwrap_or_else(|error| panic!("{wire:?} {end}: {error}"));
            assert_eq!((answer.message.text(), answer.stop_reason), ("Hello, wor".into(), StopReason::Stop));
        }
        let reply = wire.reply().piece(continued(wire) + &wire.frame(&wire.end()[0]));
        let (answer, waited) = stalled(wire, reply, Request::prompt("Hi"), Timeouts::default()).await;
        assert_eq!(answer.unwrap().message.text(), "Hello, wor", "{wire:?}");
        assert!(waited <= Duration::from_secs(5) + SLACK, "{wire:?} {waited:?}");
    }
}
