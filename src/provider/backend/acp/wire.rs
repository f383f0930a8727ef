//! Connects the program's pipes with the implementation of the protocol. That implementation reads and stores messages
//! without limits. Therefore, this module limits the length of lines and the size of waiting messages. It also skips
//! lines that are not messages.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use agent_client_protocol::{Channel, RawJsonRpcMessage, TransportFrame};
use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender};
use futures_util::StreamExt;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::timeout,
};
use tokio_util::codec::AnyDelimiterCodecError;

use super::message::{Asked, IncomingLine, classify};
use crate::{
    process::lines::{lines, shown},
    sync::lock,
};

/// The maximum size of a message in bytes.
pub(super) const LONGEST: usize = 32 * 1024 * 1024;

/// The maximum total size in bytes of the messages that wait to be processed or to be answered.
const BUDGET: u32 = 8 * 1024 * 1024;

/// The maximum number of consecutive lines that are skipped because they are not messages.
const MOST_NOISE: u32 = 1000;

/// The reason why reading or writing has ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("it closed its standard output")]
    Closed,
    #[error("it wrote a message that is longer than the limit of {LONGEST} bytes")]
    TooLong,
    /// The program wrote too many consecutive lines that are not messages, or no message followed such a line in time.
    /// The text is the first such line.
    #[error("its output is not the Agent Client Protocol: {0}")]
    Noise(String),
    #[error("it wrote a damaged message: {0}")]
    Damaged(String),
    #[error("its output can't be read: {0}")]
    Failed(String),
    /// The program stopped reading its standard input.
    #[error("it stopped reading its input: {0}")]
    Deaf(String),
}

/// The share of the budget that a message uses until it is no longer held in memory.
pub(super) type Room = Arc<OwnedSemaphorePermit>;

/// The messages that are being transferred, in either direction.
pub(super) struct MessagesInFlight {
    budget: Arc<Semaphore>,
    inner: Mutex<Inner>,
    noise: watch::Sender<Option<String>>,
}

#[derive(Default)]
struct Inner {
    /// The budget shares of the messages that the implementation of the protocol has not processed yet, in the order of
    /// their arrival.
    arrived: VecDeque<OwnedSemaphorePermit>,
    /// The budget shares of the requests whose responses have not been written yet.
    owed: VecDeque<Room>,
    asked: Asked,
    /// The number of lines since the last message that were not messages.
    noise: u32,
}

impl MessagesInFlight {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            budget: Arc::new(Semaphore::new(BUDGET as usize)),
            inner: Mutex::default(),
            noise: watch::Sender::new(None),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Removes and returns the budget share of the message that the implementation of the protocol is processing at the
    /// moment.
    pub(super) fn arrived(&self) -> Option<Room> {
        self.lock().arrived.pop_front().map(Arc::new)
    }

    /// Holds the budget share of a request until the request is answered.
    pub(super) fn owe(&self, room: Option<Room>) {
        self.lock().owed.extend(room);
    }

    /// Stops waiting for room in the budget. Messages that arrive later are skipped.
    pub(super) fn close(&self) {
        self.budget.close();
    }

    /// Waits until a line was not a message and no message has followed it within `grace`. Returns the first such line.
    pub(super) async fn lasting_noise(&self, grace: Duration) -> String {
        let mut noise = self.noise.subscribe();
        loop {
            // The channel can't close, because `self` owns its sender.
            let first = noise.wait_for(Option::is_some).await.ok().and_then(|first| first.clone());
            let followed = timeout(grace, noise.wait_for(Option::is_none)).await.is_ok();
            if let Some(first) = first.filter(|_| !followed) {
                return first;
            }
        }
    }

    /// Skips a line that is not a message.
    fn pass_over(&self, line: &[u8]) -> Result<(), Broken> {
        let first = shown(line, 200);
        tracing::warn!(line = %first, "an agent's program wrote a line that is not a message");
        let mut inner = self.lock();
        inner.noise += 1;
        self.noise.send_if_modified(|noise| {
            let is_first = noise.is_none();
            noise.get_or_insert(first);
            is_first
        });
        if inner.noise < MOST_NOISE {
            return Ok(());
        }
        Err(Broken::Noise(self.noise.borrow().clone().unwrap_or_default()))
    }

    /// Interprets a line.
    fn classify(&self, line: &[u8]) -> IncomingLine {
        let mut inner = self.lock();
        let heard = classify(line, &mut inner.asked);
        if matches!(heard, IncomingLine::Messages(_)) {
            inner.noise = 0;
            self.noise.send_if_modified(|noise| noise.take().is_some());
        }
        heard
    }
}

/// Reads messages until reading fails or the output ends.
pub(super) async fn read(
    stdout: impl AsyncRead + Unpin,
    messages: UnboundedSender<TransportFrame>,
    traffic: &MessagesInFlight,
) -> Broken {
    let mut lines = lines(stdout, LONGEST);
    loop {
        let line = match lines.next().await {
            Some(Ok(line)) => line,
            Some(Err(AnyDelimiterCodecError::MaxChunkLengthExceeded)) => return Broken::TooLong,
            Some(Err(error)) => return Broken::Failed(error.to_string()),
            None => return Broken::Closed,
        };
        if messages.is_closed() || line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let heard = match traffic.classify(&line) {
            IncomingLine::Messages(heard) => heard,
            IncomingLine::Damaged => return Broken::Damaged(shown(&line, 200)),
            // Some programs also write other text to their standard output, although the protocol forbids this. Skip
            // this text, up to a limit.
            IncomingLine::Noise => match traffic.pass_over(&line) {
                Ok(()) => continue,
                Err(broken) => return broken,
            },
        };
        let size = line.len() / heard.len().max(1);
        let size = u32::try_from(size).unwrap_or(BUDGET).clamp(64, BUDGET);
        drop(line);
        for message in heard {
            let Ok(room) = Arc::clone(&traffic.budget).acquire_many_owned(size).await else {
                break;
            };
            traffic.lock().arrived.push_back(room);
            // If nobody receives messages any more, the remaining output is still read, so that the program can finish
            // writing.
            let _ = messages.unbounded_send(TransportFrame::Single(message));
        }
    }
}

/// Writes messages until the channel closes.
pub(super) async fn write(
    mut stdin: impl AsyncWrite + Unpin,
    mut messages: UnboundedReceiver<TransportFrame>,
    traffic: &MessagesInFlight,
) -> std::io::Result<()> {
    while let Some(mut frame) = messages.next().await {
        let mut is_answer = false;
        match &mut frame {
            TransportFrame::Single(RawJsonRpcMessage::Request(request)) => {
                request.id = traffic.lock().asked.ask(request.id.clone());
            }
            TransportFrame::Single(RawJsonRpcMessage::Response(_)) => is_answer = true,
            _ => {}
        }
        let mut line = frame.to_json().map_err(std::io::Error::other)?;
        line.push('\n');
        stdin.write_all(line.as_bytes()).await?;
        stdin.flush().await?;
        if is_answer {
            traffic.lock().owed.pop_front();
        }
    }
    Ok(())
}

/// Connects this module with the implementation of the protocol. Returns the side of the implementation, and the two
/// parts of this module's side: the receiver of the messages to write, and the sender for messages that were read.
pub(super) fn channel() -> (Channel, UnboundedReceiver<TransportFrame>, UnboundedSender<TransportFrame>) {
    let (theirs, ours) = Channel::duplex();
    let (rx, tx) = ours.into_parts();
    (theirs, rx, tx)
}

#[cfg(test)]
mod tests {
    use futures_channel::mpsc::unbounded;
    use tokio::io::duplex;

    use super::*;

    fn message(size: usize) -> String {
        let text = "x".repeat(size);
        format!("{{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{{\"text\":\"{text}\"}}}}\n")
    }

    #[tokio::test(start_paused = true)]
    async fn unprocessed_messages_make_the_program_wait() {
        let (mut program, ours) = duplex(1024);
        let (messages, mut taken) = unbounded();
        let traffic = MessagesInFlight::new();
        let reading = Arc::clone(&traffic);
        tokio::spawn(async move { read(ours, messages, &reading).await });
        let mut written = 0;
        let message = message(1_000_000);
        while timeout(Duration::from_mins(1), program.write_all(message.as_bytes())).await.is_ok() {
            written += 1;
            assert!(written < 20, "the program never had to wait");
        }
        assert!(written >= 7, "{written}");
        // When a message has been processed, there is room for another message.
        assert!(taken.next().await.is_some());
        drop(traffic.arrived());
        assert!(timeout(Duration::from_mins(1), program.write_all(b"\n")).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn noise_is_skipped_and_reported_until_a_message_follows() {
        let (mut program, ours) = duplex(1024);
        let (messages, mut taken) = unbounded();
        let traffic = MessagesInFlight::new();
        let reading = Arc::clone(&traffic);
        tokio::spawn(async move { read(ours, messages, &reading).await });
        let hour = Duration::from_hours(1);
        program.write_all(b"hello\nthere\n[1]\n\xff\n").await.unwrap();
        assert_eq!(traffic.lasting_noise(hour).await, "hello");
        program.write_all(message(1).as_bytes()).await.unwrap();
        assert!(taken.next().await.is_some());
        assert!(timeout(hour * 9, traffic.lasting_noise(hour)).await.is_err());
    }
}
