//! Conversations that are rejected before anything is sent.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::{
    message::{Attachment, Content, History, Message},
    provider::{Model, ProviderError, ProviderErrorKind, Request},
};

use crate::{
    server::{Reply, Server},
    wires::Wire,
};

/// Returns the error of a request that is rejected before it is sent.
async fn refused(wire: Wire, request: Request) -> ProviderError {
    let server = Server::start([]).await;
    let endpoint = wire.endpoint(&server.url()).with_key("key");
    let previewed = endpoint.preview(&request).unwrap_err();
    let model = Model::new(std::sync::Arc::new(endpoint), "m");
    let error = model.generate(request).await.unwrap_err();
    assert!(server.received().is_empty(), "{wire:?}");
    assert_eq!(previewed.message, error.message);
    assert_eq!((error.kind, error.retryable), (ProviderErrorKind::InvalidRequest, false), "{wire:?} {error}");
    error
}

#[tokio::test]
async fn generate_with_an_empty_prompt_sends_nothing_in_every_format() {
    for wire in Wire::ALL {
        for prompt in ["", " \n"] {
            let error = refused(wire, Request::prompt(prompt)).await;
            assert!(error.message.contains("empty"), "{error}");
        }
        let error = refused(wire, Request::prompt(Vec::<Content>::new())).await;
        assert!(error.message.contains("empty"), "{error}");
        let later = History::from_iter([Message::user("Hi"), Message::assistant("Hello"), Message::user("")]);
        let error = refused(wire, Request::new(later)).await;
        assert!(error.message.contains("message 2"), "{error}");
    }
}

#[tokio::test]
async fn generate_with_an_attachment_alone_is_sent() {
    let wire = Wire::Chat;
    let reply: Reply = wire.reply().piece(wire.body(&wire.text(&["A cat."])));
    let server = Server::start([reply]).await;
    let model = Model::new(std::sync::Arc::new(wire.endpoint(&server.url())), "m");
    let request = Request::prompt(Content::from(Attachment::base64("image/png", "AAAA")));
    assert_eq!(model.generate(request).await.unwrap().message.text(), "A cat.");
}
