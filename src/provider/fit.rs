//! Makes a request fit its model, as far as the model is known: what it can't take is refused or replaced before
//! anything is sent.

use std::sync::Arc;

use super::{ErrorKind, ModelInfo, ProviderError, Request, ThinkingMode, ToolChoice, dialect::placeholder};
use crate::{
    message::{Attachment, Content, Message, ResultBlock},
    tool::ToolSet,
};

/// Changes `request` to what its model takes, and tells what was asked for and could not be honoured.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] for tools that the model can't use, unless the options say that none may be used; and for an
/// attachment that the model does not take, unless they ask for a placeholder.
pub(super) fn fit(request: &mut Request) -> Result<Vec<String>, ProviderError> {
    let Some(info) = request.model_info.clone() else {
        return Ok(Vec::new());
    };
    tools(request, &info)?;
    attachments(request, &info)?;
    Ok([thinking(request, &info), max_tokens(request, &info)].into_iter().flatten().collect())
}

/// Services refuse tools for a model that can't use them. What is to be done without, the application knows alone.
fn tools(request: &mut Request, info: &ModelInfo) -> Result<(), ProviderError> {
    if info.tools != Some(false) || request.tools.is_empty() {
        return Ok(());
    }
    if request.options.tool_choice() == Some(&ToolChoice::None) {
        request.tools = ToolSet::new();
        return Ok(());
    }
    let message = format!("{} can't use tools: offer it none, or choose another model", request.model);
    Err(ProviderError::new(ErrorKind::Unsupported, message))
}

/// Services refuse to let a model think that can't.
fn thinking(request: &mut Request, info: &ModelInfo) -> Option<String> {
    let mode = request.options.thinking().filter(|_| info.thinking == Some(false))?;
    request.options.set_thinking(None);
    let off = matches!(mode, ThinkingMode::Off | ThinkingMode::Budget(0));
    (!off).then(|| format!("{} does not think; the thinking option is left out", request.model))
}

/// Services refuse to be asked for longer answers than a model can give.
fn max_tokens(request: &mut Request, info: &ModelInfo) -> Option<String> {
    let limit = u32::try_from(info.output_limit?).ok()?;
    if request.options.max_tokens()? <= limit {
        return None;
    }
    request.options.set_max_tokens(Some(limit));
    Some(format!("max_tokens is lowered to {limit}, the most that {} can give", request.model))
}

fn attachments(request: &mut Request, info: &ModelInfo) -> Result<(), ProviderError> {
    let fits = |attachment: &Attachment| info.takes(&attachment.media_type);
    if info.input.is_none() || request.history.iter().all(|message| of(message).all(fits)) {
        return Ok(());
    }
    let replace = |attachment: &Attachment| -> Result<Option<String>, ProviderError> {
        if fits(attachment) {
            return Ok(None);
        }
        placeholder(request, attachment, &format!("{} does not take it", request.model)).map(Some)
    };
    let messages = request.history.iter().map(|message| {
        if of(message).all(fits) {
            return Ok(Arc::clone(message));
        }
        let mut message = Message::clone(message);
        for content in &mut message.content {
            match content {
                Content::Attachment(attachment) => {
                    if let Some(text) = replace(attachment)? {
                        *content = text.into();
                    }
                }
                Content::ToolResult(result) => {
                    for block in &mut result.content {
                        if let ResultBlock::Attachment(attachment) = block
                            && let Some(text) = replace(attachment)?
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

/// The attachments of a message, those in tool results too.
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
