//! How the JSON text of a tool's input is parsed.

use omni_agent::{
    message::{Message, ToolUse},
    provider::{StopReason, custom::BlockStart},
};
use serde_json::{Value, json};

use crate::deltas::{end, finish, input, start, text, tool};

/// Returns the only tool use of an answer with this input. If `ended` is set, the block of the tool use has ended.
fn tool_use(json: &str, ended: bool, reason: StopReason) -> ToolUse {
    let mut deltas = vec![tool(0, "a"), input(0, json)];
    if ended {
        deltas.push(end(0));
    }
    finish(deltas, reason).message.tool_uses().next().unwrap().clone()
}

#[test]
fn input_that_is_not_an_object_is_kept_raw() {
    let deep = format!("{{\"x\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let bad = [
        "{\"a\":",
        "{\"a\":1",
        "[1]",
        "\"[1]\"",
        "\"{\"",
        "\"{}\"{}",
        "\"{\\\"a\\\":1,\\\"a\\\":2}\"",
        "\"\\\"{}\\\"\"",
        "5",
        "null",
        "true",
        "{} {}",
        "{}x",
        "{a:1}",
        "{\"a\":1,}",
        "{\"a\":1e999}",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":1,\"a\":2}",
        "{\"a\":1,\"\\u0061\":2}",
        "{\"x\":[{\"a\":{},\"b\":1,\"a\":{}}]}",
        "NaN",
        "{'a':1}",
        &deep,
    ];
    for json in bad {
        for ended in [true, false] {
            let tool_use = tool_use(json, ended, StopReason::ToolUse);
            assert_eq!(tool_use.malformed.as_deref(), Some(json));
            assert_eq!(tool_use.input, json!({}));
        }
    }
}

#[test]
fn input_that_is_a_string_with_an_object_is_this_object() {
    for object in [json!({}), json!({ "z": "\"", "a": [{ "b": "[1]" }] })] {
        let text = Value::from(object.to_string()).to_string();
        for ended in [true, false] {
            let tool_use = tool_use(&text, ended, StopReason::ToolUse);
            assert_eq!((tool_use.malformed, tool_use.input), (None, object.clone()), "{text}");
        }
    }
}

#[test]
fn input_that_is_an_object_keeps_its_order() {
    let good = [
        "{}",
        " {\"z\":1,\"a\":[1.5,null,true]}\n",
        "{\"a:b\":\"x:\\\"y\\\":\\\\\",\"c\":{\"a:b\":\":\"},\"d\":[{\"c\":1},{\"c\":2}]}",
        "{\"one escaped quote\":\"\\\":\"}",
        "{\"ends in a backslash\\\\\":1}",
        "{\"\":\"\",\"big\":18446744073709551615,\"neg\":-9223372036854775808}",
    ];
    for json in good {
        let tool_use = tool_use(json, false, StopReason::ToolUse);
        assert_eq!(tool_use.malformed, None, "{json}");
        assert_eq!(tool_use.input.to_string(), json.trim());
    }
}

#[test]
fn deepest_accepted_input_can_be_read_again_inside_other_json() {
    let nested = |levels: usize| format!("{}1{}", "{\"x\":".repeat(levels), "}".repeat(levels));
    let accepted = (1..200)
        .map(|levels| tool_use(&nested(levels), true, StopReason::ToolUse))
        .take_while(|tool_use| tool_use.malformed.is_none())
        .last()
        .unwrap();
    // A stored message can be this deep inside other JSON, for example in a state that is part of a commit in a list of
    // commits.
    let mut value = serde_json::to_value(Message::assistant(accepted.clone())).unwrap();
    for _ in 0..16 {
        value = json!([{ "around": value }]);
    }
    assert!(serde_json::from_str::<Value>(&value.to_string()).is_ok());
    assert!(nested(32).len() <= accepted.input.to_string().len(), "32 levels must be accepted");
}

#[test]
fn input_that_is_missing_is_an_empty_object() {
    for reason in [StopReason::ToolUse, StopReason::Stop, StopReason::Pause] {
        for ended in [true, false] {
            for json in ["", " \n"] {
                let tool_use = tool_use(json, ended, reason.clone());
                assert_eq!((tool_use.input, tool_use.malformed), (json!({}), None), "{reason}");
            }
        }
    }
}

#[test]
fn input_that_is_missing_in_a_cut_answer_is_malformed() {
    // Services also end a block that they have cut off. The end of a block therefore does not prove that the block is
    // complete.
    for reason in
        [StopReason::Length, StopReason::ContextLength, StopReason::Refusal, StopReason::Other("?".into())]
    {
        for ended in [true, false] {
            let tool_use = tool_use("", ended, reason.clone());
            assert_eq!((tool_use.input, tool_use.malformed.as_deref()), (json!({}), Some("")), "{reason}");
        }
    }
    // If there are several blocks, any block that has not ended may be the one that was cut off.
    let uses = finish([tool(0, "a"), tool(1, "b"), end(1)], StopReason::Length).message;
    assert!(uses.tool_uses().all(|tool_use| tool_use.malformed.is_some()));
}

#[test]
fn input_of_a_tool_use_before_the_cut_is_complete() {
    let message =
        finish([tool(0, "a"), end(0), start(1, BlockStart::Text), text(1, "and th")], StopReason::Length)
            .message;
    assert_eq!(message.tool_uses().next().unwrap().malformed, None);
    assert_eq!(tool_use("{\"a\":1}", false, StopReason::Length).malformed, None);
    assert_eq!(tool_use("{\"a\":1", true, StopReason::Length).malformed.as_deref(), Some("{\"a\":1"));
}
