//! Signed and opaque content is sent back only to the service that created it. Other services of the same format do not
//! receive it. The ids of tool uses go back unchanged to the service that created them.

use omni_agent::{
    message::{Content, History, Message, ProviderItem, Thinking, ToolResult},
    provider::{Request, http::Endpoint},
};
use serde_json::{Value, json};

use crate::wires::Wire;

/// Returns an answer with private content. The content is marked with this service, or with no service at all.
fn answer(service: Option<&str>) -> Message {
    let mut thinking = Thinking::new("Hm.");
    thinking.signature = Some("c2ln".to_owned());
    let item = ProviderItem::new("anthropic_messages", json!({"type": "server_thing", "id": "s"}));
    let mut message = Message::assistant(vec![thinking.into(), Content::from(item), "Yes.".into()]);
    message.provider_data.insert("anthropic_messages".to_owned(), json!({"id": "m"}));
    if let Some(service) = service {
        message.provider_data.insert("service".to_owned(), service.into());
    }
    message
}

fn sent_back(message: Message, to: &Endpoint) -> Value {
    let history: History = [Message::user("Yes?"), message, Message::user("Sure?")].into_iter().collect();
    let mut request = Request::new(history.clone());
    request.model = "claude-sonnet-4-5".into();
    let body = to.preview(&request).unwrap().1.body;
    assert_eq!(request.history, history, "encoding must not change the conversation");
    body["messages"][1]["content"].clone()
}

#[test]
fn encode_answer_of_the_same_service_keeps_private_content() {
    let whole = json!([
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "server_thing", "id": "s"},
        {"type": "text", "text": "Yes."},
    ]);
    let renamed = Endpoint::anthropic().with_name("mine");
    for (service, to) in [
        (Some("anthropic"), Endpoint::anthropic()),
        (Some("mine"), renamed.clone()),
        // These answers are from versions that did not yet record the service.
        (None, Endpoint::anthropic()),
        (None, renamed),
    ] {
        assert_eq!(sent_back(answer(service), &to), whole, "{service:?}");
    }
}

#[test]
fn encode_answer_of_another_service_omits_private_content() {
    let renamed = Endpoint::anthropic().with_name("mine");
    let compatible = Endpoint::anthropic_compatible("other", "https://a.test");
    for (service, to) in [("anthropic", renamed), ("anthropic", compatible), ("other", Endpoint::anthropic())]
    {
        let public = json!([{"type": "text", "text": "Yes."}]);
        assert_eq!(sent_back(answer(Some(service)), &to), public, "{service}");
    }
}

/// Returns the events of a tool use with this id.
fn tool_use(wire: Wire, id: &str) -> Vec<String> {
    let event = match wire {
        Wire::Chat => json!({"choices": [{"index": 0, "delta": {"tool_calls": [
            {"index": 0, "id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}]}}]}),
        Wire::Responses => json!({"type": "response.output_item.done", "output_index": 0, "item":
            {"type": "function_call", "id": "fc_1", "call_id": id, "name": "f", "arguments": "{}"}}),
        _ => json!({"type": "content_block_start", "index": 0, "content_block":
            {"type": "tool_use", "id": id, "name": "f", "input": {}}}),
    };
    let stop = (wire == Wire::Messages).then(|| json!({"type": "content_block_stop", "index": 0}));
    [event].into_iter().chain(stop).map(|event| event.to_string()).collect()
}

/// Returns the ids of the tool uses and of their results in a request.
fn ids(body: &Value) -> Vec<&str> {
    let keys = ["id", "call_id", "tool_call_id", "tool_use_id"];
    let own = keys.iter().filter_map(|key| body.get(*key)?.as_str());
    let inner: Vec<&Value> = match body {
        Value::Array(items) => items.iter().collect(),
        Value::Object(members) => members.values().collect(),
        _ => vec![],
    };
    own.chain(inner.into_iter().flat_map(ids)).collect()
}

#[tokio::test]
async fn encode_id_of_a_tool_use_is_unchanged_for_the_service_that_made_it() {
    let signed = format!("call_2156408__thought__{}", "CiQB".repeat(230));
    let long = "functions.mcp__filesystem__read_text_file:12";
    for (wire, id) in [
        (Wire::Messages, "functions.Bash:0"),
        (Wire::Messages, long),
        (Wire::Chat, long),
        (Wire::Chat, &*signed),
        (Wire::Responses, &*signed),
    ] {
        let answer = wire.answer(&wire.body(&tool_use(wire, id))).await.unwrap();
        let used = answer.message.tool_uses().next().unwrap().clone();
        assert_eq!(used.id.as_str(), id);
        let mut stranger = Message::assistant(Content::from(used.clone()));
        stranger.provider_data.insert("another".to_owned(), json!({}));
        let result = || Message::user(Content::from(ToolResult::ok(&used, "r")));
        let sent = |answer: Message, model: &str, to: &Endpoint| {
            let history = [Message::user("Hi"), answer, result()];
            let mut request = Request::new(history.into_iter().collect());
            request.model = model.into();
            let body = Value::Object(to.preview(&request).unwrap().1.body);
            let sent: Vec<String> = ids(&body).into_iter().map(ToOwned::to_owned).collect();
            assert!(sent.len() == 2 && sent[0] == sent[1], "{wire:?}: {body}");
            sent[0].clone()
        };
        let own = wire.endpoint("http://localhost");
        assert_eq!(sent(answer.message.clone(), "m", &own), id, "{wire:?}");
        assert_ne!(sent(answer.message.clone(), "m", &own.clone().with_name("other")), id, "{wire:?}");
        assert_ne!(sent(stranger, "m", &own), id, "{wire:?}");
        // The makers of the formats reject such ids, and a gateway may send the request to a model of theirs.
        for model in ["claude-sonnet-4-5", "claude-opus-latest", "openai/gpt-5.2:nitro", "openrouter/auto"] {
            assert_ne!(sent(answer.message.clone(), model, &own), id, "{wire:?} {model}");
        }
    }
}

#[tokio::test]
async fn encode_own_id_of_a_tool_use_that_is_repeated_becomes_distinct() {
    for wire in [Wire::Messages, Wire::Responses] {
        let id = "functions.mcp__filesystem__read_text_file_with_a_very_long_name_of_its_own:0";
        let answer = wire.answer(&wire.body(&tool_use(wire, id))).await.unwrap();
        let used = answer.message.tool_uses().next().unwrap().clone();
        let result = || Message::user(Content::from(ToolResult::ok(&used, "r")));
        let history =
            [Message::user("Hi"), answer.message.clone(), result(), answer.message.clone(), result()];
        let mut request = Request::new(history.into_iter().collect());
        request.model = "m".into();
        let body = Value::Object(wire.endpoint("http://localhost").preview(&request).unwrap().1.body);
        let sent = ids(&body);
        assert_eq!(sent[..2], [id, id], "{wire:?}");
        assert!(sent[2] == sent[3] && sent[2] != id, "{wire:?}: {sent:?}");
    }
}
