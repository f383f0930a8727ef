//! The deviations of individual models at the services that this crate knows. The data is in `models.json`. Its sources
//! are named in the modules under `provider::http::services`.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{CacheField, ChatCompletions, OutputSupport, ReasoningReturn, ThinkingField};
use crate::provider::catalogue::{BUILT_IN, Family, find};

/// The switches that a rule sets. All other switches keep the values that are configured for the service.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, bound(deserialize = "'de: 'static"))]
pub(super) struct Switches {
    output: Option<OutputSupport>,
    thinking: Option<ThinkingField>,
    thinking_members: Map<String, Value>,
    thinking_beside_forced_tools: Option<bool>,
    reasoning: Option<ReasoningReturn>,
    cache: Option<CacheField>,
    sampling: Option<bool>,
    members: Map<String, Value>,
    tool_members: Map<String, Value>,
    call_members: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'static"))]
struct Rules {
    services: BTreeMap<String, Vec<Family<Switches>>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'static"))]
struct File {
    rules: Rules,
}

static FILE: LazyLock<File> =
    LazyLock::new(|| serde_json::from_str(BUILT_IN).expect("a test reads the rules of the services"));

/// Returns the rule of this service for a model.
pub(super) fn of(service: &str, model: &str) -> Option<&'static Switches> {
    find(FILE.rules.services.get(service)?, model, model)
}

impl Switches {
    pub(super) fn set(&self, chat: &mut ChatCompletions) {
        chat.output = self.output.unwrap_or(chat.output);
        chat.thinking = self.thinking.unwrap_or(chat.thinking);
        chat.reasoning = self.reasoning.unwrap_or(chat.reasoning);
        chat.cache = self.cache.unwrap_or(chat.cache);
        chat.sampling = self.sampling.unwrap_or(chat.sampling);
        chat.thinking_beside_forced_tools =
            self.thinking_beside_forced_tools.unwrap_or(chat.thinking_beside_forced_tools);
        chat.thinking_members.extend(self.thinking_members.clone());
        chat.members.extend(self.members.clone());
        chat.tool_members.extend(self.tool_members.clone());
        chat.call_members.extend(self.call_members.clone());
    }
}
