//! An answer from its bytes to the next request.

use bytes::Bytes;
use omni_agent::{
    message::{History, Message, Timestamp},
    provider::{
        Delta, ErrorKind, Fold, ProviderError, Request,
        dialect::{Decoder, Dialect, Frame, Framing},
        http::{Framer, Limits},
    },
};

use crate::{assert_encodes, lenient, split::pieces};

/// Bytes of output for each byte of input, at most: a control character of one byte is escaped in six, and what
/// a service says once may be kept with the message and in a block.
const GROWTH: usize = 64;
/// Bytes of output for an empty input, at most.
const BASE: usize = 16 * 1024;

/// That `body` is decoded alike however it is split, that what comes of it folds, can be stored, and goes back to
/// every service, and that none of it takes more than a multiple of the body's size.
///
/// # Panics
///
/// If any of that does not hold.
pub fn answer(dialect: &dyn Dialect, body: &[u8]) {
    let request = Request::default();
    let decoded = decode(dialect, &request, [body]);
    assert_eq!(decoded, decode(dialect, &request, pieces(body)), "in pieces it is decoded otherwise");
    assert_eq!(decoded, decode(dialect, &request, body.chunks(1)), "byte by byte it is decoded otherwise");
    check(&decoded, body.len());

    let Ok(text) = std::str::from_utf8(body) else { return };
    // Answers that are not streamed, and those to refused requests.
    let mut whole = Decoded::default();
    let mut decoder = dialect.decoder(&request);
    whole.result = decoder.decode(Frame { event: "", data: text }, &mut whole.deltas);
    whole.end(decoder);
    check(&whole, body.len());
    for status in [200, 400, 429, 500] {
        let error = dialect.error(status, text);
        assert!(
            !error.message.is_empty() && error.message.len() < 2048,
            "an error's words: {}",
            error.message
        );
    }
}

/// That `body` is cut into the same events however it is split, none of it twice, and within the limits.
///
/// # Panics
///
/// If any of that does not hold.
pub fn framing(body: &[u8]) {
    let narrow = Limits { line: 24, event: 32, body: 256, ..Limits::default() };
    for framing in [Framing::Sse, Framing::NdJson] {
        for limits in [Limits::default(), narrow] {
            let framed = frames(framing, &limits, [body]);
            assert_eq!(framed, frames(framing, &limits, pieces(body)), "in pieces it is framed otherwise");
            assert_eq!(
                framed,
                frames(framing, &limits, body.chunks(1)),
                "byte by byte it is framed otherwise"
            );
            let sizes = || framed.0.iter().map(|(event, data)| event.len() + data.len());
            assert!(sizes().sum::<usize>() <= body.len().min(limits.body), "something is given out twice");
            assert!(sizes().all(|size| size <= limits.event), "an event is beyond its limit");
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

/// Gives `take` the frames of a body in pieces, until it wants no more.
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

/// What came of an answer.
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
    /// The body has ended.
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
            // So many blocks or levels are a hostile service's; that it is refused is the point.
            Err(error) if error.message.starts_with("the answer h") => return,
            Err(error) => panic!("the fold refuses {delta:?}: {error}"),
        }
    }
    let stored: Fold = serde_json::from_str(&json(&fold)).expect("a fold can be read again");
    assert_eq!(stored, fold, "a fold is stored otherwise");

    let now = Timestamp(0);
    check_message(&fold.clone().cut(now), limit);
    match &decoded.result {
        Ok(()) => {
            let folded = fold.finish(now).expect("an answer that ended well says why it ended");
            check_message(&folded.message, limit);
        }
        Err(error) => {
            assert!(error.kind != ErrorKind::Transport && !error.message.is_empty());
            if let Some(message) = fold.salvage(now) {
                check_message(&message, limit);
            }
        }
    }
}

/// That the message can be stored, and goes back to every service.
fn check_message(message: &Message, limit: usize) {
    let text = json(message);
    assert!(text.len() <= limit, "a message of {} bytes, not {limit}", text.len());
    let stored: Message = serde_json::from_str(&text).expect("a message can be read again");
    assert_eq!(&stored, message, "a message is stored otherwise");
    assert_eq!(json(&stored), text, "a message is stored in two ways");

    let history: History = [Message::user("a"), stored].into_iter().collect();
    let history = history.repair();
    history.check_sendable().expect("a repaired history can be sent");
    assert_encodes(Request::new(history).with_options(lenient()), GROWTH * limit);
}

fn json(value: impl serde::Serialize) -> String {
    serde_json::to_string(&value).expect("everything can be written")
}
