//! How much to think, in each service's words.

use serde_json::{Map, Value, json};

use super::{ThinkingField, encode::Encoder};
use crate::provider::{
    Effort, ErrorKind, ProviderError, ThinkingMode, ToolChoice,
    dialect::{
        EffortWords,
        effort::{budget_of, name},
        openai::{self, Family, ToolsInChat},
    },
};

/// Where models of OpenAI take what they refuse here.
const RESPONSES: &str = "the Responses format (`openai_responses`)";

fn at_rest() -> String {
    format!("thinking: with tools this model does not think in this format, turned off; {RESPONSES} has both")
}

impl Encoder<'_> {
    /// Comes after the tools, on which it depends.
    pub(super) fn thinking(&mut self, body: &mut Map<String, Value>) -> Result<(), ProviderError> {
        let with_tools = !self.chat.tools_beside_effort && body.contains_key("tools");
        match self.family.tools_in_chat() {
            ToolsInChat::Refused if with_tools => {
                let message =
                    format!("{} takes no tools in this format; {RESPONSES} has them", self.request.model);
                return Err(ProviderError::new(ErrorKind::Unsupported, message));
            }
            ToolsInChat::AtRest if with_tools => {
                body.insert("reasoning_effort".to_owned(), "none".into());
                // It would reason unasked.
                if self.request.options.thinking.is_none_or(ThinkingMode::is_on) {
                    self.warn(at_rest());
                }
            }
            ToolsInChat::EffortUnsaid if with_tools => {
                if self.request.options.thinking.is_some_and(ThinkingMode::is_on) {
                    self.warn(at_rest());
                }
            }
            _ => self.say_thinking(body),
        }
        Ok(())
    }

    fn say_thinking(&mut self, body: &mut Map<String, Value>) {
        let Some(mode) = self.request.options.thinking else {
            return;
        };
        let on = mode.is_on();
        match self.chat.thinking {
            ThinkingField::None if !on => {}
            ThinkingField::None => self.warn("thinking: there is no word for it here, left out"),
            ThinkingField::Always | ThinkingField::Enable { off: false, .. } if !on => {
                self.warn("thinking: it can't be turned off");
            }
            ThinkingField::Always => self.warn("thinking: it can't be said how much, left out"),
            ThinkingField::Effort(_) if self.family == Family::Plain => {
                if on {
                    self.warn("thinking: the model does not reason, left out");
                }
            }
            ThinkingField::Effort(words) => {
                if let Some(word) = openai::effort(self.family.narrow(words), mode, &mut self.warnings) {
                    if mode == Effort::Max.into() && self.family.has_max() && word == EffortWords::OPENAI.max
                    {
                        self.warn(format!("thinking: max became {word}; {RESPONSES} has more"));
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
                // Anthropic refuses the two together, and OpenRouter drops the one without a word.
                let choice = self.request.options.tool_choice.as_ref();
                let demanded = matches!(choice, Some(ToolChoice::Required | ToolChoice::Tool(_)));
                let tools = !self.request.tools.is_empty();
                if on && demanded && tools && self.request.model.starts_with("anthropic/") {
                    self.warn("thinking: models of Anthropic do not think here while a tool is demanded");
                }
            }
            ThinkingField::Type(words) => {
                let word = if on { "enabled" } else { "disabled" };
                body.insert("thinking".to_owned(), json!({"type": word}));
                match words {
                    _ if !on => {}
                    Some(words) => {
                        let word = openai::effort(words, mode, &mut self.warnings);
                        body.extend(word.map(|word| ("reasoning_effort".to_owned(), word.into())));
                    }
                    None => self.warn(match mode {
                        ThinkingMode::Effort(effort) => {
                            format!("thinking: the level {} can't be said, turned on", name(effort))
                        }
                        _ => "thinking: a budget can't be said, turned on".to_owned(),
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
