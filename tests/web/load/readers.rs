//! The readers of a load. They run in a process of their own, so that the memory of the server is measured without them.

use std::{collections::BTreeMap, env, net::SocketAddr, process::Stdio, time::Duration};

use omni_agent::{
    session::{SessionEvent, SessionSnapshot},
    subscription::Update,
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::{TcpSocket, TcpStream},
    process::{Child, ChildStdout, Command},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    streams::without_history,
    support::{Frame, read},
};

const ORDER: &str = "OMNI_LOAD_READERS";

/// The line after which all readers are connected.
const CONNECTED: &str = "connected";

/// The text before the counts of the readers in the output.
const SEEN: &str = "seen ";

/// What the process of the readers has to do.
#[derive(Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) address: SocketAddr,
    /// The ids of the conversations.
    pub(super) ids: Vec<String>,
    pub(super) streams: usize,
    /// How long a reader stalls or stays away.
    pub(super) absence: Duration,
}

/// The process of the readers. It is killed when this is dropped.
pub(super) struct Readers(Child, Lines<BufReader<ChildStdout>>);

impl Readers {
    /// Starts the process, and waits until each reader has got its first frame.
    pub(super) async fn spawn(order: &Order) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "load::readers::readers_read_until_the_load_ends", "--nocapture"]);
        command.env(ORDER, serde_json::to_string(order).unwrap());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        while output.next_line().await.unwrap().expect("the readers connect") != CONNECTED {}
        Self(child, output)
    }

    /// Lets the readers reach these snapshots at the end of the load. Returns what the readers with each habit have
    /// seen.
    pub(super) async fn end(mut self, ends: &Ends) -> BTreeMap<String, Seen> {
        let mut input = self.0.stdin.take().unwrap();
        input.write_all(&serde_json::to_vec(ends).unwrap()).await.unwrap();
        drop(input);
        let mut seen = None;
        while let Some(line) = self.1.next_line().await.unwrap() {
            seen = seen.or(line.strip_prefix(SEEN).map(|seen| serde_json::from_str(seen).unwrap()));
        }
        assert!(self.0.wait().await.unwrap().success(), "a reader has failed");
        seen.unwrap()
    }
}

/// The readers of a load. In a normal run of the tests, this does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_read_until_the_load_ends() {
    let Ok(order) = env::var(ORDER) else { return };
    let order: Order = serde_json::from_str(&order).unwrap();
    let (end, ends) = watch::channel(None);
    let (connected, mut connections) = mpsc::channel(order.streams);
    let mut readers = JoinSet::new();
    let habits = [Habit::Reads, Habit::Stalls, Habit::Reconnects, Habit::Leaves];
    for index in 0..order.streams {
        let habit = habits[index % habits.len()];
        // The first interruptions come one after another, so that the load is even.
        let first = order.absence * u32::try_from(index).unwrap() / u32::try_from(order.streams).unwrap();
        let reader = Reader::new(index, &order.ids);
        let reader = reader.run(order.address, habit, first, order.absence, ends.clone(), connected.clone());
        readers.spawn(async move { (format!("{habit:?}"), reader.await) });
    }
    for _ in 0..order.streams {
        connections.recv().await.unwrap();
    }
    println!("\n{CONNECTED}");
    let mut input = Vec::new();
    tokio::io::stdin().read_to_end(&mut input).await.unwrap();
    end.send_replace(Some(serde_json::from_slice(&input).unwrap()));
    let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
    while let Some(done) = readers.join_next().await {
        let (habit, one) = done.unwrap();
        let all = seen.entry(habit).or_default();
        all.events += one.events;
        all.resyncs += one.resyncs;
        all.connections += one.connections;
    }
    println!("\n{SEEN}{}", serde_json::to_string(&seen).unwrap());
}

/// How a reader behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Habit {
    /// Reads all the time.
    Reads,
    /// Stops reading now and then, and stays connected.
    Stalls,
    /// Disconnects now and then, and reconnects at once.
    Reconnects,
    /// Disconnects now and then, and reconnects after a while.
    Leaves,
}

/// The snapshots at the end of the load, by the ids of the conversations.
pub(super) type Ends = BTreeMap<String, SessionSnapshot>;

/// The numbers of events, resyncs and connections that a reader has counted.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) events: usize,
    pub(super) resyncs: usize,
    pub(super) connections: usize,
}

/// A connection with a stream. It uses HTTP/1.0, in which the body ends with the connection.
pub(super) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(super) async fn open(address: SocketAddr, path: &str, position: Option<&str>) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        // Use small buffers, so that the server soon notices that a reader has stalled.
        socket.set_recv_buffer_size(8 << 10).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        let position = position.map(|position| format!("last-event-id: {position}\r\n")).unwrap_or_default();
        let request = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\nx-user: ann\r\n{position}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut connection = Self { stream, buffer: Vec::new() };
        let head = connection.part(b"\r\n\r\n").await.expect("the server answers");
        assert!(head.starts_with("HTTP/1.0 200"), "{head}");
        connection
    }

    /// Returns the whole body.
    pub(super) async fn body(mut self) -> Vec<u8> {
        self.stream.read_to_end(&mut self.buffer).await.unwrap();
        self.buffer
    }

    /// Returns the bytes up to the next separator. Returns `None` at the end. Nothing is lost if the future is dropped.
    async fn part(&mut self, separator: &[u8]) -> Option<String> {
        let mut from = 0;
        loop {
            if let Some(at) =
                self.buffer[from..].windows(separator.len()).position(|bytes| bytes == separator)
            {
                let part = self.buffer.drain(..from + at).collect();
                self.buffer.drain(..separator.len());
                return Some(String::from_utf8(part).unwrap());
            }
            from = self.buffer.len().saturating_sub(separator.len() - 1);
            if self.stream.read_buf(&mut self.buffer).await.ok()? == 0 {
                return None;
            }
        }
    }

    async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = read(&self.part(b"\n\n").await?) {
                return Some(frame);
            }
        }
    }
}

/// A client with its copies of one or two conversations.
pub(super) struct Reader {
    path: String,
    watched: Vec<String>,
    pub(super) copies: Ends,
    position: Option<String>,
    pub(super) seen: Seen,
}

impl Reader {
    pub(super) fn new(index: usize, ids: &[String]) -> Self {
        let one = &ids[index % ids.len()];
        // Every other reader has the stream of a page.
        let (path, watched) = if (index / ids.len()).is_multiple_of(2) {
            (format!("/agent/conversations/{one}/events"), vec![one.clone()])
        } else {
            let other = &ids[(index + 1) % ids.len()];
            let path = format!("/agent/events?list=true&watch={one}&watch={other}");
            (path, vec![one.clone(), other.clone()])
        };
        Self { path, watched, copies: Ends::new(), position: None, seen: Seen::default() }
    }

    pub(super) fn take(&mut self, frame: Frame) {
        assert!(["conversation", "list"].contains(&frame.event.as_str()), "{frame:?}");
        if let Some(id) = frame.id {
            self.position = Some(id);
        }
        if frame.event != "conversation" {
            return;
        }
        let id = frame.data["conversation"].as_str().unwrap();
        let update: Update<SessionSnapshot, SessionEvent> =
            serde_json::from_value(frame.data["update"].clone()).unwrap();
        match update {
            Update::Event(event) => {
                let copy = self.copies.get_mut(id).expect("a conversation begins with a snapshot");
                assert_eq!(event.id.life, copy.last.life, "the conversation stays open");
                // After a reconnection, the stream may repeat events that the copy already includes.
                if event.id.number > copy.last.number {
                    assert_eq!(
                        event.id.number,
                        copy.last.number + 1,
                        "{id}: an event is missing without a resync"
                    );
                    copy.apply(&event).unwrap();
                }
                self.seen.events += 1;
            }
            Update::Resync(snapshot) => {
                let before = self.copies.insert(id.to_owned(), SessionSnapshot::clone(&snapshot));
                self.seen.resyncs += usize::from(before.is_some());
            }
            other => panic!("{other:?}"),
        }
    }

    /// Returns whether the copies are the snapshots at the end of the load.
    pub(super) fn is_at(&self, ends: Option<&Ends>) -> bool {
        let last = |copies: &Ends, id| copies.get(id).map(|copy| copy.last);
        ends.is_some_and(|ends| self.watched.iter().all(|id| last(&self.copies, id) == last(ends, id)))
    }

    /// Reads with this habit until the load ends. Then reads without interruption until the copies have reached the
    /// snapshots at the end.
    async fn run(
        mut self,
        address: SocketAddr,
        habit: Habit,
        first: Duration,
        absence: Duration,
        mut ends: watch::Receiver<Option<Ends>>,
        connected: mpsc::Sender<()>,
    ) -> Seen {
        let mut connected = Some(connected);
        let mut changes = ends.clone();
        let mut ended = std::pin::pin!(async move { changes.wait_for(Option::is_some).await.map(|_| ()) });
        let mut has_ended = false;
        let mut interruption = std::pin::pin!(sleep(first));
        loop {
            let mut connection = Connection::open(address, &self.path, self.position.as_deref()).await;
            self.seen.connections += 1;
            loop {
                if self.is_at(ends.borrow_and_update().as_ref()) {
                    let ends = ends.borrow().clone().unwrap();
                    for id in &self.watched {
                        let copy = without_history(self.copies[id].clone());
                        assert_eq!(copy, ends[id], "{habit:?}: the copy of {id} differs");
                    }
                    return self.seen;
                }
                let is_interrupted = tokio::select! {
                    biased;
                    _ = &mut ended, if !has_ended => {
                        has_ended = true;
                        false
                    }
                    () = &mut interruption, if habit != Habit::Reads && !has_ended => true,
                    frame = connection.frame() => {
                        self.take(frame.expect("the server does not end the stream"));
                        if let Some(connected) = connected.take() {
                            connected.send(()).await.unwrap();
                        }
                        false
                    }
                };
                if !is_interrupted {
                    continue;
                }
                if habit == Habit::Stalls {
                    has_ended = wait(absence, &mut ended).await;
                    interruption.set(sleep(absence / 2));
                    continue;
                }
                drop(connection);
                if habit == Habit::Leaves {
                    has_ended = wait(absence, &mut ended).await;
                }
                interruption.set(sleep(absence / 2));
                break;
            }
        }
    }
}

/// Waits until the load ends, but not longer than this. Returns whether it has ended.
async fn wait(limit: Duration, ended: &mut (impl Future + Unpin)) -> bool {
    timeout(limit, ended).await.is_ok()
}
