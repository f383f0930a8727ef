//! Encoding of the thinking option, as each service expects it.

use serde_json::{Map, Value, json};

use super::{ThinkingField, encode::Encoder};
use crate::provider::{
    Effort, ProviderError, ProviderErrorKind, ThinkingMode, ToolChoice,
    catalogue::ChatTools,
    dialect::{
        EffortWords,
        effort::{budget_of, name},
        openai,
    },
};

/// The wire format that supports the combinations of options that OpenAI's models reject in Chat Completions.
const RESPONSES: &str = "the Responses wire format (`openai_responses`)";

fn at_rest() -> String {
    format!(
        "`thinking` is turned off: in Chat Completions this model cannot use tools while it thinks; \
         {RESPONSES} supports both"
    )
}

impl Encoder<'_> {
    /// Encodes the thinking option. Must be called after the tools are encoded, because the result depends on the
    /// encoded tools.
    pub(super) fn thinking(&mut self, body: &mut Map<String, Value>) -> Result<(), ProviderError> {
        let with_tools = !self.chat.tools_beside_effort && body.contains_key("tools");
        match self.traits.chat_tools {
            ChatTools::Never if with_tools => {
                let message = format!(
                    "{} does not support tools in Chat Completions; use {RESPONSES}",
                    self.request.model
                );
                return Err(ProviderError::new(ProviderErrorKind::Unsupported, message));
            }
            ChatTools::IfOff if with_tools => {
                body.insert("reasoning_effort".to_owned(), "none".into());
                // The model reasons by default, so the warning is also needed if the option is not set.
                if self.request.options.thinking().is_none_or(ThinkingMode::is_on) {
                    self.warn(at_rest());
                }
            }
            ChatTools::WithoutEffort if with_tools => {
                if self.request.options.thinking().is_some_and(ThinkingMode::is_on) {
                    self.warn(at_rest());
                }
            }
            _ => self.encode_thinking(body),
        }
        Ok(())
    }

    fn encode_thinking(&mut self, body: &mut Map<String, Value>) {
        let enabled = || {
            let mut thinking = Map::from_iter([("type".to_owned(), "enabled".into())]);
            thinking.extend(self.chat.thinking_members.clone());
            ("thinking".to_owned(), Value::Object(thinking))
        };
        let Some(mode) = self.request.options.thinking() else {
            // These models think by default. The members are needed even if the request does not set the option, unless
            // it has its own `thinking`, into which these members must not be mixed.
            let own = self.request.options.extra().is_some_and(|extra| extra.contains_key("thinking"));
            body.extend((!own && !self.chat.thinking_members.is_empty()).then(enabled));
            return;
        };
        let on = mode.is_on();
        match self.chat.thinking {
            ThinkingField::None if !on => {}
            ThinkingField::None => self.warn("`thinking` is ignored: this service has no setting for it"),
            ThinkingField::Always | ThinkingField::Enable { off: false, .. } if !on => {
                self.warn("`thinking` stays on: this service has no setting to turn it off");
            }
            ThinkingField::Always => self.warn("`thinking` is ignored: this model decides how much to think"),
            ThinkingField::Effort(_) if !self.traits.reasons() => {
                if on {
                    self.warn("`thinking` is ignored: this model does not reason");
                }
            }
            ThinkingField::Effort(words) => {
                if let Some(word) = openai::effort(words.narrowed(self.traits), mode, &mut self.warnings) {
                    if mode == Effort::Max.into()
                        && self.traits.max_in_responses
                        && word == EffortWords::OPENAI.max
                    {
                        self.warn(format!(
                            "`thinking` is changed from effort max to {word}: only {RESPONSES} supports max"
                        ));
                    }
                    body.insert("reasoning_effort".to_owned(), word.into());
                }
            }
            ThinkingField::Reasoning(words) => {
                let reasoning = match mode {
                    ThinkingMode::Budget(tokens) if on => json!({"max_tokens": tokens}),
                    ThinkingMode::Effort(_) => {
                        json!({"effort": openai::effort(words, mode, &mut self.warnings)})
                    }
                    ThinkingMode::Off | ThinkingMode::Budget(_) => json!({"enabled": false}),
                };
                body.insert("reasoning".to_owned(), reasoning);
                // Anthropic rejects thinking together with a forced tool. OpenRouter then drops the thinking without an
                // error, so this crate warns.
                let choice = self.request.options.tool_choice();
                let demanded = matches!(choice, Some(ToolChoice::Required | ToolChoice::Tool(_)));
                let tools = !self.request.tools.is_empty();
                if on && demanded && tools && !self.chat.thinking_beside_forced_tools {
                    self.warn(
                        "`thinking` has no effect: \
                         at this service, Anthropic's models do not think while a tool is forced",
                    );
                }
            }
            ThinkingField::Type(words) => {
                if !on && words.is_none_or(|words| words.off != Some(words.low)) {
                    body.insert("thinking".to_owned(), json!({"type": "disabled"}));
                    return;
                }
                body.extend([enabled()]);
                match words {
                    Some(words) => {
                        let word = openai::effort(words, mode, &mut self.warnings);
                        body.extend(word.map(|word| ("reasoning_effort".to_owned(), word.into())));
                    }
                    None => self.warn(match mode {
                        ThinkingMode::Effort(effort) => {
                            format!(
                                "`thinking` is turned on without effort {}: this service has no setting for it",
                                name(effort)
                            )
                        }
                        _ => "`thinking` is turned on without a budget: this service has no setting for it".to_owned(),
                    }),
                }
            }
            ThinkingField::Enable { off, .. } => {
                if off {
                    body.insert("enable_thinking".to_owned(), on.into());
                }
                let budget = match mode {
                    ThinkingMode::Effort(effort) => budget_of(effort),
                    ThinkingMode::Budget(tokens) => tokens,
                    ThinkingMode::Off => 0,
                };
                if on {
                    body.insert("thinking_budget".to_owned(), budget.into());
                }
            }
        }
    }
}
