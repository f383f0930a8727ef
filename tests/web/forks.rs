//! Forks over HTTP.

use axum::http::StatusCode;
use omni_agent::{store::ConversationId, testing::Step};
use serde_json::{Value, json};

use crate::support::App;

async fn snapshot(app: &App, user: &str, id: &str) -> Value {
    app.get(user, &format!("/agent/conversations/{id}")).await.json()
}

#[tokio::test(start_paused = true)]
async fn fork_belongs_to_the_principal_and_has_the_path_to_the_node() {
    let app = App::new(["One.", "Two.", "Three."].map(Step::text));
    let id = app.create("ann").await;
    app.ask("ann", &id, "First").await;
    app.ask("ann", &id, "Second").await;
    let path = format!("/agent/conversations/{id}/forks");
    let forked = app.post("ann", &path, json!({ "node": 2, "title": "Another" })).await;
    assert_eq!(forked.status, StatusCode::CREATED, "{forked:?}");
    let fork = forked.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(forked.header("location"), Some(format!("/agent/conversations/{fork}").as_str()));
    let seen = snapshot(&app, "ann", &fork).await;
    assert_eq!((&seen["title"], &seen["labels"]), (&json!("Another"), &json!({ "user": "ann" })));
    assert_eq!(seen["tree"]["nodes"].as_array().unwrap().len(), 2);
    app.ask("ann", &fork, "Third").await;
    assert_eq!(snapshot(&app, "ann", &id).await["tree"]["nodes"].as_array().unwrap().len(), 4);
    // An operator may read the original, and the fork has the labels of an operator: none.
    let of_boss = app.post("boss", &path, json!({ "node": 4 })).await.json();
    let fork = format!("/agent/conversations/{}", of_boss["id"].as_str().unwrap());
    assert_eq!(app.get("ann", &fork).await.code(), "not-found");
    assert_eq!(app.get("boss", &fork).await.json()["title"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn fork_to_a_model_that_can_be_neither_used_nor_chosen_is_refused() {
    let app = App::with([Step::text("One.")], |web| web.models(["nobody:model"]));
    let id = app.create("ann").await;
    app.ask("ann", &id, "First").await;
    let session = app.manager.get(&ConversationId::new(&*id).unwrap()).unwrap();
    let path = format!("/agent/conversations/{id}/forks");
    session.configure(|config| Ok(config.set_model("test:costly")?)).await.unwrap();
    let refused = app.post("brancher", &path, json!({ "node": 2 })).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (422, "unknown-model"));
    assert_eq!(app.get("ann", "/agent/conversations").await.json()["items"].as_array().unwrap().len(), 1);
    // Ann can use the model in the original, for example because it was once the model of new conversations.
    assert_eq!(app.post("ann", &path, json!({ "node": 2 })).await.status, StatusCode::CREATED);
    session.configure(|config| Ok(config.set_model("test:scripted")?)).await.unwrap();
    assert_eq!(app.post("brancher", &path, json!({ "node": 2 })).await.status, StatusCode::CREATED);
}

#[tokio::test(start_paused = true)]
async fn fork_without_access_or_at_a_wrong_node_is_a_problem() {
    let app = App::new([Step::text("One.")]);
    let id = app.create("ann").await;
    app.ask("ann", &id, "First").await;
    let before = app.get("boss", "/agent/conversations").await.json()["items"].as_array().unwrap().len();
    let path = format!("/agent/conversations/{id}/forks");
    for (user, body, status, code) in [
        ("ben", json!({ "node": 2 }), 404, "not-found"),
        ("lister", json!({ "node": 2 }), 404, "not-found"),
        ("reader", json!({ "node": 2 }), 403, "forbidden"),
        ("ann", json!({ "node": 1 }), 422, "not-an-answer"),
        ("ann", json!({ "node": 9 }), 404, "not-found"),
        ("ann", json!({ "node": 2, "title": "x".repeat(1025) }), 422, "invalid-title"),
        ("ann", json!({ "node": 0 }), 400, "invalid-body"),
        ("ann", json!({}), 400, "invalid-body"),
        ("ann", json!({ "node": 2, "labels": { "user": "ben" } }), 400, "invalid-body"),
    ] {
        let answer = app.post(user, &path, body.clone()).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (status, code), "{user}: {body}");
    }
    app.hide("ann", &id).await;
    assert_eq!(app.post("ann", &path, json!({ "node": 2 })).await.code(), "not-found");
    let after = app.get("boss", "/agent/conversations").await.json()["items"].as_array().unwrap().len();
    assert_eq!(before, after, "nothing was created");
}
