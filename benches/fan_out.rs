//! The CPU time of a delivery from one session to many subscribers. A delivery is one event received by one subscriber.
//!
//! The provider is in memory and answers with 1,000 deltas. It has three paces. With *one by one*, the provider waits
//! on one thread until every subscriber has received the previous delta, so that each delivery is a separate wakeup. *A
//! delta a millisecond* is the pace of a real model. The figure includes the cost of a timer of one millisecond, which
//! is also shown separately. With *a flood*, the provider never waits. The figures include all work of the process,
//! such as that of the session and the agent.
//!
//! Each subscriber checks the numbers of its events. Gaps in these numbers are allowed only at a resync. A subscriber
//! that reads nothing until the end receives a resync with the complete state. On one thread, no active reader receives
//! a resync, because the agent yields to readers. On several threads, readers may fall behind during a flood. The
//! number of resyncs is shown.
//!
//! At one delta per millisecond, the process sleeps between two deltas, so the caches are cold, and with several
//! threads a thread has to be woken. The timer alone takes 25 to 30 µs of CPU time per tick, which is 0.25 µs per
//! delivery with 100 subscribers.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[allow(dead_code)]
mod support;

use std::{future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use omni_agent::{
    agent::{Agent, Event},
    provider::{
        DeltaStream, Provider, ProviderError, Request, StopReason,
        custom::{BlockStart, Delta, Part, RequestContext},
    },
    session::{Mode, Session, SessionEvent, SessionSubscription},
    store::MemoryStore,
    subscription::Update,
};
use support::{cpu, cpu_each, head, median, model, on_this_thread, row, size};

const DELTAS: usize = 1000;

/// A provider that streams `DELTAS` deltas at the given pace.
#[derive(Clone, Copy)]
struct Words {
    pace: Pace,
}

/// How long the provider waits before each delta.
#[derive(Clone, Copy, PartialEq)]
enum Pace {
    OneByOne,
    Millisecond,
    Flood,
}

impl Pace {
    async fn wait(self) {
        match self {
            // During the first yield, the session forwards the agent's event. During the second yield, the subscribers
            // receive it.
            Self::OneByOne => {
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
            }
            Self::Millisecond => tokio::time::sleep(Duration::from_millis(1)).await,
            Self::Flood => {}
        }
    }
}

#[async_trait]
impl Provider for Words {
    fn name(&self) -> &'static str {
        "words"
    }

    async fn stream(&self, _: Request, _: RequestContext) -> Result<DeltaStream, ProviderError> {
        let pace = self.pace;
        let start = Delta::Start { index: 0, block: BlockStart::Text };
        let words = (0..DELTAS).map(|_| Delta::Extend { index: 0, part: Part::Text("word ".to_owned()) });
        let deltas = [start].into_iter().chain(words).chain([Delta::stop(StopReason::Stop)]);
        Ok(Box::pin(stream::iter(deltas).then(move |delta| async move {
            pace.wait().await;
            Ok(delta)
        })))
    }
}

/// The updates that a subscriber received during a run.
#[derive(Default)]
struct Seen {
    events: usize,
    deltas: usize,
    resyncs: usize,
}

/// Reads updates until the turn is in the tree.
async fn read(events: &mut SessionSubscription) -> Seen {
    let mut seen = Seen::default();
    let mut last = events.last_id().number;
    loop {
        match events.next().await {
            Some(Update::Event(numbered)) => {
                assert_eq!(numbered.id.number, last + 1, "an event was lost without a resync");
                last = numbered.id.number;
                seen.events += 1;
                match &*numbered.event {
                    SessionEvent::Agent(event) => match &**event {
                        Event::TextDelta { .. } => seen.deltas += 1,
                        Event::Error { failure, .. } => panic!("{failure}"),
                        _ => {}
                    },
                    SessionEvent::Tree(_) => return seen,
                    _ => {}
                }
            }
            Some(Update::Resync(snapshot)) => {
                last = events.last_id().number;
                seen.resyncs += 1;
                if snapshot.tree.len() == 2 {
                    return seen;
                }
            }
            _ => panic!("the session has ended"),
        }
    }
}

async fn session(words: Words) -> Session {
    let agent = Agent::builder().model(model(words));
    let session = Session::builder(Arc::new(MemoryStore::new())).agent(agent).create().await;
    session.expect("the session starts")
}

fn main() {
    let rounds = size(7, 1);
    for (pace, how) in [
        (Pace::OneByOne, "one by one"),
        (Pace::Millisecond, "a delta a millisecond"),
        (Pace::Flood, "a flood"),
    ] {
        let words = Words { pace };
        head(&format!("one session, {DELTAS} deltas, {how}: CPU of a delivery, median of {rounds}"));
        for subscribers in [100, 1000] {
            let here = (0..rounds).map(|_| on_this_thread(measure(subscribers, words)));
            let resyncs = tell(&format!("{subscribers} subscribers, one thread"), here);
            assert_eq!(resyncs, 0, "active readers must keep up");
            if pace != Pace::OneByOne {
                let there = (0..rounds).map(|_| on_all_threads(measure(subscribers, words)));
                tell(&format!("{subscribers} subscribers, all threads"), there);
            }
        }
        if pace == Pace::Millisecond {
            let timers = async {
                for _ in 0..DELTAS {
                    pace.wait().await;
                }
            };
            let timer = cpu_each(DELTAS, || on_this_thread(timers));
            row("a timer of a millisecond, alone", format!("{timer:.1} µs"), "—");
        }
    }
}

/// Prints the median time of the rounds, and returns the total number of resyncs.
fn tell(what: &str, rounds: impl Iterator<Item = (f64, usize)>) -> usize {
    let (times, resyncs): (Vec<f64>, Vec<usize>) = rounds.unzip();
    let resyncs = resyncs.iter().sum();
    row(what, format!("{:.3} µs, {resyncs} resyncs", median(times)), "≤ 0.3 µs");
    resyncs
}

fn on_all_threads<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("the runtime starts");
    runtime.block_on(async { tokio::spawn(work).await.expect("nothing panics") })
}

/// Returns the microseconds per delivery, and the number of resyncs.
async fn measure(subscribers: usize, words: Words) -> (f64, usize) {
    let session = session(words).await;
    let mut asleep = session.subscribe(Mode::Observer).await.expect("the session is open");
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..subscribers {
        let mut events = session.subscribe(Mode::Observer).await.expect("the session is open");
        readers.spawn(async move { read(&mut events).await });
    }
    let before = cpu();
    session.prompt("Go on.").await.expect("the session is idle");
    let (mut deliveries, mut resyncs) = (0, 0);
    while let Some(seen) = readers.join_next().await {
        let seen = seen.expect("no subscriber loses anything");
        assert!(seen.resyncs > 0 || seen.deltas == DELTAS);
        deliveries += seen.events;
        resyncs += seen.resyncs;
    }
    let used = cpu().checked_sub(before).unwrap();
    assert_eq!(read(&mut asleep).await.resyncs, 1);
    (used.as_secs_f64() * 1e6 / deliveries as f64, resyncs)
}
