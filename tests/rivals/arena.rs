//! Sets the processes upon each other, strikes at them, and looks at what is left.

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
    store::{ConversationId, Stored, StoredState, WriteId},
    tree::{NodeId, Tree},
};
use rustix::process::{Pid, Signal, kill_process};

use crate::{place::Place, rival};

/// Nothing that is waited for takes as long.
const NEVER: Duration = Duration::from_mins(2);

/// How long a process stays frozen at most: one that holds the store's own lock keeps everybody waiting.
const FROZEN: Duration = Duration::from_secs(6);

/// What they fight for.
pub(crate) fn conversations() -> &'static [ConversationId] {
    static IDS: LazyLock<Vec<ConversationId>> =
        LazyLock::new(|| ["red", "green", "blue"].map(|name| ConversationId::new(name).unwrap()).into());
    &IDS
}

/// A line that a process has told.
struct Told {
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
    told: mpsc::Receiver<Told>,
    tell: mpsc::Sender<Told>,
    /// What was told to be safe, by conversation.
    safe: BTreeMap<ConversationId, Vec<String>>,
    lost: usize,
}

impl Arena {
    pub(crate) fn new(place: Place) -> Self {
        let (tell, told) = mpsc::channel();
        Self { place, rivals: Vec::new(), spawned: 0, told, tell, safe: BTreeMap::new(), lost: 0 }
    }

    /// Lets so many processes fight, and checks what comes of it.
    pub(crate) async fn fight(mut self, rivals: usize) {
        let store = self.place.store().await;
        for id in conversations() {
            store.create(id, WriteId::generate(), &StoredState::default()).await.unwrap();
        }
        for _ in 0..rivals {
            self.spawn();
        }
        let blows = env::var("OMNI_BLOWS").map_or(6, |blows| blows.parse().unwrap());
        for blow in 0..blows {
            // In the middle of something.
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
        assert!(safe > 0, "nobody saved anything");
        println!("{rivals} processes, {blows} blows: {safe} turns safe, {} places lost", self.lost);
    }

    fn spawn(&mut self) {
        let name = format!("rival{}", self.spawned);
        self.spawned += 1;
        let mut process = rival::spawn(&name, &self.place);
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (tell, teller) = (self.tell.clone(), name.clone());
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut parts = line.splitn(3, ' ');
                let mut part = || parts.next().unwrap_or_default().to_owned();
                let (word, id, rest) = (part(), part(), part());
                let told = Told { name: teller.clone(), word, id: ConversationId::new(id).ok(), rest };
                if tell.send(told).is_err() {
                    break;
                }
            }
        });
        self.rivals.push(Rival { name, process });
    }

    /// Takes one line in.
    fn next(&mut self, patience: Duration) -> Option<Told> {
        let told = self.told.recv_timeout(patience).ok()?;
        match (told.word.as_str(), &told.id) {
            ("safe", Some(id)) => self.safe.entry(id.clone()).or_default().push(told.rest.clone()),
            ("lost", _) => self.lost += 1,
            ("failed", _) => println!("{}: {}", told.name, told.rest),
            ("broken", _) => panic!("{}: {}", told.name, told.rest),
            _ => {}
        }
        Some(told)
    }

    fn until_somebody_opens(&mut self) -> (String, ConversationId) {
        // What was told before is of the past.
        while self.next(Duration::ZERO).is_some() {}
        loop {
            let told = self.next(NEVER).expect("nobody opens anything any more");
            if told.word == "open" && self.rivals.iter().any(|rival| rival.name == told.name) {
                return (told.name, told.id.unwrap());
            }
        }
    }

    /// Waits until somebody else has saved something in the conversation.
    fn until_others_have(&mut self, id: &ConversationId, name: &str, patience: Duration) {
        let deadline = std::time::Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            match self.next(left) {
                Some(told) if told.word == "safe" && told.id.as_ref() == Some(id) && told.name != name => {
                    return;
                }
                Some(_) => {}
                None if patience == NEVER => panic!("nobody takes over {id} from {name}, which is dead"),
                None => return,
            }
        }
    }

    /// Kills one, and starts another in its place.
    fn kill(&mut self, victim: usize) {
        let mut rival = self.rivals.swap_remove(victim);
        rival.process.kill().unwrap();
        rival.process.wait().unwrap();
        self.spawn();
    }

    /// Ends the fight, and takes in all that was told.
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
        drop(std::mem::replace(&mut self.tell, tell));
        while self.next(NEVER).is_some() {}
    }

    /// There is one history, in which each visit stands together: nobody wrote after another had come.
    fn check(&self, id: &ConversationId, stored: Stored) {
        let nodes: Vec<_> = stored.nodes.clone();
        for (node, number) in nodes.iter().zip(1..) {
            let parent = node.parent().map_or(0, NodeId::get);
            assert_eq!((node.id().get(), parent), (number, number - 1), "{id} has two histories");
        }
        assert_eq!(stored.head.map_or(0, NodeId::get), nodes.len() as u64, "{id} ends elsewhere");
        Tree::hydrate(stored.nodes, stored.head, stored.cursors).unwrap().history().check().unwrap();

        let mut said = Vec::new();
        for (place, node) in nodes.iter().enumerate() {
            let text = node.message().text();
            match node.message().role {
                Role::User => said.push(text),
                Role::Assistant => {
                    assert_eq!(Some(text.strip_prefix("re: ").unwrap()), said.last().map(String::as_str));
                }
            }
            assert_eq!(place % 2 == 1, node.message().role == Role::Assistant, "{id}: a turn has two ends");
        }
        let once: BTreeSet<&String> = said.iter().collect();
        assert_eq!(once.len(), said.len(), "{id}: a turn is there twice: {said:?}");
        for safe in self.safe.get(id).into_iter().flatten() {
            assert!(once.contains(safe), "{id}: {safe} was safe, and is gone");
        }
        let visit = |text: &String| text.split(' ').next().unwrap().to_owned();
        let mut over = HashSet::new();
        let mut now = None;
        for visit in said.iter().map(visit) {
            if now.as_ref() != Some(&visit) {
                over.extend(now.replace(visit.clone()));
                assert!(!over.contains(&visit), "{id}: {visit} wrote after another had come: {said:?}");
            }
        }
    }
}

impl Drop for Arena {
    /// Nobody stays behind, also when a check failed.
    fn drop(&mut self) {
        for rival in &mut self.rivals {
            let _ = rival.process.kill();
            let _ = rival.process.wait();
        }
    }
}
