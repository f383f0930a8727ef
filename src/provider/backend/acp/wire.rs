//! Between the program's pipes and the protocol's implementation, which reads and keeps without bound: here lines have a
//! longest length, what is not the protocol stays out, and only so much waits at once.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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

use super::{
    lines::{Line, Lines, shown},
    message::{Asked, Heard, hear},
};

/// The longest message, in bytes.
pub(super) const LONGEST: usize = 32 * 1024 * 1024;

/// How many bytes of messages may wait to be read by the agent, or to be answered.
const BUDGET: u32 = 8 * 1024 * 1024;

/// How many lines that are no messages are passed over in a row.
const MOST_NOISE: u32 = 1000;

/// Why nothing more is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The program closed its standard output.
    Closed,
    TooLong,
    /// Nothing but lines that are no messages; the first of them.
    Noise(String),
    /// A message that is damaged.
    Damaged(String),
    Failed(String),
    /// The program closed its standard input.
    Deaf(String),
}

/// Room for what has been read and is still held by somebody.
pub(super) type Room = Arc<OwnedSemaphorePermit>;

/// What is on its way.
pub(super) struct Traffic {
    budget: Arc<Semaphore>,
    inner: Mutex<Inner>,
    noise: watch::Sender<Option<String>>,
}

#[derive(Default)]
struct Inner {
    /// Of the messages that the implementation has not come to, in order.
    arrived: VecDeque<OwnedSemaphorePermit>,
    /// Of the requests whose answers have not been written.
    owed: VecDeque<Room>,
    asked: Asked,
    /// Lines that were no messages, since the last that was.
    noise: u32,
}

impl Traffic {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            budget: Arc::new(Semaphore::new(BUDGET as usize)),
            inner: Mutex::default(),
            noise: watch::Sender::new(None),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The room of the message that the implementation has come to.
    pub(super) fn arrived(&self) -> Option<Room> {
        self.lock().arrived.pop_front().map(Arc::new)
    }

    /// Keeps the room of a request until it is answered.
    pub(super) fn owe(&self, room: Option<Room>) {
        self.lock().owed.extend(room);
    }

    /// Nothing waits any more; what still comes is passed over.
    pub(super) fn close(&self) {
        self.budget.close();
    }

    /// The first line that was no message, once no message has followed for so long.
    pub(super) async fn lasting_noise(&self, grace: Duration) -> String {
        let mut noise = self.noise.subscribe();
        loop {
            // The sender is here.
            let first = noise.wait_for(Option::is_some).await.ok().and_then(|first| first.clone());
            let followed = timeout(grace, noise.wait_for(Option::is_none)).await.is_ok();
            if let Some(first) = first.filter(|_| !followed) {
                return first;
            }
        }
    }

    /// Takes a line that is no message.
    fn pass_over(&self, line: &[u8]) -> Result<(), Broken> {
        let first = shown(line, 200);
        tracing::warn!(line = %first, "an agent's program wrote what is no message");
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

    /// What a line says.
    fn hear(&self, line: &[u8]) -> Heard {
        let mut inner = self.lock();
        let heard = hear(line, &mut inner.asked);
        if matches!(heard, Heard::Messages(_)) {
            inner.noise = 0;
            self.noise.send_if_modified(|noise| noise.take().is_some());
        }
        heard
    }
}

/// Reads messages until that is over.
pub(super) async fn read(
    stdout: impl AsyncRead + Unpin,
    messages: UnboundedSender<TransportFrame>,
    traffic: &Traffic,
) -> Broken {
    let mut lines = Lines::new(stdout, LONGEST);
    loop {
        let line = match lines.next().await {
            Ok(Some(Line::Whole(line))) => line,
            Ok(Some(Line::TooLong(_))) => return Broken::TooLong,
            Ok(None) => return Broken::Closed,
            Err(error) => return Broken::Failed(error.to_string()),
        };
        if messages.is_closed() || line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let heard = match traffic.hear(&line) {
            Heard::Messages(heard) => heard,
            Heard::Damaged => return Broken::Damaged(shown(&line, 200)),
            // Programs talk on their standard output though they must not.
            Heard::Noise => match traffic.pass_over(&line) {
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
            // Where nobody takes it any more, the rest is read to the end for the program to see its pipe work.
            let _ = messages.unbounded_send(TransportFrame::Single(message));
        }
    }
}

/// Writes messages until that is over.
pub(super) async fn write(
    mut stdin: impl AsyncWrite + Unpin,
    mut messages: UnboundedReceiver<TransportFrame>,
    traffic: &Traffic,
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

/// The implementation's end, and ours: what is to be written comes out, what was read goes in.
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
    async fn messages_that_nobody_takes_make_the_program_wait() {
        let (mut program, ours) = duplex(1024);
        let (messages, mut taken) = unbounded();
        let traffic = Traffic::new();
        let reading = Arc::clone(&traffic);
        tokio::spawn(async move { read(ours, messages, &reading).await });
        let mut written = 0;
        let message = message(1_000_000);
        while timeout(Duration::from_mins(1), program.write_all(message.as_bytes())).await.is_ok() {
            written += 1;
            assert!(written < 20, "all is taken that comes");
        }
        assert!(written >= 7, "{written}");
        // Each that is read makes room for another.
        assert!(taken.next().await.is_some());
        drop(traffic.arrived());
        assert!(timeout(Duration::from_mins(1), program.write_all(b"\n")).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn noise_is_passed_over_and_told_while_nothing_follows() {
        let (mut program, ours) = duplex(1024);
        let (messages, mut taken) = unbounded();
        let traffic = Traffic::new();
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
