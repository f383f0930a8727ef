//! `generate_as`, which returns a model's answer as a value without an agent.

use omni_agent::{
    message::{Message, Usage},
    provider::{Options, OutputSchema, ProviderErrorKind, Request, StopReason},
    testing::{ScriptedProvider, Step},
    tool::Schema,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Even {
    #[serde(deserialize_with = "even")]
    number: u32,
}

fn even<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = u32::deserialize(deserializer)?;
    if number.is_multiple_of(2) { Ok(number) } else { Err(serde::de::Error::custom("it is odd")) }
}

fn answering(text: &str) -> Step {
    Step::new().usage(Usage::default().with_output(5)).then_text([text]).stop()
}

#[tokio::test(start_paused = true)]
async fn generate_as_retries_an_answer_that_does_not_fit_schema_or_type() {
    let provider = ScriptedProvider::new([
        answering("Four"),
        answering(r#"{"number": 3}"#),
        answering(r#"{"number": 4}"#),
    ]);
    let (value, answer) =
        provider.model().generate_as::<Even>(Request::prompt("An even number?")).await.unwrap();
    assert_eq!(value, Even { number: 4 });
    assert_eq!(answer.usage.output, 15);
    let requests = provider.requests();
    assert_eq!(requests.iter().map(|request| request.history.len()).collect::<Vec<_>>(), [1, 3, 5]);
    assert_eq!(requests[0].options.output().unwrap().name, "Even");
    assert!(requests[2].history.get(4).unwrap().text().contains("it is odd"));
    assert!(requests[2].history.check_sendable().is_ok());
}

#[tokio::test(start_paused = true)]
async fn generate_as_after_the_last_retry_is_an_error_with_the_answer() {
    let provider = ScriptedProvider::new((0..3).map(|_| answering("Four")));
    let request = Request::prompt("An even number?").with_options(Options::default().with_output_retries(2));
    let error = provider.model().generate_as::<Even>(request).await.unwrap_err();
    assert_eq!((error.kind, error.body.as_deref()), (ProviderErrorKind::Output, Some("Four")));
    assert!(error.message.contains("not JSON") && !error.retryable, "{error:?}");
    assert_eq!(provider.steps_left(), 0);
}

#[tokio::test(start_paused = true)]
async fn generate_as_does_not_retry_an_answer_that_was_cut_or_uses_tools() {
    let cut = Step::new().then_text([r#"{"number": "#]).stop_with(StopReason::Length);
    for (step, words) in [(cut, "length"), (Step::tool_use("a", "look", json!({})), "tools")] {
        let provider = ScriptedProvider::new([step]);
        let error = provider.model().generate_as::<Even>(Request::prompt("Hi")).await.unwrap_err();
        assert!(error.kind == ProviderErrorKind::Output && error.message.contains(words), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn generate_as_uses_the_schema_of_the_request() {
    let schema = Schema::new(json!({ "enum": ["yes", "no"] })).unwrap();
    let options = Options::default().with_output(OutputSchema::new("choice", schema));
    let provider = ScriptedProvider::new([Step::text("\"maybe\""), Step::output(&json!("yes"))]);
    let request = Request::new([Message::user("Well?")].into_iter().collect()).with_options(options);
    let (value, answer) = provider.model().generate_as::<Value>(request).await.unwrap();
    assert_eq!(value, "yes");
    assert!(answer.output_enforced);
}

#[tokio::test(start_paused = true)]
async fn generate_as_of_a_type_without_a_usable_schema_sends_nothing() {
    #[derive(Deserialize)]
    struct Odd;
    impl JsonSchema for Odd {
        fn schema_name() -> std::borrow::Cow<'static, str> {
            "Odd".into()
        }
        fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
            schemars::json_schema!({ "type": "nothing" })
        }
    }
    let provider = ScriptedProvider::new([]);
    let error = provider.model().generate_as::<Odd>(Request::prompt("Hi")).await.map(drop).unwrap_err();
    assert_eq!((error.kind, provider.requests().len()), (ProviderErrorKind::InvalidRequest, 0));
}

/// Returns a reply in the Responses format whose messages have these phases and texts.
#[cfg(feature = "http")]
fn in_phases(messages: &[(Option<&str>, &[&str])]) -> crate::server::Reply {
    let message = |(at, (phase, texts)): (usize, &(Option<&str>, &[&str]))| {
        let content: Vec<Value> = texts
            .iter()
            .map(|text| json!({"type": "output_text", "text": text, "annotations": []}))
            .collect();
        let mut item = json!({"id": format!("msg_{at}"), "type": "message", "status": "completed",
            "role": "assistant", "content": content});
        if let Some(phase) = phase {
            item["phase"] = json!(phase);
        }
        item
    };
    let output: Vec<Value> = messages.iter().enumerate().map(message).collect();
    let response = json!({"type": "response.completed", "response": {"id": "resp_1", "object": "response",
        "status": "completed", "error": null, "model": "gpt-5.4", "output": output}});
    crate::server::Reply::sse().piece(format!("event: response.completed\ndata: {response}\n\n"))
}

#[cfg(feature = "http")]
#[tokio::test]
async fn generate_as_of_an_answer_with_commentary_reads_the_final_answer() {
    use omni_agent::provider::http::Endpoint;

    use crate::{endpoints::model, server::Server};

    let (comment, last) = (Some("commentary"), Some("final_answer"));
    let four = r#"{"number": 4}"#;
    let cases: [&[(Option<&str>, &[&str])]; 7] = [
        &[(comment, &["I will check the evidence."]), (last, &[four])],
        &[(comment, &["I will check the evidence."]), (None, &[four])],
        &[(comment, &[r#"{"number": 2}"#]), (last, &[four])],
        &[(comment, &[four]), (last, &[four])],
        &[(comment, &["One."]), (comment, &["Two."]), (last, &[r#"{"number":"#, " 4}"])],
        &[(last, &[four]), (comment, &[r#"{"number": 2}"#])],
        // The phase is wrong, but there is no other text.
        &[(comment, &[four])],
    ];
    for endpoint in
        [Endpoint::openai_responses(), Endpoint::openai_responses_compatible("r", "http://r.test/v1")]
    {
        for case in cases {
            let server = Server::start([in_phases(case)]).await;
            let model = model(&endpoint, "gpt-5.4", &server);
            let read = model.generate_as::<Even>(Request::prompt("An even number?")).await;
            let (value, _) = read.unwrap_or_else(|error| panic!("{case:?}: {error}"));
            assert_eq!((value, server.received().len()), (Even { number: 4 }, 1), "{case:?}");
        }
    }
}
