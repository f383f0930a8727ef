//! Reads the standard input and writes the standard output of this process on separate threads. Tokio's standard
//! streams would block the shutdown of the runtime until the other side reads or writes.

use std::{
    io::{self, Read, Write},
    thread,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{SinkExt, stream};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_util::{
    io::{CopyToBytes, SinkWriter, StreamReader},
    sync::PollSender,
};

use crate::run::{Error, ErrorKind};

/// The maximum size of a piece of input, in bytes.
const PIECE: usize = 64 * 1024;

/// The maximum time to wait, at the end, until the other side has read all output.
const SOON: Duration = Duration::from_secs(1);

/// Returns the error for a failure of the input of a connection.
pub(super) fn unreadable(error: io::Error) -> Error {
    let text = format!("the client's messages can't be read: {error}");
    Error::new(ErrorKind::Connection, text).with_source(error)
}

/// Returns the error for a failure of the output of a connection.
pub(super) fn unwritable(error: io::Error) -> Error {
    let text = format!("messages to the client can't be written: {error}");
    Error::new(ErrorKind::Connection, text).with_source(error)
}

/// Returns the standard input. A thread reads it piece by piece, and after each piece waits until the reader takes it.
/// The thread ends when the input or the process ends.
pub(super) fn input() -> io::Result<impl AsyncRead + Unpin> {
    let (pieces, read) = mpsc::channel::<io::Result<Bytes>>(1);
    thread::Builder::new().name("omni-stdin".to_owned()).stack_size(256 * 1024).spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut piece = vec![0; PIECE];
        loop {
            let taken = match stdin.read(&mut piece) {
                Ok(0) => return,
                Ok(length) => pieces.blocking_send(Ok(Bytes::copy_from_slice(&piece[..length]))),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                Err(error) => {
                    // Reading ends with this error. If the reader is gone, there is nobody to report the error to.
                    let _ = pieces.blocking_send(Err(error));
                    return;
                }
            };
            if taken.is_err() {
                return;
            }
        }
    })?;
    let pieces = stream::unfold(read, async |mut read| Some((read.recv().await?, read)));
    Ok(StreamReader::new(Box::pin(pieces)))
}

/// The end of the standard output.
pub(super) struct StdoutFlushWaiter(oneshot::Receiver<()>);

impl StdoutFlushWaiter {
    /// Waits until all output is written, but not longer than [`SOON`], because the other side may not read.
    pub(super) async fn wait(self) {
        // An error means that the thread has ended, so nothing is left to wait for.
        let _ = timeout(SOON, self.0).await;
    }
}

/// Returns the standard output. The thread ends when the writer is dropped and everything is written.
pub(super) fn output() -> io::Result<(impl AsyncWrite + Unpin, StdoutFlushWaiter)> {
    let (pieces, mut written) = mpsc::channel::<Bytes>(1);
    let (done, finished) = oneshot::channel();
    thread::Builder::new().name("omni-stdout".to_owned()).stack_size(256 * 1024).spawn(move || {
        let mut stdout = io::stdout().lock();
        while let Some(piece) = written.blocking_recv() {
            if stdout.write_all(&piece).and_then(|()| stdout.flush()).is_err() {
                break;
            }
        }
        // The send fails if nobody waits for the end of the output, which is fine.
        let _ = done.send(());
    })?;
    let broken = |_| io::Error::from(io::ErrorKind::BrokenPipe);
    Ok((
        SinkWriter::new(CopyToBytes::new(PollSender::new(pieces).sink_map_err(broken))),
        StdoutFlushWaiter(finished),
    ))
}
