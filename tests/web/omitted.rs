//! Files that are left out of requests, over HTTP.

use omni_agent::{message::Content, testing::Step};
use serde_json::{Value, json};

use crate::support::App;

async fn command(app: &App, user: &str, id: &str, command: Value) -> (u16, Value) {
    let answer = app.post(user, &format!("/agent/conversations/{id}/commands"), command).await;
    (answer.status.as_u16(), answer.json())
}

async fn snapshot(app: &App, user: &str, id: &str) -> Value {
    app.get(user, &format!("/agent/conversations/{id}")).await.json()
}

#[tokio::test(start_paused = true)]
async fn omitted_file_is_shown_to_the_client_and_not_sent_to_the_model() {
    let app = App::new(["One.", "Two.", "Three."].map(Step::text));
    let id = app.create("ann").await;
    let source = json!({ "type": "base64", "data": "QUJD" });
    let file = json!({ "type": "attachment", "source": source, "media_type": "image/png" });
    let content = json!([{ "type": "text", "text": "Look" }, file]);
    command(&app, "ann", &id, json!({ "type": "run", "prompt": { "content": content } })).await;
    app.idle(&id).await;
    let has_file = || {
        let sent = app.provider.last_request().unwrap().history;
        sent.get(0).unwrap().content.iter().any(|block| matches!(block, Content::Attachment(_)))
    };
    let done = (200, json!({ "type": "done" }));
    let omit = json!({ "type": "omit", "node": 1, "block": 1 });
    assert_eq!(command(&app, "ann", &id, omit.clone()).await, done);
    let seen = snapshot(&app, "ann", &id).await;
    let message = &seen["tree"]["nodes"][0]["message"];
    assert_eq!(message["content"][1]["type"], "attachment");
    let message = message["id"].as_str().unwrap();
    assert_eq!(seen["agent"]["state"]["omitted"], json!({ message: [1] }));
    app.ask("ann", &id, "And?").await;
    assert!(!has_file());
    assert_eq!(command(&app, "ann", &id, json!({ "type": "restore", "node": 1, "block": 1 })).await, done);
    assert_eq!(snapshot(&app, "ann", &id).await["agent"]["state"].get("omitted"), None);
    app.ask("ann", &id, "And now?").await;
    assert!(has_file());
    let refused = command(&app, "brancher", &id, omit).await;
    assert_eq!(refused.0, 403);
    let wrong = command(&app, "ann", &id, json!({ "type": "omit", "node": 1, "block": 0 })).await;
    assert_eq!((wrong.0, &wrong.1["type"]), (422, &json!("urn:omni-agent:not-an-attachment")));
}
