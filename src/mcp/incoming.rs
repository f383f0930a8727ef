//! Makes messages readable for rmcp, which drops a message that it can't read. Its request would then wait in vain.

use std::io;

use bytes::Bytes;
use futures_util::StreamExt as _;
use rmcp::model::{ClientJsonRpcMessage, Implementation, ServerJsonRpcMessage, ServerResult, Tool};
use serde::{Deserialize as _, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::io::AsyncRead;
use tokio_util::{codec::AnyDelimiterCodecError, io::StreamReader};

use super::tool::readable_tool;
use crate::{json::halves, process::lines::lines};

/// The greatest depth of a value that is read. `serde_json` refuses a text with more than 127 levels.
const DEEPEST: usize = 120;

/// The text in place of a value that is nested more deeply.
pub(super) const TOO_DEEP: &str = "[nested too deeply]";

/// Returns the messages of a reader, one per line, as text that rmcp can read. If a message has more than `longest` bytes
/// or can't be read, calls `failed` with the error, because rmcp only logs it, and fails.
pub(crate) fn messages<M: IncomingMcpMessage>(
    reader: impl AsyncRead + Send + Unpin,
    longest: usize,
    failed: impl Fn(AnyDelimiterCodecError) + Send + Unpin,
) -> impl AsyncRead + Send + Unpin {
    StreamReader::new(lines(reader, longest).map(move |line| match line {
        Ok(line) => Ok(Bytes::from([&*readable::<M>(&line).unwrap_or(line.into()), b"\n"].concat())),
        Err(error) => {
            failed(error);
            Err(io::Error::from(io::ErrorKind::InvalidData))
        }
    }))
}

/// Returns the text for rmcp in place of a message that it can't read: the message without the values that are nested
/// too deeply and with U+FFFD in place of each unpaired surrogate, or an error in place of an answer, or a request that
/// is refused in place of a request. Returns `None` if the message is readable, or if its id is not.
pub(super) fn readable<M: IncomingMcpMessage>(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text).trim_ascii_start();
    if !text.starts_with(b"{") {
        return None;
    }
    let error = match serde_json::from_slice::<M>(text) {
        Ok(message) => return message.is_doubtful().then(|| clarified(text)).flatten(),
        Err(error) => error,
    };
    let repaired = halves::replaced(text);
    let text = repaired.as_ref().map_or(text, String::as_bytes);
    let shallow = pruned(text, DEEPEST);
    if (repaired.is_some() || shallow != text) && serde_json::from_slice::<M>(&shallow).is_ok() {
        return readable::<M>(&shallow).or(Some(shallow));
    }
    if let Some(text) = without_null_counterparts(&shallow) {
        return readable::<M>(&text).or(Some(text));
    }
    // The fault is usually in a nested value.
    let envelope: Value = serde_json::from_slice(&pruned(text, 1)).unwrap_or_default();
    // Other lines are logs that a program writes to the wrong place.
    if envelope["jsonrpc"] != "2.0" {
        return None;
    }
    let id = Some(&envelope["id"]).filter(|id| id.is_number() || id.is_string());
    let Some(id) = id else {
        tracing::warn!("a message of the Model Context Protocol is ignored: it can't be read");
        return None;
    };
    let reason = format!("a message that can't be read: {error}");
    let readable = if envelope["method"].is_null() {
        json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32700, "message": reason } })
    } else {
        json!({ "jsonrpc": "2.0", "id": id, "method": reason })
    };
    Some(readable.to_string().into())
}

/// Returns the message without the `method`, `result` and `error` that are null, if another of them is not. JSON-RPC
/// forbids the null member, but some libraries write it. Returns `None` if there is no such member.
fn without_null_counterparts(text: &[u8]) -> Option<Vec<u8>> {
    const KINDS: [&str; 3] = ["method", "result", "error"];
    let mut message: Value = serde_json::from_slice(text).ok()?;
    let is_null = |kind: &&str| message.get(*kind).is_some_and(Value::is_null);
    if !KINDS.iter().any(is_null) || KINDS.iter().all(|kind| message[*kind].is_null()) {
        return None;
    }
    message.as_object_mut()?.retain(|name, member| !member.is_null() || !KINDS.contains(&&**name));
    Some(message.to_string().into())
}

/// The messages of one side.
pub(crate) trait IncomingMcpMessage: DeserializeOwned {
    /// Returns whether the sender may have meant a message of another kind.
    fn is_doubtful(&self) -> bool;
}

impl IncomingMcpMessage for ClientJsonRpcMessage {
    fn is_doubtful(&self) -> bool {
        false
    }
}

impl IncomingMcpMessage for ServerJsonRpcMessage {
    /// rmcp finds the kind of a result by its members, and takes the first kind that fits. The result of a call is one of
    /// the last kinds, and the very last kind fits every result.
    fn is_doubtful(&self) -> bool {
        let Self::Response(response) = self else { return false };
        !matches!(
            response.result,
            ServerResult::CallToolResult(_)
                | ServerResult::DiscoverResult(_)
                | ServerResult::InitializeResult(_)
        )
    }
}

/// Returns the text of a response that rmcp reads as its sender meant it: the result of a call without members of other
/// results, or a list of tools or the result of a handshake without the descriptions that can't be read. Returns `None` if the text needs no
/// change.
fn clarified(text: &[u8]) -> Option<Vec<u8>> {
    const OF_CALLS: [&str; 5] = ["resultType", "content", "structuredContent", "isError", "_meta"];
    let message: Value = serde_json::from_slice(text).ok()?;
    let mut clear = message.clone();
    let result = clear.get_mut("result")?;
    if result.get("content").is_some_and(Value::is_array) {
        result.as_object_mut()?.retain(|name, _| OF_CALLS.contains(&&**name));
    } else if let Some(tools) = result.get_mut("tools").and_then(Value::as_array_mut) {
        // rmcp takes the headers of calls only from pages of which it reads each tool.
        for tool in tools.iter_mut().filter(|tool| Tool::deserialize(&**tool).is_err()) {
            if let Ok(readable) = readable_tool(&mut tool.clone()) {
                *tool = serde_json::to_value(readable).ok()?;
            }
        }
    } else if result.get("capabilities").is_some() {
        restore(result, &|name, member| {
            (is_empty(member) && !["icons", "supportedVersions"].contains(&name)).then(|| json!({}))
        });
        if let Some(info) = result.get_mut("serverInfo")
            && Implementation::deserialize(&*info).is_err()
        {
            let text = |name| info.get(name).and_then(Value::as_str).unwrap_or_default();
            *info = json!({ "name": text("name"), "version": text("version") });
        }
    }
    (clear != message).then(|| clear.to_string().into())
}

/// Returns whether a value is an empty list. PHP also writes an empty object as `[]`.
pub(super) fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

/// Replaces the members for which `meant` returns the value that their sender meant.
pub(super) fn restore(value: &mut Value, meant: &impl Fn(&str, &Value) -> Option<Value>) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| restore(item, meant)),
        Value::Object(members) => {
            for (name, member) in members {
                if let Some(meant) = meant(name, member) {
                    *member = meant;
                }
                restore(member, meant);
            }
        }
        _ => {}
    }
}

/// Returns the JSON text with [`TOO_DEEP`] in place of each value below the depth.
fn pruned(text: &[u8], deepest: usize) -> Vec<u8> {
    let mut kept = Vec::with_capacity(text.len());
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for &byte in text {
        if !in_string && matches!(byte, b'{' | b'[') {
            depth += 1;
            if depth == deepest + 1 {
                kept.extend(format!("{TOO_DEEP:?}").bytes());
            }
        }
        if depth <= deepest {
            kept.push(byte);
        }
        if !in_string && matches!(byte, b'}' | b']') {
            depth = depth.saturating_sub(1);
        }
        in_string ^= byte == b'"' && !escaped;
        escaped = in_string && byte == b'\\' && !escaped;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> String {
        format!("{}0{}", "[".repeat(levels), "]".repeat(levels))
    }

    #[test]
    fn pruned_deep_values_are_replaced_and_the_others_kept() {
        let text = format!(r#"{{"a":{},"b":["]\\\"{{",{{}}]}}"#, nested(500));
        let mut read: Value = serde_json::from_slice(&pruned(text.as_bytes(), 120)).unwrap();
        assert_eq!(read["b"], json!(["]\\\"{", {}]));
        let mut depth = 0;
        while read["a"].is_array() {
            read["a"] = read["a"][0].take();
            depth += 1;
        }
        assert_eq!((depth, &read["a"]), (119, &json!(TOO_DEEP)));
        assert_eq!(pruned(nested(120).as_bytes(), 120), nested(120).as_bytes());
    }

    #[test]
    fn readable_text_that_was_cut_inside_a_character_is_repaired() {
        let cut = br#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"cut \ud83d"}]}}"#;
        let repaired: Value =
            serde_json::from_slice(&readable::<ServerJsonRpcMessage>(cut).unwrap()).unwrap();
        assert_eq!(repaired["result"]["content"][0]["text"], "cut \u{fffd}");
        let call = br#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"\udc00"}}"#;
        let repaired: Value =
            serde_json::from_slice(&readable::<ClientJsonRpcMessage>(call).unwrap()).unwrap();
        assert_eq!(repaired["params"]["name"], "\u{fffd}");
    }

    #[test]
    fn readable_null_member_beside_its_counterpart_is_dropped() {
        for (text, kept) in [
            (r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]},"error":null}"#, "result"),
            (r#"{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":1,"message":"no"}}"#, "error"),
        ] {
            let message = readable::<ServerJsonRpcMessage>(text.as_bytes()).unwrap();
            assert!(serde_json::from_slice::<ServerJsonRpcMessage>(&message).is_ok(), "{text}");
            let message: Value = serde_json::from_slice(&message).unwrap();
            assert_eq!(message.as_object().unwrap().len(), 3, "{message}");
            assert_eq!(message[kept], serde_json::from_str::<Value>(text).unwrap()[kept]);
        }
        let answer = br#"{"jsonrpc":"2.0","id":1,"result":{"action":"accept"},"error":null}"#;
        let answer: Value =
            serde_json::from_slice(&readable::<ClientJsonRpcMessage>(answer).unwrap()).unwrap();
        assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": 1, "result": { "action": "accept" } }));
    }

    #[test]
    fn readable_unreadable_message_gets_an_answer_with_its_id() {
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"result":{"a":NaN}}"#,
            r#"{"jsonrpc":"2.0","result":{"a":"\x"},"id":7}"#,
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":"x"}}"#,
            "\u{feff} {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"a\":NaN}}",
        ] {
            let error = readable::<ServerJsonRpcMessage>(text.as_bytes()).unwrap();
            let error: Value = serde_json::from_slice(&error).unwrap();
            assert_eq!((&error["id"], &error["error"]["code"]), (&json!(7), &json!(-32700)), "{text}");
            assert!(error["error"]["message"].as_str().unwrap().contains("can't be read: "), "{error}");
        }
        let request = br#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"a":NaN}}"#;
        let refused = readable::<ClientJsonRpcMessage>(request).unwrap();
        assert!(serde_json::from_slice::<ClientJsonRpcMessage>(&refused).is_ok());
        let logs = [r#"{"level":"info","id":7,"msg":"row"}"#, r#"{"id":1,"method":"GET"}"#];
        let others = ["hello", "{", "[]", "", r#"{"jsonrpc":"2.0","id":7,"result":{}}"#];
        for text in logs.into_iter().chain(others) {
            assert_eq!(readable::<ServerJsonRpcMessage>(text.as_bytes()), None, "{text}");
        }
    }
}
