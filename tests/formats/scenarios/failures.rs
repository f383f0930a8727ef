//! Failures before, during and after an answer.

use std::time::Duration;

use omni_agent::{
    agent::{Agent, Event},
    provider::{Options, ProviderError, ProviderErrorKind},
    run::Failure,
};
use tokio::time::Instant;

use crate::{
    rig::{Cell, PATIENCE, Rig, next, provider_error, text_arrives},
    script::{Answer, End, Fault},
};

/// Returns the error of a prompt. Asserts that the prompt left messages with these texts in the history and that the
/// agent still works.
async fn failed(rig: &Rig, agent: &Agent, kept: &[&str]) -> ProviderError {
    let error = provider_error(agent.ask("Hello?").await);
    let state = agent.state().await.unwrap();
    assert_eq!(state.history().iter().map(|message| message.text()).collect::<Vec<_>>(), kept);
    rig.service.will(Answer::text("Here I am."));
    assert_eq!(agent.ask("Hello!").await.unwrap().text(), "Here I am.");
    error
}

pub(super) async fn error_before_the_stream(rig: &mut Rig) -> Cell {
    let faults = [
        (Fault::Auth, ProviderErrorKind::Auth, false),
        (Fault::RateLimit(3600), ProviderErrorKind::RateLimit, true),
        (Fault::Overloaded, ProviderErrorKind::Overloaded, true),
        (Fault::Invalid("nonsense".into()), ProviderErrorKind::InvalidRequest, false),
        (Fault::ContextTooLong, ProviderErrorKind::ContextTooLong, false),
        (Fault::Server, ProviderErrorKind::Service, true),
    ];
    for (fault, kind, retryable) in faults {
        let status = rig.format.wire().fault(&fault).0;
        let wait = matches!(fault, Fault::RateLimit(_)).then_some(Duration::from_hours(1));
        rig.service.will(fault);
        let error = failed(rig, &rig.agent().await, &[]).await;
        assert_eq!(
            (error.kind, error.retryable, error.status, error.retry_after),
            (kind, retryable, Some(status), wait),
            "{:?}: {error:?}",
            rig.format
        );
        assert!(!error.message.is_empty() && error.body.is_some());
    }
    Cell::Works
}

pub(super) async fn rate_limit_then_answer(rig: &mut Rig) -> Cell {
    rig.service.will(Fault::RateLimit(0));
    rig.service.will(Fault::RateLimit(0));
    rig.service.will(Answer::text("At last."));
    let agent = rig.builder().options(Options::default().with_max_retries(2)).start().await.unwrap();
    assert_eq!(agent.ask("Hello?").await.unwrap().text(), "At last.");
    assert_eq!(rig.service.seen().len(), 3);
    Cell::Works
}

pub(super) async fn error_inside_the_stream(rig: &mut Rig) -> Cell {
    rig.service.will(Answer::thinking("Hm.", "sig").then_text("Well, ").ending(End::Failed));
    let error = failed(rig, &rig.agent().await, &["Hello?", "Well, "]).await;
    assert!(matches!(error.kind, ProviderErrorKind::Overloaded | ProviderErrorKind::Service), "{error:?}");
    assert!(error.retryable && !error.message.is_empty(), "{error:?}");
    Cell::Works
}

pub(super) async fn end_missing(rig: &mut Rig) -> Cell {
    rig.service.will(Answer::text("It looks whole.").ending(End::Truncated));
    let error = failed(rig, &rig.agent().await, &["Hello?", "It looks whole."]).await;
    assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Truncated, true), "{error:?}");
    Cell::Works
}

pub(super) async fn end_twice(rig: &mut Rig) -> Cell {
    let agent = rig.agent().await;
    rig.service.will(Answer::text("Over and out.").ending(End::Twice));
    assert_eq!(agent.ask("Hello?").await.unwrap().text(), "Over and out.");
    rig.service.will(Answer::text("Really out."));
    assert_eq!(agent.ask("Over?").await.unwrap().text(), "Really out.");
    Cell::Works
}

pub(super) async fn silence(rig: &mut Rig) -> Cell {
    let agent = rig.agent().await;
    let mut events = agent.subscribe().await.unwrap();
    rig.service.will(Answer::text("Let me think…").ending(End::Silent));
    agent.prompt("Hello?").await.unwrap();
    text_arrives(&mut events, "Let me think…").await;
    rig.service.falls_silent().await;
    tokio::time::pause();
    let before = Instant::now();
    let failure = loop {
        if let Event::Error { failure, .. } = &*next(&mut events).await {
            break failure.clone();
        }
    };
    let waited = before.elapsed();
    tokio::time::resume();
    let Failure::Provider { error } = failure else { panic!("{failure:?}") };
    assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Timeout, true), "{error:?}");
    assert!(waited.abs_diff(PATIENCE) <= Duration::from_secs(1), "{waited:?}");
    rig.service.is_left().await;
    Cell::Works
}

pub(super) async fn cancel_closes_the_connection(rig: &mut Rig) -> Cell {
    let agent = rig.agent().await;
    let mut events = agent.subscribe().await.unwrap();
    rig.service.will(Answer::text("Once upon a time").ending(End::Silent));
    agent.prompt("A story!").await.unwrap();
    text_arrives(&mut events, "Once upon a time").await;
    agent.cancel().await.unwrap();
    rig.service.is_left().await;
    assert!(agent.state().await.unwrap().history().is_empty());
    rig.service.will(Answer::text("Fine."));
    assert_eq!(agent.ask("Never mind.").await.unwrap().text(), "Fine.");
    Cell::Works
}
