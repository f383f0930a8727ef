//! The people who use a process, and what happens to the process.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use omni_agent::{
    Error, ErrorKind,
    agent::{Agent, Durable, Status},
    budget::Budget,
    manager::{Activity, ApprovalId, Manager, Shutdown, Sweep, Titles},
    message::ToolUseId,
    run::{PendingUse, Prompt},
    session::Session,
    store::{ConversationId, Filter, MemoryStore, Owner, Page, Store, custom::Turns},
    testing::{ScriptedProvider, Step},
    tool::Decision,
    tree::{Node, NodeId},
};
use tokio::time::{sleep, timeout};

use super::{
    place::Place,
    team::{Life, options},
    world::{Dice, Said, TOKENS, World},
};

/// The time within which all levels show the same pauses.
const MIRRORED: Duration = Duration::from_secs(30);

/// The time within which an operation returns.
const PATIENCE: Duration = Duration::from_mins(10);

/// A pause, as somebody has seen it.
#[derive(Clone, Debug)]
struct Seen {
    way: Way,
    /// The tool use that was shown.
    name: String,
    is_question: bool,
}

/// Where a decision is made.
#[derive(Clone, Debug)]
enum Way {
    Session(ConversationId, ToolUseId),
    Store(ApprovalId),
}

pub(crate) struct People {
    life: Arc<Life>,
    world: Arc<World>,
    manager: Manager,
    store: MemoryStore,
    is_last: bool,
}

/// Returns the tool use that a pause shows.
fn shown(pause: &PendingUse) -> String {
    pause.tool_use.input["id"].as_str().unwrap_or_default().to_owned()
}

/// Returns the sub-agent's tool use that is asked about, as a text that each level has.
fn mirrored(pause: &PendingUse) -> String {
    format!(
        "{} {}",
        shown(pause),
        pause.is_question() || pause.sub_agent.as_ref().is_some_and(|own| own.is_question)
    )
}

impl People {
    pub(crate) fn new(life: &Arc<Life>, store: &MemoryStore, is_last: bool) -> Self {
        let (world, of_starter) = (Arc::clone(&life.world), Arc::clone(life));
        let place = Place { store: store.clone(), life: Arc::clone(life) };
        let shape = &world.shape;
        let mut builder = Manager::builder(place)
            .owner(Owner::new("worker"))
            .titles(Titles::Off)
            .sweep(Sweep::off())
            .idle_shutdown(shape.idle)
            .max_sub_agents(shape.max_sub_agents(life.number))
            .starter(move |turn| {
                if turn.id != of_starter.world.root() {
                    of_starter.world.breach(format!("the sweep opens {}", turn.id));
                }
                Some(options(&of_starter))
            });
        if let Some(most) = shape.max_turns {
            builder = builder.max_turns(most);
        }
        Self { manager: builder.build(), life: Arc::clone(life), world, store: store.clone(), is_last }
    }

    /// Lives until the process ends.
    pub(crate) async fn live(&self) {
        let mut dice = Dice::new(self.world.shape.seed, &format!("people {}", self.life.number));
        let mut seen = Vec::new();
        if self.life.number > 0 && self.world.shape.deletes && dice.percent(20) {
            self.delete().await;
        }
        for _ in 0..2 + dice.below(14) {
            sleep(dice.time(120)).await;
            if self.world.is_broken() || Box::pin(self.step(&mut dice, &mut seen)).await {
                return;
            }
        }
        if self.is_last {
            return self.finish(&mut dice).await;
        }
        match dice.below(3) {
            0 => self.life.die("any moment"),
            1 => self.leave(true, &mut dice).await,
            _ => self.leave(false, &mut dice).await,
        }
    }

    fn note(&self, words: impl AsRef<str>) {
        self.world.note(&self.life, words);
    }

    /// Waits for an operation. It is a breach if it takes too long, or fails for a reason that is not expected.
    async fn done<T>(
        &self,
        what: &str,
        expected: &[ErrorKind],
        operation: impl Future<Output = Result<T, Error>>,
    ) -> Option<T> {
        self.note(what);
        match timeout(PATIENCE, operation).await {
            Ok(Ok(value)) => {
                self.note(format!("{what}: ok"));
                Some(value)
            }
            Ok(Err(error)) => {
                self.note(format!("{what}: {error}"));
                if !expected.contains(&error.kind()) {
                    self.world.breach(format!("{what}: {error}"));
                }
                None
            }
            Err(_) => {
                self.world.breach(format!("{what} does not return"));
                None
            }
        }
    }

    /// Ends the process in an orderly way.
    async fn leave(&self, hands_over: bool, dice: &mut Dice) {
        let limits = Shutdown::within(Duration::from_mins(1)).with_grace(dice.time(200));
        self.life.is_leaving.store(true, std::sync::atomic::Ordering::SeqCst);
        if hands_over && self.world.shape.level > Durable::Turns {
            // The requests in flight are sent again, and their usage is not known.
            self.world.facts().crashed.insert(self.life.number);
            self.done("hand over", &[], self.manager.hand_over(limits)).await;
        } else {
            self.cut();
            self.done("shutdown", &[], self.manager.shutdown(limits)).await;
        }
    }

    /// Records that the present prompt may end early.
    fn cut(&self) {
        let mut facts = self.world.facts();
        if let Some((prompt, _)) = facts.prompts.last().cloned() {
            facts.cut.insert(prompt);
        }
    }

    /// Records that nothing of the present prompt may start any more.
    fn over(&self) {
        let mut facts = self.world.facts();
        if let Some((prompt, _)) = facts.prompts.last().cloned() {
            facts.over.insert(prompt);
        }
    }

    /// Returns the session of the root.
    async fn open(&self) -> Option<Session> {
        if self.world.facts().deleting {
            return None;
        }
        if let Some(session) = self.manager.get(&self.world.root()) {
            return Some(session);
        }
        let id = self.world.root();
        let options = options(&self.life);
        if self.world.shape.is_unnamed && self.store.summary(&id).await.is_err() {
            let session = self.done("create", &[], self.manager.create(options)).await?.session;
            self.world.facts().root = Some(session.id().clone());
            return Some(session);
        }
        let opened = self.manager.open_or_create(&id, options);
        Some(self.done("open", &[], opened).await?.session)
    }

    /// Does one thing. Returns whether the process has ended.
    async fn step(&self, dice: &mut Dice, seen: &mut Vec<Seen>) -> bool {
        match dice.below(30) {
            0..7 => self.prompt(dice).await,
            7..9 => self.recover().await,
            9..19 => Box::pin(self.decide(dice, seen)).await,
            19..21 => self.mirror().await,
            21 => self.stop(dice).await,
            22 => {
                self.cut();
                let id = self.world.root();
                if self.done("close", &[], self.manager.close(&id)).await.is_some() {
                    self.check_closed("closed");
                }
            }
            23 => self.label().await,
            24 => self.erase(dice).await,
            25 if self.world.shape.deletes => self.delete().await,
            _ => sleep(dice.time(1_000)).await,
        }
        false
    }

    async fn recover(&self) {
        let recovered = self.done("recover", &[], self.manager.recover()).await;
        for (id, error) in recovered.map(|recovered| recovered.failed).into_iter().flatten() {
            self.world.breach(format!("{id} can't be opened: {error}"));
        }
    }

    async fn prompt(&self, dice: &mut Dice) {
        let Some(session) = self.open().await else { return };
        let is_idle = matches!(session.status().await, Ok(Status::Idle));
        let number = self.world.facts().prompts.len();
        if !is_idle || number >= self.world.shape.prompts {
            return;
        }
        let name = format!("p{number}");
        self.world.facts().prompts.push((name.clone(), false));
        let prompt = Prompt::new(name.clone()).with_id(name.clone());
        let sent = self.done("prompt", &[ErrorKind::Ended], session.prompt(prompt)).await;
        if sent.is_some() {
            self.world.facts().prompts[number].1 = true;
        }
        // Many processes die soon after this.
        sleep(dice.time(100)).await;
    }

    /// Cancels or interrupts the run of the root.
    async fn stop(&self, dice: &mut Dice) {
        let Some(session) = self.open().await else { return };
        self.cut();
        let stopped = [ErrorKind::Ended, ErrorKind::Idle];
        let ended = if dice.percent(50) {
            self.done("cancel", &stopped, session.cancel()).await
        } else {
            self.done("interrupt", &stopped, session.interrupt()).await
        };
        if ended.is_some() {
            self.over();
        }
    }

    async fn label(&self) {
        if self.world.facts().deleting || self.store.summary(&self.world.root()).await.is_err() {
            return;
        }
        let tenant = {
            let mut facts = self.world.facts();
            let tenant = facts.new_tenant.unwrap_or(facts.tenant + 1);
            facts.new_tenant = Some(tenant);
            tenant
        };
        let id = self.world.root();
        let labelled = self.manager.set_labels(&id, World::labels(tenant));
        if self.done("label", &[ErrorKind::NotFound], labelled).await.is_some() {
            let mut facts = self.world.facts();
            (facts.tenant, facts.new_tenant) = (tenant, None);
        }
    }

    /// Erases a prompt and all below it.
    async fn erase(&self, dice: &mut Dice) {
        let Some(session) = self.open().await else { return };
        if !matches!(session.status().await, Ok(Status::Idle)) {
            return;
        }
        let Ok(tree) = session.tree().await else { return };
        let erasing = self.world.facts().erasing.clone();
        let is_prompt = |node: &&Node| node.message().text().starts_with('p');
        let prompts: Vec<_> = tree.nodes().filter(is_prompt).collect();
        let again = prompts.iter().find(|node| erasing.first() == Some(&node.message().text()));
        let node = match again.or_else(|| dice.pick(&prompts).filter(|_| erasing.is_empty())) {
            Some(node) => node.id(),
            None if erasing.is_empty() => return,
            // The message is gone, and sub-agents may be left.
            None => NodeId::new(u64::MAX).unwrap(),
        };
        if erasing.is_empty() {
            let mut below = BTreeSet::from([node]);
            let mut names = Vec::new();
            for own in tree.nodes() {
                if own.id() == node || own.parent().is_some_and(|parent| below.contains(&parent)) {
                    below.insert(own.id());
                    names.extend(Some(own.message().text()).filter(|text| text.starts_with('p')));
                }
            }
            self.world.facts().erasing = names;
        }
        self.note(format!("erases {:?}", self.world.facts().erasing));
        let erased = async {
            match session.erase(node).await {
                Err(error) if error.kind() == ErrorKind::UnknownNode && node.get() == u64::MAX => Ok(()),
                erased => erased,
            }
        };
        if self.done("erase", &[ErrorKind::Ended, ErrorKind::Busy], erased).await.is_some() {
            let mut facts = self.world.facts();
            let erased = std::mem::take(&mut facts.erasing);
            facts.erased.extend(erased);
        }
    }

    async fn delete(&self) {
        self.cut();
        self.world.facts().deleting = true;
        let id = self.world.root();
        if self.done("delete", &[], self.manager.delete(&id)).await.is_some() {
            self.check_closed("deleted");
            self.world.facts().deleted = true;
            self.over();
        }
    }

    /// Checks that no sub-agent is open after the root was closed.
    fn check_closed(&self, what: &str) {
        let children = self.children();
        if !children.is_empty() && self.manager.get(&self.world.root()).is_none() {
            self.world.breach(format!("the root is {what}, and its sub-agents are open: {children:?}"));
        }
    }

    /// Returns the pauses of a session.
    async fn pauses(&self, id: &ConversationId) -> Vec<PendingUse> {
        let Some(session) = self.manager.get(id) else { return Vec::new() };
        let snapshot = session.snapshot().await;
        snapshot.map_or(Vec::new(), |snapshot| {
            snapshot.agent.pauses.iter().map(|pause| PendingUse::clone(pause)).collect()
        })
    }

    /// Returns the open conversations of sub-agents, by the names of their calls.
    fn children(&self) -> Vec<(String, ConversationId)> {
        let open = self.manager.list_open().into_iter();
        let mut open: Vec<_> =
            open.filter_map(|open| Some((open.labels.get("omni.call")?.to_owned(), open.id))).collect();
        open.sort();
        open
    }

    /// Returns everything that waits for a decision, as people see it.
    async fn waiting(&self) -> Vec<Seen> {
        let mut waiting = Vec::new();
        let open = self.children().into_iter().map(|(_, id)| id);
        for id in std::iter::once(self.world.root()).chain(open.collect::<Vec<_>>()) {
            for pause in self.pauses(&id).await {
                let is_question =
                    pause.is_question() || pause.sub_agent.as_ref().is_some_and(|own| own.is_question);
                waiting.push(Seen {
                    name: shown(&pause),
                    is_question,
                    way: Way::Session(id.clone(), pause.tool_use.id),
                });
            }
        }
        let all = Filter::default();
        let stored = self.manager.pending_approvals(&all, Page::default());
        for approval in self.done("approvals", &[], stored).await.into_iter().flatten() {
            let (name, is_question) = (shown(&approval.pending), approval.pending.is_question());
            if !is_question {
                waiting.push(Seen { name, is_question, way: Way::Store(approval.id) });
            }
        }
        for seen in &waiting {
            let acked = self.world.facts().asked.get(&seen.name).and_then(|asked| asked.acked.clone());
            if let Some((said, life)) =
                acked.filter(|(_, life)| *life < self.life.number && !seen.is_question)
            {
                self.world.breach(format!("{seen:?} is asked again after {said:?} of life {life}"));
            }
        }
        waiting
    }

    async fn decide(&self, dice: &mut Dice, seen: &mut Vec<Seen>) {
        let waiting = self.waiting().await;
        seen.extend(waiting.iter().cloned());
        // A late click is about something that may not wait any more.
        let from = if dice.percent(20) { &*seen } else { &waiting };
        let Some(one) = dice.pick(from).cloned() else { return };
        let other = waiting.iter().find(|other| other.name == one.name && dice.percent(20)).cloned();
        let (first, second) = (self.say(one, dice), other.map(|other| self.say(other, dice)));
        let second = async {
            if let Some(second) = second {
                second.await;
            }
        };
        tokio::join!(first, second);
    }

    /// Decides about a pause.
    fn say<'a>(&'a self, seen: Seen, dice: &mut Dice) -> impl Future<Output = ()> + use<'a> {
        let (decision, said) = self.world.facts().decide(&seen.name, seen.is_question, dice);
        self.decided(seen, decision, said)
    }

    async fn decided(&self, seen: Seen, decision: Decision, said: Said) {
        let late = [ErrorKind::StaleDecision, ErrorKind::NotPaused, ErrorKind::Ended, ErrorKind::NotFound];
        let what = format!(
            "decide {} by {}",
            seen.name,
            match &seen.way {
                Way::Session(id, _) if *id == self.world.root() => "the root",
                Way::Session(..) => "the child",
                Way::Store(_) => "the list",
            }
        );
        self.note(format!("{what}: {decision:?}"));
        let done = match &seen.way {
            Way::Session(id, pause) => {
                let Some(session) = self.manager.get(id) else { return };
                self.done(&what, &late, session.resume(pause.clone(), decision)).await
            }
            Way::Store(id) => {
                self.done(&what, &late, self.manager.decide(id, decision, Some("ann"))).await.map(|_| ())
            }
        };
        if done.is_none() || seen.is_question {
            return;
        }
        let mut facts = self.world.facts();
        let asked = facts.asked.entry(seen.name.clone()).or_default();
        let before = asked.acked.replace((said.clone(), self.life.number));
        drop(facts);
        if let Some(before) = before {
            self.world.breach(format!("{} was decided twice: {before:?} and {said:?}", seen.name));
        }
    }

    /// Checks that the root shows the pauses of its sub-agents, and no others.
    async fn mirror(&self) {
        self.note("mirror");
        let mut below: Option<BTreeSet<String>> = None;
        let mut above: Option<BTreeSet<String>> = None;
        let begun = tokio::time::Instant::now();
        loop {
            let of_root: BTreeSet<_> = {
                let pauses = self.pauses(&self.world.root()).await;
                pauses.iter().filter(|pause| pause.sub_agent.is_some()).map(mirrored).collect()
            };
            let mut of_children = BTreeSet::new();
            for (_, id) in self.children() {
                let pauses = self.pauses(&id).await;
                of_children.extend(pauses.iter().filter(|pause| pause.sub_agent.is_none()).map(mirrored));
            }
            let is_open = self.manager.get(&self.world.root()).is_some();
            // Only pauses that persist count.
            let mut lacks: BTreeSet<_> = of_children.difference(&of_root).cloned().collect();
            if !is_open {
                lacks.clear();
            }
            let mut exceeds: BTreeSet<_> = of_root.difference(&of_children).cloned().collect();
            if let Some(before) = &below {
                lacks.retain(|pause| before.contains(pause));
            }
            if let Some(before) = &above {
                exceeds.retain(|pause| before.contains(pause));
            }
            if lacks.is_empty() && exceeds.is_empty() {
                return;
            }
            if begun.elapsed() > MIRRORED {
                self.world.breach(format!("the root lacks {lacks:?} and has {exceeds:?}"));
                return;
            }
            (below, above) = (Some(lacks), Some(exceeds));
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Continues until everything has ended.
    async fn finish(&self, dice: &mut Dice) {
        self.note("finishes");
        let mut is_done = false;
        for _ in 0..2_000 {
            if self.world.is_broken() {
                return;
            }
            if self.world.facts().deleting && !self.world.facts().deleted && dice.percent(20) {
                self.delete().await;
            }
            self.recover().await;
            let waiting = self.waiting().await;
            if let Some(seen) = dice.pick(&waiting).cloned() {
                self.say(seen, dice).await;
            }
            if dice.percent(20) {
                self.mirror().await;
            }
            let turns = self.store.turns(Turns::All, &Page::first(99).into()).await.unwrap();
            let is_idle = self.manager.list_open().iter().all(|open| open.activity == Activity::Idle);
            let is_deleted = {
                let facts = self.world.facts();
                facts.deleted || !facts.deleting
            };
            if turns.is_empty() && is_idle && is_deleted && waiting.is_empty() && self.children().is_empty() {
                is_done = true;
                break;
            }
            sleep(Duration::from_millis(if waiting.is_empty() { 500 } else { 10 })).await;
        }
        if !is_done {
            return self.world.breach("not everything ends");
        }
        self.finish_changes(dice).await;
        if !self.world.is_broken() {
            self.probe().await;
        }
        self.done("shutdown", &[], self.manager.shutdown(Duration::from_mins(1))).await;
    }

    /// Repeats the changes of the conversation whose acknowledgements are missing.
    async fn finish_changes(&self, dice: &mut Dice) {
        for _ in 0..20 {
            let (labels, erases) = {
                let facts = self.world.facts();
                (facts.new_tenant.is_some(), !facts.erasing.is_empty())
            };
            if self.world.facts().deleting || self.world.is_broken() || !labels && !erases {
                return;
            }
            if labels {
                self.label().await;
            }
            if erases {
                self.erase(dice).await;
            }
        }
        if !self.world.facts().deleting {
            self.world.breach("the changes can't be repeated");
        }
    }

    /// Checks the shared budget at rest, and that nothing is reserved.
    async fn probe(&self) {
        let Some(shared) = &self.life.shared else { return };
        let of_life = {
            let facts = self.world.facts();
            facts.requests.iter().filter(|request| request.life == self.life.number).count() as u64
        };
        let spent = shared.spent().requests;
        self.note(format!("the shared budget has {spent} requests: {} and {of_life}", self.life.known));
        let tokens = shared.spent().usage.total();
        let made = self.life.known_tokens + of_life * TOKENS;
        if tokens > made {
            self.world.breach(format!("the shared budget has {tokens} tokens, and {made} were used"));
        }
        if spent < self.life.known + of_life {
            self.world.breach(format!(
                "the shared budget has {spent} requests, not {} and {of_life}",
                self.life.known
            ));
        }
        // A request reserves its prompt and 1,024 tokens.
        let tokens = shared.spent().usage.total() + 1_024 + 500;
        let limit = Budget::requests(u32::try_from(spent + 1).unwrap()).with_tokens(tokens);
        shared.set_budget(limit);
        let model = ScriptedProvider::new([Step::text("Yes")]).model();
        let agent = Agent::builder().model(model).shared_budget(shared).start().await.unwrap();
        let asked = agent.ask("x").await;
        self.note(format!("probe: {asked:?}"));
        if asked.is_err() {
            self.world.breach("a request that is not made is still reserved");
        }
    }
}
