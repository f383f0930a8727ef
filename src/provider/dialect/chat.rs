/// The OpenAI Chat Completions format.
#[derive(Clone, Debug, Default)]
pub struct ChatCompletions {
    /// Which member carries the output limit.
    pub max_tokens_field: MaxTokensField,
}

/// Which member carries the output limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaxTokensField {
    /// `max_tokens`, as most services take it.
    #[default]
    MaxTokens,
    /// `max_completion_tokens`, as OpenAI demands it.
    MaxCompletionTokens,
}
