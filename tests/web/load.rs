//! Many streams at once, with readers that stall, leave and return.
//!
//! The short variant runs with the other tests. The long run takes a minute, and also compares the resident memory at
//! its end with the resident memory after a sixth of that time. In between, the amount of data is constant: messages are
//! erased, and each session already keeps as many events as it ever does.
//!
//! ```sh
//! OMNI_LOAD_SECONDS=60 cargo test --release --features web --test web -- --ignored load
//! ```

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use omni_agent::{
    agent::Agent,
    async_trait,
    manager::{Manager, OpenOptions, Titles},
    provider::{
        BlockStart, Delta, DeltaStream, Model, Part, Provider, ProviderError, Request, RequestContext,
        StopReason,
    },
    session::{Session, SessionEvent, SessionSnapshot},
    store::{ConversationId, MemoryStore},
    subscription::Update,
    testing::Step,
    web::{Principal, Problem, StartRequest, Web, WebLimits},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    streams::without_history,
    support::{App, Frame, Users, labels, prompt, read},
};

/// The size of a load.
#[derive(Clone, Copy)]
struct Load {
    conversations: usize,
    streams: usize,
    /// The time during which prompts are sent.
    time: Duration,
    /// The pause before each delta.
    pace: Duration,
    /// The number of deltas of an answer.
    deltas: usize,
    /// How long a reader stalls or stays away.
    absence: Duration,
    /// Whether the memory is measured.
    is_measured: bool,
}

/// Answers with words, one after the other. Unlike a scripted provider, it does not record the requests, so its memory
/// does not grow with time.
struct Words {
    pace: Duration,
    deltas: usize,
}

#[async_trait]
impl Provider for Words {
    fn name(&self) -> &str {
        "words"
    }

    async fn stream(&self, _: Request, _: RequestContext) -> Result<DeltaStream, ProviderError> {
        let pace = self.pace;
        let words =
            (0..self.deltas).map(|_| Delta::Extend { index: 0, part: Part::Text("word ".to_owned()) });
        let start = Delta::Start { index: 0, block: BlockStart::Text };
        let deltas = [start].into_iter().chain(words).chain([Delta::stop(StopReason::Stop)]);
        Ok(Box::pin(stream::iter(deltas).then(move |delta| async move {
            sleep(pace).await;
            Ok(delta)
        })))
    }
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
type Ends = BTreeMap<String, SessionSnapshot>;

/// The numbers of events, resyncs and connections that a reader has counted.
#[derive(Debug, Default)]
struct Seen {
    events: usize,
    resyncs: usize,
    connections: usize,
}

/// A connection with a stream. It uses HTTP/1.0, in which the body ends with the connection.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr, path: &str, position: Option<&str>) -> Self {
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
    async fn body(mut self) -> Vec<u8> {
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
struct Reader {
    path: String,
    watched: Vec<String>,
    copies: Ends,
    position: Option<String>,
    seen: Seen,
}

impl Reader {
    fn new(index: usize, ids: &[String]) -> Self {
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

    fn take(&mut self, frame: Frame) {
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
    fn is_at(&self, ends: Option<&Ends>) -> bool {
        let last = |copies: &Ends, id| copies.get(id).map(|copy| copy.last);
        ends.is_some_and(|ends| self.watched.iter().all(|id| last(&self.copies, id) == last(ends, id)))
    }

    /// Reads with this habit until the load ends. Then reads without interruption until the copies have reached the
    /// snapshots at the end.
    async fn run(
        mut self,
        address: SocketAddr,
        habit: Habit,
        load: Load,
        mut ends: watch::Receiver<Option<Ends>>,
    ) -> Seen {
        let mut changes = ends.clone();
        let mut ended = std::pin::pin!(async move { changes.wait_for(Option::is_some).await.map(|_| ()) });
        let mut has_ended = false;
        loop {
            let mut connection = Connection::open(address, &self.path, self.position.as_deref()).await;
            self.seen.connections += 1;
            let mut interruption = std::pin::pin!(sleep(load.absence / 2));
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
                        false
                    }
                };
                if !is_interrupted {
                    continue;
                }
                match habit {
                    Habit::Reads | Habit::Reconnects => break,
                    Habit::Leaves => {
                        drop(connection);
                        has_ended = wait(load.absence, &mut ended).await;
                        break;
                    }
                    Habit::Stalls => has_ended = wait(load.absence, &mut ended).await,
                }
                interruption.set(sleep(load.absence / 2));
            }
        }
    }
}

/// Waits until the load ends, but not longer than this. Returns whether it has ended.
async fn wait(limit: Duration, ended: &mut (impl Future + Unpin)) -> bool {
    timeout(limit, ended).await.is_ok()
}

/// Sends prompts until the load ends. The conversation stays small, because its messages are erased.
async fn converse(session: Session, time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        if session.snapshot().await.unwrap().tree.len() >= 6 {
            session.flush(Duration::from_mins(1)).await.unwrap();
            let root = session.snapshot().await.unwrap().tree.nodes().next().unwrap().id();
            session.erase(root).await.unwrap();
        }
        session.prompt("Go on.").await.unwrap();
        session.wait_until_idle().await.unwrap();
    }
    session.flush(Duration::from_mins(1)).await.unwrap();
}

/// Returns the resident memory of this process in bytes. Returns `None` if the system does not report it.
fn resident() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(statm.split(' ').nth(1)?.parse::<usize>().ok()? * rustix::param::page_size())
}

/// The number of events that a session keeps for readers that resume.
const KEPT: u64 = 1024;

/// Waits until each session keeps as many events as it ever does.
async fn wait_for_kept_events(sessions: &[Session]) {
    for session in sessions {
        while session.snapshot().await.unwrap().last.number <= KEPT {
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Runs a load. Returns what the readers with each habit have seen, and the resident memory after each sixth of the
/// time.
async fn run(load: Load) -> (BTreeMap<String, Seen>, Vec<usize>) {
    let manager = Manager::builder(MemoryStore::new()).titles(Titles::Off).build();
    let model = Model::new(Arc::new(Words { pace: load.pace, deltas: load.deltas }), "words");
    let options = move || OpenOptions::new(Agent::builder().model(model.clone()));
    let mut sessions = BTreeMap::new();
    for _ in 0..load.conversations {
        let options = options().labels(labels("ann"));
        let session = manager.create(options).await.unwrap().session;
        sessions.insert(session.id().to_string(), session);
    }
    let ids: Vec<String> = sessions.keys().cloned().collect();
    let agents = move |_: &Principal, _: &StartRequest| Ok::<_, Problem>(options());
    // The server notices only later that a reader has left, so its former stream counts for a while.
    let limits = WebLimits::default().with_streams_per_principal(10 * load.streams);
    let web = Web::builder(manager, Users, agents).limits(limits).build();
    let router = axum::Router::new().nest("/agent", web.router());
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(16 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1024).unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(axum::serve(listener, router).into_future());

    let (end, ends) = watch::channel(None);
    let mut readers = JoinSet::new();
    let habits = [Habit::Reads, Habit::Stalls, Habit::Reconnects, Habit::Leaves];
    for index in 0..load.streams {
        let habit = habits[index % habits.len()];
        let reader = Reader::new(index, &ids).run(address, habit, load, ends.clone());
        readers.spawn(async move { (format!("{habit:?}"), reader.await) });
    }
    let mut prompts = JoinSet::new();
    let began = Instant::now();
    let sessions: Vec<Session> = sessions.into_values().collect();
    for session in &sessions {
        prompts.spawn(converse(session.clone(), load.time));
    }
    let mut memory = Vec::new();
    for sixth in 1..=6 {
        sleep((load.time * sixth / 6).saturating_sub(began.elapsed())).await;
        if load.is_measured {
            wait_for_kept_events(&sessions).await;
        }
        memory.extend(resident());
    }
    drop(sessions);
    while let Some(done) = prompts.join_next().await {
        done.unwrap();
    }
    let mut snapshots = Ends::new();
    for id in &ids {
        let body = Connection::open(address, &format!("/agent/conversations/{id}"), None).await.body().await;
        snapshots.insert(id.clone(), without_history(serde_json::from_slice(&body).unwrap()));
    }
    end.send_replace(Some(snapshots));
    let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
    while let Some(done) = readers.join_next().await {
        let (habit, one) = done.unwrap();
        let all = seen.entry(habit).or_default();
        all.events += one.events;
        all.resyncs += one.resyncs;
        all.connections += one.connections;
    }
    server.abort();
    (seen, memory)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_of_readers_that_stall_leave_and_return_loses_nothing() {
    let load = Load {
        conversations: 3,
        streams: 24,
        time: Duration::from_secs(2),
        pace: Duration::from_millis(5),
        deltas: 100,
        absence: Duration::from_millis(400),
        is_measured: false,
    };
    let (seen, _) = timeout(Duration::from_mins(5), run(load)).await.expect("the readers reach the end");
    assert_eq!(seen.len(), 4);
    assert!(seen.values().all(|seen| seen.events > 0), "{seen:?}");
    assert!(seen["Leaves"].connections > seen["Reads"].connections, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute, and measures memory: OMNI_LOAD_SECONDS=60 cargo test --release --features web --test web -- --ignored load"]
async fn load_of_200_streams_keeps_memory_and_loses_nothing() {
    let seconds = std::env::var("OMNI_LOAD_SECONDS").ok().map_or(60, |seconds| seconds.parse().unwrap());
    let load = Load {
        conversations: 25,
        streams: 200,
        time: Duration::from_secs(seconds),
        pace: Duration::from_millis(5),
        deltas: 100,
        absence: Duration::from_secs(seconds) / 15,
        is_measured: true,
    };
    let run = timeout(Duration::from_secs(5 * seconds) + Duration::from_mins(1), run(load));
    let (seen, memory) = run.await.expect("the readers reach the end");
    println!("{seen:#?}\nresident memory after each sixth of the time: {memory:?}");
    // A reader that stalls for four seconds falls behind further than the events that are kept.
    assert!(seconds < 30 || seen["Stalls"].resyncs > 0, "{seen:?}");
    if let [early, .., late] = memory[..] {
        assert!(late * 100 <= early * 105, "the memory grows from {early} to {late} bytes");
    }
}

/// More events than a conversation keeps for slow readers.
const MANY: usize = 2000;

#[tokio::test(start_paused = true)]
async fn reader_that_stalls_during_many_events_gets_a_resync_and_the_current_state() {
    let app = App::new([Step::new().then_text(vec!["word "; MANY]).stop()]);
    let id = app.create("ann").await;
    let path = format!("/agent/conversations/{id}");
    let mut stream = app.stream("ann", &format!("{path}/events"), None).await;
    let mut reader = Reader::new(0, std::slice::from_ref(&id));
    reader.take(stream.next().await.unwrap());
    // The body is not read during the run.
    app.post("ann", &format!("{path}/commands"), prompt("Hi")).await;
    app.idle(&id).await;
    let session = app.manager.get(&ConversationId::new(&id).unwrap()).unwrap();
    session.flush(Duration::from_secs(5)).await.unwrap();
    let text = app.get("ann", &path).await.text;
    let end = without_history(serde_json::from_str(&text).unwrap());
    let ends = Ends::from([(id.clone(), end)]);
    while !reader.is_at(Some(&ends)) {
        reader.take(stream.next().await.unwrap());
    }
    assert_eq!(without_history(reader.copies[&id].clone()), ends[&id]);
    assert_eq!(reader.seen.resyncs, 1);
    assert!(reader.seen.events < MANY, "{:?}", reader.seen);
}
