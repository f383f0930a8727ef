//! The accounts of a run: the shell reserves each request before it is sent, and charges what the core reports.
//!
//! The core decides what a refusal means. An account exists only while a run is active to which a budget applies. It
//! belongs to one prompt. It starts with the recorded usage of the prompt, so a restart does not refill a budget.

use std::sync::Arc;

use super::AgentTask;
use crate::{
    agent::{
        Config, Event, Failure,
        delegation::ParentCall,
        phase::{AgentPhase, Turn},
    },
    budget::{BudgetAccount, BudgetReport, RequestCostQuote, RunBudgetAccounts, SharedBudget},
    message::{Message, Purpose, TurnId, UsageSum},
    provider::Request,
    tool::Extensions,
};

/// The shared budgets of an agent, as a value in its extensions, so that an agent without any needs no memory for them.
#[derive(Clone, Debug, Default)]
pub(in crate::agent) struct SharedBudgets(pub(in crate::agent) Vec<SharedBudget>);

/// The accounts of the prompt that is in flight.
pub(in crate::agent) struct RunBudgetTracker {
    /// The first turn of the prompt.
    first_turn: TurnId,
    pub(in crate::agent) accounts: RunBudgetAccounts,
    /// The last report of the turn in flight.
    pub(in crate::agent) report: Option<Box<BudgetReport>>,
}

impl RunBudgetTracker {
    /// Opens the accounts of the turn's prompt, if a budget applies and `own` is not them already. Budgets apply of the
    /// agent, of the prompt, those that agents share, and that of the call whose sub-agent this is. `requests` is the
    /// number of requests that were made for the prompt, apart from those for summaries.
    pub(in crate::agent) fn open<'o>(
        own: &'o mut Option<Box<Self>>,
        turn: &Turn,
        requests: u32,
        config: &Config,
        extensions: &Extensions,
    ) -> Option<&'o mut Self> {
        let shared = extensions.get::<SharedBudgets>();
        let above = extensions.get::<Arc<ParentCall>>().and_then(|call| call.account());
        let budget = turn.origin.prompt.budget.or(config.budget());
        if budget.is_none() && shared.is_none() && above.is_none() {
            // An earlier prompt of the run may have had a budget.
            *own = None;
            return None;
        }
        let (origin, budget) = (&turn.origin, budget.unwrap_or_default());
        if own.as_ref().is_none_or(|own| own.first_turn != origin.first_turn) {
            let mut spent = UsageSum::new(turn.model.clone());
            let is_written =
                |message: &&Arc<Message>| message.compaction.as_ref().is_some_and(|own| own.model.is_some());
            let summaries = turn.working.pending().filter(is_written).count() as u64;
            let requests = turn.delegated_requests().saturating_add(u64::from(requests) + summaries);
            spent.add(requests, origin.spent + turn.spent());
            let parents = shared.into_iter().flat_map(|all| &all.0).map(|shared| &shared.0);
            let parents = parents.chain(above).cloned().collect();
            let accounts = RunBudgetAccounts::new(BudgetAccount::new(budget, &spent, parents));
            *own = Some(Box::new(Self { first_turn: origin.first_turn, accounts, report: None }));
        }
        let own = own.as_deref_mut()?;
        own.accounts.set_budget(budget);
        Some(own)
    }

    /// Reserves the next request of `turn` in all accounts that apply.
    pub(in crate::agent) fn reserve(
        own: &mut Option<Box<Self>>,
        turn: &Turn,
        config: &Config,
        extensions: &Extensions,
        quote: impl FnOnce() -> RequestCostQuote,
    ) -> Result<(), Failure> {
        let requests = match &turn.compaction {
            Some(own) if own.is_alone => 0,
            Some(_) => turn.step,
            None => turn.step.saturating_sub(1),
        };
        let Some(spending) = Self::open(own, turn, requests, config, extensions) else { return Ok(()) };
        let reserved = spending.accounts.reserve(quote());
        reserved.map_err(|report| Failure::Budget { report })
    }

    /// Charges the usage that the event reports. Returns the reports to be emitted.
    pub(in crate::agent) fn charge(&mut self, event: &Event) -> Vec<BudgetReport> {
        let reports = match event {
            Event::Step(response) => self.accounts.charge(response.usage, &response.model),
            // The sub-agent has charged its request itself.
            Event::Usage(row) if row.purpose == Purpose::SubAgent => self.accounts.reports(),
            Event::Usage(row) => self.accounts.charge(row.usage, row.model.as_deref().unwrap_or_default()),
            Event::Turn { .. } | Event::Error { .. } | Event::Cancelled { .. } => {
                self.report = None;
                Vec::new()
            }
            _ => Vec::new(),
        };
        self.report = reports.last().cloned().map(Box::new).or(self.report.take());
        reports
    }

    /// Releases the reservation at the end of an input, unless the request is in flight or its usage is not reported
    /// yet.
    pub(in crate::agent) fn release(&mut self, phase: &AgentPhase) {
        if phase.received().is_none() {
            self.accounts.release();
        }
    }
}

impl AgentTask {
    /// Reserves the request that is being opened.
    pub(super) fn reserve(&mut self) -> Result<(), Failure> {
        let (Some(turn), Some(work)) = (self.core.phase().turn(), &mut self.work) else { return Ok(()) };
        let Some(opening) = &work.opening else { return Ok(()) };
        let extensions = &self.setup.extensions;
        RunBudgetTracker::reserve(&mut work.spending, turn, &self.config, extensions, || {
            quote(&opening.request)
        })
    }

    pub(super) fn spending(&mut self) -> Option<&mut RunBudgetTracker> {
        self.work.as_mut()?.spending.as_deref_mut()
    }

    pub(super) fn budget_report(&self) -> Option<Box<BudgetReport>> {
        self.work.as_ref()?.spending.as_ref()?.report.clone()
    }
}

/// Returns the expected size of a request, and the rates of its model.
fn quote(request: &Request) -> RequestCostQuote {
    let prompt = request.estimated_tokens();
    let price = request.model_info.as_ref().and_then(|info| info.price.as_ref());
    let rates = price.map(|price| price.rates_for(prompt));
    let max_output = request.options.max_tokens().map(u64::from);
    RequestCostQuote { prompt, max_output, rates: rates.map(|rates| (rates.input / 1e6, rates.output / 1e6)) }
}
