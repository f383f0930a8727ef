//! Runs the rival processes, kills and freezes some of them, and checks the stored conversations.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    env,
    io::{BufRead, BufReader},
    process::Child,
    sync::{LazyLock, mpsc},
    thread,
    time::Duration,
};

use omni_agent::{
    message::Role,
    store::{
        ConversationId,
        custom::{Change, Stored, StoredState, Write},
    },
    tree::{NodeId, Tree},
};
use rustix::process::{Pid, Signal, kill_process};

use crate::{place::Place, rival};

/// A time limit that is longer than any expected wait.
const NEVER: Duration = Duration::from_mins(2);

/// The maximum time for which a process stays frozen. A frozen process may hold the store's own lock and block all
/// other processes.
const FROZEN: Duration = Duration::from_secs(6);

/// The conversations that the processes compete for.
pub(crate) fn conversations() -> &'static [ConversationId] {
    static IDS: LazyLock<Vec<ConversationId>> =
        LazyLock::new(|| ["red", "green", "blue"].map(|name| ConversationId::new(name).unwrap()).into());
    &IDS
}

/// A line that a process has printed, divided into its parts.
struct Report {
    name: String,
    word: String,
    id: Option<ConversationId>,
    rest: String,
}

struct Rival {
    name: String,
    process: Child,
}

impl Rival {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, signal).unwrap();
    }
}

pub(crate) struct Arena {
    place: Place,
    rivals: Vec<Rival>,
    spawned: usize,
    reports: mpsc::Receiver<Report>,
    sender: mpsc::Sender<Report>,
    /// For each conversation, the texts whose turns a rival has reported as saved.
    safe: BTreeMap<ConversationId, Vec<String>>,
    lost: usize,
}

impl Arena {
    pub(crate) fn new(place: Place) -> Self {
        let (sender, reports) = mpsc::channel();
        Self { place, rivals: Vec::new(), spawned: 0, reports, sender, safe: BTreeMap::new(), lost: 0 }
    }

    /// Runs this many competing processes, and checks the result.
    pub(crate) async fn fight(mut self, rivals: usize) {
        let store = self.place.store().await;
        for id in conversations() {
            store.write(id, &Write::first(), &Change::create(StoredState::default())).await.unwrap();
        }
        for _ in 0..rivals {
            self.spawn();
        }
        let blows = env::var("OMNI_BLOWS").map_or(6, |blows| blows.parse().unwrap());
        for blow in 0..blows {
            // Kill or freeze a process while it has a conversation open.
            let (name, id) = self.until_somebody_opens();
            let victim = self.rivals.iter().position(|rival| rival.name == name).unwrap();
            if blow % 2 == 0 {
                self.kill(victim);
                self.until_others_have(&id, &name, NEVER);
            } else {
                self.rivals[victim].signal(Signal::STOP);
                self.until_others_have(&id, &name, FROZEN);
                self.rivals[victim].signal(Signal::CONT);
            }
        }
        self.end();
        for id in conversations() {
            let stored = store.load(id).await.unwrap_or_else(|error| panic!("{id}: {error}"));
            self.check(id, stored);
        }
        let safe: usize = self.safe.values().map(Vec::len).sum();
        assert!(safe > 0, "no process saved anything");
        println!(
            "{rivals} processes, {blows} kills and freezes: {safe} turns safe, {} conversations lost to others",
            self.lost
        );
    }

    fn spawn(&mut self) {
        let name = format!("rival{}", self.spawned);
        self.spawned += 1;
        let mut process = rival::spawn(&name, &self.place);
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (sender, reporter) = (self.sender.clone(), name.clone());
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut parts = line.splitn(3, ' ');
                let mut part = || parts.next().unwrap_or_default().to_owned();
                let (word, id, rest) = (part(), part(), part());
                let report = Report { name: reporter.clone(), word, id: ConversationId::new(id).ok(), rest };
                if sender.send(report).is_err() {
                    break;
                }
            }
        });
        self.rivals.push(Rival { name, process });
    }

    /// Waits for the next line, and processes it. Returns `None` if no line arrives in time.
    fn next(&mut self, patience: Duration) -> Option<Report> {
        let report = self.reports.recv_timeout(patience).ok()?;
        match (report.word.as_str(), &report.id) {
            ("safe", Some(id)) => self.safe.entry(id.clone()).or_default().push(report.rest.clone()),
            ("lost", _) => self.lost += 1,
            ("failed", _) => println!("{}: {}", report.name, report.rest),
            ("broken", _) => panic!("{}: {}", report.name, report.rest),
            _ => {}
        }
        Some(report)
    }

    fn until_somebody_opens(&mut self) -> (String, ConversationId) {
        // Skip the lines that were printed earlier.
        while self.next(Duration::ZERO).is_some() {}
        loop {
            let report = self.next(NEVER).expect("a process opens a conversation");
            if report.word == "open" && self.rivals.iter().any(|rival| rival.name == report.name) {
                return (report.name, report.id.unwrap());
            }
        }
    }

    /// Waits until another process has saved something in the conversation, at most for `patience`. Panics if this does
    /// not happen within `NEVER`.
    fn until_others_have(&mut self, id: &ConversationId, name: &str, patience: Duration) {
        let deadline = std::time::Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            match self.next(left) {
                Some(report)
                    if report.word == "safe" && report.id.as_ref() == Some(id) && report.name != name =>
                {
                    return;
                }
                Some(_) => {}
                None if patience == NEVER => {
                    panic!("no process takes over {id} from {name}, which was killed")
                }
                None => return,
            }
        }
    }

    /// Kills a process, and starts another process in its place.
    fn kill(&mut self, victim: usize) {
        let mut rival = self.rivals.swap_remove(victim);
        rival.process.kill().unwrap();
        rival.process.wait().unwrap();
        self.spawn();
    }

    /// Ends all processes, and processes their remaining lines.
    fn end(&mut self) {
        let mut rivals = std::mem::take(&mut self.rivals);
        for rival in &mut rivals {
            drop(rival.process.stdin.take());
        }
        for mut rival in rivals {
            let ended = rival.process.wait().unwrap();
            assert!(ended.success(), "{} failed: {ended}", rival.name);
        }
        let (tell, _) = mpsc::channel();
        drop(std::mem::replace(&mut self.sender, tell));
        while self.next(NEVER).is_some() {}
    }

    /// Asserts that there is a single history in which the turns of each visit are consecutive. This proves that no
    /// process wrote after another process had acquired the conversation.
    fn check(&self, id: &ConversationId, stored: Stored) {
        let nodes: Vec<_> = stored.nodes.clone();
        for (node, number) in nodes.iter().zip(1..) {
            let parent = node.parent().map_or(0, NodeId::get);
            assert_eq!((node.id().get(), parent), (number, number - 1), "{id} has two branches");
        }
        assert_eq!(
            stored.head.map_or(0, NodeId::get),
            nodes.len() as u64,
            "{id} does not end in its last node"
        );
        Tree::hydrate(stored.nodes, stored.head, stored.cursors).unwrap().history().check().unwrap();

        let mut said = Vec::new();
        for (place, node) in nodes.iter().enumerate() {
            let text = node.message().text();
            match node.message().role {
                Role::User => said.push(text),
                _ => {
                    assert_eq!(Some(text.strip_prefix("re: ").unwrap()), said.last().map(String::as_str));
                }
            }
            assert_eq!(
                place % 2 == 1,
                node.message().role == Role::Assistant,
                "{id}: a turn does not consist of two messages"
            );
        }
        let once: BTreeSet<&String> = said.iter().collect();
        assert_eq!(once.len(), said.len(), "{id}: a turn is stored twice: {said:?}");
        for safe in self.safe.get(id).into_iter().flatten() {
            assert!(once.contains(safe), "{id}: {safe} was reported as safe, but is missing");
        }
        let visit = |text: &String| text.split(' ').next().unwrap().to_owned();
        let mut over = HashSet::new();
        let mut now = None;
        for visit in said.iter().map(visit) {
            if now.as_ref() != Some(&visit) {
                over.extend(now.replace(visit.clone()));
                assert!(!over.contains(&visit), "{id}: {visit} wrote after another had taken over: {said:?}");
            }
        }
    }
}

impl Drop for Arena {
    /// Kills all processes, even if a check failed.
    fn drop(&mut self) {
        for rival in &mut self.rivals {
            let _ = rival.process.kill();
            let _ = rival.process.wait();
        }
    }
}
