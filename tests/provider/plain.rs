//! A minimal wire format. It serves to test everything around the wire formats.
//!
//! Events are JSON objects: `{"text": …}` extends the only text block of the answer, `{"stop": true}` ends the answer,
//! and `{"error": …}` makes it fail. Other members are ignored.

use futures_util::StreamExt;
use omni_agent::provider::{
    DeltaStream, Provider, ProviderError, ProviderErrorKind, Request, StopReason,
    custom::{BlockStart, Decoder, Delta, Dialect, Encoded, Frame, Framing, Part, RequestContext},
    http::Endpoint,
};
use serde_json::{Value, json};

pub(crate) struct Plain(pub(crate) Framing);

impl Dialect for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn path(&self, request: &Request) -> String {
        format!("answers/{}?plain=yes", request.model)
    }

    fn framing(&self) -> Framing {
        self.0
    }

    fn encode(&self, request: &Request) -> Result<Encoded, ProviderError> {
        let text = request.history.iter().next().map(|message| message.text()).unwrap_or_default();
        let body = json!({ "prompt": text, "settings": { "a": 1, "b": 2 } });
        let Value::Object(body) = body else { unreachable!("an object was written") };
        let warnings = Vec::from_iter(request.options.top_p().map(|_| "top_p is not supported".to_owned()));
        Ok(Encoded::new(body).with_warnings(warnings))
    }

    fn decoder(&self, _request: &Request) -> Box<dyn Decoder> {
        Box::new(PlainDecoder { started: false, done: false })
    }

    fn error(&self, status: u16, body: &str) -> ProviderError {
        let kind = match status {
            401 => ProviderErrorKind::Auth,
            429 => ProviderErrorKind::RateLimit,
            529 => ProviderErrorKind::Overloaded,
            200 | 500.. => ProviderErrorKind::Service,
            _ => ProviderErrorKind::InvalidRequest,
        };
        ProviderError::new(kind, format!("it said {body}")).with_status(status).with_body(body)
    }
}

struct PlainDecoder {
    started: bool,
    done: bool,
}

impl Decoder for PlainDecoder {
    fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
        let value: Value = serde_json::from_str(frame.data).map_err(|error| {
            ProviderError::new(ProviderErrorKind::Decoding, "no JSON")
                .with_body(frame.data)
                .with_source(error)
        })?;
        if let Some(text) = value["text"].as_str() {
            if !std::mem::replace(&mut self.started, true) {
                deltas.push(Delta::Start { index: 0, block: BlockStart::Text });
            }
            deltas.push(Delta::Extend { index: 0, part: Part::Text(text.to_owned()) });
        }
        if value["stop"] == true {
            self.done = true;
            deltas.push(Delta::stop(StopReason::Stop));
        }
        match value["error"].as_str() {
            // `with_body` shortens the text to the limit for error bodies.
            Some(error) => Err(ProviderError::new(ProviderErrorKind::Service, error.to_owned())
                .with_body(error)
                .with_source(std::io::Error::other(error.to_owned()))),
            None => Ok(()),
        }
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn end(&mut self, _deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
        if self.done {
            return Ok(());
        }
        Err(ProviderError::new(ProviderErrorKind::Truncated, "the answer ended without its end"))
    }
}

/// Returns an endpoint at `url` for the plain format over server-sent events.
pub(crate) fn endpoint(url: &str) -> Endpoint {
    Endpoint::custom("plain", url, Plain(Framing::Sse))
}

pub(crate) fn request() -> Request {
    let mut request = Request::prompt("hello");
    request.model = "m".into();
    request
}

/// The text of an answer, the number of its stop reasons, and its error.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) stops: usize,
    pub(crate) error: Option<ProviderError>,
}

impl Answer {
    /// Returns the error of an answer that failed.
    pub(crate) fn error(self) -> ProviderError {
        self.error.expect("the answer has an error")
    }

    /// Returns the text of an answer that succeeded.
    pub(crate) fn text(self) -> String {
        assert_eq!(self.error, None);
        assert_eq!(self.stops, 1);
        self.text
    }
}

pub(crate) async fn ask(endpoint: &Endpoint) -> Answer {
    ask_for(endpoint, request()).await
}

pub(crate) async fn ask_for(endpoint: &Endpoint, request: Request) -> Answer {
    match endpoint.stream(request, RequestContext::detached()).await {
        Ok(stream) => read(stream).await,
        Err(error) => Answer { error: Some(error), ..Answer::default() },
    }
}

/// Reads an answer to its end, and asserts that nothing follows an error.
pub(crate) async fn read(mut stream: DeltaStream) -> Answer {
    let mut answer = Answer::default();
    while let Some(item) = stream.next().await {
        assert_eq!(answer.error, None, "an item follows an error");
        match item {
            Ok(Delta::Extend { part: Part::Text(text), .. }) => answer.text += &text,
            Ok(Delta::Message(data)) => answer.stops += usize::from(data.stop_reason.is_some()),
            Ok(_) => {}
            Err(error) => answer.error = Some(error),
        }
    }
    answer
}
