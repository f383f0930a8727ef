//! Makes a request fit the known facts about its model. Unsupported parts are rejected or replaced before anything is
//! sent.

use std::sync::Arc;

use super::{
    ModelInfo, ProviderError, ProviderErrorKind, Request, ThinkingMode, ToolChoice, dialect::mention,
};
use crate::{
    message::{Attachment, Content, Message, ResultBlock},
    tool::ToolSet,
};

/// Changes `request` to fit its model, and returns warnings about parts that could not be honoured.
///
/// # Errors
///
/// Returns [`ProviderErrorKind::Unsupported`] if the request has tools and the model can't use tools, unless the
/// options forbid tool use. Also returns [`ProviderErrorKind::Unsupported`] if the request contains an attachment that
/// the model does not accept, unless the options ask for a placeholder.
pub(super) fn fit(request: &mut Request) -> Result<Vec<String>, ProviderError> {
    let Some(info) = request.model_info.clone() else {
        return Ok(Vec::new());
    };
    tools(request, &info)?;
    attachments(request, &info)?;
    Ok([thinking(request, &info), max_tokens(request, &info)].into_iter().flatten().collect())
}

/// If the model can't use tools, removes the tools if the options forbid tool use, and otherwise returns an error.
/// Services reject a request with tools for such a model, and only the application can decide how to continue without
/// tools.
fn tools(request: &mut Request, info: &ModelInfo) -> Result<(), ProviderError> {
    if info.tools != Some(false) || request.tools.is_empty() {
        return Ok(());
    }
    if request.options.tool_choice() == Some(&ToolChoice::None) {
        request.tools = ToolSet::new();
        return Ok(());
    }
    let message = format!("{} can't use tools; remove the tools or choose another model", request.model);
    Err(ProviderError::new(ProviderErrorKind::Unsupported, message))
}

/// Removes the thinking option if the model can't think, because services reject such a request. Returns a warning if
/// the option requested thinking.
fn thinking(request: &mut Request, info: &ModelInfo) -> Option<String> {
    let mode = request.options.thinking().filter(|_| info.thinking == Some(false))?;
    request.options.set_thinking(None);
    let off = matches!(mode, ThinkingMode::Off | ThinkingMode::Budget(0));
    (!off).then(|| format!("`thinking` is ignored: {} does not think", request.model))
}

/// If the request's token limit is higher than the model's limit, lowers it to the model's limit and returns a warning.
/// Services reject a higher limit.
fn max_tokens(request: &mut Request, info: &ModelInfo) -> Option<String> {
    let limit = u32::try_from(info.output_limit?).ok()?;
    if request.options.max_tokens()? <= limit {
        return None;
    }
    request.options.set_max_tokens(Some(limit));
    Some(format!("`max_tokens` is lowered to {limit}: the maximum of {}", request.model))
}

fn attachments(request: &mut Request, info: &ModelInfo) -> Result<(), ProviderError> {
    let fits = |attachment: &Attachment| info.takes(&attachment.media_type);
    if info.input.is_none() || request.history.iter().all(|message| of(message).all(fits)) {
        return Ok(());
    }
    let replace = |message: &Message, attachment: &Attachment| -> Result<Option<String>, ProviderError> {
        if fits(attachment) {
            return Ok(None);
        }
        mention(request, message, attachment, &format!("{} does not accept it", request.model)).map(Some)
    };
    let messages = request.history.iter().map(|original| {
        if of(original).all(fits) {
            return Ok(Arc::clone(original));
        }
        let mut message = Message::clone(original);
        for content in &mut message.content {
            match content {
                Content::Attachment(attachment) => {
                    if let Some(text) = replace(original, attachment)? {
                        *content = text.into();
                    }
                }
                Content::ToolResult(result) => {
                    for block in &mut result.content {
                        if let ResultBlock::Attachment(attachment) = block
                            && let Some(text) = replace(original, attachment)?
                        {
                            *block = text.into();
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(Arc::new(message))
    });
    request.history = messages.collect::<Result<_, ProviderError>>()?;
    Ok(())
}

/// Returns the attachments of a message, including those in tool results.
fn of(message: &Message) -> impl Iterator<Item = &Attachment> {
    let own = message.content.iter().filter_map(|content| match content {
        Content::Attachment(attachment) => Some(attachment),
        _ => None,
    });
    let in_results =
        message.tool_results().flat_map(|result| &result.content).filter_map(|block| match block {
            ResultBlock::Attachment(attachment) => Some(attachment),
            ResultBlock::Text(_) => None,
        });
    own.chain(in_results)
}
