//! Budgets in a third of the schedules. The world reserves, charges and releases as the shell does, and compares each
//! account with the requests that it has seen.

use std::sync::Arc;

use super::{Check, ensure, model::Input, world::World};
use crate::{
    actor::random::Rng,
    agent::{
        Event, Failure, Snapshot,
        phase::OpNumber,
        task::spending::{RunBudgetTracker, SharedBudgets},
    },
    budget::{Budget, BudgetAmounts, RequestCostQuote, SharedBudget, amounts},
    message::{Purpose, Usage},
    tool::Extensions,
};

/// A deliberate fault of the shell, which the comparison must notice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum BudgetFault {
    /// The reservation stays when the run is cancelled.
    KeptOnCancel,
    /// Only the account of the run reserves.
    OnlyLeaf,
    /// A row is charged twice.
    RowTwice,
    /// A request is sent without a reservation.
    Unreserved,
}

/// The accounts of a schedule, and what they must contain.
pub(super) struct Budgets {
    pub(super) fault: Option<BudgetFault>,
    pub(super) run: Option<Box<RunBudgetTracker>>,
    shared: Option<SharedBudgets>,
    /// Whether budgets apply in this schedule.
    pub(super) are_on: bool,
    /// What the prompt in flight has spent, and what all have spent.
    spent: [BudgetAmounts; 2],
    /// What the request in flight reserves in the account of the run and in the shared one.
    reserved: [BudgetAmounts; 2],
}

pub(super) fn random_budget(rng: &mut Rng) -> Budget {
    let usd = rng.pick(&[None, None, Some(0.0), Some(0.5), Some(3.0)]);
    let tokens = rng.pick(&[None, Some(2_000), Some(2_400), Some(9_000)]);
    let requests = rng.pick(&[None, None, Some(0), Some(1), Some(3), Some(6)]);
    Budget { usd, tokens, requests }
}

impl Budgets {
    pub(super) fn new(rng: &mut Rng) -> Self {
        let are_on = rng.percent(33);
        let shared = SharedBudget::new(random_budget(rng));
        // Several limits of zero would refuse nearly all requests.
        shared.set_budget(Budget {
            usd: shared.budget().usd.filter(|usd| *usd > 0.0),
            requests: None,
            ..shared.budget()
        });
        let twice = SharedBudgets(vec![shared.clone(), shared]);
        let shared = (are_on && rng.percent(50)).then_some(twice);
        Self {
            fault: None,
            run: None,
            shared,
            are_on,
            spent: [BudgetAmounts::default(); 2],
            reserved: [BudgetAmounts::default(); 2],
        }
    }

    /// Passes an event of the core to the accounts. Returns the events that follow it.
    fn event(&mut self, event: &Event) -> Vec<Event> {
        let usage = match event {
            Event::Step(response) => response.usage,
            Event::Usage(row) if row.purpose != Purpose::SubAgent => row.usage,
            _ => Usage::default(),
        };
        let Some(run) = &mut self.run else { return Vec::new() };
        let mut reports = run.charge(event);
        if self.fault == Some(BudgetFault::RowTwice) {
            reports.extend(run.charge(event));
        }
        let used = amounts(0, &usage);
        for (spent, reserved) in self.spent.iter_mut().zip(&mut self.reserved) {
            for ((spent, reserved), used) in spent.iter_mut().zip(reserved).zip(used) {
                *spent += used;
                *reserved = reserved.saturating_sub(used);
            }
        }
        reports.into_iter().map(|report| Event::Budget(Box::new(report))).collect()
    }

    /// Compares the accounts with the requests so far.
    fn check(&self) -> Check {
        let Some(run) = &self.run else { return Ok(()) };
        let shared = self.shared.as_ref().map(|all| &all.0[0].0);
        for (account, (spent, reserved)) in
            [Some(run.accounts.own()), shared].into_iter().zip(self.spent.iter().zip(&self.reserved))
        {
            let Some((own, held)) = account.map(|account| account.amounts()) else { continue };
            ensure!(own == *spent, "{own:?} is spent, not {spent:?}");
            ensure!(held == *reserved, "{held:?} is reserved, not {reserved:?}");
        }
        Ok(())
    }
}

impl World {
    /// Returns a snapshot as the shell makes it.
    pub(super) fn snapshot(&self) -> Snapshot {
        let budget = self.budgets.run.as_ref().and_then(|run| run.report.clone());
        Snapshot { budget, ..super::compare::snapshot(&self.core, &self.config) }
    }

    /// Sends a request as the shell does, if the budgets allow it.
    pub(super) fn connect(&mut self, op: OpNumber) -> Check {
        let turn = self.core.phase().turn().ok_or("a request without a turn")?;
        let quote = RequestCostQuote { prompt: 10, max_output: None, rates: None };
        let requests = match &turn.compaction {
            Some(own) if own.is_alone => 0,
            Some(_) => turn.step,
            None => turn.step - 1,
        };
        let before = (u64::from(requests) + turn.delegated_requests(), turn.origin.spent + turn.spent());
        let is_known = self.budgets.run.as_ref().map(|run| Arc::as_ptr(run.accounts.own()));
        let only_leaf = self.budgets.fault == Some(BudgetFault::OnlyLeaf);
        let shared = self.budgets.shared.as_ref().filter(|_| !only_leaf);
        let extensions =
            shared.cloned().map_or_else(Extensions::default, |all| Extensions::default().with(all));
        let reserved =
            RunBudgetTracker::reserve(&mut self.budgets.run, turn, &self.config, &extensions, || quote);
        let Budgets { run, shared, spent, reserved: held, fault, .. } = &mut self.budgets;
        let Some(run) = run else {
            self.stream = Some(super::stream::Stream::new(op));
            return Ok(());
        };
        if is_known != Some(Arc::as_ptr(run.accounts.own())) {
            spent[0] = amounts(before.0, &before.1);
        }
        if let Err(failure) = reserved {
            self.note(|| format!("refused: {failure}"));
            self.model.refused(&failure)?;
            let ((), effects) = self.feed(|core, cx| core.stream_failed(op, failure, cx));
            return effects.into_iter().try_for_each(|effect| self.perform(effect));
        }
        if *fault == Some(BudgetFault::Unreserved) {
            run.accounts.release();
        }
        let accounts = [Some(run.accounts.own()), shared.as_ref().map(|all| &all.0[0].0)];
        for (account, held) in accounts.into_iter().zip(&mut *held) {
            let Some((_, reserved)) = account.map(|account| account.amounts()) else { continue };
            ensure!(reserved[1] > 10 && reserved[2] == 1, "a request is sent, but {reserved:?} is reserved");
            *held = [reserved[0], reserved[1], 0];
        }
        self.attempt();
        self.stream = Some(super::stream::Stream::new(op));
        Ok(())
    }

    /// Charges a request that is sent, or sent again.
    pub(super) fn attempt(&mut self) {
        if let Some(run) = &mut self.budgets.run {
            run.accounts.sent();
            self.budgets.spent.iter_mut().for_each(|spent| spent[2] += 1);
        }
    }

    /// Charges what the event reports, and emits what follows.
    pub(super) fn charge(&mut self, event: &Event) {
        for event in self.budgets.event(event) {
            self.kept.apply(&event);
            self.follows.event(&event);
        }
    }

    /// Releases the reservation at the end of an input, and checks the accounts.
    pub(super) fn release(&mut self) -> Check {
        let phase = self.core.phase();
        let is_kept = self.budgets.fault == Some(BudgetFault::KeptOnCancel) && self.core.is_at_rest();
        if let Some(run) = &mut self.budgets.run
            && !is_kept
        {
            run.release(phase);
        }
        if self.core.is_at_rest() || phase.received().is_none() {
            self.budgets.reserved = [BudgetAmounts::default(); 2];
        }
        self.budgets.check()?;
        if self.core.is_at_rest() {
            self.budgets.run = None;
        }
        Ok(())
    }
}

impl super::model::Model {
    /// Predicts what a refusal by a budget causes.
    fn refused(&mut self, failure: &Failure) -> Check {
        let Failure::Budget { report } = failure else { return Err(format!("refused by {failure:?}")) };
        if self.is_summarising() {
            return Ok(());
        }
        let earlier = self.turn()?.refused_by.replace(report.budget);
        if earlier.is_some_and(|earlier| !report.budget.is_raised_from(&earlier)) {
            (self.failure, self.input) = (Some(failure.clone()), Input::GivesUp);
        }
        Ok(())
    }
}

#[test]
fn faults_of_accounts_are_noticed() {
    for fault in
        [BudgetFault::KeptOnCancel, BudgetFault::OnlyLeaf, BudgetFault::RowTwice, BudgetFault::Unreserved]
    {
        let is_noticed = |seed: &u64| {
            let mut world = World::new(*seed, false);
            world.budgets.fault = Some(fault);
            world.play().is_err()
        };
        assert!((0..3000).find(is_noticed).is_some(), "{fault:?} is not noticed");
    }
}
