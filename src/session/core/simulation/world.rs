//! The simulated environment of the core: the agent, the session's task and the store. It generates the inputs of a
//! schedule and passes them to the core.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{
    Check,
    agent::Agent,
    commands::LeafFault,
    ensure,
    ledger::Ledger,
    model::{Kind, Model, same_messages},
    start,
    vault::{self, Vault},
};
use crate::{
    actor::random::Rng,
    agent::{Config, Event, Snapshot, Status},
    message::Usage,
    session::{
        SessionEvent, SessionSnapshot, StoreReport,
        core::{SessionCore, SessionCoreEnv, SessionEffect, StoredTurnFingerprint, WriteJob},
    },
    store::{StoredState, WriteId},
    subscription::{EventId, Numbered},
    tree::Tree,
};

pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) core: SessionCore,
    pub(super) agent: Agent,
    pub(super) model: Model,
    pub(super) ledger: Ledger,
    pub(super) vault: Vault,
    /// A snapshot from an earlier moment. All events since then have been applied to it.
    kept: SessionSnapshot,
    /// The agent's snapshot after the last event that the session has processed.
    pub(super) agent_now: Snapshot,
    /// Writes for which the session no longer waits, but which may still reach the store. The flag is true if this
    /// process made the write.
    pub(super) ghosts: Vec<(Arc<WriteJob>, bool)>,
    limit: usize,
    write_ids: u64,
    /// Three percentages: how often a write in flight gets its outcome, how often it fails, and how often another
    /// writer interferes.
    store_speed: usize,
    pub(super) trouble: usize,
    pub(super) foes: usize,
    /// The time left for the current flush.
    pub(super) left: Option<Duration>,
    /// How often, in percent, the agent finishes its run before the session replaces the agent's history.
    pub(super) haste: usize,
    /// How often, in percent, an input is a command.
    commands: usize,
    lives: u64,
    /// Whether the agent has ended.
    pub(super) ended: bool,
    pub(super) fault: Option<LeafFault>,
    trace: Option<Vec<String>>,
}

fn snapshot(agent: &Agent, tree: &Tree) -> Snapshot {
    Snapshot {
        last: agent.last(),
        state: agent.config.view(tree.history().clone()),
        status: Status::Idle,
        step: 0,
        compacting: None,
        pending: Vec::new(),
        partial: Vec::new(),
        run: 0,
        first_turn: None,
        turn: None,
        answer: None,
        pauses: Vec::new(),
        tools: Vec::new(),
        decisions: Vec::new(),
        budget: None,
        prompts: Vec::new(),
        staged: Vec::new(),
        last_run: None,
    }
}

thread_local! {
    static CONFIG: Arc<Config> = start::config();
}

impl World {
    pub(super) fn new(seed: u64, trace: bool) -> Self {
        let mut rng = Rng::new(seed);
        let mut vault = Vault::default();
        let config = start::random_config(&CONFIG.with(Arc::clone), &mut rng);
        let title: Option<Arc<str>> = rng.pick(&[None, None, Some("one")]).map(Arc::from);
        let mut agent = Agent::new(Arc::clone(&config), crate::message::History::new(), 1);
        agent.compacts = rng.percent(50);
        let labels = start::random_labels(&mut rng);
        let mut state = StoredState::default().with_labels(labels.clone());
        if let Some(title) = &title {
            state = state.with_title(&**title);
        }
        let model =
            Model::new(Tree::new(), &state, vault::Books::default(), Arc::clone(&config), agent.last());
        let mut core = SessionCore::new(title.clone(), labels, true, config, agent.last());
        let is_created = rng.percent(30);
        if is_created {
            let version = vault.put(core.state());
            core.created(version);
        }
        let ledger =
            Ledger::new(&model, vault.stored.as_ref()).expect("the ledger accepts an empty conversation");
        let mut world = Self {
            kept: SessionSnapshot {
                last: agent.last(),
                id: vault::id(),
                title: title.clone(),
                labels: model.labels.clone(),
                used: Usage::default(),
                tree: Tree::new(),
                from: None,
                agent: snapshot(&agent, &Tree::new()),
                unsaved: Vec::new(),
                store: None,
            },
            agent_now: snapshot(&agent, &Tree::new()),
            core,
            agent,
            model,
            ledger,
            vault,
            ghosts: Vec::new(),
            left: None,
            limit: rng.pick(&[0, 500, 2000, usize::MAX]),
            write_ids: 0,
            store_speed: rng.pick(&[5, 30, 80]),
            trouble: rng.pick(&[0, 20, 60]),
            foes: rng.pick(&[0, 0, 0, 2]),
            haste: rng.pick(&[0, 50, 100]),
            commands: rng.pick(&[16, 16, 60]),
            lives: 1,
            ended: false,
            fault: None,
            trace: trace.then(Vec::new),
            rng,
        };
        world.note(|| format!("seed {seed}, created: {is_created}"));
        if world.rng.percent(40) {
            let state = world.core.state();
            start::put_random(&mut world.vault, state, &mut world.rng);
            world.load().expect("the stored conversation can be loaded");
        }
        world
    }

    pub(super) fn trace(&self) -> &[String] {
        self.trace.as_deref().unwrap_or_default()
    }

    /// Adds an input to the trace, if a trace is requested.
    pub(super) fn note(&mut self, words: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(words());
        }
    }

    /// Loads the stored conversation in a new process.
    pub(super) fn load(&mut self) -> Check {
        self.lives += 1;
        let (tree, history) = start::read(&self.vault)?;
        let stored = self.vault.stored.clone().ok_or("nothing is stored")?;
        self.note(|| format!("loaded at {}:\n{tree}", stored.version));
        // In the new process, the application may give the agent other settings than the stored ones.
        let config = if self.rng.percent(60) {
            Arc::clone(&self.agent.config)
        } else {
            start::random_config(&CONFIG.with(Arc::clone), &mut self.rng)
        };
        let compacts = self.agent.compacts;
        self.agent = Agent::new(Arc::clone(&config), history, self.lives);
        self.agent.compacts = compacts;
        let (.., books) = vault::content(&stored)?;
        let used = books.used.usage;
        self.model = Model::new(tree.clone(), &stored.state, books, Arc::clone(&config), self.agent.last());
        self.core = SessionCore::loaded(
            tree.clone(),
            stored.state.clone(),
            stored.version,
            true,
            config,
            self.agent.last(),
        );
        self.core.loaded_usage(used);
        self.core.loaded_flight(StoredTurnFingerprint::of_stored(stored.turn.as_deref(), stored.head));
        self.model.rows.clone_from(&self.vault.rows);
        self.ledger = Ledger::new(&self.model, Some(&stored))?;
        self.agent_now = snapshot(&self.agent, &tree);
        (self.vault.is_foreign, self.vault.is_retitled) = (false, false);
        self.join();
        self.check()
    }

    /// Takes a new snapshot of the session, as a new subscriber would get it.
    fn join(&mut self) {
        self.kept = SessionSnapshot {
            last: EventId { life: 0, number: 0 },
            id: vault::id(),
            title: self.core.title().cloned(),
            labels: self.core.labels().clone(),
            used: self.core.used(),
            tree: self.core.tree().clone(),
            from: None,
            agent: self.agent_now.clone(),
            unsaved: self.core.unsaved(),
            store: self.core.report().cloned(),
        };
    }

    /// Plays the schedule, and then ends the agent and saves everything.
    pub(super) fn play(&mut self) -> Check {
        for _ in 0..8 + self.rng.below(100) {
            self.play_one()?;
        }
        self.end()
    }

    fn play_one(&mut self) -> Check {
        if self.rng.percent(3) {
            self.join();
            let kinds = self.model.joined();
            self.input(kinds, |core, _, effects| core.joined(effects))?;
        }
        if self.rng.percent(self.foes) {
            self.interfere();
        }
        if self.rng.percent(self.foes) && self.ledger.acked.is_some() && !self.ledger.lost {
            return self.taken();
        }
        if !self.ghosts.is_empty() && self.rng.percent(10) {
            return self.ghost();
        }
        if self.ledger.under_way().is_some() && self.rng.percent(self.store_speed) {
            return self.comes_back(false);
        }
        if self.rng.percent(self.commands) {
            return self.command();
        }
        match self.rng.below(84) {
            0..40 => {
                self.agent.act(&mut self.rng);
                Ok(())
            }
            40..75 if !self.agent.undelivered.is_empty() => self.deliver(),
            75..80 if self.ledger.waiting().is_some() => self.retry(),
            75..80 if self.ledger.under_way().is_some() => self.retry(),
            80 if self.vault.stored.is_some() && self.rng.percent(50) => self.die_and_load(),
            _ => Ok(()),
        }
    }

    /// Ends the agent, processes its last events, lets the store work again, and checks that everything is stored.
    fn end(&mut self) -> Check {
        self.note(|| "the end".to_owned());
        match self.rng.below(3) {
            0 => self.agent.die(&mut self.rng),
            1 if self.agent.runs => self.agent.fail(&mut self.rng),
            1 => {}
            _ => while self.agent.runs && self.agent.act(&mut self.rng) {},
        }
        self.ended = true;
        while !self.agent.undelivered.is_empty() {
            if self.ledger.under_way().is_some() && self.rng.percent(self.store_speed) {
                self.comes_back(false)?;
            }
            self.deliver()?;
        }
        let kinds = self.model.agent_ended();
        self.ledger.note(&self.model, false);
        self.input(kinds, |core, _, effects| core.agent_ended(effects))?;
        self.save()?;
        // At most four writes are needed, unless a commit is divided: the write in flight, the creation of the
        // conversation, the changes made during these two, and a write that conflicts with another writer's title.
        for _ in 0..4 + self.ledger.parts() {
            if self.ledger.under_way().is_some() {
                self.comes_back(true)?;
            }
        }
        ensure!(self.ledger.under_way().is_none(), "saving takes too many writes");
        self.ledger.check_end(&self.vault)?;
        if !self.ledger.lost {
            self.check_rows(true)?;
        }
        while !self.ghosts.is_empty() {
            self.ghost()?;
        }
        self.ledger.check_end(&self.vault)
    }

    // ---- inputs ----

    /// Processes the agent's next event.
    pub(super) fn deliver(&mut self) -> Check {
        let (id, event, config, settings) =
            self.agent.undelivered.pop_front().ok_or("no event is waiting")?;
        self.note(|| format!("event {id} {event:?}"));
        if let Some(settings) = &settings {
            self.model.prompted(settings);
            self.core.prompted(settings);
        }
        let (kinds, touched) = self.model.event(id, &event, &config);
        self.ledger.note(&self.model, touched);
        self.agent_now.take_in(&event);
        let becomes_idle = matches!(*event, Event::Status { status: Status::Idle, .. });
        let given = Arc::clone(&event);
        let effects = self.feed(kinds, |core, env, effects| {
            core.delivered(Some(&Numbered { id, event: given }), None, &config, env, effects);
        })?;
        for effect in &effects {
            if let SessionEffect::Emit(SessionEvent::Agent(passed)) = effect {
                ensure!(Arc::ptr_eq(passed, &event), "emitted {passed:?}, not {event:?}");
            }
        }
        let idle = effects.iter().filter(|effect| matches!(effect, SessionEffect::AtRest)).count();
        ensure!(idle == usize::from(becomes_idle), "{idle} idle effects at {event:?}");
        let waits = touched && self.ledger.waiting().is_some();
        ensure!(!waits, "a new change does not repeat the failed write");
        Ok(())
    }

    // ---- performing ----

    /// Passes an input to the core and checks everything afterwards. The core must emit exactly these kinds of events.
    pub(super) fn input(
        &mut self,
        kinds: Vec<Kind>,
        input: impl FnOnce(&mut SessionCore, &SessionCoreEnv<'_>, &mut Vec<SessionEffect>),
    ) -> Check {
        self.feed(kinds, input).map(drop)
    }

    pub(super) fn feed(
        &mut self,
        kinds: Vec<Kind>,
        input: impl FnOnce(&mut SessionCore, &SessionCoreEnv<'_>, &mut Vec<SessionEffect>),
    ) -> Check<Vec<SessionEffect>> {
        let mut effects = Vec::new();
        let ids = std::cell::Cell::new(self.write_ids);
        let write_id = || {
            ids.set(ids.get() + 1);
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&ids.get().to_be_bytes());
            WriteId::from_bytes(bytes)
        };
        let env = SessionCoreEnv { write_id: &write_id, unsaved_limit: self.limit, left: self.left };
        input(&mut self.core, &env, &mut effects);
        self.write_ids = ids.get();
        let mut kinds = VecDeque::from(kinds);
        for effect in &effects {
            self.note(|| format!("      {effect:?}"));
            self.perform(effect, &mut kinds)?;
        }
        ensure!(kinds.is_empty(), "these events are missing: {kinds:?}");
        self.check()?;
        Ok(effects)
    }

    fn perform(&mut self, effect: &SessionEffect, kinds: &mut VecDeque<Kind>) -> Check {
        match effect {
            SessionEffect::Emit(event) => {
                let kind = match event {
                    SessionEvent::Agent(_) => Kind::Agent,
                    SessionEvent::Tree(_) => Kind::Tree,
                    SessionEvent::Title { .. } => Kind::Title,
                    SessionEvent::Labels { .. } => Kind::Labels,
                    SessionEvent::Erased(_) => Kind::Erased,
                    SessionEvent::Usage(_) => Kind::Usage,
                    SessionEvent::Store(StoreReport::Saved { .. }) => Kind::Saved,
                    SessionEvent::Store(StoreReport::Failed { .. }) => Kind::Failed,
                    SessionEvent::Store(StoreReport::Lost { .. }) => Kind::Lost,
                    SessionEvent::ModelFallback { .. } => Kind::Fallback,
                };
                let expected = kinds.pop_front();
                ensure!(expected == Some(kind), "emitted {event:?}, not {expected:?}");
                if let SessionEvent::Store(report) = event {
                    self.ledger.report(report)?;
                }
                self.kept.take_in(event).map_err(|error| format!("{event:?} does not apply: {error}"))
            }
            SessionEffect::Write(job) => self.ledger.begin(Arc::clone(job), self.left),
            SessionEffect::RetryIn(wait) => self.ledger.retry_in(*wait),
            SessionEffect::Behind(behind) => self.ledger.behind_changed(*behind),
            SessionEffect::AtRest | SessionEffect::Written(_) | SessionEffect::PromptsSettled => Ok(()),
        }
    }

    /// Checks that the store has exactly the rows of the usage ledger that must be stored by now, in their order.
    fn check_rows(&self, are_complete: bool) -> Check {
        let (stored, due) = (&self.vault.rows, &self.model.rows);
        let fits = if are_complete { stored == due } else { due.starts_with(stored) };
        ensure!(self.vault.is_foreign || fits, "the ledger has {stored:?}, not {due:?}");
        Ok(())
    }

    pub(super) fn check(&mut self) -> Check {
        self.check_rows(false)?;
        self.model.check(&self.core)?;
        self.ledger.check(&self.core, &self.vault, self.limit)?;
        let (kept, core) = (&self.kept, &self.core);
        ensure!(kept.title.as_ref() == core.title(), "with events applied, the title is {:?}", kept.title);
        ensure!(kept.labels == *core.labels(), "with events applied, the labels are {:?}", kept.labels);
        ensure!(kept.used == core.used(), "with events applied, {:?} was used", kept.used);
        ensure!(
            kept.tree == *core.tree(),
            "with events applied, the tree is\n{}\nnot\n{}",
            kept.tree,
            core.tree()
        );
        ensure!(kept.unsaved == core.unsaved(), "with events applied, {:?} is unsaved", kept.unsaved);
        ensure!(
            kept.store.as_ref() == core.report(),
            "with events applied, the report is {:?}, not {:?}",
            kept.store,
            core.report()
        );
        if kept.agent.status == Status::Idle && !self.ended {
            let shown = kept.unanswered().map(|(node, _)| node.id());
            let expected = self.model.unanswered();
            ensure!(shown == expected, "the unanswered prompt is {shown:?}, not {expected:?}");
        }
        if !self.ended {
            let all = core.tree().history().iter().chain(&self.model.pending);
            same_messages(kept.messages(), all)
                .map_err(|words| format!("with events applied, the messages differ: {words}"))?;
        }
        Ok(())
    }
}
