//! Google's Gemini format, `models/*:streamGenerateContent`.
//!
//! Source: the API reference (<https://ai.google.dev/api/generate-content>) and the guides on thinking, function
//! calling and structured output beside it; what is particular is named where it is handled.

mod content;
mod decode;
mod encode;
mod models;
mod schema;
mod wire;

use std::{borrow::Cow, fmt::Write};

use super::{
    Decoder, Dialect, Encoded, Framing, error,
    names::named,
    output::{self, Reading},
    output_tool,
};
use crate::provider::{ErrorKind, ProviderError, Request};

/// The format's name.
const NAME: &str = "google_gemini";

/// What a candidate says of its sources, beside its content. No part of a content has it.
const SOURCES: [&str; 3] = ["groundingMetadata", "citationMetadata", "urlContextMetadata"];

/// Google's Gemini format.
///
/// What a model takes is read off its id: models before Gemini 3 think on a token budget, later ones at a
/// level. A thought signature stays with the part that it came on, and goes back with that: a tool use, a
/// thought, or a text, which may be empty. A tool use that another model made goes to Gemini 3, which demands
/// a signature, with the one that its documentation has for this case.
///
/// Models before Gemini 3 take no output schema beside tools: they give the answer as the input of one more tool.
///
/// Code that the service runs itself, and its results, are opaque items at their places and go back; what it
/// says of its sources is an opaque item at the end of the answer, which does not.
///
/// Caching needs no words here; to use a cache of your own, set `cachedContent` through
/// [`Options::extra`](crate::provider::OptionFields::extra).
#[derive(Clone, Copy, Debug, Default)]
pub struct GoogleGemini;

impl Dialect for GoogleGemini {
    fn name(&self) -> &'static str {
        NAME
    }

    fn path(&self, request: &Request) -> String {
        let mut path = String::from(if request.model.contains('/') { "/" } else { "/models/" });
        for byte in request.model.bytes() {
            match byte {
                b'-' | b'_' | b'.' | b'~' | b'/' | b':' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                    path.push(char::from(byte));
                }
                // A question mark in an id begins no query.
                byte => write!(path, "%{byte:02X}").expect("writing to a string never fails"),
            }
        }
        path.push_str(":streamGenerateContent?alt=sse");
        path
    }

    fn framing(&self) -> Framing {
        Framing::Sse
    }

    fn encode(&self, request: &Request) -> Result<Encoded, ProviderError> {
        encode::encode(&asked(request))
    }

    fn decoder(&self, request: &Request) -> Box<dyn Decoder> {
        let reading = if models::takes_output(request) {
            Reading { enforced: request.options.output.is_some(), ..Reading::default() }
        } else {
            output_tool::reading(request)
        };
        let decoder = decode::GeminiDecoder::default();
        output::read(named(decoder, &asked(request), content::NAME_LIMIT, content::NAME_SIGNS), reading)
    }

    fn error(&self, status: u16, body: &str) -> ProviderError {
        refined(error::from_body(status, body), body)
    }
}

/// The request with the output tool, where that stands in for its output schema.
fn asked(request: &Request) -> Cow<'_, Request> {
    output_tool::asked(request, (!models::takes_output(request)).then_some(true))
}

/// The same error with what `google.rpc.QuotaFailure` tells: a quota of a day is not waited for, whatever delay
/// is named beside it. Source: <https://ai.google.dev/gemini-api/docs/rate-limits>.
fn refined(mut error: ProviderError, body: &str) -> ProviderError {
    if error.kind == ErrorKind::RateLimit && body.contains("\"quotaId\"") && body.contains("PerDay") {
        error.kind = ErrorKind::Quota;
        error.retryable = false;
    }
    error
}
