//! Many streams at once, with readers that stall, leave and return.
//!
//! The short variant runs with the other tests. The long run takes a minute, and also compares the resident memory at
//! its end with the resident memory after a sixth of that time. In between, the amount of data in memory is constant:
//! messages are erased, each session already keeps as many events as it ever does, the usage ledger is stored in files,
//! and the readers run in another process.
//!
//! ```sh
//! OMNI_LOAD_SECONDS=60 cargo test --release --features web --test web -- --ignored load
//! ```

mod readers;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use omni_agent::{
    access::{Principal, StartRequest},
    agent::Agent,
    async_trait,
    manager::{Manager, OpenOptions, Titles},
    provider::{
        DeltaStream, Model, Provider, ProviderError, Request, StopReason,
        custom::{BlockStart, Delta, Part, RequestContext},
    },
    session::Session,
    store::{ConversationId, FileSystemStore},
    testing::Step,
    web::{Web, WebLimits},
};
use readers::{Connection, Ends, Order, Reader, Readers, Seen};
use tokio::{
    net::TcpSocket,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    streams::without_history,
    support::{App, Users, labels, prompt},
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
    // A store in memory would grow, because a store keeps the usage ledger and the ids of the writes for good.
    let folder = std::env::temp_dir().join(format!("omni-web-load-{}", ConversationId::generate()));
    let store = FileSystemStore::open(&folder).await.unwrap();
    let manager = Manager::builder(store).titles(Titles::Off).build();
    let model = Model::new(Arc::new(Words { pace: load.pace, deltas: load.deltas }), "words");
    let options = move || OpenOptions::new(Agent::builder().model(model.clone()));
    let mut sessions = BTreeMap::new();
    for _ in 0..load.conversations {
        let options = options().labels(labels("ann"));
        let session = manager.create(options).await.unwrap().session;
        sessions.insert(session.id().to_string(), session);
    }
    let ids: Vec<String> = sessions.keys().cloned().collect();
    let agents = move |_: &Principal, _: &StartRequest| Ok::<_, omni_agent::Error>(options());
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

    let readers =
        Readers::spawn(&Order { address, ids: ids.clone(), streams: load.streams, absence: load.absence })
            .await;
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
    let seen = readers.end(&snapshots).await;
    server.abort();
    std::fs::remove_dir_all(&folder).unwrap();
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
