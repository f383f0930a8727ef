//! Interprets a line of a program's output. Performs no I/O.
//!
//! Programs deviate from the protocol in different ways. A line is accepted if it has only one possible meaning. It is
//! skipped if it can't be any of the expected messages. A fragment of a message is an error.

use memchr::memmem;
use serde_json::{Map, Value};

use crate::{
    acp::{AcpMessage, AcpPeer},
    json::halves,
};

/// The meaning of a line.
#[derive(Debug, PartialEq)]
pub(super) enum ParsedAcpLine {
    /// The protocol's messages in the line, in order.
    Messages(Vec<AcpMessage>),
    /// Not a message.
    Noise,
    /// A fragment of a message: its beginning or its end. The message may have been a response.
    Damaged,
}

/// Interprets a line.
pub(super) fn classify(line: &[u8], peer: &AcpPeer) -> ParsedAcpLine {
    if !begins_like_a_message(line) {
        // The program may have written a message after other output on the same line. A log line that quotes a message
        // looks the same. Therefore, only a response is accepted here: processing a response twice does no harm.
        let rest = memmem::find(line, b"{\"jsonrpc\"").map_or(&[][..], |at| &line[at..]);
        return match serde_json::from_slice(rest) {
            Ok(Value::Object(object)) if !object.contains_key("method") => {
                classify_values([object.into()], peer)
            }
            _ => ParsedAcpLine::Noise,
        };
    }
    let read =
        |line: &[u8]| serde_json::Deserializer::from_slice(line).into_iter().collect::<Result<Vec<_>, _>>();
    let marked = |error: serde_json::Error| {
        let marked = std::str::from_utf8(line).ok().and_then(halves::marked).ok_or(error)?;
        let mut values = read(marked.as_bytes())?;
        values.iter_mut().filter(|value| !is_chunk(value)).for_each(halves::resolve_value);
        Ok::<_, serde_json::Error>(values)
    };
    match read(line).or_else(marked) {
        Ok(values) => classify_values(values, peer),
        Err(_) if memmem::find(line, b"\"jsonrpc\"").is_some() => ParsedAcpLine::Damaged,
        Err(_) => ParsedAcpLine::Noise,
    }
}

/// Returns whether the message contains a part of a text that another message may continue.
fn is_chunk(message: &Value) -> bool {
    let kind = message.pointer("/params/update/sessionUpdate").and_then(Value::as_str);
    matches!(kind, Some("agent_message_chunk" | "agent_thought_chunk"))
}

fn begins_like_a_message(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    let first = line.strip_prefix(b"[").map_or(line, <[u8]>::trim_ascii_start);
    first.starts_with(b"{")
}

fn classify_values(values: impl IntoIterator<Item = Value>, peer: &AcpPeer) -> ParsedAcpLine {
    let (mut messages, mut is_protocol) = (Vec::new(), false);
    let objects = values.into_iter().flat_map(|value| match value {
        // The line is a batch of messages, which JSON-RPC defines, although the protocol does not.
        Value::Array(values) => values,
        value => vec![value],
    });
    for object in objects {
        let Value::Object(object) = object else { continue };
        let says_so = object.contains_key("jsonrpc");
        is_protocol |= says_so;
        match message(object, says_so, peer) {
            Some(message) => messages.push(message),
            None if says_so => {
                tracing::warn!("an agent's message is malformed, or answers no request");
            }
            None => {}
        }
    }
    if is_protocol || !messages.is_empty() { ParsedAcpLine::Messages(messages) } else { ParsedAcpLine::Noise }
}

fn message(mut object: Map<String, Value>, says_so: bool, peer: &AcpPeer) -> Option<AcpMessage> {
    match object.get("method") {
        // Without the member `jsonrpc`, an object with a `method` may be a log record, so only known methods are
        // accepted.
        Some(method) if !says_so && method != "session/update" && method != "session/request_permission" => {
            return None;
        }
        Some(_) => {}
        None => {
            object.entry("id").or_insert(Value::Null);
            if says_so {
                object.entry("result").or_insert(Value::Null);
            }
        }
    }
    match AcpMessage::new(object) {
        AcpMessage::Invalid { .. } => None,
        AcpMessage::Request { id, .. } if id.is_f64() => None,
        // An error without an id is a log record, or is about a message that needs no response, unless the program
        // could not parse a request.
        AcpMessage::Response { id, answer } => {
            peer.asked(&id, &answer).map(|_| AcpMessage::Response { id, answer })
        }
        message => Some(message),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the messages in a line. One request waits, whose id is written as `ID` in the line.
    fn taken(line: &str) -> (ParsedAcpLine, Value) {
        let (peer, mut lines) = AcpPeer::new();
        peer.call("m", json!({}), |_| {}).unwrap();
        let request: Value = serde_json::from_str(&lines.try_recv().unwrap().0).unwrap();
        let id = request["id"].clone();
        (classify(line.replace("ID", &id.to_string()).as_bytes(), &peer), id)
    }

    fn messages(line: &str) -> Vec<AcpMessage> {
        match taken(line).0 {
            ParsedAcpLine::Messages(messages) => messages,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn responses_to_requests_are_found_in_every_form() {
        for line in [
            r#"{"jsonrpc":"2.0","id":ID,"result":7}"#,
            r#" {"id":"ID","result":7,"error":null}"#,
            r#"[{"jsonrpc":"1.0","id":ID,"result":7}, 7, {"jsonrpc":"2.0","id":9,"result":8}]"#,
            r#"{"jsonrpc":"2.0","id":ID,"result":7} {"jsonrpc":"2.0","id":2,"result":8}"#,
            r#"[info] sent {"jsonrpc":"2.0","id":ID,"result":7}"#,
        ] {
            let (ParsedAcpLine::Messages(messages), number) = taken(line) else { panic!("{line}") };
            let [AcpMessage::Response { id, answer: Ok(result) }] = &messages[..] else {
                panic!("{messages:?}")
            };
            let id = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
            assert_eq!(id, number.to_string(), "{line}");
            assert_eq!(*result, 7, "{line}");
        }
        let answer = |line| match messages(line).swap_remove(0) {
            AcpMessage::Response { answer, .. } => answer,
            other => panic!("{other:?}"),
        };
        assert_eq!(answer(r#"{"jsonrpc":"2.0","id":ID}"#), Ok(Value::Null));
        let unread = answer(r#"{"error":{"code":-32700,"message":"no"}}"#);
        assert_eq!(i32::from(unread.unwrap_err().code), -32700);
        for line in [
            r#"{"jsonrpc":"2.0","id":ID,"result":{},"error":{"code":"X","message":"no"}}"#,
            r#"{"jsonrpc":"2.0","id":ID,"error":"no"}"#,
        ] {
            assert_eq!(answer(line).unwrap_err().message, "no");
        }
        assert_eq!(messages(r#"{"jsonrpc":"2.0","id":9,"result":7}"#), [], "nobody asked");
        let to_a_notification = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"no"}}"#;
        assert_eq!(messages(to_a_notification), [], "it asked for no answer");
    }

    #[test]
    fn requests_keep_their_ids() {
        let request = |id, params| AcpMessage::Request { id, method: "_m".to_owned(), params };
        let line = r#"{"jsonrpc":"2.0","id":"x","method":"_m","params":{"a":1}}"#;
        assert_eq!(messages(line), [request(json!("x"), json!({ "a": 1 }))]);
        let line = r#"{"jsonrpc":"2.0","id":0,"method":"_m","params":"odd"}"#;
        assert_eq!(messages(line), [request(json!(0), json!("odd"))]);
        for line in
            [r#"{"jsonrpc":"2.0","id":[],"method":"_m"}"#, r#"{"jsonrpc":"2.0","id":1.5,"method":"_m"}"#]
        {
            assert_eq!(messages(line), []);
        }
        let update = AcpMessage::Notification { method: "session/update".to_owned(), params: Value::Null };
        assert_eq!(messages(r#"{"method":"session/update","params":null}"#), [update]);
    }

    #[test]
    fn logs_are_noise_and_cut_messages_are_damaged() {
        for line in [
            "hello",
            "[1]",
            "[]",
            r#"{"level":30,"id":1,"msg":"x"}"#,
            r#"{"level":30,"id":1,"result":"x"}"#,
            r#"{"method":"GET","id":1}"#,
            r#"{"level":"error","msg":"retrying","error":"rate limited"}"#,
            r#"{"error":{"code":429,"message":"rate limited"}}"#,
            r#"{"level":"#,
            r#"[debug] got {"jsonrpc":"2.0","method":"session/update","params":{}}"#,
            r#"[debug] got {"jsonrpc":"2.0","meth"#,
            "\u{fffd}",
        ] {
            assert_eq!(taken(line).0, ParsedAcpLine::Noise, "{line}");
        }
        for line in
            [r#"{"jsonrpc":"2.0","id":"#, r#"[{"jsonrpc":"2.0","id":1}"#, r#"{"jsonrpc":"2.0","id":1} x"#]
        {
            assert_eq!(taken(line).0, ParsedAcpLine::Damaged, "{line}");
        }
    }
}
