//! Items that the application has to answer: custom tools, shells, patches, computers and approvals.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of tests")]

use omni_agent::{
    message::{Content, History, Message, ProviderItem, ToolResult},
    provider::{
        Options, Request, StopReason,
        custom::{Dialect, OpenAiResponses},
    },
};
use serde_json::{Value, json};

use crate::{
    chat,
    responses::{added, answer, call, completed, created, done, input, message, reasoning},
};

/// Each kind of open item, with the item that answers it.
fn questions() -> [(Value, Value); 7] {
    [
        (
            json!({"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "sql", "input": "SELECT 1"}),
            json!({"type": "custom_tool_call_output", "call_id": "call_1", "output": "1"}),
        ),
        (
            json!({"type": "local_shell_call", "id": "lsh_1", "call_id": "call_1", "status": "completed",
                "action": {"type": "exec", "command": ["ls"], "env": {}}}),
            json!({"type": "local_shell_call_output", "id": "call_1", "output": "a"}),
        ),
        (
            json!({"type": "shell_call", "id": "sh_1", "call_id": "call_1", "action": {"commands": ["ls"]}}),
            json!({"type": "shell_call_output", "call_id": "call_1", "output": []}),
        ),
        (
            json!({"type": "apply_patch_call", "id": "apc_1", "call_id": "call_1",
                "operation": {"type": "delete_file", "path": "a"}}),
            json!({"type": "apply_patch_call_output", "call_id": "call_1", "status": "completed"}),
        ),
        (
            json!({"type": "computer_call", "id": "cu_1", "call_id": "call_1", "action": {"type": "screenshot"}}),
            json!({"type": "computer_call_output", "call_id": "call_1", "output": {"type": "computer_screenshot"}}),
        ),
        (
            json!({"type": "tool_search_call", "id": "tsc_1", "call_id": "call_1", "execution": "client"}),
            json!({"type": "tool_search_output", "call_id": "call_1", "execution": "client", "tools": []}),
        ),
        (
            json!({"type": "mcp_approval_request", "id": "mcpr_1", "name": "drop", "server_label": "db",
                "arguments": "{}"}),
            json!({"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": true}),
        ),
    ]
}

fn kind(item: &Value) -> &str {
    item["type"].as_str().unwrap()
}

#[test]
fn decode_open_item_ends_with_a_warning_that_names_it() {
    for (item, _) in questions() {
        let mut begun = item.clone();
        begun["status"] = json!("in_progress");
        let streamed = [created(), added(0, begun), done(0, item.clone()), completed(json!([item]))];
        for events in [
            &streamed[..],
            &[completed(json!([item]))],
            &[created(), done(0, item.clone()), completed(json!([]))],
        ] {
            let folded = answer(events);
            assert_eq!(folded.stop_reason, StopReason::Stop);
            let [warning] = &folded.warnings[..] else { panic!("{item}: {:?}", folded.warnings) };
            for part in [kind(&item), item["name"].as_str().unwrap_or_default()] {
                assert!(warning.contains(part), "{item}: {warning}");
            }
        }
    }
}

#[test]
fn decode_item_that_the_service_answered_itself_causes_no_warning() {
    for pair in [
        [
            json!({"type": "tool_search_call", "id": "tsc_1", "call_id": null, "execution": "server"}),
            json!({"type": "tool_search_output", "id": "tso_1", "call_id": null, "execution": "server", "tools": []}),
        ],
        [
            json!({"type": "shell_call", "id": "sh_1", "call_id": "call_1", "action": {"commands": ["ls"]}}),
            json!({"type": "shell_call_output", "id": "sho_1", "call_id": "call_1", "output": []}),
        ],
    ] {
        let folded = answer(&[completed(json!(pair))]);
        assert!(folded.warnings.is_empty(), "{pair:?}: {:?}", folded.warnings);
        let encoded = input(&OpenAiResponses::default(), [folded.message, Message::user("Go on.")]);
        assert_eq!(encoded.as_array().unwrap()[..2], pair);
    }
}

#[test]
fn encode_open_item_is_left_out_with_its_reasoning_until_it_is_answered() {
    for (item, reply) in questions() {
        let first = reasoning("rs_1", &["One."], "b25l");
        let second = reasoning("rs_2", &["Two."], "dHdv");
        let said = message("msg_1", "A moment.");
        let folded = answer(&[completed(json!([first, said, second, item]))]);
        let history = [Message::user("Go."), folded.message, Message::user("Never mind.")];
        let kinds = |messages: Vec<Message>| {
            let encoded = input(&OpenAiResponses::default(), messages);
            encoded.as_array().unwrap().iter().map(|item| kind(item).to_owned()).collect::<Vec<_>>()
        };
        let open = ["message", "reasoning", "message", "message"];
        assert_eq!(kinds(history.to_vec()), open, "{item}");
        // Nothing else remains of an answer that consists only of an open item.
        let alone = answer(&[completed(json!([first, item]))]).message;
        assert_eq!(
            kinds(vec![Message::user("Go."), alone, Message::user("So?")]),
            ["message", "message"],
            "{item}"
        );
        let mut answered = history.to_vec();
        answered
            .insert(2, Message::user([Content::from(ProviderItem::new("openai_responses", reply.clone()))]));
        let expected = ["message", "reasoning", "message", "reasoning", kind(&item), kind(&reply), "message"];
        assert_eq!(kinds(answered), expected);
    }
}

#[test]
fn encode_answer_to_an_item_that_is_not_sent_is_left_out() {
    for (item, reply) in questions() {
        let reply = Message::user([Content::from(ProviderItem::new("openai_responses", reply))]);
        let encode = |request: Request| {
            let body = OpenAiResponses::default().encode(&request).unwrap().body;
            body["input"].as_array().unwrap().iter().map(|item| kind(item).to_owned()).collect::<Vec<_>>()
        };
        let history = History::from_iter([Message::user("Go."), reply.clone(), Message::user("So?")]);
        assert_eq!(encode(Request::new(history.clone())), ["message", "message"], "{item}");
        // The service itself has the first part of the conversation.
        let stored = Options::default().with_extra([("previous_response_id", "resp_1")]);
        assert_eq!(encode(Request::new(history).with_options(stored)).len(), 3, "{item}");
    }
}

#[test]
fn encode_open_item_beside_a_function_call_leaves_the_call() {
    let (item, _) = questions().into_iter().next().unwrap();
    let called = call("fc_1", "call_2", "f", "{}");
    let folded = answer(&[completed(json!([reasoning("rs_1", &[], "b25l"), called, item]))]);
    assert_eq!((folded.stop_reason.clone(), folded.warnings.len()), (StopReason::ToolUse, 1));
    let result = ToolResult::ok(folded.message.tool_uses().next().unwrap(), "ok");
    let encoded =
        input(&OpenAiResponses::default(), [folded.message, Message::user([Content::from(result)])]);
    let kinds: Vec<&str> = encoded.as_array().unwrap().iter().map(kind).collect();
    assert_eq!(kinds, ["reasoning", "function_call", "function_call_output"]);
}

#[test]
fn decode_custom_tool_call_in_chat_completions_ends_with_a_warning() {
    let custom = |custom: Value| {
        chat::delta(json!({"tool_calls": [{"index": 0, "id": "call_1", "type": "custom", "custom": custom}]}))
    };
    let pieces = [custom(json!({"name": "sql", "input": ""})), custom(json!({"input": "SELECT 1"}))];
    let [begin, rest] = pieces;
    let folded = chat::answer(&[begin, rest, chat::finish("tool_calls"), json!("[DONE]")]).unwrap();
    assert_eq!((folded.stop_reason, folded.message.content.len()), (StopReason::Stop, 0));
    assert_eq!(folded.warnings.len(), 1, "{:?}", folded.warnings);
    assert!(folded.warnings[0].contains("`sql`"), "{:?}", folded.warnings);
}
