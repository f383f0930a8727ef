//! What each user may see and do: every route is requested by every kind of user.

use axum::{
    body::Body,
    http::{Method, Request, StatusCode},
};
use omni_agent::{
    ErrorKind,
    access::Principal,
    store::{ConversationId, Labels},
    testing::Step,
};
use serde_json::{Value, json};

use crate::{
    support::{App, labels, prompt, request},
    table::{Entry, routes},
};

#[test]
fn principal_without_labels_or_with_a_long_name_is_invalid() {
    let unlabelled = Principal::new("ann", Labels::default()).unwrap_err();
    assert!(unlabelled.to_string().starts_with("a principal without labels would own"), "{unlabelled:?}");
    let long = Principal::new("x".repeat(257), labels("ann")).unwrap_err();
    assert_eq!(long.to_string(), "the principal's name has 257 bytes; use at most 256");
    assert_eq!((unlabelled.kind(), long.kind()), (ErrorKind::Config, ErrorKind::Config));
}

#[tokio::test(start_paused = true)]
async fn request_without_a_principal_gets_a_challenge_on_every_route() {
    let app = App::new([]);
    let id = app.create("ann").await;
    for route in routes() {
        let refused = app.answer(route.request("", &id)).await;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "{route:?}");
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
        assert_eq!(refused.code(), "unauthenticated");
    }
}

#[tokio::test(start_paused = true)]
async fn stranger_and_unknown_id_get_equal_answers_on_every_route() {
    let app = App::new([Step::text("Hello!")]);
    let id = app.create("ann").await;
    app.ask("ann", &id, "Hi").await;
    let closed = app.create("ann").await;
    app.manager.close(&ConversationId::new(&closed).unwrap()).await.unwrap();
    let before = app.get("ann", &format!("/agent/conversations/{id}")).await.json();
    let routes: Vec<_> = routes().into_iter().filter(Entry::is_of_a_conversation).collect();
    assert!(routes.iter().filter(|route| route.is_native()).count() >= 6);
    for route in &routes {
        let mut answers = Vec::new();
        for id in [&id, &closed, "unknown"] {
            let answer = app.answer(route.request("ben", id)).await;
            assert_eq!(answer.status, StatusCode::NOT_FOUND, "{route:?}");
            assert_eq!(answer.code(), "not-found", "{route:?}");
            answers.push((format!("{:?}", answer.parts.headers), answer.text));
        }
        assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{route:?}: {answers:?}");
    }
    let after = app.get("ann", &format!("/agent/conversations/{id}")).await.json();
    assert_eq!(after, before, "the stranger changed nothing");
    assert_eq!(app.provider.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn list_with_hidden_conversations_has_full_pages_and_never_names_them() {
    let app = App::new([]);
    let (mut shown, mut hidden) = (Vec::new(), Vec::new());
    for number in 0..20 {
        let id = app.create("ann").await;
        if number % 4 == 0 {
            shown.push(id);
        } else {
            app.hide("ann", &id).await;
            hidden.push(id);
        }
    }
    let pages = app.pages("ann", "/agent/conversations", 2).await;
    let items = |page: &Value| page["items"].as_array().unwrap().clone();
    assert_eq!(pages.iter().map(|page| items(page).len()).collect::<Vec<_>>(), [2, 2, 1]);
    let found = pages.iter().flat_map(items).map(|item| item["summary"]["id"].as_str().unwrap().to_owned());
    let mut found: Vec<String> = found.collect();
    found.sort();
    shown.sort();
    assert_eq!(found, shown);
    for page in pages {
        assert!(!hidden.iter().any(|id| page.to_string().contains(id)), "{page}");
    }
    let all = app.pages("boss", "/agent/conversations", 50).await;
    assert_eq!(items(&all[0]).len(), 20);
}

#[tokio::test(start_paused = true)]
async fn lists_searches_and_streams_show_a_stranger_nothing() {
    let app = App::new([Step::text("A lake.")]);
    let id = app.create("ann").await;
    app.ask("ann", &id, "Hi").await;
    for path in ["/agent/conversations", "/agent/approvals", "/agent/search?q=lake", "/agent/usage"] {
        let text = app.get("ben", path).await.text;
        assert!(!text.contains(&id) && !text.contains("lake"), "{path}: {text}");
    }
    let mut stream =
        app.stream("ben", &format!("/agent/events?list=true&watch={id}&watch=unknown"), None).await;
    let frames = stream.until(|frame| frame.data["conversation"] == "unknown").await;
    let list = frames.iter().find(|frame| frame.event == "list").unwrap();
    assert_eq!(list.data["update"]["snapshot"]["open"], json!([]));
    let mut problems: Vec<Value> =
        frames.iter().filter(|frame| frame.event == "refused").map(|f| f.data["problem"].clone()).collect();
    problems.dedup();
    assert_eq!(problems.len(), 1, "a forbidden conversation looks like an unknown one: {problems:?}");
}

#[tokio::test(start_paused = true)]
async fn action_that_is_not_permitted_on_a_readable_conversation_is_forbidden() {
    let app = App::new([Step::text("Hello!")]);
    let id = app.create("ann").await;
    app.ask("ann", &id, "Hi").await;
    let path = format!("/agent/conversations/{id}");
    assert_eq!(app.get("reader", &path).await.status, StatusCode::OK);
    let commands = [
        prompt("Hi"),
        json!({ "type": "cancel" }),
        json!({ "type": "interrupt" }),
        json!({ "type": "unstage", "id": "p" }),
        json!({ "type": "decide", "turn": "0".repeat(32), "decisions": [["a", "execute"]] }),
        json!({ "type": "run", "at": { "again": 1 } }),
        json!({ "type": "run", "at": { "instead": 1 }, "prompt": { "content": [] } }),
        json!({ "type": "run", "at": { "below": null }, "prompt": { "content": [] } }),
        json!({ "type": "navigate", "node": null }),
        json!({ "type": "title", "title": "x" }),
        json!({ "type": "labels", "labels": {} }),
        json!({ "type": "omit", "node": 1, "block": 0 }),
        json!({ "type": "restore", "node": 1, "block": 0 }),
        json!({ "type": "erase", "node": 1 }),
    ];
    for command in commands {
        let refused = app.post("reader", &format!("{path}/commands"), command.clone()).await;
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (StatusCode::FORBIDDEN, "forbidden"),
            "{command}"
        );
    }
    for route in routes().into_iter().filter(Entry::is_of_a_conversation) {
        let answer = app.answer(route.request("reader", &id)).await;
        if route.is_reading() {
            assert_ne!(answer.status, StatusCode::FORBIDDEN, "{route:?}");
        } else {
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (StatusCode::FORBIDDEN, "forbidden"),
                "{route:?}"
            );
        }
    }
    assert_eq!(app.provider.requests().len(), 1);
    assert_eq!(app.post("reader", "/agent/conversations", json!({})).await.code(), "forbidden");
}

#[tokio::test(start_paused = true)]
async fn run_at_the_head_needs_prompt_and_a_run_elsewhere_needs_branch() {
    let app = App::new(["Hello!", "Hi again!", "One", "Two", "Three"].map(Step::text));
    let id = app.create("ann").await;
    app.ask("ann", &id, "Hi").await;
    let path = format!("/agent/conversations/{id}/commands");
    let content = prompt("Other")["prompt"].clone();
    for (command, may) in [
        (prompt("Hi"), "writer"),
        (json!({ "type": "run", "at": "head", "prompt": content }), "writer"),
        (json!({ "type": "run", "at": { "again": 1 } }), "brancher"),
        (json!({ "type": "run", "at": { "instead": 1 }, "prompt": content }), "brancher"),
        (json!({ "type": "run", "at": { "below": null }, "prompt": content }), "brancher"),
    ] {
        let may_not = if may == "writer" { "brancher" } else { "writer" };
        let refused = app.post(may_not, &path, command.clone()).await;
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (StatusCode::FORBIDDEN, "forbidden"),
            "{command}"
        );
        let accepted = app.post(may, &path, command.clone()).await;
        assert_eq!(accepted.status, StatusCode::OK, "{command}: {accepted:?}");
        app.idle(&id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn labels_are_replaced_by_operators_only_and_move_the_conversation() {
    let app = App::new([Step::text("Hello!")]);
    let id = app.create("ann").await;
    app.ask("ann", &id, "Hi").await;
    let commands = format!("/agent/conversations/{id}/commands");
    let mut stream = app.stream("ann", &format!("/agent/events?list=true&watch={id}"), None).await;
    stream.until(|frame| frame.event == "conversation").await;
    let command = json!({ "type": "labels", "labels": { "user": "ben" } });
    let refused = app.post("ann", &commands, command.clone()).await;
    assert_eq!(refused.code(), "forbidden");
    assert_eq!(app.post("boss", &commands, command).await.status, StatusCode::OK);
    // Ann's stream reports that it no longer contains the conversation, and that her list no longer contains it.
    let (mut is_refused, mut is_gone) = (false, false);
    stream
        .until(|frame| {
            let event = &frame.data["update"]["event"];
            assert!(!frame.data.to_string().contains("ben"), "{frame:?}");
            // `until` takes an `Fn`, which can't record the two facts. They are read from the returned frames below.
            frame.event == "refused" || event["type"] == "deleted"
        })
        .await
        .iter()
        .for_each(|frame| {
            is_refused |= frame.event == "refused";
            is_gone |= frame.data["update"]["event"]["type"] == "deleted";
        });
    stream.until(|frame| frame.event == if is_refused { "list" } else { "refused" }).await;
    assert!(is_refused || is_gone);
    assert_eq!(app.get("ann", &format!("/agent/conversations/{id}")).await.status, StatusCode::NOT_FOUND);
    assert_eq!(app.get("ben", &format!("/agent/conversations/{id}")).await.status, StatusCode::OK);
    assert_eq!(app.manager.list(omni_agent::store::Filter::with(labels("ben"))).await.unwrap().len(), 1);
}

fn with_headers(app_headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = request(Method::GET, "ann", "/agent/conversations", None);
    for (name, value) in app_headers {
        request.headers_mut().insert(
            axum::http::HeaderName::try_from(*name).unwrap(),
            axum::http::HeaderValue::try_from(*value).unwrap(),
        );
    }
    request
}

#[tokio::test(start_paused = true)]
async fn requests_of_other_sites_are_refused_unless_their_origin_is_listed() {
    let app = App::new([]);
    for (headers, is_accepted) in [
        (&[("origin", "https://chat.example.com")][..], true),
        (&[("origin", "https://chat.example.com"), ("sec-fetch-site", "same-origin")], true),
        (&[("sec-fetch-site", "none")], true),
        (&[("origin", "https://evil.example.com")], false),
        (&[("origin", "null")], false),
        (&[("sec-fetch-site", "cross-site")], false),
        (&[("sec-fetch-site", "same-site")], false),
    ] {
        let answer = app.answer(with_headers(headers)).await;
        assert_eq!(answer.status == StatusCode::OK, is_accepted, "{headers:?}: {answer:?}");
        assert_eq!(answer.header("access-control-allow-origin"), None);
        assert_eq!(answer.header("access-control-allow-credentials"), None);
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
    let app = App::with([], |web| web.allow_origins(["https://app.example.org"]));
    let answer = app
        .answer(with_headers(&[("origin", "https://app.example.org"), ("sec-fetch-site", "cross-site")]))
        .await;
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example.org"));
    assert_eq!(answer.header("access-control-allow-credentials"), Some("true"));
    assert!(answer.header("access-control-expose-headers").unwrap().contains("www-authenticate"));
    assert_eq!(answer.header("vary"), Some("origin"));
    let mut preflight =
        with_headers(&[("origin", "https://app.example.org"), ("access-control-request-method", "POST")]);
    *preflight.method_mut() = Method::OPTIONS;
    let answer = app.answer(preflight).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert!(answer.header("access-control-allow-methods").unwrap().contains("DELETE"));
    let headers = answer.header("access-control-allow-headers").unwrap();
    for own in ["x-omni-conversation", "user-agent"] {
        assert!(headers.split(", ").any(|name| name == own), "{headers}");
    }
    assert_eq!(answer.header("access-control-allow-credentials"), Some("true"));
    let refused = app.answer(with_headers(&[("origin", "https://evil.example.com")])).await;
    assert_eq!(refused.code(), "cross-origin");
    let app = App::with([], |web| web.allow_origins(["null"]));
    let answer = app.answer(with_headers(&[("origin", "null")])).await;
    assert_eq!(answer.header("access-control-allow-origin"), Some("null"));
    assert_eq!(answer.header("access-control-allow-credentials"), None);
}

#[tokio::test(start_paused = true)]
async fn request_for_another_host_is_refused_if_hosts_are_listed() {
    let app = App::with([], |web| web.hosts(["127.0.0.1:3000"]));
    assert_eq!(app.get("ann", "/agent/conversations").await.code(), "wrong-host");
    let answer = app.answer(with_headers(&[("host", "127.0.0.1:3000")])).await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn usage_is_forbidden_for_a_principal_that_may_read_no_conversation() {
    let app = App::new([]);
    assert_eq!(app.get("ann", "/agent/usage").await.status, StatusCode::OK);
    assert_eq!(app.get("boss", "/agent/usage").await.status, StatusCode::OK);
    let refused = app.get("lister", "/agent/usage").await;
    assert_eq!((refused.status, refused.code().as_str()), (StatusCode::FORBIDDEN, "forbidden"));
}

#[tokio::test(start_paused = true)]
async fn search_shows_no_text_of_a_conversation_that_may_only_be_listed() {
    let app = App::new([Step::text("A lake.")]);
    let id = app.create("ann").await;
    app.ask("ann", &id, "Hi").await;
    for (user, is_shown) in [("reader", true), ("lister", false)] {
        let text = app.get(user, "/agent/search?q=lake").await.text;
        assert_eq!(text.contains("A lake."), is_shown, "{user}: {text}");
    }
}
