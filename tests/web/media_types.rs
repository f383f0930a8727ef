//! The media types of posted files, on all routes.

use axum::http::StatusCode;
use omni_agent::{
    message::{Content, Source},
    testing::Step,
};
use serde_json::{Value, json};

use crate::support::{App, run_input, submit};

const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ";
const JPEG: &str = "/9j/4AAQSkZJRgABAQ==";
const GIF: &str = "R0lGODlhAQABAIAAAAAA";
const WEBP: &str = "UklGRiQAAABXRUJQVlA4IBgAAAAw";
const PDF: &str = "JVBERi0xLjcK";
/// `fn main() {}` with a line break.
const TEXT: &str = "Zm4gbWFpbigpIHt9Cg==";
/// Bytes that are not a text.
const BYTES: &str = "AP8A/w==";

/// A posted file: the media type, the source, the name, and the media type that the model gets.
type PostedFile = (&'static str, Source, &'static str, &'static str);

fn data(media_type: &'static str, data: &str, name: &'static str, sent: &'static str) -> PostedFile {
    (media_type, Source::Base64 { data: data.into() }, name, sent)
}

fn url(media_type: &'static str, url: &str, sent: &'static str) -> PostedFile {
    (media_type, Source::Url { url: url.into() }, "", sent)
}

fn files() -> Vec<PostedFile> {
    vec![
        data("", PNG, "a", "image/png"),
        data("image/*", JPEG, "a.png", "image/jpeg"),
        data("image", GIF, "", "image/gif"),
        data("*/*", WEBP, "", "image/webp"),
        data("application/octet-stream", PDF, "", "application/pdf"),
        data("", TEXT, "main.rs", "text/plain"),
        data("application/octet-stream", TEXT, "Cargo.toml", "text/plain"),
        data("text/*", TEXT, "", "text/plain"),
        data("audio/*", BYTES, "a.mp3", "audio/mpeg"),
        data("Application/Octet-Stream; x=y", BYTES, "a.MP4", "video/mp4"),
        data("image/*", BYTES, "a.mp3", "image/*"),
        data("image/*", TEXT, "", "image/*"),
        data("", BYTES, "", "application/octet-stream"),
        // An exact type is never changed.
        data("image/png", JPEG, "a.gif", "image/png"),
        data("text/markdown", TEXT, "a.txt", "text/markdown"),
        url("image/*", "https://example.com/cat.png?size=2#top", "image/png"),
        url("application/octet-stream", "https://example.com/files/paper.PDF", "application/pdf"),
        url("image/*", "https://example.com/cat", "image/*"),
        url("image/*", "https://example.com/files.png/cat", "image/*"),
    ]
}

/// Returns the media type of the file in the newest message that the model got.
fn sent(app: &App) -> String {
    let requests = app.provider.requests();
    let history = &requests.last().expect("a request").history;
    let mut blocks = history.last().expect("a message").content.iter();
    let file = blocks.find_map(|block| match block {
        Content::Attachment(file) => Some(file.media_type.clone()),
        _ => None,
    });
    file.expect("a file")
}

async fn post(app: &App, path: &str, body: Value) {
    let answer = app.post("ann", path, body).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert!(!answer.text.contains("RUN_ERROR"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn media_type_without_a_format_becomes_exact_on_each_route() {
    let files = files();
    let app = App::new((0..3 * files.len()).map(|_| Step::text("Seen.")));
    let id = app.create("ann").await;
    for (index, (media_type, source, name, exact)) in files.into_iter().enumerate() {
        let mut file = json!({ "type": "attachment", "media_type": media_type, "source": source });
        if !name.is_empty() {
            file["name"] = name.into();
        }
        let command = json!({ "type": "run", "prompt": { "content": [file] } });
        post(&app, &format!("/agent/conversations/{id}/commands"), command).await;
        app.idle(&id).await;
        assert_eq!(sent(&app), exact, "native: {media_type} {name}");

        let address = match &source {
            Source::Base64 { data } => format!("data:application/octet-stream;base64,{data}"),
            Source::Url { url } => url.clone(),
            other => panic!("{other:?}"),
        };
        let mut body = submit(&id, &format!("u{index}"), "Look");
        let part = json!({ "type": "file", "url": address, "mediaType": media_type, "filename": name });
        body["messages"][0]["parts"].as_array_mut().unwrap().push(part);
        post(&app, "/api/chat", body).await;
        assert_eq!(sent(&app), exact, "AI SDK: {media_type} {name}");

        let source = match &source {
            Source::Base64 { data } => json!({ "type": "data", "value": data, "mimeType": media_type }),
            Source::Url { url } => json!({ "type": "url", "value": url, "mimeType": media_type }),
            other => panic!("{other:?}"),
        };
        let mut body = run_input(&id, &format!("r{index}"), "");
        body["messages"][0]["content"] =
            json!([{ "type": "document", "source": source, "metadata": { "name": name } }]);
        post(&app, "/ag-ui", body).await;
        assert_eq!(sent(&app), exact, "AG-UI: {media_type} {name}");
    }
}

#[tokio::test(start_paused = true)]
async fn media_type_of_a_data_url_counts_if_the_part_has_none() {
    let app = App::new((0..3).map(|_| Step::text("Seen.")));
    let id = app.create("ann").await;
    let parts = [
        ("", "data:audio/wav;x=y;base64", "audio/wav"),
        ("audio/*", "data:audio/wav;base64", "audio/wav"),
        ("audio/mpeg", "data:audio/wav;base64", "audio/mpeg"),
    ];
    for (index, (media_type, head, exact)) in parts.into_iter().enumerate() {
        let mut body = submit(&id, &format!("u{index}"), "Listen");
        let part = json!({ "type": "file", "url": format!("{head},{BYTES}"), "mediaType": media_type });
        body["messages"][0]["parts"].as_array_mut().unwrap().push(part);
        post(&app, "/api/chat", body).await;
        assert_eq!(sent(&app), exact, "{media_type} {head}");
    }
}
