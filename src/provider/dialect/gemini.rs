//! Google's Gemini wire format, `models/*:streamGenerateContent`.
//!
//! Source: the API reference (<https://ai.google.dev/api/generate-content>) and its guides on thinking, function
//! calling and structured output. Special cases are described in the code that implements them.

mod decode;
mod encode;

use std::{borrow::Cow, fmt::Write};

use super::{
    Decoder, Dialect, Encoded, Framing, error,
    names::ToolNames,
    output::{self, OutputDecodingPlan},
};
use crate::provider::{ProviderError, ProviderErrorKind, Request};

/// The name of the wire format.
const NAME: &str = "google_gemini";

/// The members of a candidate that describe its sources. The parts of a candidate's content do not have these members.
const SOURCES: [&str; 3] = ["groundingMetadata", "citationMetadata", "urlContextMetadata"];

/// The maximum length of a tool's name, in characters: <https://ai.google.dev/api/caching#FunctionDeclaration>.
const NAME_LIMIT: usize = 64;

/// The characters that a tool's name may contain in addition to letters, digits, `_` and `-`.
const NAME_SIGNS: &str = ".:";

/// Google's Gemini wire format.
///
/// The [catalogue](crate::provider::Catalogue) determines what each model supports. Models before Gemini 3 think within
/// a token budget, and later models think at a given level. A thought signature is stored with the part that contained
/// it (a tool use, a thought, or a text, which may be empty) and is sent back with that part. Gemini 3 requires a
/// signature on tool uses. A tool use that another model made is sent with the placeholder that Google documents for
/// this case.
///
/// Models before Gemini 3 do not support an output schema together with tools. They return the value as the input of an
/// additional tool.
///
/// Code that the service runs itself, and the results of that code, become provider items. These provider items keep
/// their positions and are sent back. The sources of a response become another provider item, at the end of the
/// response. This item is not sent back.
///
/// Caching needs no setting. To use a cache that you created, set `cachedContent` through
/// [`Options::extra`](crate::provider::Options::extra).
#[derive(Clone, Copy, Debug, Default)]
pub struct GoogleGemini(());

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
                // All other bytes are percent-encoded, so that a question mark in an id does not begin a query.
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
        encode::encode(&prepared(request))
    }

    fn decoder(&self, request: &Request) -> Box<dyn Decoder> {
        let reading = if takes_output(request) {
            OutputDecodingPlan {
                enforced: request.options.output().is_some(),
                ..OutputDecodingPlan::default()
            }
        } else {
            output::tool_reading(request)
        };
        let declared = ToolNames::of(&prepared(request), NAME_LIMIT, NAME_SIGNS).declared();
        output::decoder(decode::GeminiDecoder::default(), declared, reading)
    }

    fn error(&self, status: u16, body: &str) -> ProviderError {
        refined(error::from_body(status, body), body)
    }
}

/// Returns the request. If its output schema is sent as the input of a tool, the returned request has the output tool
/// instead.
fn prepared(request: &Request) -> Cow<'_, Request> {
    output::prepared(request, (!takes_output(request)).then_some(true))
}

/// Returns whether the request's output schema can be sent directly. Also returns true if the request has no output
/// schema.
fn takes_output(request: &Request) -> bool {
    request.options.output().is_none()
        || !output::tool_is_needed(request)
            && (request.tools.is_empty() || request.traits().gemini.schema_beside_tools)
}

/// Adjusts an error according to its `google.rpc.QuotaFailure`. An exhausted daily quota is not retried, even if the
/// error names a retry delay. Source: <https://ai.google.dev/gemini-api/docs/rate-limits>.
fn refined(mut error: ProviderError, body: &str) -> ProviderError {
    if error.kind == ProviderErrorKind::RateLimit && body.contains("\"quotaId\"") && body.contains("PerDay") {
        error.kind = ProviderErrorKind::Quota;
        error.retryable = false;
    }
    error
}
