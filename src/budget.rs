//! Budgets: limits on what the requests to models may cost, and the accounts that keep count.
//!
//! A [`Budget`] limits a prompt and everything that its run causes. A [`SharedBudget`] limits all agents that have a
//! handle on it. Before a request is sent, its expected use is reserved in every account that applies, or in none. When
//! its usage is known, the usage is charged, and the rest of the reservation is released.
//!
//! ```
//! # #[cfg(feature = "test-util")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let step = || omni_agent::testing::Step::text("Hello!");
//! # let provider = omni_agent::testing::ScriptedProvider::new([step(), step()]);
//! # let model = provider.model();
//! use omni_agent::{Agent, Prompt, budget::{Budget, SharedBudget}};
//!
//! let team = SharedBudget::new(Budget::tokens(1_000_000));
//! let agent = Agent::builder().model(model).budget(Budget::requests(20)).shared_budget(&team).start().await?;
//! agent.ask("Hi").await?;
//! agent.ask(Prompt::new("Hi again").with_budget(Budget::requests(1))).await?;
//! assert_eq!(team.spent().requests, 2);
//! # Ok::<(), omni_agent::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "nobody uses 2^53 tokens, no amount is negative, and casts of floating point numbers saturate"
)]

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use serde::{Deserialize, Serialize};

use crate::{
    message::{Usage, UsageSum},
    setters::setters,
    sync::lock,
};

/// Limits on spending. A limit that is not set does not apply, and a limit of zero refuses each request.
///
/// ```
/// use omni_agent::budget::Budget;
///
/// let budget = Budget::usd(0.5).with_requests(20);
/// assert_eq!((budget.usd, budget.tokens, budget.requests), (Some(0.5), None, Some(20)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Budget {
    /// The limit in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
    /// The limit of prompt tokens and generated tokens together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The limit of requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
}

impl Budget {
    setters! {
        /// Sets [`usd`](Self::usd).
        pub fn with_usd(self, usd: f64) { self.usd = Some(usd) }

        /// Sets [`tokens`](Self::tokens).
        pub fn with_tokens(self, tokens: u64) { self.tokens = Some(tokens) }

        /// Sets [`requests`](Self::requests).
        pub fn with_requests(self, requests: u32) { self.requests = Some(requests) }
    }

    /// Returns a budget with a limit in US dollars.
    pub fn usd(usd: f64) -> Self {
        Self::default().with_usd(usd)
    }

    /// Returns a budget with a limit of tokens.
    pub fn tokens(tokens: u64) -> Self {
        Self::default().with_tokens(tokens)
    }

    /// Returns a budget with a limit of requests.
    pub fn requests(requests: u32) -> Self {
        Self::default().with_requests(requests)
    }

    /// Returns the limit in US dollars if it is negative or not finite.
    pub(crate) fn invalid_usd(&self) -> Option<f64> {
        self.usd.filter(|usd| !usd.is_finite() || *usd < 0.0)
    }

    /// Returns whether a limit of `earlier` is higher here, or does not apply any more.
    pub(crate) fn is_raised_from(&self, earlier: &Self) -> bool {
        let mut limits = self.limits().into_iter().zip(earlier.limits());
        limits.any(|(now, before)| before.is_some_and(|before| now.is_none_or(|now| now > before)))
    }

    /// Returns the limits as amounts. An invalid limit refuses each request, like zero.
    fn limits(&self) -> [Option<u64>; 3] {
        let usd = self.usd.map(|usd| if self.invalid_usd().is_some() { 0 } else { nano(usd) });
        [usd, self.tokens, self.requests.map(u64::from)]
    }
}

/// The state of an account: its budget, and what was spent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct BudgetReport {
    /// The budget.
    pub budget: Budget,
    /// The requests so far, and their usage. It contains no model.
    pub spent: UsageSum,
    /// The expected use of the refused request and of the requests in flight, in the amounts that the budget limits. Only
    /// the report of a refused request has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Budget>,
    /// Whether other runs can draw from the budget.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// The model of an answer whose cost is not known, if a limit in money therefore can't be checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpriced: Option<String>,
}

impl fmt::Display for BudgetReport {
    /// Writes why the budget refuses a request, and what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { budget, spent, reserved, shared, unpriced } = self;
        write!(f, "the {}budget ", if *shared { "shared " } else { "" })?;
        if let Some(model) = unpriced {
            write!(f, "in money can't be checked, because the cost of an answer of {model} is not known; ")?;
            return f
                .write_str("set the price with Model::with_info (zero for a local model), or limit tokens");
        }
        let cost = spent.usage.cost.unwrap_or_default();
        let usd = budget.usd.map(|limit| format!("${cost:.4} of ${limit}"));
        let tokens = budget.tokens.map(|limit| format!("{} of {limit} tokens", spent.usage.total()));
        let requests = budget.requests.map(|limit| format!("{} of {limit} requests", spent.requests));
        let list =
            |amounts: [Option<String>; 3]| amounts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let spent = list([usd, tokens, requests]);
        write!(f, "does not allow another request: {spent} are spent, and ")?;
        match reserved {
            Some(Budget { usd, tokens, requests }) => {
                let usd = usd.map(|usd| format!("${usd:.4}"));
                let tokens = tokens.map(|tokens| format!("{tokens} tokens"));
                let reserved = list([usd, tokens, requests.map(|count| format!("{count} requests"))]);
                write!(f, "the next request and those in flight need {reserved}; ")?;
            }
            None => f.write_str("the next request needs more than is left; ")?,
        }
        f.write_str("raise it, or use a cheaper model")
    }
}

/// A budget that several agents share, such as those of a user, a tenant or a team. Clones are handles on the same
/// budget.
///
/// [`AgentBuilder::shared_budget`](crate::AgentBuilder::shared_budget) adds it to an agent. What was spent is kept in
/// memory only. After a restart, pass the stored sum to [`with_spent`](Self::with_spent).
#[derive(Clone, Debug)]
pub struct SharedBudget(pub(crate) Arc<BudgetAccount>);

impl SharedBudget {
    /// Creates a budget of which nothing is spent.
    pub fn new(budget: Budget) -> Self {
        Self(Arc::new(BudgetAccount::new(budget, &UsageSum::default(), Vec::new())))
    }

    /// Sets what was spent so far, such as the sum that `Manager::used` returns.
    pub fn with_spent(self, spent: &UsageSum) -> Self {
        lock(&self.0.state).start(spent);
        self
    }

    /// Returns the requests so far and their usage, without a model. Requests in flight are not included.
    pub fn spent(&self) -> UsageSum {
        lock(&self.0.state).spent.clone()
    }

    /// Replaces the limits. The next request is checked against the new ones. A limit that is negative or not finite
    /// refuses each request.
    pub fn set_budget(&self, budget: Budget) {
        lock(&self.0.state).budget = budget;
    }

    /// Returns the limits.
    pub fn budget(&self) -> Budget {
        lock(&self.0.state).budget
    }
}

/// Nano-dollars, tokens and requests.
pub(crate) type BudgetAmounts = [u64; 3];

/// The spending of a run, or of everything that shares a budget.
#[derive(Debug)]
pub(crate) struct BudgetAccount {
    state: Mutex<BudgetAccountState>,
    /// The accounts that pay for everything that this one pays for.
    parents: Vec<Arc<BudgetAccount>>,
}

#[derive(Debug, Default)]
struct BudgetAccountState {
    budget: Budget,
    spent: UsageSum,
    /// The sum of the reservations of all requests in flight.
    reserved: BudgetAmounts,
    /// The cost of the prompts so far, without the output, in US dollars.
    prompt_cost: f64,
    /// The largest output of a request so far, in tokens.
    largest_output: u64,
    /// The model of the last answer whose cost is not known.
    unpriced: Option<String>,
}

/// The size and the rates of a request that is about to be sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestCostQuote {
    /// The estimated number of prompt tokens.
    pub(crate) prompt: u64,
    /// The limit of generated tokens.
    pub(crate) max_output: Option<u64>,
    /// The price of a prompt token and of a generated token in US dollars, if the price of the model is known.
    pub(crate) rates: Option<(f64, f64)>,
}

impl RequestCostQuote {
    fn is_free(&self) -> bool {
        self.rates.is_some_and(|(input, output)| input <= 0.0 && output <= 0.0)
    }
}

/// The expected output of a request of which no more is known, in tokens.
const EXPECTED_OUTPUT: u64 = 1024;

impl BudgetAccount {
    pub(crate) fn new(budget: Budget, spent: &UsageSum, parents: Vec<Arc<Self>>) -> Self {
        let mut state = BudgetAccountState { budget, ..BudgetAccountState::default() };
        state.start(spent);
        Self { state: Mutex::new(state), parents }
    }

    /// Replaces a part of what was spent, here and not in the ancestors.
    pub(crate) fn replace(&self, part: &UsageSum, by: &UsageSum) {
        let mut state = lock(&self.state);
        let unpriced = state.unpriced.take();
        let mut spent = state.spent.clone();
        spent.requests = spent.requests.saturating_sub(part.requests);
        spent.usage = less(spent.usage, part.usage);
        spent.add(by.requests, by.usage);
        state.start(&spent);
        state.unpriced = unpriced.or(state.unpriced.take());
    }

    /// Adds the account and its ancestors.
    fn add_to(self: &Arc<Self>, all: &mut Vec<Arc<Self>>) {
        all.push(Arc::clone(self));
        self.parents.iter().for_each(|parent| parent.add_to(all));
    }
}

impl BudgetAccountState {
    /// Sets what was spent before. Which part of the cost the prompts had is not known, so all tokens count alike.
    fn start(&mut self, spent: &UsageSum) {
        let usage = &spent.usage;
        self.prompt_cost =
            usage.cost.unwrap_or_default() * usage.prompt() as f64 / usage.total().max(1) as f64;
        let is_unpriced = usage.cost.is_none() && usage.total() > 0;
        self.unpriced =
            is_unpriced.then(|| spent.model.clone().unwrap_or_else(|| "an earlier model".to_owned()));
        self.spent = UsageSum { model: None, ..spent.clone() };
    }

    fn spent_amounts(&self) -> BudgetAmounts {
        amounts(self.spent.requests, &self.spent.usage)
    }

    /// Returns what a request is expected to use.
    fn expected(&self, quote: &RequestCostQuote) -> BudgetAmounts {
        let output = self.largest_output.max(EXPECTED_OUTPUT).min(quote.max_output.unwrap_or(u64::MAX));
        let (input_rate, output_rate) = quote.rates.unwrap_or_default();
        let usd = match self.spent.usage.prompt() {
            _ if quote.is_free() => 0.0,
            0 => quote.prompt as f64 * input_rate,
            prompt => quote.prompt as f64 * self.prompt_cost / prompt as f64,
        };
        // A request without a known price is not free.
        let nano_usd = nano(usd + output as f64 * output_rate).max(u64::from(!quote.is_free()));
        [nano_usd, quote.prompt.saturating_add(output), 1]
    }

    fn refuses(&self, quote: &RequestCostQuote) -> bool {
        let taken = plus(self.spent_amounts(), self.reserved);
        let total = plus(taken, self.expected(quote));
        let mut limits = self.budget.limits().into_iter().zip(taken.into_iter().zip(total));
        // A request that adds nothing to an amount does not exceed its limit.
        let exceeds = |(limit, (taken, total)): (Option<u64>, (u64, u64))| {
            limit.is_some_and(|limit| limit == 0 || total > taken.max(limit))
        };
        self.unpriced_report().is_some() || limits.any(exceeds)
    }

    /// Returns whether 80 % of a limit are spent.
    fn is_near(&self) -> bool {
        let mut limits = self.budget.limits().into_iter().zip(self.spent_amounts());
        limits.any(|(limit, spent)| limit.is_some_and(|limit| spent >= limit - limit / 5))
    }

    /// Takes `used` out of a reservation, or all of it if less is reserved.
    fn take_back(&mut self, held: &mut BudgetAmounts, used: BudgetAmounts) {
        for ((held, reserved), used) in held.iter_mut().zip(&mut self.reserved).zip(used) {
            let used = used.min(*held);
            (*held, *reserved) = (*held - used, *reserved - used);
        }
    }

    fn unpriced_report(&self) -> Option<&String> {
        self.unpriced.as_ref().filter(|_| self.budget.usd.is_some())
    }

    fn report(&self, shared: bool) -> BudgetReport {
        let unpriced = self.unpriced_report().cloned();
        BudgetReport { budget: self.budget, spent: self.spent.clone(), reserved: None, shared, unpriced }
    }

    /// Returns what this request and those in flight are expected to use, in the amounts that the budget limits.
    fn reserved_with(&self, quote: &RequestCostQuote) -> Budget {
        let [nano_usd, tokens, requests] = plus(self.reserved, self.expected(quote));
        Budget {
            usd: self.budget.usd.map(|_| nano_usd as f64 / 1e9),
            tokens: self.budget.tokens.map(|_| tokens),
            requests: self.budget.requests.map(|_| u32::try_from(requests).unwrap_or(u32::MAX)),
        }
    }
}

/// The accounts from which one run draws, and what its request in flight has reserved in each.
#[derive(Debug)]
pub(crate) struct RunBudgetAccounts {
    own: Arc<BudgetAccount>,
    /// The run's own account and its ancestors, each once, in the order of their addresses. All requests lock accounts
    /// in this order, so none waits for another one for ever.
    holdings: Vec<BudgetReservation>,
    quote: RequestCostQuote,
}

/// What a run holds of one account.
#[derive(Debug)]
struct BudgetReservation {
    account: Arc<BudgetAccount>,
    reserved: BudgetAmounts,
    /// The budget of which 80 % were reported as spent.
    reported: Option<Budget>,
}

impl RunBudgetAccounts {
    pub(crate) fn new(own: BudgetAccount) -> Self {
        let own = Arc::new(own);
        let mut accounts = Vec::new();
        own.add_to(&mut accounts);
        accounts.sort_by_key(Arc::as_ptr);
        accounts.dedup_by(|one, other| Arc::ptr_eq(one, other));
        let holding =
            |account| BudgetReservation { account, reserved: BudgetAmounts::default(), reported: None };
        Self {
            own,
            holdings: accounts.into_iter().map(holding).collect(),
            quote: RequestCostQuote::default(),
        }
    }

    /// Returns the run's own account.
    pub(crate) fn own(&self) -> &Arc<BudgetAccount> {
        &self.own
    }

    /// Sets the budget of the run's own account.
    pub(crate) fn set_budget(&self, budget: Budget) {
        lock(&self.own.state).budget = budget;
    }

    /// Reserves a request in all accounts, or returns the report of one that refuses it.
    pub(crate) fn reserve(&mut self, quote: RequestCostQuote) -> Result<(), Box<BudgetReport>> {
        self.release();
        let accounts: Vec<_> = self.holdings.iter().map(|holding| Arc::clone(&holding.account)).collect();
        let mut states: Vec<_> = accounts.iter().map(|account| lock(&account.state)).collect();
        let is_own = |account: &Arc<BudgetAccount>| Arc::ptr_eq(account, &self.own);
        let refusing = accounts.iter().zip(&states).filter(|(_, state)| state.refuses(&quote));
        if let Some((account, state)) = refusing.max_by_key(|(account, _)| is_own(account)) {
            let reserved = Some(state.reserved_with(&quote));
            return Err(Box::new(BudgetReport { reserved, ..state.report(!is_own(account)) }));
        }
        for (state, holding) in states.iter_mut().zip(&mut self.holdings) {
            holding.reserved = state.expected(&quote);
            state.reserved = plus(state.reserved, holding.reserved);
        }
        self.quote = quote;
        Ok(())
    }

    /// Charges a request that is sent, also one that the retry policy sends again.
    pub(crate) fn sent(&mut self) {
        for BudgetReservation { account, reserved, .. } in &mut self.holdings {
            let mut state = lock(&account.state);
            state.spent.add(1, Usage::default());
            state.take_back(reserved, [0, 0, 1]);
        }
    }

    /// Charges the usage of an answer of `model`. Returns a report of each account of which 80 % are now spent, once.
    pub(crate) fn charge(&mut self, usage: Usage, model: &str) -> Vec<BudgetReport> {
        let usage = Usage { cost: usage.cost.or(self.quote.is_free().then_some(0.0)), ..usage };
        let output_cost = usage.output as f64 * self.quote.rates.map_or(0.0, |(_, output)| output);
        for BudgetReservation { account, reserved, .. } in &mut self.holdings {
            let mut state = lock(&account.state);
            state.spent.add(0, usage);
            state.take_back(reserved, amounts(0, &usage));
            state.largest_output = state.largest_output.max(usage.output);
            match usage.cost {
                Some(usd) => state.prompt_cost += (usd - output_cost).max(0.0),
                None => state.unpriced = Some(model.to_owned()),
            }
        }
        self.reports()
    }

    /// Returns a report of each account of which 80 % are now spent, once.
    pub(crate) fn reports(&mut self) -> Vec<BudgetReport> {
        let mut reports = Vec::new();
        for BudgetReservation { account, reported, .. } in &mut self.holdings {
            let state = lock(&account.state);
            if state.is_near() && reported.replace(state.budget) != Some(state.budget) {
                reports.push(state.report(!Arc::ptr_eq(account, &self.own)));
            }
        }
        reports
    }

    /// Releases the rest of the reservation, because the request has ended.
    pub(crate) fn release(&mut self) {
        for BudgetReservation { account, reserved, .. } in &mut self.holdings {
            if *reserved != BudgetAmounts::default() {
                lock(&account.state).take_back(reserved, [u64::MAX; 3]);
            }
        }
    }
}

impl Drop for RunBudgetAccounts {
    fn drop(&mut self) {
        self.release();
    }
}

fn plus(one: BudgetAmounts, other: BudgetAmounts) -> BudgetAmounts {
    std::array::from_fn(|index| one[index].saturating_add(other[index]))
}

/// Returns the usage without a part of it.
fn less(all: Usage, part: Usage) -> Usage {
    let mut left = all;
    left.input = all.input.saturating_sub(part.input);
    left.cache_read = all.cache_read.saturating_sub(part.cache_read);
    left.cache_write = all.cache_write.saturating_sub(part.cache_write);
    left.output = all.output.saturating_sub(part.output);
    left.reasoning = all.reasoning.saturating_sub(part.reasoning);
    left.cost = all.cost.map(|cost| (cost - part.cost.unwrap_or_default()).max(0.0));
    left
}

pub(crate) fn amounts(requests: u64, usage: &Usage) -> BudgetAmounts {
    [nano(usage.cost.unwrap_or_default()), usage.total(), requests]
}

fn nano(usd: f64) -> u64 {
    (usd * 1e9).round() as u64
}

#[cfg(test)]
mod inspection {
    use super::*;

    impl BudgetAccount {
        /// Returns what was spent and what is reserved.
        pub(crate) fn amounts(&self) -> (BudgetAmounts, BudgetAmounts) {
            let state = lock(&self.state);
            (state.spent_amounts(), state.reserved)
        }
    }
}
