/// The Anthropic Messages format.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnthropicMessages;
