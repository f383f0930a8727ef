//! A scripted HTTP/1.1 server on the loopback interface. It sends one reply per request, and the test can add faults to
//! each reply.

#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, reason = "part of tests")]

use std::{
    collections::VecDeque,
    fmt::Write,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
};

/// A request in the form in which the server received it.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    /// The request method and the request target.
    pub(crate) line: String,
    /// The headers. Their names are in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Bytes,
    /// The number of the request's connection, counted from 0.
    pub(crate) connection: usize,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// An event on the server's side. A test can wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A connection was accepted.
    Connected,
    /// A request was read.
    Received,
    /// The reply has reached a stall or a gate. All earlier parts of the reply have been sent.
    Stalled,
    /// The client closed the connection.
    Closed,
}

/// A gate in a reply. The test opens it.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<Semaphore>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Lets one reply pass the gate.
    pub(crate) fn open(&self) {
        self.0.add_permits(1);
    }
}

enum Step {
    Send(Bytes),
    Wait(Gate),
    Stall,
    Forever(Bytes),
    Close,
    Reset,
}

/// A reply. Its steps are added in the order in which they are executed.
pub(crate) struct Reply {
    head: Option<String>,
    chunked: bool,
    steps: Vec<Step>,
}

impl Reply {
    /// Returns a reply whose body is sent in chunks.
    pub(crate) fn new(status: u16) -> Self {
        Self { head: Some(format!("HTTP/1.1 {status} Scripted\r\n")), chunked: true, steps: Vec::new() }
    }

    /// A stream of server-sent events.
    pub(crate) fn sse() -> Self {
        Self::new(200).header("content-type", "text/event-stream")
    }

    /// A stream of JSON lines.
    pub(crate) fn ndjson() -> Self {
        Self::new(200).header("content-type", "application/x-ndjson")
    }

    /// A JSON body.
    pub(crate) fn json(status: u16, body: &str) -> Self {
        Self::new(status).header("content-type", "application/json").piece(body.to_owned())
    }

    /// Returns a reply without a head. All following pieces are sent unchanged.
    pub(crate) fn headless() -> Self {
        Self { head: None, chunked: false, steps: Vec::new() }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        let head = self.head.as_mut().expect("a reply with a head");
        write!(head, "{name}: {value}\r\n").unwrap();
        self
    }

    /// Sends the body without chunked framing. The body ends when the connection is closed.
    pub(crate) fn until_close(mut self) -> Self {
        assert!(self.steps.is_empty(), "call `until_close` before the first piece");
        self.chunked = false;
        self.header("connection", "close")
    }

    /// Adds a piece of the body.
    pub(crate) fn piece(mut self, piece: impl Into<Bytes>) -> Self {
        let piece = self.framed(piece.into());
        self.steps.push(Step::Send(piece));
        self
    }

    /// Adds the body in pieces of `size` bytes.
    pub(crate) fn pieces(self, body: &[u8], size: usize) -> Self {
        body.chunks(size).fold(self, |reply, piece| reply.piece(Bytes::copy_from_slice(piece)))
    }

    /// Adds bytes to the reply without framing them as a chunk.
    pub(crate) fn raw(mut self, bytes: impl Into<Bytes>) -> Self {
        self.steps.push(Step::Send(bytes.into()));
        self
    }

    /// Waits until the test opens the gate.
    pub(crate) fn gate(mut self, gate: &Gate) -> Self {
        self.steps.push(Step::Wait(gate.clone()));
        self
    }

    /// Sends nothing more until the client disconnects.
    pub(crate) fn stall(mut self) -> Self {
        self.steps.push(Step::Stall);
        self
    }

    /// Sends this piece repeatedly until the client disconnects.
    pub(crate) fn forever(mut self, piece: impl Into<Bytes>) -> Self {
        let piece = self.framed(piece.into());
        self.steps.push(Step::Forever(piece));
        self
    }

    /// Closes the connection, even if the announced body is incomplete.
    pub(crate) fn close(mut self) -> Self {
        self.steps.push(Step::Close);
        self
    }

    /// Resets the connection.
    pub(crate) fn reset(mut self) -> Self {
        self.steps.push(Step::Reset);
        self
    }

    fn framed(&self, piece: Bytes) -> Bytes {
        if !self.chunked || piece.is_empty() {
            return piece;
        }
        let mut framed = BytesMut::from(format!("{:x}\r\n", piece.len()).as_bytes());
        framed.extend_from_slice(&piece);
        framed.extend_from_slice(b"\r\n");
        framed.freeze()
    }
}

/// A running server. Its tasks end when the runtime ends.
pub(crate) struct Server {
    address: SocketAddr,
    state: Arc<State>,
    events: mpsc::UnboundedReceiver<Event>,
}

/// Returns the reply to a request. `None` closes the connection.
type Answering = Box<dyn FnMut(&Received) -> Option<Reply> + Send>;

struct State {
    answering: Mutex<Answering>,
    received: Mutex<Vec<Received>>,
    sent: AtomicUsize,
    events: mpsc::UnboundedSender<Event>,
}

impl Server {
    /// Starts a server that answers requests with these replies, in order. When no reply is left, the next request
    /// closes its connection.
    pub(crate) async fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        let mut replies: VecDeque<Reply> = replies.into_iter().collect();
        Self::answering(move |_| replies.pop_front()).await
    }

    /// Starts a server that answers each request with the result of `answering`. If the result is `None`, the
    /// connection is closed.
    pub(crate) async fn answering(
        answering: impl FnMut(&Received) -> Option<Reply> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // The channel is unbounded, because tests do not read all events. There are only a few events.
        let (sender, events) = mpsc::unbounded_channel();
        let state = Arc::new(State {
            answering: Mutex::new(Box::new(answering)),
            received: Mutex::default(),
            sent: AtomicUsize::new(0),
            events: sender,
        });
        tokio::spawn(accept(listener, Arc::clone(&state)));
        Self { address, state, events }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Waits for this event. All earlier events are skipped.
    pub(crate) async fn wait_for(&mut self, event: Event) {
        while self.events.recv().await.expect("the server is running") != event {}
    }

    /// Returns all requests received so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.state.received.lock().unwrap().clone()
    }

    /// Returns the number of bytes that the server has sent so far.
    pub(crate) fn sent(&self) -> usize {
        self.state.sent.load(Ordering::SeqCst)
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    for connection in 0.. {
        let Ok((stream, _)) = listener.accept().await else {
            return;
        };
        stream.set_nodelay(true).unwrap();
        _ = state.events.send(Event::Connected);
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            _ = serve(stream, &state, connection).await;
            _ = state.events.send(Event::Closed);
        });
    }
}

/// Serves one connection. An error means that the client has disconnected.
async fn serve(mut stream: TcpStream, state: &State, connection: usize) -> std::io::Result<()> {
    let mut buffer = BytesMut::new();
    while let Some(request) = read_request(&mut stream, &mut buffer, connection).await? {
        let reply = (state.answering.lock().unwrap())(&request);
        state.received.lock().unwrap().push(request);
        _ = state.events.send(Event::Received);
        let Some(reply) = reply else {
            return Ok(());
        };
        if !play(&mut stream, reply, state).await? {
            return Ok(());
        }
    }
    Ok(())
}

/// Sends a reply. Returns whether the connection can be used for a further request.
async fn play(stream: &mut TcpStream, reply: Reply, state: &State) -> std::io::Result<bool> {
    let Reply { head, chunked, steps } = reply;
    let has_head = head.is_some();
    if let Some(mut head) = head {
        if chunked {
            head.push_str("transfer-encoding: chunked\r\n");
        }
        head.push_str("\r\n");
        send(stream, head.as_bytes(), state).await?;
    }
    for step in steps {
        match step {
            Step::Send(bytes) => send(stream, &bytes, state).await?,
            Step::Wait(gate) => {
                _ = state.events.send(Event::Stalled);
                gate.0.acquire().await.expect("gates are never closed").forget();
            }
            Step::Stall => {
                _ = state.events.send(Event::Stalled);
                // The client sends nothing more, so this loop ends only when the client disconnects.
                while stream.read(&mut [0; 1024]).await? > 0 {}
                return Ok(false);
            }
            Step::Forever(piece) => loop {
                send(stream, &piece, state).await?;
            },
            Step::Close => return Ok(false),
            Step::Reset => {
                stream.set_zero_linger()?;
                return Ok(false);
            }
        }
    }
    if chunked {
        send(stream, b"0\r\n\r\n", state).await?;
    }
    Ok(has_head && chunked)
}

async fn send(stream: &mut TcpStream, mut bytes: &[u8], state: &State) -> std::io::Result<()> {
    while bytes.has_remaining() {
        let written = stream.write_buf(&mut bytes).await?;
        state.sent.fetch_add(written, Ordering::SeqCst);
    }
    Ok(())
}

async fn read_request(
    stream: &mut TcpStream,
    buffer: &mut BytesMut,
    connection: usize,
) -> std::io::Result<Option<Received>> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&buffer.split_to(head_end)).into_owned();
    buffer.advance(4);
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap_or_default().trim_end_matches(" HTTP/1.1").to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(0, |(_, value)| value.parse().unwrap());
    while buffer.len() < length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    let body = buffer.split_to(length).freeze();
    Ok(Some(Received { line, headers, body, connection }))
}
