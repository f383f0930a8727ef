//! The view of a chat: no route and no stream shows what the operator alone may see.

use std::sync::Arc;

use omni_agent::{
    manager::{Manager, Titles},
    message::ProviderItem,
    provider::custom::{BlockStart, Delta, MessageDelta, Part},
    store::StoreError,
    testing::Step,
    web::{View, WebBuilder},
};
use serde_json::json;

use crate::{
    faulty::{FaultyStore, Operation},
    support::{App, Frame, prompt, run_input, submit},
};

/// Words that occur only in hidden parts: the system prompt, the schema of a tool, signatures, encrypted reasoning, the
/// data of providers, and the reason for a failed write.
const HIDDEN: [&str; 9] = [
    "Secret rules.",
    "hidden-schema",
    "hidden-text-signature",
    "hidden-thinking-signature",
    "hidden-tool-signature",
    "hidden-reasoning",
    "hidden-item",
    "hidden-provider-data",
    "hidden-store-failure",
];

/// Returns a step with a hidden part in every block.
fn step() -> Step {
    let mut data = MessageDelta::default();
    data.provider_data.insert("test".to_owned(), json!({ "id": "hidden-provider-data" }));
    let item = ProviderItem::new("test", json!({ "type": "search", "data": "hidden-item" }));
    Step::new()
        .then_thinking("Visible thought.", "hidden-thinking-signature")
        .then_redacted_thinking("hidden-reasoning")
        .then_text(["Visible ", "text."])
        .more(Part::Signature("hidden-text-signature".to_owned()))
        .then_tool_use("call-1", "draw", json!({ "what": "a visible input" }))
        .more(Part::Signature("hidden-tool-signature".to_owned()))
        .delta(Delta::Start { index: 4, block: BlockStart::ProviderItem(item) })
        .delta(Delta::End { index: 4 })
        .data(data)
        .stop()
}

fn app(set_up: impl FnOnce(WebBuilder) -> WebBuilder) -> (App, FaultyStore) {
    let store = FaultyStore::default();
    let manager = Manager::builder(Arc::new(store.clone())).titles(Titles::Off).build();
    let script = [step(), Step::text("One."), step(), Step::text("Two."), step(), Step::text("Three.")];
    (App::over(manager, script, set_up), store)
}

/// Runs three turns, one over each router, and returns everything that the routes have sent.
async fn everything(app: &App, store: &FaultyStore) -> Vec<(&'static str, String)> {
    let id = app.create("ann").await;
    let path = format!("/agent/conversations/{id}");
    let mut stream = app.stream("ann", &format!("/agent/events?list=true&watch={id}"), None).await;
    store
        .fail(Operation::Commit, StoreError::failed("hidden-store-failure", std::io::Error::other("broken")));
    app.post("ann", &format!("{path}/commands"), prompt("Hi")).await;
    let outcome =
        |wanted: &'static str| move |frame: &Frame| frame.data["update"]["event"]["outcome"] == wanted;
    let mut frames = stream.until(outcome("failed")).await;
    app.idle(&id).await;
    let failing = app.get("ann", &path).await.text;
    store.mend();
    frames.extend(stream.until(outcome("saved")).await);
    let chat = app.post("ann", "/api/chat", submit(&id, "u1", "Hi")).await.text;
    let run = app.post("ann", "/ag-ui", run_input(&id, "r1", "Hi")).await.text;
    app.idle(&id).await;
    // A stream that begins now gets a snapshot, in the same way as a slow reader.
    let mut late = app.stream("ann", &format!("{path}/events"), None).await;
    frames.push(late.next().await.unwrap());
    vec![
        ("native stream", format!("{frames:?}")),
        ("snapshot with a failing store", failing),
        ("snapshot", app.get("ann", &path).await.text),
        ("page of messages", app.get("ann", &format!("{path}/messages?before=5")).await.text),
        ("AI SDK stream", chat),
        ("AI SDK list", app.get("ann", &format!("/api/chat/{id}/messages")).await.text),
        ("AI SDK list of version 6", app.get("ann", &format!("/api/chat/{id}/messages?ui=6")).await.text),
        ("AG-UI stream", run),
        ("AG-UI join", app.get("ann", &format!("/ag-ui/{id}?protocolVersion=1.0")).await.text),
    ]
}

#[tokio::test(start_paused = true)]
async fn chat_sees_no_hidden_part_on_any_route() {
    let (app, store) = app(|web| web);
    for (place, text) in everything(&app, &store).await {
        for word in HIDDEN {
            assert!(!text.contains(word), "{place} shows {word}: {text}");
        }
        assert!(text.contains("Visible "), "{place} is empty: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn operator_sees_every_part_that_a_chat_does_not_see() {
    let (app, store) = app(|web| web.view(View::full()));
    let all: String = everything(&app, &store).await.into_iter().map(|(_, text)| text).collect();
    for word in HIDDEN {
        assert!(all.contains(word), "{word} is not part of the scenario");
    }
}
