//! Prompts and what comes of them.

use omni_agent::{
    message::{Attachment, Message},
    provider::{
        Options, StopReason,
        backend::{
            Backend, BackendError, BackendSession, SessionOptions, TurnPrompt,
            acp::{AcpBackend, McpServer},
        },
    },
};

use serde_json::json;

use crate::support::{Place, asked, read, soon};

async fn started(backend: &AcpBackend) -> std::sync::Arc<dyn BackendSession> {
    soon(backend.start(&SessionOptions::default())).await.unwrap()
}

#[tokio::test]
async fn prompt_streams_all_that_happens_in_order() {
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
    assert_eq!(place.running(), 0, "when terminate returns nothing is left");
}

#[tokio::test]
async fn prompt_ends_for_the_agents_reason() {
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
    assert_eq!(asked(&*session, "Hello").await.text, "You said: Hello", "the session goes on");
}

#[tokio::test]
async fn prompt_with_what_the_agent_cannot_take_is_refused_unsent() {
    let place = Place::new();
    let session = started(&place.agent("")).await;
    let image = TurnPrompt::new([Message::user(Attachment::base64("image/png", "aGk="))]);
    let Err(error) = soon(session.prompt(image)).await else { panic!("it was taken") };
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
    assert!(asked(&*session, "Hello").await.result.unwrap().warnings.is_empty(), "told once");
}

#[tokio::test]
async fn start_tells_the_agent_its_folder_and_servers() {
    let place = Place::new();
    let server = McpServer::program("files", "/bin/files", ["--all"]).with_secret("KEY", "hush");
    let backend = place.agent("").with_mcp_server(server);
    assert!(!format!("{backend:?}").contains("hush"));
    let session = started(&backend).await;
    let told = asked(&*session, "Where are you?").await.text;
    assert_eq!(told, format!("{} files [\"--all\"]", place.path().display()));
    let unreachable = place.agent("").with_mcp_server(McpServer::http("web", "http://127.0.0.1:1"));
    let Err(error) = soon(unreachable.start(&SessionOptions::default())).await else { panic!("started") };
    assert!(matches!(&error, BackendError::Unsupported(why) if why.contains("`web`")), "{error}");
    drop(session);
    place.is_left().await;
}

#[tokio::test]
async fn start_in_the_folder_of_the_conversation_replaces_that_of_the_backend() {
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
        let Err(error) = soon(place.agent("").start(&options)).await else { panic!("it started") };
        assert!(matches!(&error, BackendError::Misconfigured(why) if why.contains("`folder`")), "{error}");
    }
}

#[tokio::test]
async fn start_of_an_agent_that_wants_a_sign_in_says_how() {
    let place = Place::new();
    let Err(error) = soon(place.agent("locked").start(&SessionOptions::default())).await else {
        panic!("it started")
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
async fn agent_that_asks_for_what_is_not_served_is_told_so() {
    let place = Place::new();
    let session = started(&place.agent("")).await;
    assert_eq!(asked(&*session, "Read a file").await.text, "-32601");
    assert_eq!(asked(&*session, "Talk out of turn").await.text, "Mine.");
}

#[tokio::test]
async fn start_with_a_model_chooses_among_those_that_the_agent_has() {
    let place = Place::new();
    let session = soon(place.agent("models").start(&SessionOptions::new("big"))).await.unwrap();
    assert_eq!(asked(&*session, "Where are you?").await.text, "llm is big");
    let Err(error) = soon(place.agent("models").start(&SessionOptions::new("huge"))).await else {
        panic!("it started")
    };
    let there = "no model `huge`; there are: small, big";
    assert!(matches!(&error, BackendError::Invalid(why) if why.contains(there)), "{error}");
}
