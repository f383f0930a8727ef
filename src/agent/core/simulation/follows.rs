//! Three followers of each run: one reads the events, one reads snapshots, and one reads both. All must report the same.

use std::sync::Arc;

use super::{Check, ensure, world::World};
use crate::{
    actor::random::Rng,
    agent::{Event, Follow, FollowFrom, FollowTarget, PromptState, RunProgress, Snapshot, Status},
    budget::BudgetReport,
    message::{Content, Message, TurnId},
    provider::StopReason,
    run::{Accepted, PendingUse, PromptId, RunOutcome},
};

/// A message as a reader has put it together.
#[derive(Clone, Debug, PartialEq)]
enum Item {
    User(Arc<Message>),
    Answer(Vec<(Content, String)>, Option<Arc<Message>>),
}

#[derive(Clone, Debug, Default)]
struct Seen {
    items: Vec<Item>,
    /// The number of items before the last request.
    base: usize,
    pauses: Vec<Arc<PendingUse>>,
    /// The last reported budget of the turn.
    budget: Option<BudgetReport>,
    end: Option<SeenEnd>,
    fault: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct SeenEnd {
    outcome: Option<RunOutcome>,
    has_response: bool,
    is_returned: bool,
    message: Option<Arc<Message>>,
}

impl Seen {
    fn take(&mut self, progress: RunProgress<'_>) {
        if let Err(fault) = self.apply(progress) {
            self.fault.get_or_insert(format!("{progress:?}: {fault}"));
        }
    }

    fn apply(&mut self, progress: RunProgress<'_>) -> Check {
        let is_open = matches!(self.items.last(), Some(Item::Answer(_, None)));
        match progress {
            RunProgress::Turn(_) if self.end.is_some() => *self = Self::default(),
            RunProgress::User(message) => {
                ensure!(!is_open, "the answer before it is open");
                self.items.push(Item::User(Arc::clone(message)));
            }
            RunProgress::Request { .. } => {
                ensure!(!is_open, "the answer before it is open");
                self.base = self.items.len();
                self.items.push(Item::Answer(Vec::new(), None));
            }
            RunProgress::Block { index, content, new, .. } => {
                let Some(Item::Answer(blocks, None)) = self.items.last_mut() else {
                    return Err("a block outside an answer".to_owned());
                };
                ensure!(index <= blocks.len(), "a gap before block {index}");
                if index == blocks.len() {
                    blocks.push((content.clone(), String::new()));
                }
                blocks[index].0 = content.clone();
                blocks[index].1.push_str(new);
            }
            RunProgress::Answer(message) => {
                let Some(Item::Answer(blocks, whole @ None)) = self.items.last_mut() else {
                    return Err("an answer without a request".to_owned());
                };
                let texts = blocks.iter().filter(|(block, _)| block.as_text().is_some());
                let texts = texts.map(|(_, text)| text.as_str()).filter(|text| !text.trim().is_empty());
                let whole_texts = message.content.iter().filter_map(Content::as_text);
                let whole_texts = whole_texts.filter(|text| !text.trim().is_empty());
                ensure!(texts.eq(whole_texts), "the texts of the blocks are {blocks:?}");
                *whole = Some(Arc::clone(message));
            }
            RunProgress::Void { .. } => self.items.truncate(self.base),
            RunProgress::Turn(_) => self.budget = None,
            RunProgress::Budget(report) => self.budget = Some(report.clone()),
            RunProgress::Pauses(pauses) => self.pauses = pauses.to_vec(),
            RunProgress::Ended { outcome, response, message } => {
                ensure!(!is_open, "the answer before the end is open");
                self.ended(outcome, response.is_some(), false, message);
            }
            RunProgress::Returned { outcome } => self.ended(outcome, false, true, None),
            _ => {}
        }
        Ok(())
    }

    fn ended(
        &mut self,
        outcome: Option<&RunOutcome>,
        has_response: bool,
        is_returned: bool,
        message: Option<&Arc<Message>>,
    ) {
        let (outcome, message) = (outcome.cloned(), message.cloned());
        self.end = Some(SeenEnd { outcome, has_response, is_returned, message });
    }

    /// Returns the ids and texts of all messages up to the last answer that is kept.
    fn kept(&self) -> Vec<(String, Vec<String>)> {
        let last = self.end.as_ref().and_then(|end| end.message.as_ref());
        // The end of a turn can add results to the tool uses of an answer.
        let is_last = |item: &Item| matches!((item, last), (Item::Answer(_, Some(whole)), Some(last)) if whole.id == last.id);
        let count = last.and_then(|_| self.items.iter().rposition(is_last)).map_or(0, |index| index + 1);
        let kept = self.items[..count].iter().map(|item| match item {
            Item::User(message) => (format!("{:?}", message.id), Vec::new()),
            Item::Answer(blocks, whole) => {
                let id = format!("{:?}", whole.as_ref().map(|whole| &whole.id));
                let texts = blocks.iter().filter(|(block, _)| block.as_text().is_some());
                (id, texts.map(|(_, text)| text.clone()).filter(|text| !text.trim().is_empty()).collect())
            }
        });
        kept.collect()
    }
}

/// A follower, and what its reader has seen.
struct Reader {
    follow: Follow,
    seen: Seen,
    /// Whether the reader has missed an event since its last snapshot.
    is_behind: bool,
}

impl Reader {
    fn new(target: &FollowTarget) -> Self {
        Self {
            follow: Follow::new(target.clone(), FollowFrom::Start),
            seen: Seen::default(),
            is_behind: false,
        }
    }

    fn event(&mut self, event: &Event) {
        self.follow.event(event, &mut |progress| self.seen.take(progress));
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.is_behind = false;
        self.follow.snapshot(&snapshot.state.history, snapshot, &mut |progress| self.seen.take(progress));
    }
}

/// The three readers of one target: by events, by snapshots, and by both.
struct Readers {
    target: FollowTarget,
    three: [Reader; 3],
    is_compared: bool,
}

impl Readers {
    fn new(target: FollowTarget) -> Self {
        let three = [(); 3].map(|()| Reader::new(&target));
        Self { target, three, is_compared: false }
    }

    fn check(&mut self, snapshot: &Snapshot) -> Check {
        for reader in &self.three {
            ensure!(reader.seen.fault.is_none(), "{:?}", reader.seen.fault);
            let is_running = reader.follow.turn().is_some() && !reader.follow.is_ended();
            if !reader.is_behind && is_running {
                ensure!(reader.seen.pauses == snapshot.pauses, "the pauses are {:?}", reader.seen.pauses);
                let budget = reader.seen.budget.as_ref().filter(|_| snapshot.turn.is_some());
                // A prompt that has joined the turn may have missed the report.
                let has_missed = budget.is_none() && self.target != FollowTarget::InFlight;
                ensure!(has_missed || budget == snapshot.budget.as_deref(), "the budget is {budget:?}");
            }
        }
        let by_events = &self.three[0];
        if let FollowTarget::Prompt(id) = &self.target
            && let Some(known) = snapshot.prompts.iter().find(|known| known.id == *id)
        {
            let is_over = matches!(known.state, PromptState::Ended { .. } | PromptState::Returned);
            ensure!(is_over == by_events.follow.is_ended(), "the end is not reported");
        }
        if self.target == FollowTarget::InFlight {
            let is_idle = !snapshot.is_answering() && !snapshot.compacts_alone();
            let is_running = by_events.follow.turn().is_some() && !by_events.follow.is_ended();
            ensure!(is_idle != is_running, "a run is followed, but the agent is {:?}", snapshot.status);
        }
        if !self.is_compared && self.three.iter().all(|reader| reader.seen.end.is_some()) {
            self.is_compared = true;
            return self.compare();
        }
        self.is_compared &= by_events.seen.end.is_some();
        Ok(())
    }

    fn compare(&self) -> Check {
        let [by_events, others @ ..] = &self.three;
        let Some(end) = &by_events.seen.end else { return Ok(()) };
        ensure!(end.has_response || end.is_returned, "the end has no response: {end:?}");
        ensure!(end.outcome.is_some() || end.is_returned, "the end has no outcome");
        for other in others {
            let Some(other_end) = &other.seen.end else { continue };
            let (own, kept) = (by_events.seen.kept(), other.seen.kept());
            if other_end.outcome.is_none() && !end.is_returned {
                ensure!(own.starts_with(&kept), "{kept:?} was read, not {own:?}");
                continue;
            }
            // A message without an id is not found if the history contains it twice.
            if own.iter().any(|(id, _)| id == "None") {
                continue;
            }
            ensure!(other_end.is_returned == end.is_returned, "{other_end:?}, not {end:?}");
            if !end.is_returned || other_end.outcome.is_some() {
                ensure!(other_end.outcome == end.outcome, "{other_end:?}, not {end:?}");
            }
            // A follower of all runs that has missed the start of a prompt's turn counts the turn before to the same run.
            // Its place is not exact if a message is in the history twice, so only its answers are compared.
            let answers = |items: &[(String, Vec<String>)]| {
                items.iter().filter(|(id, _)| id.starts_with("Some(Some")).cloned().collect::<Vec<_>>()
            };
            let is_same = own == kept
                || self.target == FollowTarget::InFlight && answers(&kept).ends_with(&answers(&own));
            ensure!(is_same, "{kept:?} was read, not {own:?}");
        }
        Ok(())
    }
}

/// A deliberate fault in what the readers get, which the comparison must notice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum FollowFault {
    /// The end of a prompt comes after the end of its run.
    EndedLate,
    /// A returned prompt is not reported.
    ReturnedLost,
    /// A piece of text comes twice.
    TextTwice,
    /// A repetition is not reported.
    RetryLost,
    /// A failure states the opposite about its messages.
    CommittedInverted,
    /// A snapshot states that all prompts got an answer.
    OutcomeGuessed,
}

/// All readers of a schedule.
pub(super) struct Follows {
    pub(super) fault: Option<FollowFault>,
    held: Vec<Event>,
    all: Vec<Readers>,
    rng: Rng,
    /// Whether the third readers miss the events of this input.
    is_lost: bool,
    /// Whether the run has more than one turn, and a snapshot is due.
    has_continued: bool,
    is_due: bool,
}

impl Follows {
    pub(super) fn new(seed: u64) -> Self {
        let all = vec![Readers::new(FollowTarget::InFlight)];
        let rng = Rng::new(seed ^ 0xF0);
        Self { fault: None, held: Vec::new(), all, rng, is_lost: false, has_continued: false, is_due: false }
    }

    /// Gives all readers the first snapshot.
    pub(super) fn begin(&mut self, snapshot: &Snapshot) {
        let readers = self.all.iter_mut().flat_map(|readers| &mut readers.three);
        readers.for_each(|reader| reader.snapshot(snapshot));
    }

    pub(super) fn event(&mut self, event: &Event) {
        let is_end = matches!(event, Event::Turn { .. } | Event::Cancelled { .. } | Event::Error { .. });
        match (self.fault, event) {
            (Some(FollowFault::EndedLate), Event::Prompt { state: PromptState::Ended { .. }, .. }) => {
                self.held.push(event.clone());
            }
            (Some(FollowFault::ReturnedLost), Event::Prompt { state: PromptState::Returned, .. })
            | (Some(FollowFault::RetryLost), Event::Retry { .. }) => {}
            (Some(FollowFault::CommittedInverted), Event::Error { failure, response, committed }) => {
                let (failure, response, committed) = (failure.clone(), Arc::clone(response), !committed);
                self.pass(&Event::Error { failure, response, committed });
            }
            _ => {
                let is_twice = self.fault == Some(FollowFault::TextTwice);
                let count = if is_twice && matches!(event, Event::TextDelta { .. }) { 2 } else { 1 };
                for _ in 0..count {
                    self.pass(event);
                }
            }
        }
        if is_end {
            for event in std::mem::take(&mut self.held) {
                self.pass(&event);
            }
        }
    }

    fn pass(&mut self, event: &Event) {
        match event {
            // A prompt with the id of an earlier one, which was returned. Readers of the earlier one can't see its end any
            // more.
            Event::Prompt { id, .. } => {
                let is_over = |readers: &Readers| readers.three[0].seen.end.is_some();
                let own = FollowTarget::Prompt(id.clone());
                self.all.retain(|readers| readers.target != own || !is_over(readers));
            }
            // A reader whose last message is not part of the new history reads only the turn in flight.
            Event::State(_) => self.is_due = true,
            Event::Turn { continues: true, .. } => (self.has_continued, self.is_due) = (true, true),
            _ if RunOutcome::of(event).is_some() => {
                self.is_due |= std::mem::take(&mut self.has_continued);
            }
            _ => {}
        }
        for readers in &mut self.all {
            // The third reader gets no event after a lost one until its next snapshot.
            let [by_events, by_snapshots, mixed] = &mut readers.three;
            by_events.event(event);
            by_snapshots.is_behind = true;
            mixed.is_behind |= self.is_lost;
            if !mixed.is_behind {
                mixed.event(event);
            }
        }
    }

    /// Called after an input. `is_last` is whether all readers get a snapshot.
    pub(super) fn after(&mut self, mut snapshot: Snapshot, is_last: bool) -> Check {
        self.is_lost = self.rng.percent(20);
        for known in &mut snapshot.prompts {
            if let (Some(FollowFault::OutcomeGuessed), PromptState::Ended { outcome }) =
                (self.fault, &mut known.state)
            {
                *outcome = RunOutcome::Stopped { stop_reason: StopReason::Stop };
            }
        }
        let snapshot = &snapshot;
        let is_due = std::mem::take(&mut self.is_due) || is_last;
        // A follower of all runs compares each of them, so it misses no end.
        for readers in &mut self.all {
            let has_ended = readers.three[0].seen.end.is_some();
            let is_due = is_due || readers.target == FollowTarget::InFlight && has_ended;
            for reader in &mut readers.three[1..] {
                if reader.is_behind && (is_due || self.rng.percent(30)) {
                    reader.snapshot(snapshot);
                }
            }
            readers.check(snapshot).map_err(|error| format!("{:?}: {error}", readers.target))?;
        }
        self.all.retain(|readers| !readers.is_compared || readers.target == FollowTarget::InFlight);
        if is_last && snapshot.status == Status::Idle {
            for readers in &self.all {
                let is_open = |reader: &Reader| reader.seen.end.is_none();
                let is_read = readers.target == FollowTarget::InFlight || !readers.three.iter().any(is_open);
                ensure!(is_read, "a reader of {:?} has no end", readers.target);
            }
        }
        Ok(())
    }

    /// Follows an accepted prompt. The prompt's events have not been read yet.
    pub(super) fn accepted(&mut self, id: Option<&PromptId>, accepted: &Accepted) {
        // A prompt from a callback has no reply, so its turn and an id that it gets are not known here.
        let target = match (id, accepted) {
            (Some(id), Accepted::Staged { .. } | Accepted::Started { .. }) => {
                FollowTarget::Prompt(id.clone())
            }
            (None, Accepted::Staged { id, .. }) if id.as_str() != "chosen" => {
                FollowTarget::Prompt(id.clone())
            }
            (None, Accepted::Started { turn }) if *turn != TurnId::default() => FollowTarget::Turn(*turn),
            _ => return,
        };
        // A prompt that was returned is accepted again with the same id. Its earlier readers can't see its end any more.
        self.all.retain(|readers| readers.target != target);
        let mut readers = Readers::new(target);
        for reader in &mut readers.three {
            reader.follow.accepted(accepted);
            reader.is_behind = true;
        }
        readers.three[2].is_behind = false;
        self.all.push(readers);
    }
}

impl World {
    /// Gives the readers their snapshots. `is_last` is whether all readers get one, because the history is about to be
    /// replaced or the schedule is over.
    pub(super) fn follow(&mut self, is_last: bool) -> Check {
        self.follows.after(self.snapshot(), is_last)
    }
}

#[test]
fn faults_in_what_followers_get_are_noticed() {
    for fault in [
        FollowFault::EndedLate,
        FollowFault::ReturnedLost,
        FollowFault::TextTwice,
        FollowFault::RetryLost,
        FollowFault::CommittedInverted,
        FollowFault::OutcomeGuessed,
    ] {
        let is_noticed = |seed: &u64| {
            let mut world = World::new(*seed, false);
            world.follows.fault = Some(fault);
            world.play().is_err()
        };
        assert!((0..3000).find(is_noticed).is_some(), "{fault:?} is not noticed");
    }
}
