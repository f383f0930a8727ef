//! Which service wrote a message. Signatures, encrypted reasoning and opaque items are of use to the service alone
//! that made them, and another one of the same format may refuse them. So each answer is marked with its service, and
//! what another one wrote goes out without them; the history keeps everything.
//!
//! A message without a mark, from a history that was stored by an earlier version say, is taken for the service's own.

use std::{borrow::Cow, sync::Arc};

use serde_json::Value;

use crate::{
    message::{Content, Message},
    provider::{Delta, Request},
};

/// The entry of [`Message::provider_data`] that holds the service's name.
const SERVICE: &str = "service";

/// Marks an answer where its format has just said what it keeps with the message: `false` if that is still to come.
pub(super) fn mark(deltas: &mut [Delta], service: &str) -> bool {
    let told = deltas.iter_mut().find_map(|delta| match delta {
        Delta::Message(data) if !data.provider_data.is_empty() => Some(&mut data.provider_data),
        _ => None,
    });
    told.is_some_and(|data| data.insert(SERVICE.to_owned(), service.into()).is_none())
}

/// The request as `service` may see it in this format.
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

/// The message as if it had been written in another format than this one, where what is private stays behind.
fn of_another_format(message: &Message, format: &str) -> Message {
    let mut message = message.clone();
    message.provider_data.shift_remove(format);
    message.content.retain(|block| !matches!(block, Content::ProviderItem(item) if item.format == format));
    message
}
