//! The framing of answers: how bytes are divided into events.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use bytes::Bytes;
use eventsource_stream::Eventsource;
use futures_util::{FutureExt, StreamExt, stream};
use omni_agent::provider::{
    ProviderError, ProviderErrorKind,
    custom::{Framer, Framing},
    http::Limits,
};
use proptest::prelude::*;

type Frames = Vec<(String, String)>;

/// Returns the frames of a body that arrives in these chunks. The second value shows whether the body ended normally or
/// with an error.
fn frames(framing: Framing, limits: &Limits, chunks: &[&[u8]]) -> (Frames, Result<(), ProviderError>) {
    let mut framer = Framer::new(framing, limits);
    let mut found = Vec::new();
    let mut drain = |framer: &mut Framer| -> Result<(), ProviderError> {
        while let Some(frame) = framer.next_frame()? {
            found.push((frame.event.to_owned(), frame.data.to_owned()));
        }
        Ok(())
    };
    let mut run = || {
        for chunk in chunks {
            framer.push(Bytes::copy_from_slice(chunk));
            drain(&mut framer)?;
        }
        framer.finish();
        drain(&mut framer)
    };
    let result = run();
    (found, result)
}

fn sse(body: &[u8]) -> Frames {
    let (found, result) = frames(Framing::Sse, &Limits::default(), &[body]);
    result.unwrap();
    found
}

fn ndjson(body: &[u8]) -> Vec<String> {
    let (found, result) = frames(Framing::NdJson, &Limits::default(), &[body]);
    result.unwrap();
    assert!(found.iter().all(|(event, _)| event.is_empty()));
    found.into_iter().map(|(_, data)| data).collect()
}

fn data(frames: &[(String, String)]) -> Vec<&str> {
    frames.iter().map(|(_, data)| data.as_str()).collect()
}

/// Cuts `body` into chunks. The length of each chunk is the next number in `places`, modulo the remaining length.
fn cut<'a>(body: &'a [u8], places: &[usize]) -> Vec<&'a [u8]> {
    let mut chunks = Vec::new();
    let mut rest = body;
    for place in places {
        let (chunk, after) = rest.split_at(place % (rest.len() + 1));
        chunks.push(chunk);
        rest = after;
    }
    chunks.push(rest);
    chunks
}

#[test]
fn sse_examples_of_the_standard_give_its_events() {
    let body = b"data: YHOO\ndata: +2\ndata: 10\n\n";
    assert_eq!(data(&sse(body)), ["YHOO\n+2\n10"]);
    let body =
        b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n";
    assert_eq!(data(&sse(body)), ["first event", "second event", " third event"]);
    assert_eq!(data(&sse(b"data\n\ndata\ndata\n\n")), ["", "\n"]);
    assert_eq!(data(&sse(b"data:test\n\ndata: test\n\n")), ["test", "test"]);
}

#[test]
fn sse_event_uses_its_last_name_and_carries_none_over() {
    let body = b"event: a\nevent: b\ndata: 1\n\ndata: 2\n\nevent: c\n\ndata: 3\n\nevent\ndata: 4\n\n";
    let expected = [("b", "1"), ("", "2"), ("", "3"), ("", "4")];
    assert_eq!(sse(body), expected.map(|(event, data)| (event.to_owned(), data.to_owned())));
}

#[test]
fn sse_unknown_fields_and_similar_names_are_ignored() {
    let body = b"retry: 10\nid: 7\n:data: no\ndatum: no\ndata-x: no\nevents: no\n data: no\ndata: yes\n\n";
    assert_eq!(sse(body), [(String::new(), "yes".to_owned())]);
}

#[test]
fn sse_lines_without_the_name_of_a_field_are_data_if_the_first_begins_with_a_brace() {
    let body =
        b"}\ndata: 1\n\n{\n: comment\n  \"a\": 1\n}\n\n}\ndata: 2\n{}\n\nerror: x\n\nerror\ndata: 3\n\n";
    let expected = [("", "1"), ("", "{\n  \"a\": 1\n}"), ("", "2\n{}"), ("error", "x"), ("", "3")];
    assert_eq!(sse(body), expected.map(|(event, data)| (event.to_owned(), data.to_owned())));
}

#[test]
fn sse_line_ends_of_all_kinds_give_the_same_events() {
    for end in ["\n", "\r", "\r\n"] {
        let body = ["event: x", "data: 1", "data: 2", "", "data: 3", "", ""].join(end);
        let expected = [("x".to_owned(), "1\n2".to_owned()), (String::new(), "3".to_owned())];
        assert_eq!(sse(body.as_bytes()), expected, "{end:?}");
    }
}

#[test]
fn sse_event_ended_by_carriage_returns_is_returned_immediately() {
    let mut framer = Framer::new(Framing::Sse, &Limits::default());
    framer.push("data: 1\r\r".into());
    assert_eq!(framer.next_frame().unwrap().unwrap().data, "1");
    // The line feed and the carriage return before it are one line ending, so the line feed ends no further line.
    framer.push("\ndata: 2\r\n\r".into());
    assert_eq!(framer.next_frame().unwrap().unwrap().data, "2");
    framer.push("\n".into());
    assert_eq!(framer.next_frame().unwrap(), None);
}

#[test]
fn byte_order_mark_is_stripped_once() {
    assert_eq!(data(&sse(b"\xEF\xBB\xBFdata: 1\n\n")), ["1"]);
    assert_eq!(data(&sse(b"\xEF\xBB\xBF\xEF\xBB\xBFdata: 1\n\ndata: 2\n\n")), ["2"]);
    assert_eq!(data(&sse(b"data: 1\n\n\xEF\xBB\xBFdata: 2\n\n")), ["1"]);
    assert_eq!(sse(b"\xEF\xBB\xBF"), []);
    assert_eq!(ndjson(b"\xEF\xBB\xBF{}\n"), ["{}"]);
}

#[test]
fn sse_last_event_without_blank_line_is_returned() {
    assert_eq!(data(&sse(b"data: 1\n\ndata: 2\n")), ["1", "2"]);
    assert_eq!(data(&sse(b"data: 1\n\ndata: 2")), ["1", "2"]);
    assert_eq!(data(&sse(b"data: 1\n\nevent: x")), ["1"]);
}

#[test]
fn ndjson_lines_are_frames_unless_blank() {
    assert_eq!(
        ndjson(b"{\"a\":1}\n\n  \n{\"b\":2}\r\n\r\n{\"c\":\r3}"),
        ["{\"a\":1}", "{\"b\":2}", "{\"c\":\r3}"]
    );
}

#[test]
fn invalid_utf8_is_a_decoding_error_after_the_frames_before_it() {
    for (framing, body) in [
        (Framing::Sse, &b"data: 1\n\ndata: \xFF\n\n"[..]),
        (Framing::Sse, b"data: 1\n\nevent: \xC3\ndata: 2\n\n"),
        (Framing::Sse, b"data: 1\n\n: \xC3\x28\ndata: 2\n\n"),
        (Framing::NdJson, b"1\n\"\xFF\"\n"),
    ] {
        let (found, result) = frames(framing, &Limits::default(), &[body]);
        assert_eq!(data(&found), ["1"]);
        let error = result.unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::Decoding);
        assert!(error.message.contains("UTF-8"), "{error}");
    }
}

#[test]
fn body_that_ends_inside_a_character_is_truncated() {
    let (found, result) = frames(Framing::Sse, &Limits::default(), &[b"data: 1\n\ndata: \xE2\x82"]);
    assert_eq!(data(&found), ["1"]);
    assert_eq!(result.unwrap_err().kind, ProviderErrorKind::Truncated);
}

#[test]
fn limits_exceeded_are_decoding_errors_that_name_the_limit() {
    let limits = Limits::default().with_line(20).with_event(30).with_body(60).with_error_body(0);
    for (framing, body, what) in [
        (Framing::Sse, "data: 1\n\ndata: 012345678901234\n\n", "a line"),
        (Framing::Sse, "data: 1\n\ndata: 012345678901234", "a line"),
        (Framing::Sse, "data: 1\n\n: comment that is too long", "a line"),
        (Framing::NdJson, "1\n\"0123456789012345678\"\n", "a line"),
        (Framing::Sse, "data: 1\n\ndata: 0123456789\ndata: 0123456789\ndata: 0123456789\n\n", "an event"),
        (
            Framing::Sse,
            "data: 1\n\n:234567\n:234567\n:234567\n:234567\n:234567\n:234567\n:234567\n",
            "the response",
        ),
    ] {
        let whole = frames(framing, &limits, &[body.as_bytes()]);
        assert_eq!(data(&whole.0), ["1"], "{body:?}");
        let error = whole.1.clone().unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::Decoding);
        assert!(error.message.starts_with(what), "{body:?}: {error}");
        let bytes: Vec<&[u8]> = body.as_bytes().chunks(1).collect();
        assert_eq!(frames(framing, &limits, &bytes), whole, "{body:?}");
    }
}

#[test]
fn limits_reached_exactly_are_accepted() {
    let limits = Limits::default().with_line(7).with_event(3).with_body(18).with_error_body(0);
    let (found, result) = frames(Framing::Sse, &limits, &[b"data: 1\n\ndata: 2\n\n"]);
    result.unwrap();
    assert_eq!(data(&found), ["1", "2"]);
}

#[test]
fn push_before_all_frames_are_taken_loses_nothing() {
    let mut framer = Framer::new(Framing::Sse, &Limits::default());
    framer.push("data: 1\n\ndata: 2\n\nda".into());
    assert_eq!(framer.next_frame().unwrap().unwrap().data, "1");
    framer.push("ta: 3\n".into());
    framer.push("\n".into());
    assert_eq!(framer.next_frame().unwrap().unwrap().data, "2");
    assert_eq!(framer.next_frame().unwrap().unwrap().data, "3");
    assert_eq!(framer.next_frame().unwrap(), None);
}

/// Lines as servers write them, and malformed lines.
fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "data: ?[a-zé€😀 {}\":]{0,12}",
        2 => "event: ?[a-z_]{0,6}",
        1 => ":[a-z ]{0,6}",
        1 => "(id|retry|data|event|dat|x)(: ?[a-z0-9]{0,4})?",
        4 => Just(String::new()),
    ]
}

fn body() -> impl Strategy<Value = String> {
    let end = prop_oneof![6 => Just("\n"), 1 => Just("\r"), 2 => Just("\r\n")];
    let lines = prop::collection::vec((line(), end), 0..24);
    (any::<bool>(), lines, any::<bool>()).prop_map(|(marked, lines, cut)| {
        let mut body = String::from(if marked { "\u{FEFF}" } else { "" });
        for (line, end) in lines {
            body.push_str(&line);
            body.push_str(end);
        }
        if cut {
            body.pop();
        }
        body
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    prop_oneof![
        2 => Just(Limits::default()),
        1 => (4..40usize, 1..40usize, 1..300usize)
            .prop_map(|(line, event, body)| Limits::default().with_line(line).with_event(event).with_body(body).with_error_body(0)),
    ]
}

/// Decodes a body with an independent implementation. Two differences are evened out: that implementation panics on a
/// byte order mark, and it gives a default name to unnamed events.
fn oracle(body: &str) -> Frames {
    let body = body.strip_prefix('\u{FEFF}').unwrap_or(body).to_owned();
    let events = stream::iter([Ok::<_, std::convert::Infallible>(body)]).eventsource();
    let events: Vec<_> = events.collect().now_or_never().unwrap();
    let name = |name: String| if name == "message" { String::new() } else { name };
    events.into_iter().map(|event| event.unwrap()).map(|event| (name(event.event), event.data)).collect()
}

proptest! {
    #[test]
    fn any_split_gives_the_frames_of_the_whole(
        body in body(), places in prop::collection::vec(0..64usize, 0..12), limits in limits(), lines: bool
    ) {
        let framing = if lines { Framing::NdJson } else { Framing::Sse };
        let whole = frames(framing, &limits, &[body.as_bytes()]);
        prop_assert_eq!(&frames(framing, &limits, &cut(body.as_bytes(), &places)), &whole);
        let bytes: Vec<&[u8]> = body.as_bytes().chunks(1).collect();
        prop_assert_eq!(&frames(framing, &limits, &bytes), &whole);
    }

    #[test]
    fn any_split_of_any_bytes_gives_the_frames_of_the_whole(
        body in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b':'), Just(b'd'), any::<u8>()], 0..200),
        places in prop::collection::vec(0..64usize, 0..12), lines: bool
    ) {
        let framing = if lines { Framing::NdJson } else { Framing::Sse };
        let whole = frames(framing, &Limits::default(), &[&body]);
        prop_assert_eq!(frames(framing, &Limits::default(), &cut(&body, &places)), whole);
    }

    #[test]
    fn sse_frames_equal_those_of_an_independent_implementation(body in body()) {
        // The independent implementation drops an event that is cut off by the end of the body, so the test appends
        // blank lines.
        let whole = body + "\n\n\n";
        prop_assert_eq!(sse(whole.as_bytes()), oracle(&whole));
    }
}
