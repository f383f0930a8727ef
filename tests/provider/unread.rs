//! Large requests that a service rejects before it has read the whole body.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use omni_agent::provider::{Model, Options, Request, http::Endpoint};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::oneshot,
};

const REFUSAL: &str = "HTTP/1.1 413 Payload Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n\
     content-length: 33\r\n\r\n{\"error\":{\"message\":\"too large\"}}";

#[tokio::test]
async fn generate_with_a_body_rejected_unread_returns_the_status() {
    for read in [256, 1024 * 1024] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (done, answered) = oneshot::channel::<()>();
        let service = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_exact(&mut vec![0; read]).await.unwrap();
            stream.write_all(REFUSAL.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            // The connection stays open, and the rest of the request is not read.
            _ = answered.await;
        });
        let options = Options::default().with_max_retries(0);
        let request = Request::prompt("x".repeat(8 * 1024 * 1024)).with_options(options);
        let model = Model::new(Arc::new(Endpoint::openai_compatible("local", url)), "m");
        let error = model.generate(request).await.unwrap_err();
        assert_eq!((error.status, &*error.message), (Some(413), "too large"), "{error:?}");
        _ = done.send(());
        service.await.unwrap();
    }
}
