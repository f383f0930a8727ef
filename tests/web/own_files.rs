//! Addresses of stored files in the bodies of clients.

use axum::http::StatusCode;
use omni_agent::{
    message::{Content, Source},
    testing::Step,
    web::WebLimits,
};
use serde_json::{Value, json};

use crate::support::{Answer, App, run_input, submit};

/// Returns the file of the tests, in base64.
fn data() -> String {
    "QUJD".repeat(20_000)
}

async fn command(app: &App, user: &str, id: &str, mut command: Value, source: Value) -> Answer {
    let file = json!({ "type": "attachment", "media_type": "image/*", "source": source });
    command["prompt"]["content"] = json!([{ "type": "text", "text": "Look" }, file]);
    let answer = app.post(user, &format!("/agent/conversations/{id}/commands"), command).await;
    if answer.status == StatusCode::OK {
        app.idle(id).await;
    }
    answer
}

/// Sends the address of a file by each route. Returns the answers of the native routes and of the AI SDK, and then that
/// of AG-UI.
async fn send(app: &App, user: &str, id: &str, url: &str) -> ([Answer; 4], Answer) {
    let source = || json!({ "type": "url", "url": url });
    let prompt = command(app, user, id, json!({ "type": "run", "prompt": {} }), source()).await;
    let edit =
        command(app, user, id, json!({ "type": "run", "at": { "instead": 1 }, "prompt": {} }), source())
            .await;
    let branch =
        command(app, user, id, json!({ "type": "run", "at": { "below": 2 }, "prompt": {} }), source()).await;
    let run = app.provider.requests().len();
    let mut body = submit(id, &format!("u{run}"), "Look");
    let part = json!({ "type": "file", "url": url, "mediaType": "image/*" });
    body["messages"][0]["parts"].as_array_mut().unwrap().push(part);
    let chat = app.post(user, "/api/chat", body).await;
    let mut body = run_input(id, &format!("r{run}"), "");
    let part = json!({ "type": "image", "source": { "type": "url", "value": url } });
    body["messages"][0]["content"] = json!([{ "type": "text", "text": "Look" }, part]);
    ([prompt, edit, branch, chat], app.post(user, "/ag-ui", body).await)
}

/// Creates a conversation with a prompt that contains the file.
async fn conversation(app: &App) -> String {
    let id = app.create("ann").await;
    let source = json!({ "type": "base64", "data": data() });
    command(app, "ann", &id, json!({ "type": "run", "prompt": { "id": "p/1" } }), source).await;
    id
}

fn app() -> App {
    App::new((0..32).map(|_| Step::text("Seen.")))
}

#[tokio::test(start_paused = true)]
async fn address_of_an_own_file_is_the_file() {
    let app = app();
    let id = conversation(&app).await;
    for folder in ["/agent/conversations/", "/api/chat/", "https://example.com/ag-ui/"] {
        let before = app.provider.requests().len();
        let (answers, run) = send(&app, "ann", &id, &format!("{folder}{id}/files/p%2F1/1")).await;
        for answer in answers.iter().chain([&run]) {
            assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        }
        let requests = app.provider.requests();
        assert_eq!(requests.len(), before + 5, "{run:?}");
        for request in &requests[before..] {
            let Some(Content::Attachment(file)) = request.history.last().unwrap().content.get(1) else {
                panic!("{request:?}")
            };
            assert_eq!(file.source, Source::Base64 { data: data().into() });
        }
    }
}

/// Sends the address of the file this many times in one body: by the native route, by the AI SDK and by AG-UI.
async fn send_often(app: &App, id: &str, count: usize) -> [Answer; 3] {
    let url = format!("/api/chat/{id}/files/p%2F1/1");
    let source = json!({ "type": "url", "url": url });
    let file = json!({ "type": "attachment", "media_type": "image/*", "source": source });
    let command = json!({ "type": "run", "prompt": { "content": vec![file; count] } });
    let native = app.post("ann", &format!("/agent/conversations/{id}/commands"), command).await;
    let mut body = submit(id, "often", "Look");
    let part = json!({ "type": "file", "url": url, "mediaType": "image/*" });
    body["messages"][0]["parts"].as_array_mut().unwrap().extend(vec![part; count]);
    let chat = app.post("ann", "/api/chat", body).await;
    let mut body = run_input(id, "often", "");
    let part = json!({ "type": "image", "source": { "type": "url", "value": url } });
    body["messages"][0]["content"] = json!(vec![part; count]);
    [native, chat, app.post("ann", "/ag-ui", body).await]
}

#[tokio::test(start_paused = true)]
async fn addresses_whose_files_are_together_too_large_or_too_many_are_refused() {
    let app =
        App::with([Step::text("Seen.")], |web| web.limits(WebLimits::default().with_command_body(200_000)));
    let id = conversation(&app).await;
    let before = app.provider.requests().len();
    for (count, status, code) in
        [(3, StatusCode::PAYLOAD_TOO_LARGE, "too-large"), (65, StatusCode::BAD_REQUEST, "invalid-body")]
    {
        let [native, chat, run] = send_often(&app, &id, count).await;
        for answer in [native, chat] {
            assert_eq!((answer.status, answer.code().as_str()), (status, code), "{count}");
        }
        assert!(run.text.contains(&format!(r#""code":"{code}""#)), "{count}: {run:?}");
    }
    assert_eq!(app.provider.requests().len(), before);
}

#[tokio::test(start_paused = true)]
async fn other_relative_address_is_refused() {
    let app = app();
    let (id, other) = (conversation(&app).await, conversation(&app).await);
    let before = app.provider.requests().len();
    for url in [
        format!("/agent/conversations/{other}/files/p%2F1/1"),
        format!("/api/chat/{id}/files/p%2F1/0"),
        format!("/api/chat/{id}/files/p%ZZ/1"),
        "/etc/passwd".to_owned(),
        String::new(),
    ] {
        let (answers, run) = send(&app, "ann", &id, &url).await;
        for answer in answers {
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (StatusCode::BAD_REQUEST, "invalid-body"),
                "{url}"
            );
        }
        assert!(run.text.contains(r#""code":"invalid-body""#), "{url}: {run:?}");
    }
    assert_eq!(app.provider.requests().len(), before);
}

#[tokio::test(start_paused = true)]
async fn principal_that_may_not_read_the_conversation_gets_no_file() {
    let app = app();
    let id = conversation(&app).await;
    let before = app.provider.requests().len();
    for file in ["1", "9"] {
        let (answers, run) = send(&app, "ben", &id, &format!("/api/chat/{id}/files/p%2F1/{file}")).await;
        for answer in answers.into_iter().chain([run]) {
            assert_eq!((answer.status, answer.code().as_str()), (StatusCode::NOT_FOUND, "not-found"));
        }
    }
    assert_eq!(app.provider.requests().len(), before);
}
