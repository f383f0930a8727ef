//! The settings for the content that telemetry records.

use std::sync::Arc;

use crate::{panics::contained, text::start};

/// The maximum size of a captured attribute in bytes.
const MAX: usize = 16 * 1024;

type Redaction = dyn Fn(CapturedContent, String) -> String + Send + Sync;

/// The content that spans record. By default, spans record no content.
///
/// Each attribute is JSON text. It is passed to the redaction function, and then cut at 16 KiB, so a long attribute is
/// not valid JSON.
#[derive(Clone, Default)]
pub struct Capture {
    messages: bool,
    tools: bool,
    system: bool,
    redaction: Option<Arc<Redaction>>,
}

/// The kind of a captured attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CapturedContent {
    /// The messages of a request.
    InputMessages,
    /// The response of a model.
    OutputMessages,
    /// The system prompt of a request.
    SystemPrompt,
    /// The declarations of a request's tools.
    ToolDefinitions,
    /// The input of a tool call.
    ToolInput,
    /// The output of a tool call.
    ToolOutput,
}

impl Capture {
    /// Creates settings that capture nothing.
    pub fn new() -> Self {
        Self::default()
    }

    crate::setters::setters! {
        /// Captures the messages of requests and responses. They contain tool inputs and outputs too.
        pub fn with_messages(self) { self.messages = true }

        /// Captures tool declarations, and the inputs and outputs of tool calls.
        pub fn with_tools(self) { self.tools = true }

        /// Captures the system prompt.
        pub fn with_system_prompt(self) { self.system = true }

        /// Sets the function that removes confidential parts from each captured text. If the function panics, the text
        /// is not recorded.
        pub fn with_redaction(
            self,
            redaction: impl Fn(CapturedContent, String) -> String + Send + Sync + 'static,
        ) {
            self.redaction = Some(Arc::new(redaction));
        }
    }

    /// Returns whether this content is captured.
    pub(crate) fn wants(&self, content: CapturedContent) -> bool {
        match content {
            CapturedContent::InputMessages | CapturedContent::OutputMessages => self.messages,
            CapturedContent::ToolDefinitions | CapturedContent::ToolInput | CapturedContent::ToolOutput => {
                self.tools
            }
            CapturedContent::SystemPrompt => self.system,
        }
    }

    /// Returns the text to record: redacted, and cut at the maximum size. Returns `None` if the redaction function
    /// panics.
    pub(super) fn prepare(&self, content: CapturedContent, text: String) -> Option<String> {
        let text = match &self.redaction {
            None => text,
            Some(redaction) => contained(|| redaction(content, text))
                .inspect_err(|words| tracing::error!(words, "the redaction function panicked"))
                .ok()?,
        };
        Some(if text.len() <= MAX { text } else { start(&text, MAX).to_owned() })
    }
}

crate::debug::impl_debug! { Capture(self) {
    messages: self.messages, tools: self.tools, system: self.system, redaction: self.redaction.is_some()
} }
