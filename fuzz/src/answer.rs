//! Checks an answer on its whole way: from its bytes to the next request that contains it.

use bytes::Bytes;
use omni_agent::{
    message::{History, Message, Timestamp},
    provider::{
        ProviderError, ProviderErrorKind, Request,
        custom::{Decoder, Delta, Dialect, Frame, Framer, Framing},
        http::Limits,
    },
    testing::internals::Fold,
};

use crate::{assert_encodes, lenient, split::pieces};

/// The maximum bytes of output per byte of input. A control character of one byte is escaped with six, and a text may
/// be kept both with the message and in a block.
const GROWTH: usize = 64;
/// The maximum bytes of output for an empty input.
const BASE: usize = 16 * 1024;

/// Checks that `body` is decoded in the same way however it is split. Its deltas must fold into a message that can be
/// stored and can be sent back to every service. The sizes of all results are limited to a multiple of the body's size.
///
/// # Panics
///
/// If a check fails.
pub fn answer(dialect: &dyn Dialect, body: &[u8]) {
    let request = Request::default();
    let decoded = decode(dialect, &request, [body]);
    assert_eq!(decoded, decode(dialect, &request, pieces(body)), "decoding differs if the body is split");
    assert_eq!(decoded, decode(dialect, &request, body.chunks(1)), "decoding differs byte by byte");
    check(&decoded, body.len());

    let Ok(text) = std::str::from_utf8(body) else { return };
    // The same text as an answer that is not streamed, and then as the body of a rejected request.
    let mut whole = Decoded::default();
    let mut decoder = dialect.decoder(&request);
    whole.result = decoder.decode(Frame::new("", text), &mut whole.deltas);
    whole.end(decoder);
    check(&whole, body.len());
    for status in [200, 400, 429, 500] {
        let error = dialect.error(status, text);
        assert!(
            !error.message.is_empty() && error.message.len() < 2048,
            "the message of an error is empty or too long: {}",
            error.message
        );
    }
}

/// Checks that `body` is split into the same events however it arrives, that no part is returned twice, and that
/// events respect the limits.
///
/// # Panics
///
/// If a check fails.
pub fn framing(body: &[u8]) {
    let narrow = Limits::default().with_line(24).with_event(32).with_body(256);
    for framing in [Framing::Sse, Framing::NdJson] {
        for limits in [Limits::default(), narrow] {
            let framed = frames(framing, &limits, [body]);
            assert_eq!(
                framed,
                frames(framing, &limits, pieces(body)),
                "framing differs if the body is split"
            );
            assert_eq!(framed, frames(framing, &limits, body.chunks(1)), "framing differs byte by byte");
            let sizes = || framed.0.iter().map(|(event, data)| event.len() + data.len());
            assert!(
                sizes().sum::<usize>() <= body.len().min(limits.body),
                "a part of the body was returned twice"
            );
            assert!(sizes().all(|size| size <= limits.event), "an event is longer than its limit");
        }
    }
}

type Frames = Vec<(String, String)>;

fn frames<'a>(
    framing: Framing,
    limits: &Limits,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Frames, Result<(), ProviderError>) {
    let mut found = Vec::new();
    let result = each_frame(framing, limits, pieces, |frame| {
        found.push((frame.event.to_owned(), frame.data.to_owned()));
        Ok(true)
    });
    (found, result)
}

/// Passes the frames of a body in pieces to `take`, until it returns false.
fn each_frame<'a>(
    framing: Framing,
    limits: &Limits,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    mut take: impl FnMut(Frame<'_>) -> Result<bool, ProviderError>,
) -> Result<(), ProviderError> {
    let mut framer = Framer::new(framing, limits);
    let mut pieces = pieces.into_iter();
    let mut ended = false;
    while !ended {
        match pieces.next() {
            Some(piece) => framer.push(Bytes::copy_from_slice(piece)),
            None => {
                framer.finish();
                ended = true;
            }
        }
        while let Some(frame) = framer.next_frame()? {
            if !take(frame)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The result of decoding an answer.
#[derive(Debug, PartialEq)]
struct Decoded {
    deltas: Vec<Delta>,
    result: Result<(), ProviderError>,
}

impl Default for Decoded {
    fn default() -> Self {
        Self { deltas: Vec::new(), result: Ok(()) }
    }
}

impl Decoded {
    /// Ends the body.
    fn end(&mut self, mut decoder: Box<dyn Decoder>) {
        if self.result.is_ok() && !decoder.is_done() {
            self.result = decoder.end(&mut self.deltas);
        }
    }
}

fn decode<'a>(
    dialect: &dyn Dialect,
    request: &Request,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Decoded {
    let mut decoded = Decoded::default();
    let mut decoder = dialect.decoder(request);
    decoded.result = each_frame(dialect.framing(), &Limits::default(), pieces, |frame| {
        decoder.decode(frame, &mut decoded.deltas)?;
        Ok(!decoder.is_done())
    });
    decoded.end(decoder);
    decoded
}

fn check(decoded: &Decoded, length: usize) {
    let limit = GROWTH * length + BASE;
    let size: usize = decoded.deltas.iter().map(|delta| json(delta).len()).sum();
    assert!(size <= limit, "{length} bytes became deltas of {size} bytes");

    let mut fold = Fold::default();
    for delta in &decoded.deltas {
        match fold.apply(delta) {
            Ok(()) => {}
            // Only a hostile service sends so many blocks or levels, and it must be rejected.
            Err(error) if error.message.starts_with("the answer h") => return,
            Err(error) => panic!("the fold rejects {delta:?}: {error}"),
        }
    }
    let stored: Fold = serde_json::from_str(&json(&fold)).expect("a fold can be read again");
    assert_eq!(stored, fold, "a fold changes when it is stored");

    let now = Timestamp(0);
    check_message(&fold.clone().cut(now), limit);
    match &decoded.result {
        Ok(()) => {
            let folded = fold.finish(now).expect("a complete answer has a stop reason");
            check_message(&folded.message, limit);
        }
        Err(error) => {
            assert!(error.kind != ProviderErrorKind::Transport && !error.message.is_empty());
            if let Some(message) = fold.salvage(now) {
                check_message(&message, limit);
            }
        }
    }
}

/// Checks that the message can be stored, and that it can be sent to every service.
fn check_message(message: &Message, limit: usize) {
    let text = json(message);
    assert!(text.len() <= limit, "a message of {} bytes, not {limit}", text.len());
    let stored: Message = serde_json::from_str(&text).expect("a message can be read again");
    assert_eq!(&stored, message, "a message changes when it is stored");
    assert_eq!(json(&stored), text, "a message is not always stored in the same way");

    let history: History = [Message::user("a"), stored].into_iter().collect();
    let history = history.repair();
    history.check_sendable().expect("a repaired history can be sent");
    assert_encodes(Request::new(history).with_options(lenient()), GROWTH * limit);
}

fn json(value: impl serde::Serialize) -> String {
    serde_json::to_string(&value).expect("everything can be written")
}
