//! Limits the size of a tool's output.

use crate::{
    message::{Attachment, ResultBlock, Source, Text},
    text::{clip, start},
};

/// If the blocks have more than `max` bytes in total, cuts them to `max` bytes and appends a notice that states how
/// much was cut.
pub(super) fn cap(blocks: Vec<ResultBlock>, max: usize) -> Vec<ResultBlock> {
    let size = blocks.iter().map(bytes).fold(0, usize::saturating_add);
    if size <= max {
        return blocks;
    }
    // Reserve room for the final notice. Its numbers are not larger than those of this notice, so it is not longer.
    let reserved = notice(max, size, blocks.len()).len();
    let mut room = max.saturating_sub(reserved);
    let mut kept = Vec::new();
    let (mut cut, mut left_out) = (0_usize, 0_usize);
    for block in blocks {
        match block {
            block if bytes(&block) <= room && cut == 0 => {
                room -= bytes(&block);
                kept.push(block);
            }
            ResultBlock::Text(mut text) => {
                // After the first cut, all further text is dropped, so that text is missing only at the end.
                let end = if cut == 0 { start(&text.text, room).len() } else { 0 };
                cut += text.text.len() - end;
                if end > 0 {
                    room -= end;
                    text.text.truncate(end);
                    // The signature is removed, because it is valid only for the complete text.
                    text.signature = None;
                    kept.push(text.into());
                }
            }
            ResultBlock::Attachment(attachment) => {
                left_out += 1;
                let stand_in = stand_in(&attachment);
                if stand_in.len() <= room {
                    room -= stand_in.len();
                    kept.push(Text::new(stand_in).into());
                }
            }
        }
    }
    let notice = notice(max, cut, left_out);
    let notice = start(&notice, max);
    if !notice.is_empty() {
        kept.push(Text::new(notice).into());
    }
    kept
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
    format!("\n[Output was cut to {max} bytes: {text}{and}{attachments} omitted.]")
}
