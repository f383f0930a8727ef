//! Requests that a model can't accept unchanged.

use omni_agent::{
    message::{Attachment, Content, History, Message, ToolResult, ToolUse},
    provider::{
        Effort, Modality, Model, ModelInfo, Options, OutputSchema, ProviderErrorKind, Request, ThinkingMode,
        ToolChoice, UnsupportedAttachment,
        custom::{AnthropicMessages, ChatCompletions, Dialect, GoogleGemini, OpenAiResponses},
    },
    testing::{ScriptedProvider, Step},
    tool::{Schema, ToolSet, declared_tool_with_schema},
};
use serde_json::json;

#[cfg(feature = "http")]
use crate::wires::Wire;

fn model(info: ModelInfo) -> (ScriptedProvider, Model) {
    let provider = ScriptedProvider::from_fn(|_| Step::text("ok"));
    let model = provider.model().with_info(info);
    (provider, model)
}

fn blind() -> ModelInfo {
    ModelInfo::new("blind").with_input([Modality::Text])
}

fn image() -> Attachment {
    Attachment::base64("image/png", "AAAA").named("cat.png")
}

/// A history with an image from the user and an image from a tool.
fn pictures() -> History {
    let tool_use = ToolUse::new("a", "look", json!({}));
    let result = ToolResult::ok(&tool_use, image());
    History::from_iter([
        Message::user("first"),
        Message::user(image()),
        Message::assistant(tool_use),
        Message::user(result),
    ])
}

#[tokio::test]
async fn unsupported_attachment_is_an_error_and_nothing_is_sent() {
    let (provider, model) = model(blind());
    for history in [pictures(), History::from_iter([Message::user(image())])] {
        let error = model.generate(Request::new(history)).await.unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.contains("cat.png") && text.contains("scripted does not accept it"), "{text}");
    }
    assert_eq!(provider.requests().len(), 0);
}

#[tokio::test]
async fn unsupported_attachment_becomes_a_placeholder_if_requested() {
    let (provider, model) = model(blind());
    let options = Options::default().with_unsupported_attachment(UnsupportedAttachment::Placeholder);
    let history = pictures();
    model.generate(Request::new(history.clone()).with_options(options)).await.unwrap();
    let sent = provider.last_request().unwrap().history;
    let text = "[attachment cat.png (image/png) left out: scripted does not accept it]";
    assert_eq!(sent.get(1).unwrap().text(), text);
    let result = sent.get(3).unwrap().tool_results().next().unwrap();
    assert_eq!(result.content, [text.into()]);
    assert!(
        std::sync::Arc::ptr_eq(sent.first().unwrap(), history.first().unwrap()),
        "messages without attachments are shared"
    );
    assert!(sent.check_sendable().is_ok());
}

/// A conversation with an image that a model of another service made.
fn drawn() -> History {
    let mut drawn = Message::assistant(vec!["Here.".into(), Content::from(image())]);
    drawn.provider_data.insert("service".to_owned(), json!("another"));
    History::from_iter([Message::user("Draw."), drawn, Message::user("Thanks.")])
}

#[tokio::test]
async fn image_that_a_model_made_is_only_mentioned_to_a_model_without_image_input() {
    let (provider, model) = model(blind());
    model.generate(Request::new(drawn())).await.unwrap();
    let sent = provider.last_request().unwrap().history;
    assert_eq!(sent.get(1).unwrap().text(), "Here.[image/png of this answer, omitted]");
}

#[cfg(feature = "http")]
#[test]
fn image_that_a_model_made_is_sent_or_mentioned_in_every_format() {
    for wire in Wire::ALL {
        let mut request = Request::new(drawn());
        request.model = "m".into();
        let body = wire.endpoint("http://localhost").preview(&request).unwrap().1.body;
        let body = serde_json::to_string(&body).unwrap();
        // In Gemini's format, a message of the model can contain images.
        let part = if wire == Wire::Gemini { "AAAA" } else { "[image/png of this answer, omitted]" };
        assert!(body.contains(part), "{wire:?} {body}");
    }
}

#[tokio::test]
async fn attachment_is_sent_if_the_model_accepts_it_or_is_unknown() {
    let sees = ModelInfo::new("sees").with_input([Modality::Text, Modality::Image]);
    for info in [sees, ModelInfo::new("unknown")] {
        let (provider, model) = model(info);
        model.generate(Request::new(pictures())).await.unwrap();
        assert!(provider.last_request().unwrap().history.same(&provider.requests()[0].history));
        assert_eq!(provider.last_request().unwrap().history.get(1).unwrap().content.len(), 1);
        assert!(provider.last_request().unwrap().history.get(1).unwrap().text().is_empty());
    }
}

#[tokio::test]
async fn thinking_is_omitted_for_a_model_that_does_not_think() {
    let (provider, model) = model(ModelInfo::new("m").with_thinking(false));
    for (mode, warns) in [
        (ThinkingMode::Effort(Effort::High), true),
        (ThinkingMode::Budget(100), true),
        (ThinkingMode::Off, false),
        (ThinkingMode::Budget(0), false),
    ] {
        let request = Request::prompt("Hi").with_options(Options::default().with_thinking(mode));
        let answer = model.generate(request).await.unwrap();
        assert_eq!(provider.last_request().unwrap().options.thinking(), None);
        let expected: &[&str] = if warns { &["`thinking` is ignored: scripted does not think"] } else { &[] };
        assert_eq!(answer.warnings, expected, "{mode:?}");
    }
}

#[tokio::test]
async fn options_that_the_model_supports_are_unchanged() {
    let info = ModelInfo::new("m").with_thinking(true).with_output_limit(100);
    for info in [info, ModelInfo::new("unknown")] {
        let (provider, model) = model(info);
        let options = Options::default().with_thinking(Effort::Low).with_max_tokens(100);
        let answer = model.generate(Request::prompt("Hi").with_options(options.clone())).await.unwrap();
        assert_eq!((provider.last_request().unwrap().options, answer.warnings), (options, vec![]));
    }
}

#[tokio::test]
async fn max_tokens_is_lowered_to_the_output_limit_of_the_model() {
    let (provider, model) = model(ModelInfo::new("m").with_output_limit(100));
    let request = Request::prompt("Hi").with_options(Options::default().with_max_tokens(101));
    let answer = model.generate(request).await.unwrap();
    assert_eq!(provider.last_request().unwrap().options.max_tokens(), Some(100));
    assert_eq!(answer.warnings, ["`max_tokens` is lowered to 100: the maximum of scripted"]);
    model.generate(Request::prompt("Hi")).await.unwrap();
    assert_eq!(provider.last_request().unwrap().options.max_tokens(), None);
}

#[tokio::test]
async fn warnings_of_a_retried_request_are_emitted_once() {
    let error = omni_agent::provider::ProviderError::new(ProviderErrorKind::Overloaded, "later");
    tokio::time::pause();
    let provider = ScriptedProvider::new([Step::error(error), Step::text("ok")]);
    let model = provider.model().with_info(ModelInfo::new("m").with_thinking(false));
    let request = Request::prompt("Hi").with_options(Options::default().with_thinking(Effort::Low));
    let deltas: Vec<_> = futures_util::TryStreamExt::try_collect(model.stream(request)).await.unwrap();
    let has_warnings = |delta: &omni_agent::provider::custom::Delta| matches!(delta, omni_agent::provider::custom::Delta::Message(data) if !data.warnings.is_empty());
    assert_eq!(deltas.iter().filter(|delta| has_warnings(delta)).count(), 1);
    assert_eq!(provider.requests().len(), 2);
}

#[test]
fn anthropic_max_tokens_respects_the_output_limit_of_the_model() {
    use omni_agent::provider::custom::{AnthropicMessages, Dialect};
    let body = |limit: u64, options: Options| {
        let mut request = Request::prompt("Hi")
            .with_options(options)
            .with_model_info(ModelInfo::new("m").with_output_limit(limit));
        request.model = "claude-sonnet-4-5".into();
        AnthropicMessages::default().encode(&request).unwrap().body
    };
    assert_eq!(body(64_000, Options::default())["max_tokens"], 32_000);
    assert_eq!(body(2_000, Options::default())["max_tokens"], 2_000);
    let thinking = body(8_000, Options::default().with_thinking(ThinkingMode::Budget(7_000)));
    assert_eq!(
        (&thinking["max_tokens"], &thinking["thinking"]["budget_tokens"]),
        (&json!(8_000), &json!(7_000))
    );
    let thinking = body(8_000, Options::default().with_thinking(ThinkingMode::Budget(30_000)));
    assert_eq!(
        (&thinking["max_tokens"], &thinking["thinking"]["budget_tokens"]),
        (&json!(8_000), &json!(4_096))
    );
}

fn looks() -> ToolSet {
    let schema = Schema::new(json!({"type": "object"})).unwrap();
    ToolSet::new().with(declared_tool_with_schema("look", "Looks.", schema)).unwrap()
}

#[tokio::test]
async fn tools_for_a_model_without_tool_use_are_an_error_and_nothing_is_sent() {
    let (provider, model) = model(ModelInfo::new("m").with_tools(false));
    let request = Request::prompt("Hi").with_tools(looks());
    let error = model.generate(request.clone()).await.unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Unsupported);
    assert!(error.to_string().contains("can't use tools"), "{error}");
    assert_eq!(provider.requests().len(), 0);

    let none = request.with_options(Options::default().with_tool_choice(ToolChoice::None));
    model.generate(none).await.unwrap();
    assert!(provider.last_request().unwrap().tools.is_empty());
}

#[test]
fn schema_for_a_model_without_structured_output_becomes_a_tool_or_text() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
    let output = OutputSchema::new("out", Schema::new(schema).unwrap());
    let request = |info: ModelInfo| {
        let options = Options::default().with_output(output.clone());
        let mut request = Request::prompt("Hi").with_options(options).with_model_info(info);
        request.model = "claude-sonnet-4-5".into();
        request
    };
    let openai: [&dyn Dialect; 2] = [&ChatCompletions::openai(), &OpenAiResponses::openai()];
    let others: [&dyn Dialect; 2] = [&AnthropicMessages::default(), &GoogleGemini::default()];
    let native = ["response_format", "text", "output_config"];
    let unheld = ModelInfo::new("m").with_structured_output(false);
    for format in openai.into_iter().chain(others) {
        let body = format.encode(&request(unheld.clone())).unwrap().body;
        assert!(body.contains_key("tools"), "{body:?}");
        let said = native.iter().any(|key| body.contains_key(*key));
        assert!(!said && !body.contains_key("generationConfig"), "{body:?}");
        let body = format.encode(&request(ModelInfo::new("m"))).unwrap().body;
        assert!(!body.contains_key("tools"), "an unknown capability changes nothing: {body:?}");
    }
    for format in openai {
        let encoded = format.encode(&request(unheld.clone().with_tools(false))).unwrap();
        assert!(!encoded.body.contains_key("tools") && encoded.warnings.len() == 1, "{encoded:?}");
    }
}
