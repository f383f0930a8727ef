//! Limits the size of a tool's output.

use crate::{
    message::{Attachment, ResultBlock, Source, Text},
    text::{clip, start},
};

/// If the blocks have more than `max` bytes in total, cuts them to `max` bytes. The text keeps its beginning and its end,
/// because the end of a long output often contains the result. A notice between them states how much was cut.
pub(super) fn cap(blocks: Vec<ResultBlock>, max: usize) -> Vec<ResultBlock> {
    let size = blocks.iter().map(bytes).fold(0, usize::saturating_add);
    if size <= max {
        return blocks;
    }
    // Reserve room for the notice. Its numbers are not larger than those of this notice, so it is not longer.
    let room = max.saturating_sub(notice(max, size, blocks.len()).len());
    let (blocks, left_out) = with_fitting_attachments(blocks, room);
    let is_attachment = |block: &&ResultBlock| matches!(block, ResultBlock::Attachment(_));
    let attached: usize = blocks.iter().filter(is_attachment).map(bytes).sum();
    let (texts, room) = (blocks.iter().map(bytes).sum::<usize>() - attached, room - attached);
    // All texts together are cut once. The text before `head` and the text from `tail` on is kept.
    let (head, tail) = if texts > room { (room.div_ceil(2), texts - room / 2) } else { (texts, texts) };
    let (mut at, mut cut, mut gap) = (0, 0, None);
    let mut kept = Vec::new();
    for block in blocks {
        let ResultBlock::Text(text) = block else {
            kept.push(block);
            continue;
        };
        let begin = at;
        at += text.text.len();
        if at <= head || begin >= tail {
            kept.push(text.into());
            continue;
        }
        let start = start(&text.text, head.saturating_sub(begin));
        let end = text.text.ceil_char_boundary(text.text.len() - at.saturating_sub(tail));
        cut += end - start.len();
        kept.extend((!start.is_empty()).then(|| start.into()));
        gap.get_or_insert(kept.len());
        kept.extend(text.text.get(end..).filter(|end| !end.is_empty()).map(ResultBlock::from));
    }
    let notice = notice(max, cut, left_out);
    let notice = start(&notice, max);
    if !notice.is_empty() && cut + left_out > 0 {
        kept.insert(gap.unwrap_or(kept.len()), Text::new(notice).into());
    }
    kept
}

/// Keeps each attachment that fits into `room` bytes together with all blocks before it. Another attachment is replaced
/// by a text that names it, if that text fits. Returns the blocks, and the number of attachments that were not kept.
fn with_fitting_attachments(blocks: Vec<ResultBlock>, room: usize) -> (Vec<ResultBlock>, usize) {
    // The room after the blocks so far, or `None` if some of their text has to be cut.
    let mut left = Some(room);
    let (mut kept, mut left_out) = (Vec::new(), 0);
    for mut block in blocks {
        if let ResultBlock::Text(text) = &mut block {
            // A signature is valid only for the complete text.
            text.signature = None;
        }
        let fits = |block: &ResultBlock| left.and_then(|left| left.checked_sub(bytes(block)));
        let mut rest = fits(&block);
        if let (ResultBlock::Attachment(attachment), None) = (&block, rest) {
            left_out += 1;
            block = Text::new(stand_in(attachment)).into();
            rest = fits(&block);
            if rest.is_none() {
                continue;
            }
        }
        left = rest;
        kept.push(block);
    }
    (kept, left_out)
}

fn bytes(block: &ResultBlock) -> usize {
    match block {
        ResultBlock::Text(text) => text.text.len() + text.signature.as_ref().map_or(0, String::len),
        ResultBlock::Attachment(attachment) => {
            let name = attachment.name.as_ref().map_or(0, String::len);
            payload(attachment) + attachment.media_type.len() + name
        }
    }
}

fn payload(attachment: &Attachment) -> usize {
    match &attachment.source {
        Source::Base64 { data } => data.len(),
        Source::Url { url } => url.len(),
    }
}

fn stand_in(attachment: &Attachment) -> String {
    let name = clip(attachment.name.as_deref().unwrap_or("without a name"), 100);
    let kind = clip(&attachment.media_type, 100);
    format!("[Attachment {name} ({kind}, {} bytes) was omitted: it exceeds the limit.]", payload(attachment))
}

fn notice(max: usize, cut: usize, left_out: usize) -> String {
    let attachments = match left_out {
        0 => String::new(),
        1 => "1 attachment".to_owned(),
        many => format!("{many} attachments"),
    };
    let text = if cut == 0 { String::new() } else { format!("{cut} bytes of text") };
    let and = if text.is_empty() || attachments.is_empty() { "" } else { " and " };
    let end = if cut == 0 { "omitted.]" } else { "omitted here.]\n" };
    format!("\n[Output was cut to {max} bytes: {text}{and}{attachments} {end}")
}
