//! Interprets a line of a program's output. Performs no I/O.
//!
//! Programs deviate from the protocol in different ways. A line is accepted if it has only one possible meaning. It is
//! skipped if it can't be any of the expected messages. A fragment of a message is an error.

use std::{collections::HashMap, sync::Arc};

use agent_client_protocol::{
    Error, RawJsonRpcError, RawJsonRpcId, RawJsonRpcMessage, RawJsonRpcNotification, RawJsonRpcParams,
    RawJsonRpcRequest, RawJsonRpcResponse,
};
use memchr::memmem;
use rand::RngExt;
use serde_json::{Map, Value};

use crate::provider::halves;

/// The meaning of a line.
#[derive(Debug, PartialEq)]
pub(super) enum IncomingLine {
    /// The protocol's messages in the line, in order.
    Messages(Vec<RawJsonRpcMessage>),
    /// Not a message.
    Noise,
    /// A fragment of a message: its beginning or its end. The message may have been a response.
    Damaged,
}

/// Our requests that wait for their responses. Each key is a number that was sent as the id of the request, because
/// some programs accept only numbers as ids.
pub(super) struct Asked {
    last: i64,
    waiting: HashMap<i64, RawJsonRpcId>,
}

impl Default for Asked {
    fn default() -> Self {
        // Programs count their own requests from 0 or 1, and their logs may quote our responses to these requests. Our
        // ids are large numbers, so that such a quote is not mistaken for a response to one of our requests.
        Self { last: rand::rng().random_range(1 << 20..1 << 30), waiting: HashMap::new() }
    }
}

impl Asked {
    /// Adds a request, and returns the id with which the request is sent.
    pub(super) fn ask(&mut self, id: RawJsonRpcId) -> RawJsonRpcId {
        self.last += 1;
        self.waiting.insert(self.last, id);
        self.last.into()
    }

    /// Returns the request to which a response with this id belongs.
    fn answered(&mut self, id: &Value) -> Option<RawJsonRpcId> {
        let number = match id {
            Value::Number(number) => number.as_i64()?,
            Value::String(number) => number.parse().ok()?,
            _ => return None,
        };
        self.waiting.remove(&number)
    }

    /// Returns the request that the program could not parse, if exactly one request is waiting.
    fn unread(&mut self) -> Option<RawJsonRpcId> {
        let mut waiting = self.waiting.keys();
        let (Some(&number), None) = (waiting.next(), waiting.next()) else { return None };
        self.waiting.remove(&number)
    }
}

/// Interprets a line.
pub(super) fn classify(line: &[u8], asked: &mut Asked) -> IncomingLine {
    if !begins_like_a_message(line) {
        // The program may have written a message after other output on the same line. A log line that quotes a message
        // looks the same. Therefore, only a response is accepted here: processing a response twice does no harm.
        let rest = memmem::find(line, b"{\"jsonrpc\"").map_or(&[][..], |at| &line[at..]);
        return match serde_json::from_slice(rest) {
            Ok(Value::Object(object)) if !object.contains_key("method") => {
                classify_values([object.into()], asked)
            }
            _ => IncomingLine::Noise,
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
        Ok(values) => classify_values(values, asked),
        Err(_) if memmem::find(line, b"\"jsonrpc\"").is_some() => IncomingLine::Damaged,
        Err(_) => IncomingLine::Noise,
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

fn classify_values(values: impl IntoIterator<Item = Value>, asked: &mut Asked) -> IncomingLine {
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
        match message(object, says_so, asked) {
            Some(message) => messages.push(message),
            None if says_so => {
                tracing::warn!("an agent's message is malformed, or answers no request");
            }
            None => {}
        }
    }
    if is_protocol || !messages.is_empty() { IncomingLine::Messages(messages) } else { IncomingLine::Noise }
}

fn message(mut object: Map<String, Value>, says_so: bool, asked: &mut Asked) -> Option<RawJsonRpcMessage> {
    let (id, params) = (object.remove("id"), object.remove("params"));
    if let Some(method) = object.get("method") {
        let method = method.as_str()?;
        // Without the member `jsonrpc`, an object with a `method` may be a log record, so only known methods are
        // accepted.
        if !says_so && !matches!(method, "session/update" | "session/request_permission") {
            return None;
        }
        let method = Arc::from(method);
        let params = params.and_then(|params| RawJsonRpcParams::from_value(params).ok().flatten());
        return Some(match id {
            None => RawJsonRpcNotification { method, params }.into(),
            Some(id) => RawJsonRpcRequest { id: serde_json::from_value(id).ok()?, method, params }.into(),
        });
    }
    let has_result = object.contains_key("result");
    let error = object.remove("error").filter(|error| !error.is_null());
    if !says_so && !has_result && error.is_none() {
        return None;
    }
    let id = match id {
        // If the program could not parse a request, its response has no id, but it has one of these two codes. Any
        // other error without an id is a log record, or is about a message that needs no response.
        Some(Value::Null) | None => match error.as_ref()?.get("code").and_then(Value::as_i64) {
            Some(-32700 | -32600) => asked.unread()?,
            _ => return None,
        },
        Some(id) => asked.answered(&id)?,
    };
    Some(RawJsonRpcMessage::Response(match error {
        Some(error) => RawJsonRpcResponse::Error { id, error: Box::new(failure(error)) },
        None => RawJsonRpcResponse::Result { id, result: object.remove("result").unwrap_or_default() },
    }))
}

fn failure(error: Value) -> RawJsonRpcError {
    let said = match error.get("message").unwrap_or(&error) {
        Value::String(said) => said.clone(),
        other => other.to_string(),
    };
    serde_json::from_value(error).unwrap_or_else(|_| Error::new(-32603, said).into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asking() -> Asked {
        let mut asked = Asked { last: 0, waiting: HashMap::new() };
        assert_eq!(asked.ask("one".to_owned().into()), 1.into());
        asked
    }

    /// Returns the JSON texts of the messages in a line.
    fn taken(line: &str) -> Value {
        match classify(line.as_bytes(), &mut asking()) {
            IncomingLine::Messages(messages) => json!(messages),
            other => json!(format!("{other:?}")),
        }
    }

    #[test]
    fn responses_get_the_ids_of_their_requests() {
        let answer = json!([{ "jsonrpc": "2.0", "id": "one", "result": 7 }]);
        for line in [
            r#"{"jsonrpc":"2.0","id":1,"result":7}"#,
            r#" {"id":"1","result":7,"error":null}"#,
            r#"[{"jsonrpc":"1.0","id":1,"result":7}, 7, {"jsonrpc":"2.0","id":1,"result":8}]"#,
            r#"{"jsonrpc":"2.0","id":1,"result":7} {"jsonrpc":"2.0","id":2,"result":8}"#,
            r#"[info] sent {"jsonrpc":"2.0","id":1,"result":7}"#,
        ] {
            assert_eq!(taken(line), answer, "{line}");
        }
        assert_eq!(taken(r#"{"jsonrpc":"2.0","id":1}"#)[0]["result"], json!(null));
        let failed = |line| taken(line)[0]["error"].clone();
        assert_eq!(failed(r#"{"id":null,"error":{"code":-32700,"message":"no"}}"#)["code"], -32700);
        assert_eq!(
            failed(r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":"X","message":"no"}}"#)["message"],
            "no"
        );
        assert_eq!(failed(r#"{"jsonrpc":"2.0","id":1,"error":"no"}"#)["message"], "no");
        assert_eq!(taken(r#"{"jsonrpc":"2.0","id":9,"result":7}"#), json!([]), "nobody asked");
        let to_a_notification = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"no"}}"#;
        assert_eq!(taken(to_a_notification), json!([]), "it asked for no answer");
    }

    #[test]
    fn quoted_answer_to_a_request_of_the_agent_is_ignored() {
        let mut asked = Asked::default();
        asked.ask("one".to_owned().into());
        for id in 0..1000 {
            let line = format!(r#"[debug] got {{"jsonrpc":"2.0","id":{id},"result":7}}"#);
            let heard = classify(line.as_bytes(), &mut asked);
            assert_eq!(heard, IncomingLine::Messages(Vec::new()), "{line}");
        }
    }

    #[test]
    fn parse_error_is_assigned_only_to_a_single_waiting_request() {
        let line = br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}"#;
        let mut asked = asking();
        asked.ask("two".to_owned().into());
        assert_eq!(classify(line, &mut asked), IncomingLine::Messages(Vec::new()));
        assert_eq!(classify(line, &mut Asked::default()), IncomingLine::Messages(Vec::new()));
    }

    #[test]
    fn requests_keep_their_ids_and_lose_invalid_params() {
        let request = r#"{"jsonrpc":"2.0","id":"x","method":"_m","params":{"a":1}}"#;
        assert_eq!(taken(request), json!([serde_json::from_str::<Value>(request).unwrap()]));
        let request = r#"{"jsonrpc":"2.0","id":0,"method":"_m","params":"odd"}"#;
        assert_eq!(taken(request), json!([{ "jsonrpc": "2.0", "id": 0, "method": "_m" }]));
        assert_eq!(taken(r#"{"jsonrpc":"2.0","id":[],"method":"_m"}"#), json!([]));
        assert_eq!(taken(r#"{"method":"session/update","params":null}"#)[0]["method"], "session/update");
    }

    #[test]
    fn logs_are_noise_and_cut_messages_are_damaged() {
        for line in [
            "hello",
            "[1]",
            "[]",
            r#"{"level":30,"id":1,"msg":"x"}"#,
            r#"{"method":"GET","id":1}"#,
            r#"{"level":"error","msg":"retrying","error":"rate limited"}"#,
            r#"{"error":{"code":429,"message":"rate limited"}}"#,
            r#"{"level":"#,
            r#"[debug] got {"jsonrpc":"2.0","method":"session/update","params":{}}"#,
            r#"[debug] got {"jsonrpc":"2.0","meth"#,
            "\u{fffd}",
        ] {
            assert_eq!(classify(line.as_bytes(), &mut asking()), IncomingLine::Noise, "{line}");
        }
        for line in
            [r#"{"jsonrpc":"2.0","id":"#, r#"[{"jsonrpc":"2.0","id":1}"#, r#"{"jsonrpc":"2.0","id":1} x"#]
        {
            assert_eq!(classify(line.as_bytes(), &mut asking()), IncomingLine::Damaged, "{line}");
        }
    }
}
