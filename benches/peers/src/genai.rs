//! genai, a client library without agents.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt;
use genai::{
    Client, ModelIden, ServiceTarget,
    adapter::AdapterKind,
    chat::{ChatMessage, ChatOptions, ChatRequest, ChatStreamEvent, StreamEnd, Tool, ToolResponse},
    resolver::{AuthData, Endpoint},
};
use serde_json::json;

use crate::{
    contender::{Contender, QUESTION, Reader, model, weather},
    formats::Format,
};

struct Genai {
    client: Client,
    model: &'static str,
    options: ChatOptions,
}

#[expect(clippy::unnecessary_wraps, reason = "not every library supports every format")]
pub(crate) fn contender(format: Format, url: &str) -> Option<Arc<dyn Contender>> {
    let (adapter, base) = match format {
        Format::Chat => (AdapterKind::OpenAI, "/v1/"),
        Format::Messages => (AdapterKind::Anthropic, "/v1/"),
        Format::Responses => (AdapterKind::OpenAIResp, "/v1/"),
        Format::Gemini => (AdapterKind::Gemini, "/v1beta/"),
        Format::Ollama => (AdapterKind::Ollama, "/"),
    };
    let model = model(format);
    let target = ServiceTarget {
        endpoint: Endpoint::from_owned(format!("{url}{base}")),
        auth: AuthData::from_single("a-key"),
        model: ModelIden::new(adapter, model),
    };
    let client = Client::builder()
        .with_service_target_resolver_fn(move |_: ServiceTarget| Ok(target.clone()))
        .build()
        .expect("the client is valid");
    // The stream captures everything that an agent needs: the whole message, its tool calls and its usage.
    let options = ChatOptions::default()
        .with_capture_content(true)
        .with_capture_tool_calls(true)
        .with_capture_usage(true);
    Some(Arc::new(Genai { client, model, options }))
}

impl Genai {
    /// Streams an answer. Returns the end of the stream and the number of text pieces.
    async fn stream(&self, request: ChatRequest) -> (StreamEnd, usize) {
        let answer = self.client.exec_chat_stream(self.model, request, Some(&self.options)).await;
        let mut events = answer.expect("the server answers").stream;
        let (mut end, mut pieces) = (None, 0);
        while let Some(event) = events.next().await {
            match event.expect("the server sends events") {
                ChatStreamEvent::Chunk(chunk) => pieces += usize::from(!chunk.content.is_empty()),
                ChatStreamEvent::End(ended) => end = Some(ended),
                _ => {}
            }
        }
        (end.expect("the answer ends"), pieces)
    }
}

#[async_trait]
impl Reader for Genai {
    async fn read(&self) -> usize {
        self.stream(ChatRequest::from_user("Go on.")).await.1
    }
}

#[async_trait]
impl Contender for Genai {
    async fn run(&self) -> String {
        let tool = Tool::new("weather").with_description("Tells the weather.").with_schema(json!({
            "type": "object",
            "properties": { "city": { "type": "string", "description": "The name of a city." } },
            "required": ["city"],
        }));
        let mut request = ChatRequest::new(vec![ChatMessage::user(QUESTION)]).with_tools([tool]);
        loop {
            let (end, _) = self.stream(request.clone()).await;
            let calls = end.captured_tool_calls().unwrap_or_default();
            if calls.is_empty() {
                return end.captured_into_first_text().expect("the answer is a text");
            }
            let results: Vec<_> = calls
                .iter()
                .map(|call| {
                    let city = call.fn_arguments["city"].as_str().expect("the call names a city");
                    ToolResponse::from_tool_call(call, weather(city))
                })
                .collect();
            let answer = end.into_assistant_message_for_tool_use().expect("the answer calls a tool");
            request = request.append_message(answer);
            for result in results {
                request = request.append_message(result);
            }
        }
    }
}
