//! The form without bulky content in which the history keeps tool results that a model service has refused, and in
//! which requests contain messages before a compaction.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::Value;

use super::{Attachment, Content, Message, ProviderItem, ResultBlock, Source, Text, ToolUseId};
use crate::text::clip;

/// The greatest length in bytes of a text that is kept.
const KEPT: usize = 512;

/// The reason for which content is removed.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum ClearingReason {
    /// A model service has refused a request with the content.
    Refusal,
    /// A compaction makes room.
    Room,
}

/// Returns the message with a note in place of each attachment, and of each text of more than 512 bytes, in its tool
/// results. The text that tells the model of a changed input is cut instead. To make room, error results are kept, and
/// attachments and thinking outside of results become notes, too. Copies of them that only a service can read are
/// removed.
pub(crate) fn cleared(message: &Message, reason: ClearingReason) -> Message {
    let mut message = message.clone();
    if reason == ClearingReason::Room {
        remove_hidden(&mut message);
    }
    for block in &mut message.content {
        match block {
            Content::ToolResult(result) if reason == ClearingReason::Refusal || !result.is_error => {
                let (note, output) = result.parts_mut();
                for block in output {
                    clear(block, reason);
                }
                if let Some(ResultBlock::Text(note)) = note {
                    note.text = clip(&note.text, KEPT).into_owned();
                }
            }
            Content::Attachment(file) if reason == ClearingReason::Room => {
                *block = reason.note(&removed_file(file)).into();
            }
            Content::Thinking(thinking) if reason == ClearingReason::Room => {
                *block = reason.note(&removed_text(&thinking.text)).into();
            }
            _ => {}
        }
    }
    message
}

/// Returns the message with a note in place of each attachment in these blocks. The blocks may be tool results, of which
/// the texts stay.
pub(crate) fn without_files(message: &Arc<Message>, blocks: &BTreeSet<usize>) -> Arc<Message> {
    let mut message = Arc::clone(message);
    for block in blocks {
        if !message.content.get(*block).is_some_and(Content::has_file) {
            continue;
        }
        match &mut Arc::make_mut(&mut message).content[*block] {
            Content::ToolResult(result) => {
                for block in &mut result.content {
                    if let ResultBlock::Attachment(file) = block {
                        *block = left_out(file).into();
                    }
                }
            }
            block => {
                if let Content::Attachment(file) = block {
                    *block = left_out(file).into();
                }
            }
        }
    }
    message
}

/// Returns the message without the contents of files that a gateway has read and returned with its answer.
pub(crate) fn without_file_copies(message: &Arc<Message>) -> Arc<Message> {
    let is_copy = |entry: &Value| entry["type"] == "file";
    let has_copy = |block: &Content| {
        let Content::ProviderItem(item) = block else { return false };
        item.data["annotations"].as_array().is_some_and(|entries| entries.iter().any(is_copy))
    };
    if !message.content.iter().any(has_copy) {
        return Arc::clone(message);
    }
    let mut message = Message::clone(message);
    message.content.retain_mut(|block| {
        let Content::ProviderItem(item) = block else { return true };
        let Some(entries) = item.data.get_mut("annotations").and_then(Value::as_array_mut) else {
            return true;
        };
        entries.retain(|entry| !is_copy(entry));
        !entries.is_empty()
    });
    Arc::new(message)
}

fn left_out(file: &Attachment) -> Text {
    Text::new(format!("[A file is left out: {}]", removed_file(file)))
}

/// Removes thinking without a readable text, signatures of empty texts, and opaque copies of thinking and of files. A
/// message is not left without content.
fn remove_hidden(message: &mut Message) {
    let may_be_hidden = |block: &Content| match block {
        Content::Thinking(thinking) => thinking.text.is_empty(),
        Content::Text(text) => text.text.is_empty(),
        block => matches!(block, Content::ProviderItem(_)),
    };
    if !message.content.iter().any(may_be_hidden) {
        return;
    }
    let uses: Vec<ToolUseId> = message.tool_uses().map(|tool_use| tool_use.id.clone()).collect();
    let mut rest = message.content.clone();
    rest.retain_mut(|block| match block {
        Content::Thinking(thinking) => !thinking.text.is_empty(),
        Content::Text(text) => text.signature.is_none() || !text.text.is_empty(),
        Content::ProviderItem(item) => is_needed(item, &uses),
        _ => true,
    });
    if !rest.is_empty() {
        message.content = rest;
    }
}

/// Removes the entries of `reasoning_details` that belong to no tool use, and returns whether the item is still needed.
///
/// Gateways for several services, such as OpenRouter, return these details with an answer, and also the content of files
/// as `annotations`. An encrypted entry with the id of a tool use is its signature. Google's models reject the tool use
/// without it.
fn is_needed(item: &mut ProviderItem, uses: &[ToolUseId]) -> bool {
    let Some(members) = item.data.as_object_mut().filter(|members| members.len() == 1) else { return true };
    if members.contains_key("annotations") {
        return false;
    }
    let Some(entries) = members.get_mut("reasoning_details").and_then(|details| details.as_array_mut())
    else {
        return true;
    };
    entries.retain(|entry| {
        let id = entry["id"].as_str();
        entry["type"] == "reasoning.encrypted" && uses.iter().any(|own| id == Some(own.as_str()))
    });
    !entries.is_empty()
}

fn clear(block: &mut ResultBlock, reason: ClearingReason) {
    let removed = match block {
        ResultBlock::Text(text) if text.text.len() <= KEPT => return,
        ResultBlock::Text(text) => removed_text(&text.text),
        ResultBlock::Attachment(file) => removed_file(file),
    };
    *block = reason.note(&removed).into();
}

impl ClearingReason {
    fn note(self, removed: &str) -> Text {
        Text::new(match self {
            Self::Refusal => format!("[Removed after an error of the model service: {removed}]"),
            Self::Room => format!("[Not shown: {removed} were removed to make room.]"),
        })
    }
}

fn removed_text(text: &str) -> String {
    format!("{} characters", grouped(text.chars().count()))
}

fn removed_file(Attachment { source, media_type, .. }: &Attachment) -> String {
    match source {
        Source::Base64 { data } => {
            let bytes = data.trim_end_matches('=').len() * 3 / 4;
            format!("{media_type}, {} KB", grouped(bytes.div_ceil(1000)))
        }
        Source::Url { .. } => media_type.clone(),
    }
}

/// Returns the number with a comma before each group of three digits.
pub(super) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::message::{DecisionKind, Role, Thinking, Timestamp, ToolResult, ToolUse, UseDecision};

    fn clear_of(blocks: Vec<ResultBlock>) -> Vec<ResultBlock> {
        let tool_use = ToolUse::new("a", "read", json!({}));
        let result = ToolResult { content: blocks, ..ToolResult::error(&tool_use, "") };
        let message = Message::new(Role::User, vec![Content::from(result.clone())]);
        let cleared = cleared(&message, ClearingReason::Refusal);
        let Some(Content::ToolResult(kept)) = cleared.content.first() else { panic!("{cleared:?}") };
        assert_eq!((&kept.tool_use_id, &kept.name, kept.is_error), (&result.tool_use_id, &result.name, true));
        kept.content.clone()
    }

    #[test]
    fn cleared_of_long_texts_and_attachments_names_what_was_removed() {
        let notes = clear_of(vec![
            "é".repeat(8412).into(),
            Attachment::base64("image/png", "A".repeat(285_332)).into(),
            Attachment::url("application/pdf", "https://example.org/a.pdf").into(),
        ]);
        let notes: Vec<_> = notes
            .iter()
            .map(|block| match block {
                ResultBlock::Text(text) => text.text.as_str(),
                ResultBlock::Attachment(_) => panic!("{block:?}"),
            })
            .collect();
        assert_eq!(
            notes,
            [
                "[Removed after an error of the model service: 8,412 characters]",
                "[Removed after an error of the model service: image/png, 214 KB]",
                "[Removed after an error of the model service: application/pdf]",
            ]
        );
    }

    #[test]
    fn cleared_of_short_texts_changes_nothing() {
        let short = vec!["a".repeat(KEPT).into(), ResultBlock::from("")];
        assert_eq!(clear_of(short.clone()), short);
        let note = clear_of(vec!["a".repeat(KEPT + 1).into()]);
        assert_eq!(clear_of(note.clone()), note);
    }

    #[test]
    fn cleared_of_a_changed_input_keeps_the_beginning_of_its_note() {
        let tool_use = ToolUse::new("a", "read", json!({}));
        let input = Some(json!({ "path": "é".repeat(KEPT) }));
        let decision =
            UseDecision { input, ..UseDecision::new(DecisionKind::ExecuteWith, Timestamp::default()) };
        let result = ToolResult::ok(&tool_use, "a".repeat(KEPT + 1)).decided(decision, true, true);
        let kept = cleared(&Message::new(Role::User, vec![Content::from(result)]), ClearingReason::Refusal);
        let kept = kept.tool_results().next().unwrap();
        assert!(kept.text().starts_with("A person changed the input of this call. It ran with: {"));
        assert_eq!(kept.output().len(), 1);
        assert!(kept.output_text().starts_with("[Removed after an error") && kept.text().len() < 2 * KEPT);
    }

    #[test]
    fn cleared_for_room_removes_what_only_a_service_can_read() {
        let item = |data| Content::from(ProviderItem::new("chat_completions", data));
        let details = |entries| item(json!({ "reasoning_details": entries }));
        let text = json!({ "type": "reasoning.text", "text": "Hm.", "signature": "s" });
        let of_use = json!({ "type": "reasoning.encrypted", "data": "d", "id": "a" });
        let other = json!({ "type": "reasoning.encrypted", "data": "d", "id": "rs_1" });
        let found = item(json!({ "executable_code": "1" }));
        let tool_use = Content::from(ToolUse::new("a", "read", json!({})));
        let message = Message::assistant(vec![
            Thinking::new("").with_redacted("hidden").into(),
            Thinking::new("Hm.").with_signature("s").into(),
            details(json!([text, of_use, other])),
            details(json!([text])),
            item(json!({ "annotations": [{ "type": "file", "file": { "content": "…" } }] })),
            found.clone(),
            Text::new("").with_signature("s").into(),
            Text::new("So.").with_signature("s").into(),
            tool_use.clone(),
        ]);
        let note = Text::new("[Not shown: 3 characters were removed to make room.]");
        let kept: Vec<Content> = vec![
            note.into(),
            details(json!([of_use])),
            found,
            Text::new("So.").with_signature("s").into(),
            tool_use,
        ];
        assert_eq!(cleared(&message, ClearingReason::Room).content, kept);
        assert_eq!(cleared(&message, ClearingReason::Refusal), message);
        let hidden = Message::assistant(Thinking::new("").with_redacted("hidden"));
        assert_eq!(cleared(&hidden, ClearingReason::Room).content.len(), 1);
    }

    #[test]
    fn grouped_separates_thousands() {
        let groups = [0, 12, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(groups, ["0", "12", "999", "1,000", "1,234,567"]);
    }
}
