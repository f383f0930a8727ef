//! Prompts and their results.

use omni_agent::{
    message::{Attachment, Message},
    provider::{
        Options, StopReason,
        acp::{AcpBackend, McpServer},
        custom::{Backend, BackendError, BackendSession, SessionOptions, TurnPrompt},
    },
};

use serde_json::json;

use crate::support::{Place, asked, read, soon};

async fn started(backend: &AcpBackend) -> std::sync::Arc<dyn BackendSession> {
    soon(backend.start(&SessionOptions::default())).await.unwrap()
}

#[tokio::test]
async fn prompt_streams_all_events_in_order() {
    let place = Place::new();
    let session = started(&place.agent("")).await;
    let looked = asked(&*session, "Look").await;
    let expected = [
        r#"use search {"in":"."}"#,
        r#"update "List files""#,
        r#"update "List files""#,
        "result false a b",
        "text Seen.",
    ];
    assert_eq!(looked.events, expected);
    assert_eq!(looked.result.unwrap().stop_reason, StopReason::Stop);
    let thought = asked(&*session, "Think").await;
    assert_eq!(thought.events, ["thinking Hm.", r#"plan "Look""#, "text Thought."]);
    session.terminate().await;
    assert_eq!(place.running(), 0, "no process remains when terminate returns");
}

#[tokio::test]
async fn update_of_an_earlier_turns_tool_call_is_ignored_until_its_id_is_announced_again() {
    let place = Place::new();
    let session = started(&place.agent("")).await;
    let watched = asked(&*session, "Watch").await;
    assert_eq!(
        watched.events,
        ["use Watch files {\"title\":\"Watch files\"}", "update \"Watch files\"", "text Watching."]
    );
    for _ in 0..2 {
        assert_eq!(asked(&*session, "What happened?").await.events, ["text A change."]);
    }
    let looked = asked(&*session, "Look").await;
    let expected = [
        r#"use search {"in":"."}"#,
        r#"update "List files""#,
        r#"update "List files""#,
        "result false a b",
        "text Seen.",
    ];
    assert_eq!(looked.events, expected);
}

#[tokio::test]
async fn prompt_ends_with_the_agents_stop_reason() {
    let place = Place::new();
    let session = started(&place.agent("")).await;
    let reasons = [
        ("Run out", StopReason::Length),
        ("Work too much", StopReason::MaxSteps),
        ("Refuse", StopReason::Refusal),
        ("Hello", StopReason::Stop),
    ];
    for (said, reason) in reasons {
        assert_eq!(asked(&*session, said).await.result.unwrap().stop_reason, reason, "{said}");
    }
    let failed = asked(&*session, "Fail").await.result.unwrap_err();
    let words = "the backend failed: `session/prompt`: Internal error: the model is down";
    assert_eq!(failed.to_string(), words);
    assert_eq!(asked(&*session, "Hello").await.text, "You said: Hello", "the session continues");
}

#[tokio::test]
async fn prompt_with_unsupported_content_is_rejected_before_sending() {
    let place = Place::new();
    let session = started(&place.agent("")).await;
    let image = TurnPrompt::new([Message::user(Attachment::base64("image/png", "aGk="))]);
    let Err(error) = soon(session.prompt(image)).await else { panic!("the prompt was accepted") };
    assert!(matches!(&error, BackendError::Unsupported(why) if why.contains("image/png")), "{error}");
    let link = TurnPrompt::new([Message::user(Attachment::url("text/plain", "file:///a.txt"))]);
    let answered = read(soon(session.prompt(link)).await.unwrap()).await;
    assert!(answered.text.contains("resource_link"), "{}", answered.text);
}

#[tokio::test]
async fn prompt_with_options_warns_that_they_were_not_sent() {
    let place = Place::new();
    let options = SessionOptions::new("some-model").with_system("Be brief.");
    let session = soon(place.agent("").start(&options)).await.unwrap();
    let mut prompt = crate::support::prompt("Hello");
    prompt.options = Options::default().with_max_tokens(5);
    let warnings = read(session.prompt(prompt).await.unwrap()).await.result.unwrap().warnings;
    for word in ["system prompt", "some-model", "max_tokens"] {
        assert!(warnings.iter().any(|warning| warning.contains(word)), "{word}: {warnings:?}");
    }
    assert!(asked(&*session, "Hello").await.result.unwrap().warnings.is_empty(), "the warnings appear once");
}

#[tokio::test]
async fn start_sends_the_folder_and_servers() {
    let place = Place::new();
    let server = McpServer::program("files", "/bin/files", ["--all"]).with_secret("KEY", "hush");
    let backend = place.agent("").with_mcp_server(server);
    assert!(!format!("{backend:?}").contains("hush"));
    let session = started(&backend).await;
    let answer = asked(&*session, "Where are you?").await.text;
    assert_eq!(answer, format!("{} files [\"--all\"]", place.path().display()));
    let unreachable = place.agent("").with_mcp_server(McpServer::http("web", "http://127.0.0.1:1"));
    let Err(error) = soon(unreachable.start(&SessionOptions::default())).await else {
        panic!("the session started")
    };
    assert!(matches!(&error, BackendError::Unsupported(why) if why.contains("`web`")), "{error}");
    drop(session);
    place.is_left().await;
}

#[tokio::test]
async fn start_uses_the_folder_of_the_conversation_instead_of_the_backends() {
    let place = Place::new();
    let own = place.path().join("own");
    std::fs::create_dir(&own).unwrap();
    let whole = own.to_str().unwrap();
    for folder in ["own", whole] {
        let options = SessionOptions::default().with_settings([("folder", folder), ("sandbox", "on")]);
        let session = soon(place.agent("").start(&options)).await.unwrap();
        let answer = asked(&*session, "Where are you?").await;
        assert_eq!(answer.text.trim(), whole);
        let warnings = answer.result.unwrap().warnings;
        assert!(warnings.len() == 1 && warnings[0].contains("`sandbox`"), "{warnings:?}");
    }
    for wrong in [json!("none"), json!(7)] {
        let options = SessionOptions::default().with_settings([("folder", wrong)]);
        let Err(error) = soon(place.agent("").start(&options)).await else { panic!("the session started") };
        assert!(matches!(&error, BackendError::Misconfigured(why) if why.contains("`folder`")), "{error}");
    }
}

#[tokio::test]
async fn start_of_an_agent_that_requires_a_sign_in_explains_it() {
    let place = Place::new();
    let Err(error) = soon(place.agent("locked").start(&SessionOptions::default())).await else {
        panic!("the session started")
    };
    assert!(
        matches!(&error, BackendError::Auth(why) if why.contains("API key (`key`): from the console")),
        "{error}"
    );
    place.is_left().await;
    let session = started(&place.agent("locked").with_sign_in("key")).await;
    assert_eq!(asked(&*session, "Hello").await.text, "You said: Hello");
}

#[tokio::test]
async fn agent_that_requests_an_unsupported_method_gets_an_error() {
    let place = Place::new();
    let session = started(&place.agent("")).await;
    assert_eq!(asked(&*session, "Read a file").await.text, "-32601");
    assert_eq!(asked(&*session, "Talk out of turn").await.text, "Mine.");
}

#[tokio::test]
async fn start_with_a_model_selects_one_that_the_agent_offers() {
    let place = Place::new();
    let session = soon(place.agent("models").start(&SessionOptions::new("big"))).await.unwrap();
    assert_eq!(asked(&*session, "Where are you?").await.text, "llm is big");
    let Err(error) = soon(place.agent("models").start(&SessionOptions::new("huge"))).await else {
        panic!("the session started")
    };
    let there = "no model `huge`; choose one of: small, big";
    assert!(matches!(&error, BackendError::Invalid(why) if why.contains(there)), "{error}");
}
