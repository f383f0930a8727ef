//! The form in which requests are written and compared.

use std::{
    collections::HashMap,
    mem::{Discriminant, discriminant, take},
    sync::Arc,
};

use serde::Serialize;
use serde_json::{Map, Value};

use super::failure;
use crate::provider::{Delta, Part, Provider, ProviderError, Request, Secret};

type Scrub = dyn Fn(&str) -> String + Send + Sync;

/// The rules for writing and comparing requests.
#[derive(Clone, Default)]
pub(super) struct Rules {
    /// The JSON pointers of ignored parts of requests.
    pub(super) ignored: Vec<String>,
    pub(super) scrub: Option<Arc<Scrub>>,
    pub(super) is_in_real_time: bool,
}

/// The members of a message that are not compared. Of these, services receive only the provider data.
const NOT_COMPARED: [&str; 4] = ["timestamp", "provider_data", "id", "app_data"];

impl Rules {
    /// Returns the canonical form of a request.
    pub(super) fn canonical(&self, request: &Request, secrets: &[Secret]) -> Result<Value, ProviderError> {
        let mut members = Map::new();
        members.insert("model".to_owned(), Value::from(&*request.model));
        if let Some(system) = &request.system {
            members.insert("system".to_owned(), Value::from(&**system));
        }
        let messages: Result<Vec<Value>, _> =
            request.history.iter().map(|message| json(&**message)).collect();
        let messages = messages?.into_iter().map(without_private_parts).collect();
        members.insert("messages".to_owned(), messages);
        let mut tools = json(&request.tools.declarations())?;
        for tool in tools.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            // The model does not see who runs a tool, so this member is not compared.
            tool.shift_remove("has_handler");
        }
        members.insert("tools".to_owned(), tools);
        members.insert("options".to_owned(), json(&request.options)?);
        members.retain(|_, member| !matches!(member, Value::Array(items) if items.is_empty()));
        members.retain(|_, member| !matches!(member, Value::Object(members) if members.is_empty()));
        let mut canonical = Value::Object(members);
        self.ignore(&mut canonical);
        self.clean(&mut canonical, secrets);
        canonical.sort_all_objects();
        Ok(canonical)
    }

    /// Removes the ignored parts of a request. Items of a list become `null`, so that other items keep their positions.
    pub(super) fn ignore(&self, request: &mut Value) {
        for pointer in &self.ignored {
            let Some((parent, name)) = pointer.rsplit_once('/') else { continue };
            match request.pointer_mut(parent) {
                Some(Value::Object(members)) => {
                    members.shift_remove(&name.replace("~1", "/").replace("~0", "~"));
                }
                Some(Value::Array(items)) => {
                    let item = name.parse().ok().and_then(|index: usize| items.get_mut(index));
                    if let Some(item) = item {
                        *item = Value::Null;
                    }
                }
                _ => {}
            }
        }
    }

    /// Removes the secrets from all texts, and applies the application's `scrub` function to them.
    pub(super) fn clean(&self, value: &mut Value, secrets: &[Secret]) {
        match value {
            Value::String(text) => {
                *text = without(secrets, text);
                if let Some(scrub) = &self.scrub {
                    *text = scrub(text);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.clean(item, secrets)),
            Value::Object(members) => members.values_mut().for_each(|member| self.clean(member, secrets)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Returns the key and the values of the headers of a request, and the secrets that the provider adds.
pub(super) fn secrets(provider: &dyn Provider, request: &Request) -> Vec<Secret> {
    let options = &request.options;
    let headers = options.headers().into_iter().flat_map(|headers| headers.values());
    let own = options.api_key().into_iter().chain(headers).cloned();
    own.chain(provider.secrets(request)).collect()
}

/// Removes the secrets from the texts that arrive in pieces. If a secret extends over several pieces, the first piece
/// gets the whole text without the secret, and the other pieces become empty.
pub(super) fn clean_pieces<'d>(deltas: impl IntoIterator<Item = &'d mut Delta>, secrets: &[Secret]) {
    let mut texts: HashMap<(usize, Discriminant<Part>), Vec<&mut String>> = HashMap::new();
    for delta in deltas {
        let Delta::Extend { index, part } = delta else { continue };
        let kind = discriminant(&*part);
        match part {
            Part::Text(piece) | Part::Input(piece) | Part::Signature(piece) | Part::Redacted(piece) => {
                texts.entry((*index, kind)).or_default().push(piece);
            }
            Part::Item(_) => {}
        }
    }
    for pieces in texts.into_values() {
        let whole: String = pieces.iter().map(|piece| piece.as_str()).collect();
        let mut whole = without(secrets, &whole);
        let separately: String = pieces.iter().map(|piece| without(secrets, piece)).collect();
        if whole != separately {
            for piece in pieces {
                *piece = take(&mut whole);
            }
        }
    }
}

fn without(secrets: &[Secret], text: &str) -> String {
    secrets.iter().fold(text.to_owned(), |text, secret| secret.scrub(&text))
}

/// Returns the value as JSON.
pub(super) fn json(value: &impl Serialize) -> Result<Value, ProviderError> {
    serde_json::to_value(value)
        .map_err(|error| failure("the exchange can't be recorded as JSON").with_source(error))
}

fn without_private_parts(mut message: Value) -> Value {
    if let Some(members) = message.as_object_mut() {
        for name in NOT_COMPARED {
            members.shift_remove(name);
        }
    }
    without_metadata(&mut message);
    message
}

/// Removes the application's metadata from attachments, including the attachments of tool results.
fn without_metadata(holder: &mut Value) {
    let Some(blocks) = holder.get_mut("content").and_then(Value::as_array_mut) else { return };
    for block in blocks {
        if block.get("type").is_some_and(|kind| kind == "attachment")
            && let Some(members) = block.as_object_mut()
        {
            members.shift_remove("metadata");
        }
        without_metadata(block);
    }
}
