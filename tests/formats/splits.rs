//! Answers with thinking, text and a call. Each answer is split in two at every possible byte.

use omni_agent::{
    provider::{
        Request,
        custom::{Delta, Dialect},
    },
    testing::decode,
};
use serde_json::json;

use crate::{rig::Format, script::Answer, server::transport::HABITS};

/// Returns the deltas of an answer whose bytes arrive in these two pieces.
fn deltas_of(dialect: &dyn Dialect, pieces: [&[u8]; 2]) -> Vec<Delta> {
    decode(dialect, &Request::default(), pieces).unwrap()
}

#[test]
fn answer_with_thinking_and_calls_split_at_any_byte_gives_the_same_deltas() {
    let answer = Answer::thinking("Où ça ?", "sig").then_text("À 北京 🌍.").then_call(
        "call_1",
        "weather",
        &json!({"city": "Zürich"}),
    );
    for format in Format::ALL {
        let (dialect, wire) = (format.dialect(), format.wire());
        let events = wire.render(&answer, 1).events;
        let plain = HABITS[0].bytes(&events, wire.lines());
        let whole = deltas_of(&*dialect, [&plain, b""]);
        assert!(whole.iter().filter(|delta| matches!(delta, Delta::Start { .. })).count() >= 3, "{whole:?}");
        // The most irregular way of sending events: with a byte order mark, comments and Windows line endings.
        let body = HABITS[HABITS.len() - 1].bytes(&events, wire.lines());
        for at in 0..=body.len() {
            let (begin, end) = body.split_at(at);
            assert_eq!(deltas_of(&*dialect, [begin, end]), whole, "{format:?} at {at}");
        }
    }
}
