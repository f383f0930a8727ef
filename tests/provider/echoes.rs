//! Servers that echo keys. No error may show these keys.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fmt::Write;

use base64::{Engine, engine::general_purpose::STANDARD};
use omni_agent::provider::ProviderError;

use crate::{
    plain::{ask, endpoint},
    server::{Reply, Server},
};

/// A function that encodes a secret in another form.
type Form<'f> = &'f dyn Fn(&str) -> String;

const TEXT: &str = "data: {\"text\":\"hi\"}\n\n";

/// Returns everything that an error shows, including its causes.
fn shown(error: &ProviderError) -> String {
    let mut text = format!("{error} {error:?} {error:#?} {}", serde_json::to_string(error).unwrap());
    let mut cause = std::error::Error::source(error);
    while let Some(deeper) = cause {
        write!(text, " {deeper} {deeper:?}").unwrap();
        cause = deeper.source();
    }
    text
}

#[tokio::test]
async fn key_and_secret_headers_echoed_by_a_server_are_never_shown() {
    let key = "sk-live-topsecret-0123456789\\\"x";
    let escaped = key.replace('\\', "\\\\").replace('"', "\\\"");
    let token = "hush-hush-token";
    let echo = format!("key {escaped} token {token}");
    let padded = |room: usize| format!("{}{key}{}", "x".repeat(room), "y".repeat(100));
    let in_stream = |text: &str| {
        let error = serde_json::json!({ "error": text }).to_string();
        Reply::sse().piece(TEXT).piece(format!("data: {error}\n\n"))
    };
    let mut replies = vec![
        Reply::json(401, &format!("{{\"error\":\"{echo}\"}}")).header("request-id", token),
        Reply::new(500).piece(format!("{key} {token}")),
        Reply::new(302).header("location", &format!("http://host/{token}/x")),
        Reply::new(200).header("content-type", "text/html").piece(format!("<p>{key} {token}")),
        Reply::json(200, &format!("{{\"error\":\"{echo}\"}}")),
        Reply::new(200).header("content-type", &format!("x/{token}")).piece(key.to_owned()),
        in_stream(&format!("{key} {token}")),
        Reply::sse().piece(format!("data: {key}\n\n")),
    ];
    // The body of an error is cut off at its limit. The limit may lie inside the key, and even half of the key must not
    // be shown.
    for room in [0, 10, 15, 20, 27] {
        replies.push(in_stream(&padded(ProviderError::BODY_LIMIT - room)));
        replies.push(Reply::new(500).piece(padded(ProviderError::BODY_LIMIT - room)));
    }
    for reply in replies {
        let server = Server::start([reply]).await;
        let endpoint = endpoint(&server.url()).with_key(key).with_header("x-token", token);
        let error = ask(&endpoint).await.error();
        let shown = shown(&error);
        for part in ["sk-live-topsecret", "topsecret", "hush-hush"] {
            assert!(!shown.contains(part), "{part} in {shown}");
        }
        // The server did receive the key and the token, so they were in the echo.
        let received = server.received().remove(0);
        assert_eq!(received.header("authorization"), Some(&*format!("Bearer {key}")));
        assert_eq!(received.header("x-token"), Some(token));
    }
}

#[tokio::test]
async fn key_echoed_in_other_forms_is_never_shown() {
    let key = "sk-live-Zq47/xT9wLm2Rb8cVnE6uH1+5pKd";
    let token = "hush/hush+token=42";
    let value = |text: &str| text.replace('/', "\\/");
    let unicode = |text: &str| text.replace('/', "\\u002f").replace('+', "\\u002B");
    let percent = |text: &str| text.replace('/', "%2F").replace('+', "%2b").replace('=', "%3D");
    let base64 = |text: &str| STANDARD.encode(format!("user:{text}"));
    let head = |text: &str| text[..14].to_owned();
    let tail = |text: &str| text[text.len() - 10..].to_owned();
    let forms: [(&str, Form<'_>); 6] = [
        ("slash", &value),
        ("unicode", &unicode),
        ("percent", &percent),
        ("base64", &base64),
        ("head", &head),
        ("tail", &tail),
    ];
    for (name, form) in forms {
        let echo = format!("bad key {}, token {}", form(key), form(token));
        let error = format!("{{\"error\":{{\"message\":\"{echo}\"}}}}");
        let replies = [
            Reply::json(401, &error).header("request-id", &form(token)),
            Reply::new(500).piece(echo.clone()).header("x-request-id", &form(key)),
            Reply::new(200)
                .header("content-type", &format!("x/{}", form(key).replace('\\', "")))
                .piece(echo.clone()),
            Reply::json(200, &error),
            Reply::sse().piece(TEXT).piece(format!("data: {error}\n\n")),
            Reply::sse().piece(format!("data: {echo}\n\n")),
        ];
        for reply in replies {
            let server = Server::start([reply]).await;
            let endpoint = endpoint(&server.url()).with_key(key).with_header("x-token", token);
            let shown = shown(&ask(&endpoint).await.error());
            for part in
                [form(key), form(token), key[..8].to_owned(), key[10..18].to_owned(), key[26..34].to_owned()]
            {
                // The secret must not occur in the escaped forms of `Debug` and JSON either.
                for part in [part.clone(), part.replace('\\', "\\\\")] {
                    assert!(!shown.contains(&part), "{name}: {part} in {shown}");
                }
            }
        }
    }
}

#[tokio::test]
async fn key_echoed_in_another_case_is_never_shown() {
    let key = "sk-live-Zq47/xT9wLm2Rb8cVnE6uH1+5pKd";
    let token = "Hush/HUSH+Token=42";
    let base64 = |text: &str| STANDARD.encode(format!("user:{text}")).to_lowercase();
    let percent = |text: &str| text.to_lowercase().replace('/', "%2f").replace('+', "%2b");
    let unicode = |text: &str| text.to_uppercase().replace('/', "\\u002F");
    let title = |text: &str| text[..1].to_uppercase() + &text[1..].to_lowercase();
    let forms: [(&str, Form<'_>); 6] = [
        ("lower", &|text| text.to_lowercase()),
        ("upper", &|text| text.to_uppercase()),
        ("title", &title),
        ("base64", &base64),
        ("percent", &percent),
        ("unicode", &unicode),
    ];
    for (name, form) in forms {
        let echo = format!("bad key {}, token {}", form(key), form(token));
        for reply in [
            Reply::json(401, &format!("{{\"error\":{{\"message\":\"{echo}\"}}}}")),
            Reply::new(500).piece(echo.clone()).header("x-request-id", &form(key)),
            Reply::sse().piece(TEXT).piece(format!("data: {echo}\n\n")),
        ] {
            let server = Server::start([reply]).await;
            let endpoint = endpoint(&server.url()).with_key(key).with_header("x-token", token);
            let shown = shown(&ask(&endpoint).await.error()).to_lowercase();
            for part in [form(key), form(token), key[8..16].to_owned(), key[26..34].to_owned()] {
                for part in [part.to_lowercase(), part.to_lowercase().replace('\\', "\\\\")] {
                    assert!(!shown.contains(&part), "{name}: {part} in {shown}");
                }
            }
        }
    }
}

#[tokio::test]
async fn key_in_the_query_of_the_base_url_is_never_shown() {
    let server =
        Server::start([Reply::new(400).piece("no such key: Zq47%2FxT9wLm2Rb, api version 2024-10-21")]).await;
    let url = format!("{}?api-version=2024-10-21&subscription-key=Zq47/xT9wLm2Rb8c", server.url());
    let error = ask(&endpoint(&url)).await.error();
    assert_eq!(error.message, "it said no such key: [secret], api version 2024-10-21");
}

#[tokio::test]
async fn header_of_ordinary_words_hides_no_text_that_shares_a_part() {
    let body = "see https://example.org/docs, organization not found, my-organization of https://example.com";
    let server = Server::start([Reply::new(400).piece(body)]).await;
    let endpoint = endpoint(&server.url())
        .with_header("http-referer", "https://example.com")
        .with_header("x-team", "my-organization");
    let error = ask(&endpoint).await.error();
    assert_eq!(
        error.message,
        "it said see https://example.org/docs, organization not found, [secret] of [secret]"
    );
}
