//! Marks each response with the service that wrote it.
//!
//! A signature, encrypted reasoning or an opaque item can be used only by the service that made it. Another service
//! with the same wire format may reject it. Therefore, each response is marked with its service, and messages of other
//! services are sent without these parts. The history keeps all parts.
//!
//! The same service may be unable to verify the parts too, if the application now uses another key, region or deployment
//! under the same name. The request is then repeated without them.
//!
//! A message without a mark counts as written by the service that receives it. Such a message may come from a history
//! that an earlier version stored.

use std::{borrow::Cow, sync::Arc};

use serde_json::Value;

use crate::{
    message::{Content, Message},
    provider::{Delta, Request},
};

/// The entry of [`Message::provider_data`] that contains the service's name.
const SERVICE: &str = "service";

/// Marks a response with its service. The mark is added to the first delta that contains provider data. Returns `false`
/// if `deltas` does not contain such a delta.
pub(super) fn mark(deltas: &mut [Delta], service: &str) -> bool {
    let first = deltas.iter_mut().find_map(|delta| match delta {
        Delta::Message(data) if !data.provider_data.is_empty() => Some(&mut data.provider_data),
        _ => None,
    });
    first.is_some_and(|data| data.insert(SERVICE.to_owned(), service.into()).is_none())
}

/// Returns the request without the parts that `service` can't use in this wire format.
pub(super) fn for_service<'a>(request: &'a Request, service: &str, format: &str) -> Cow<'a, Request> {
    let is_foreign = |message: &Message| {
        message.provider_data.get(SERVICE).and_then(Value::as_str).is_some_and(|wrote| wrote != service)
    };
    if !request.history.iter().any(|message| is_foreign(message)) {
        return Cow::Borrowed(request);
    }
    let mut request = request.clone();
    request.history = request
        .history
        .iter()
        .map(|message| {
            if is_foreign(message) {
                Arc::new(of_another_format(message, format))
            } else {
                Arc::clone(message)
            }
        })
        .collect();
    Cow::Owned(request)
}

/// Returns the request as if no service could use the parts of its messages that are private to the wire format `format`.
/// Returns `None` if it has no such parts.
pub(super) fn without_private_parts(request: &Request, format: &str) -> Option<Request> {
    if !request.history.iter().any(|message| has_private_parts(message, format)) {
        return None;
    }
    let mut request = request.clone();
    request.history = request
        .history
        .iter()
        .map(|message| {
            let mut message = Arc::clone(message);
            if has_private_parts(&message, format) {
                // No service has this name.
                Arc::make_mut(&mut message).provider_data.insert(SERVICE.to_owned(), "".into());
            }
            message
        })
        .collect();
    Some(request)
}

fn has_private_parts(message: &Message, format: &str) -> bool {
    message.is_native_to(format)
        && message.content.iter().any(|block| match block {
            Content::Text(text) => text.signature.is_some(),
            Content::Thinking(thinking) => thinking.signature.is_some() || thinking.redacted.is_some(),
            Content::ToolUse(tool_use) => tool_use.signature.is_some(),
            Content::ProviderItem(item) => item.format == format,
            _ => false,
        })
}

/// Returns the message without the provider data and the provider items of the wire format `format`. The message then
/// counts as written in another wire format.
fn of_another_format(message: &Message, format: &str) -> Message {
    let mut message = message.clone();
    message.provider_data.shift_remove(format);
    message.content.retain(|block| !matches!(block, Content::ProviderItem(item) if item.format == format));
    message
}
