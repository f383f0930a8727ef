//! Requests to an HTTP endpoint: the service's address, the response's id, and no key or header.

use std::{sync::Arc, time::Duration};

use omni_agent::{
    Model, Options,
    provider::{Request, RetryPolicy, http::Endpoint},
};

use super::{
    alone::{alone, threaded},
    collector::Collector,
    server::{Reply, Server},
};

const ANSWER: &str = r#"data: {"id":"chatcmpl-7","model":"m-2026","choices":[{"index":0,"delta":{"content":"answer-1e5d"},"finish_reason":"stop"}]}

data: [DONE]

"#;

async fn ask(collector: Collector) {
    let refused = Reply::json(500, r#"{"error":{"message":"bad key sk-d2f7d2f7d2f7 for prompt-4f21"}}"#);
    let server = Server::start([refused, Reply::sse().piece(ANSWER)]).await;
    let endpoint = Endpoint::openai_compatible("local", server.url())
        .with_key("sk-d2f7d2f7d2f7")
        .with_header("X-Secret", "header-03e9");
    let options = Options::default().with_header("X-Other", "header-77b1");
    let policy = RetryPolicy::default().with_base_delay(Duration::ZERO);
    let model = Model::new(Arc::new(endpoint), "m").with_retry_policy(policy);
    let request = Request::prompt("prompt-4f21").with_system("system-90bc").with_options(options);
    assert_eq!(model.generate(request).await.unwrap().message.text(), "answer-1e5d");

    let spans = collector.spans();
    let chat = &spans[0];
    let port = server.url().rsplit(':').next().unwrap().trim_end_matches('/').to_owned();
    assert_eq!(chat.name, "chat m");
    assert_eq!(chat.attributes["server.address"], "127.0.0.1");
    assert_eq!(chat.attributes["server.port"], port);
    assert_eq!(chat.attributes["gen_ai.provider.name"], "local");
    assert_eq!(chat.attributes["gen_ai.response.id"], "chatcmpl-7");
    assert_eq!(chat.attributes["gen_ai.response.model"], "m-2026");
    assert_eq!(spans[1].attributes["http.response.status_code"], "500");
    assert_eq!(spans[1].error.as_deref(), Some("service error"));
    assert_eq!((spans[2].name.as_str(), spans[2].error.as_deref()), ("attempt", None));
    assert_eq!(collector.open(), [""; 0]);
    let (recorded, logged) = (collector.recorded(), collector.logged());
    for secret in ["d2f7", "header-03e9", "header-77b1"] {
        assert!(
            !recorded.contains(secret) && !logged.contains(secret),
            "{secret} appears in:\n{recorded}\n{logged}"
        );
    }
    // The log quotes the service's message, but telemetry does not.
    for content in ["prompt-4f21", "system-90bc", "answer-1e5d"] {
        assert!(!recorded.contains(content), "{content} appears in:\n{recorded}");
    }
}

#[test]
fn request_to_an_endpoint_has_its_address_and_neither_keys_nor_headers() {
    const TEST: &str = "endpoint::request_to_an_endpoint_has_its_address_and_neither_keys_nor_headers";
    alone(TEST, &[], || threaded(ask(Collector::install())));
}
