//! The names of attributes, metrics and values.
//!
//! Sources: the repository `open-telemetry/semantic-conventions` at v1.41.0 (`docs/gen-ai`), and the repository
//! `open-telemetry/semantic-conventions-genai` at v0.1.0 for the latest names.

use super::Convention;

// ---- fields that `tracing-opentelemetry` reads ----

pub(super) const STATUS_CODE: &str = "otel.status_code";
pub(super) const STATUS_DESCRIPTION: &str = "otel.status_description";

// ---- attributes ----

pub(super) const OPERATION: &str = "gen_ai.operation.name";
pub(super) const PROVIDER: &str = "gen_ai.provider.name";
pub(super) const CONVERSATION: &str = "gen_ai.conversation.id";
pub(super) const AGENT_NAME: &str = "gen_ai.agent.name";
pub(super) const OUTPUT_TYPE: &str = "gen_ai.output.type";
pub(super) const REQUEST_MODEL: &str = "gen_ai.request.model";
pub(super) const REQUEST_STREAM: &str = "gen_ai.request.stream";
pub(super) const MAX_TOKENS: &str = "gen_ai.request.max_tokens";
pub(super) const TEMPERATURE: &str = "gen_ai.request.temperature";
pub(super) const TOP_P: &str = "gen_ai.request.top_p";
pub(super) const STOP_SEQUENCES: &str = "gen_ai.request.stop_sequences";
pub(super) const REASONING_LEVEL: &str = "gen_ai.request.reasoning.level";
pub(super) const RESPONSE_ID: &str = "gen_ai.response.id";
pub(super) const RESPONSE_MODEL: &str = "gen_ai.response.model";
pub(super) const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
pub(super) const TIME_TO_FIRST_CHUNK: &str = "gen_ai.response.time_to_first_chunk";
pub(super) const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub(super) const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
pub(super) const CACHE_READ_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
pub(super) const CACHE_CREATION_TOKENS: &str = "gen_ai.usage.cache_creation.input_tokens";
pub(super) const CACHE_WRITE_TOKENS: &str = "gen_ai.usage.cache_write.input_tokens";
pub(super) const REASONING_TOKENS: &str = "gen_ai.usage.reasoning.output_tokens";
pub(super) const COST: &str = "omni.usage.cost";
pub(super) const TOOL_NAME: &str = "gen_ai.tool.name";
pub(super) const TOOL_TYPE: &str = "gen_ai.tool.type";
pub(super) const TOOL_CALL: &str = "gen_ai.tool.call.id";
pub(super) const TOOL_DESCRIPTION: &str = "gen_ai.tool.description";
pub(super) const MCP_METHOD: &str = "mcp.method.name";
pub(super) const MCP_VERSION: &str = "mcp.protocol.version";
pub(super) const MCP_SESSION: &str = "mcp.session.id";
pub(super) const RPC_REQUEST: &str = "jsonrpc.request.id";
pub(super) const NETWORK_TRANSPORT: &str = "network.transport";
pub(super) const SERVER_ADDRESS: &str = "server.address";
pub(super) const SERVER_PORT: &str = "server.port";
pub(super) const HTTP_STATUS: &str = "http.response.status_code";
pub(super) const ERROR_TYPE: &str = "error.type";
pub(super) const ATTEMPT: &str = "omni.attempt";
/// The delay in seconds that the service requested.
pub(super) const RETRY_AFTER: &str = "omni.retry_after";
/// The delay in seconds before the repetition of a request.
pub(super) const RETRY_DELAY: &str = "omni.retry_delay";
pub(super) const TOKENS_BEFORE: &str = "omni.tokens_before";
pub(super) const TOKENS_AFTER: &str = "omni.tokens_after";
pub(super) const DECISION: &str = "omni.decision";
/// Whether a pause has expired without a decision, so that its expiry decision applies.
pub(super) const EXPIRED: &str = "omni.expired";

// ---- attributes with content ----

pub(super) const INPUT_MESSAGES: &str = "gen_ai.input.messages";
pub(super) const OUTPUT_MESSAGES: &str = "gen_ai.output.messages";
pub(super) const SYSTEM_INSTRUCTIONS: &str = "gen_ai.system_instructions";
pub(super) const TOOL_DEFINITIONS: &str = "gen_ai.tool.definitions";
pub(super) const TOOL_ARGUMENTS: &str = "gen_ai.tool.call.arguments";
pub(super) const TOOL_RESULT: &str = "gen_ai.tool.call.result";

// ---- values ----

pub(super) const INVOKE_AGENT: &str = "invoke_agent";
pub(super) const CHAT: &str = "chat";
pub(super) const EXECUTE_TOOL: &str = "execute_tool";
/// The error type of an operation that was dropped before its end.
pub(super) const CANCELLED: &str = "cancelled";

/// The names and attributes in which the two conventions differ.
pub(super) struct ConventionDifferences {
    /// The attribute for the input tokens that were written to the cache.
    pub(super) cache_write: &'static str,
    /// Whether a run's span contains the provider, and the numbers of tokens that were read from and written to the
    /// cache.
    pub(super) run_has_provider: bool,
}

impl Convention {
    pub(super) fn differences(self) -> &'static ConventionDifferences {
        match self {
            Self::V1_41 => {
                &ConventionDifferences { cache_write: CACHE_CREATION_TOKENS, run_has_provider: true }
            }
            Self::Latest => {
                &ConventionDifferences { cache_write: CACHE_WRITE_TOKENS, run_has_provider: false }
            }
        }
    }
}

/// The providers that the conventions call by another name: the name in this crate, and the well-known name.
const PROVIDERS: &[(&str, &str)] =
    &[("alibaba", "alibaba_cloud"), ("google", "gcp.gemini"), ("moonshot", "moonshot_ai"), ("zai", "z_ai")];

/// Returns the well-known name of a provider, or else its own name.
pub(super) fn provider(name: &str) -> &str {
    PROVIDERS.iter().find(|(own, _)| *own == name).map_or(name, |(_, known)| known)
}

/// The stop reasons that have another name in the conventions.
const FINISH: &[(&str, &str)] = &[
    ("context_length", "length"),
    ("refusal", "content_filter"),
    ("stop_sequence", "stop"),
    ("tool_use", "tool_call"),
];

/// Returns the name of a stop reason in the conventions, or else its own name.
pub(crate) fn finish_reason(name: &str) -> &str {
    FINISH.iter().find(|(own, _)| *own == name).map_or(name, |(_, known)| known)
}

/// The names of metrics.
#[cfg(feature = "otel-metrics")]
pub(super) mod metrics {
    use super::Convention;

    pub(in crate::telemetry) const TOKEN_TYPE: &str = "gen_ai.token.type";
    pub(in crate::telemetry) const RUN_DURATION: &str = "gen_ai.invoke_agent.duration";
    pub(in crate::telemetry) const RUN_REQUESTS: &str = "gen_ai.invoke_agent.inference_calls";
    pub(in crate::telemetry) const RUN_TOOL_CALLS: &str = "gen_ai.invoke_agent.tool_calls";
    pub(in crate::telemetry) const TOOL_DURATION: &str = "gen_ai.execute_tool.duration";
    pub(in crate::telemetry) const TOKEN_USAGE: &str = "gen_ai.client.token.usage";
    pub(in crate::telemetry) const INPUT_TOKENS: &str = "gen_ai.client.inference.usage.input_tokens";
    pub(in crate::telemetry) const OUTPUT_TOKENS: &str = "gen_ai.client.inference.usage.output_tokens";
    pub(in crate::telemetry) const CACHE_READ_TOKENS: &str =
        "gen_ai.client.inference.usage.cache_read.input_tokens";
    pub(in crate::telemetry) const CACHE_WRITE_TOKENS: &str =
        "gen_ai.client.inference.usage.cache_write.input_tokens";
    pub(in crate::telemetry) const REASONING_TOKENS: &str =
        "gen_ai.client.inference.usage.reasoning.output_tokens";

    /// The names of the metrics for the durations of a request. The names differ between the conventions.
    pub(in crate::telemetry) struct DurationMetricNames {
        pub(in crate::telemetry) request: &'static str,
        pub(in crate::telemetry) first_chunk: &'static str,
        pub(in crate::telemetry) per_chunk: &'static str,
    }

    impl Convention {
        pub(in crate::telemetry) fn durations(self) -> &'static DurationMetricNames {
            match self {
                Self::V1_41 => &DurationMetricNames {
                    request: "gen_ai.client.operation.duration",
                    first_chunk: "gen_ai.client.operation.time_to_first_chunk",
                    per_chunk: "gen_ai.client.operation.time_per_output_chunk",
                },
                Self::Latest => &DurationMetricNames {
                    request: "gen_ai.client.inference.duration",
                    first_chunk: "gen_ai.client.inference.time_to_first_chunk",
                    per_chunk: "gen_ai.client.inference.time_per_output_chunk",
                },
            }
        }
    }
}
