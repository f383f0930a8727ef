//! Signed and opaque content is sent back only to the service that created it. Other services of the same format do not
//! receive it.

use omni_agent::{
    message::{Content, History, Message, ProviderItem, Thinking},
    provider::{Request, http::Endpoint},
};
use serde_json::{Value, json};

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
