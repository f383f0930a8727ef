//! Budgets of prompts, and budgets that several agents share.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use crate::{
    agent::{Agent, AgentBuilder, ErrorDecision, Event, Failure, FollowTarget, Response, RunStep, StateEdit},
    budget::{Budget, BudgetAccount, BudgetReport, SharedBudget},
    message::{Usage, UsageSum},
    provider::{Model, ModelInfo, Options, Price, ProviderError, ProviderErrorKind, StopReason},
    run::{Error, ErrorKind, Prompt, RunOutcome},
    testing::{Gate, ScriptedProvider, Step},
};
use serde_json::json;

use super::{
    hooks::{Hooks, Log, noting},
    support::{apply, next, run_events, scripted},
};

/// A step that uses a tool and this number of tokens.
fn looks(tokens: u64) -> Step {
    Step::new().usage(Usage::default().with_input(tokens)).then_tool_use("a", "look", json!({})).stop()
}

fn says(text: &str, tokens: u64) -> Step {
    Step::new().usage(Usage::default().with_input(tokens)).then_text([text]).stop()
}

fn looking(steps: impl IntoIterator<Item = Step>) -> (ScriptedProvider, AgentBuilder) {
    let (provider, builder) = scripted(steps);
    (provider, builder.tool(noting("look", &Log::default())))
}

fn priced(provider: &ScriptedProvider, input: f64, output: f64) -> Model {
    provider.model().with_info(ModelInfo::new("scripted").with_price(Price::new(input, output)))
}

fn report_of(error: &Error) -> &BudgetReport {
    match error.failure() {
        Some(Failure::Budget { report }) => report,
        other => panic!("failed by {other:?}"),
    }
}

fn assert_stopped(response: &Response, messages: usize) {
    assert_eq!(response.stop_reason, StopReason::Budget);
    assert_eq!(response.messages.len(), messages);
    let last = response.messages.last().unwrap();
    assert_eq!(last.ended.as_deref(), Some(&StopReason::Budget));
    assert!(last.tool_results().all(|result| !result.is_error), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn later_request_refused_turn_is_kept_and_complete() {
    let (provider, builder) = looking([looks(1), Step::text("never")]);
    let agent = builder.budget(Budget::requests(1)).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    assert_stopped(&agent.ask("Look").await.unwrap(), 3);
    let events = run_events(&mut events).await;
    assert!(matches!(&**events.last().unwrap(), Event::Turn { continues: false, .. }), "{events:?}");
    assert_eq!(provider.requests().len(), 1);
    let snapshot = agent.snapshot().await.unwrap();
    assert_eq!(snapshot.state.history.len(), 3);
    let outcome = snapshot.last_run.as_ref().unwrap().outcome.clone();
    assert_eq!(outcome, RunOutcome::Stopped { stop_reason: StopReason::Budget });
}

#[tokio::test(start_paused = true)]
async fn first_request_refused_run_fails_and_keeps_nothing() {
    for budget in [Budget::requests(0), Budget::tokens(0), Budget::usd(0.0), Budget::tokens(1_000)] {
        let (provider, builder) = scripted([Step::text("never")]);
        let agent = builder.model(priced(&provider, 0.0, 0.0)).budget(budget).start().await.unwrap();
        let error = agent.ask("Hi").await.unwrap_err();
        let report = report_of(&error);
        assert_eq!((error.kind(), report.budget, report.shared), (ErrorKind::Failed, budget, false));
        assert!(error.to_string().contains("raise it"), "{error}");
        let snapshot = agent.snapshot().await.unwrap();
        assert!(snapshot.state.history.is_empty() && provider.requests().is_empty());
        assert_eq!(snapshot.last_run.as_ref().unwrap().unanswered.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn request_refused_error_names_what_was_spent_and_what_is_needed() {
    let (provider, builder) = looking([looks(2_500), says("never", 1)]);
    let budget = Budget::tokens(3_000).with_usd(1.0).with_requests(9);
    let agent = builder.model(priced(&provider, 2.0, 4.0)).budget(budget).start().await.unwrap();
    agent.ask("Look").await.unwrap();
    let set = move |draft: &mut StateEdit| {
        draft.config.set_budget(budget.with_tokens(900));
        Ok(())
    };
    agent.set_state(set).await.unwrap();
    let error = agent.ask("Hi").await.unwrap_err();
    let reserved = report_of(&error).reserved.unwrap();
    assert_eq!((reserved.requests, reserved.tokens.map(|tokens| tokens / 1_000)), (Some(1), Some(1)));
    let text = error.to_string();
    let needed = format!(
        "need ${:.4}, {} tokens, 1 requests; raise it",
        reserved.usd.unwrap(),
        reserved.tokens.unwrap()
    );
    assert!(text.contains("0 of 900 tokens, 0 of 9 requests are spent") && text.contains(&needed), "{text}");
}

#[tokio::test(start_paused = true)]
async fn tokens_and_money_spent_next_request_is_refused() {
    // 1,024 tokens of output are expected, which cost $0.0041.
    for (budget, refused) in [
        (Budget::tokens(3_000), true),
        (Budget::tokens(4_000), false),
        (Budget::usd(0.008), true),
        (Budget::usd(0.012), false),
    ] {
        let (provider, builder) = looking([looks(2_500), Step::text("Done.")]);
        let builder = builder.model(priced(&provider, 2.0, 4.0));
        let response = builder.budget(budget).start().await.unwrap().ask("Look").await.unwrap();
        assert_eq!(response.stop_reason == StopReason::Budget, refused, "{budget:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_budget_replaces_that_of_the_agent_for_one_prompt() {
    let steps = || [looks(1), Step::text("Done.")];
    let (provider, builder) = looking(steps().into_iter().chain(steps()));
    let agent = builder.budget(Budget::requests(1)).start().await.unwrap();
    let response = agent.ask(Prompt::new("Look").with_budget(Budget::requests(2))).await.unwrap();
    assert_eq!(response.text(), "Done.");
    assert_stopped(&agent.ask("Look again").await.unwrap(), 3);
    assert_eq!(provider.requests().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_has_its_own_account_and_a_continuation_has_not() {
    let gate = Gate::new();
    let first = Step::new().gate(&gate).then_text(["One."]).stop();
    let (provider, builder) = scripted([first, Step::text("Two."), Step::text("never")]);
    let hooks = Hooks::new().continuing(["And more?"]);
    let agent = builder.budget(Budget::requests(1)).callbacks(hooks).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("A").await.unwrap();
    gate.reached().await;
    agent.prompt("B").await.unwrap();
    gate.open();
    run_events(&mut events).await;
    // The staged prompt displaces the continuation of the first one.
    assert_eq!(provider.requests().len(), 2);
    let snapshot = agent.snapshot().await.unwrap();
    assert_eq!(snapshot.messages().last().unwrap().text(), "Two.");

    let (provider, builder) = scripted([Step::text("One."), Step::text("never")]);
    let hooks = Hooks::new().continuing(["And more?"]);
    let agent = builder.budget(Budget::requests(1)).callbacks(hooks).start().await.unwrap();
    let error = agent.ask("A").await.unwrap_err();
    assert_eq!(report_of(&error).spent.requests, 1);
    assert_eq!((provider.requests().len(), agent.snapshot().await.unwrap().state.history.len()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn handle_error_raises_the_budget_step_is_repeated() {
    for brought in [None, Some(Budget::requests(1))] {
        let (provider, builder) = looking([looks(1), Step::text("Done.")]);
        let hooks = Hooks::new().on_error(|failure, state| {
            assert!(matches!(failure, Failure::Budget { .. }));
            state.config_mut().set_budget(Budget::requests(2));
            ErrorDecision::Retry
        });
        let agent = builder.budget(Budget::requests(1)).callbacks(hooks).start().await.unwrap();
        let prompt = Prompt { budget: brought, ..Prompt::new("Look") };
        assert_eq!(agent.ask(prompt).await.unwrap().text(), "Done.");
        assert_eq!(provider.requests().len(), 2);
        assert_eq!(agent.state().await.unwrap().config().budget(), Some(Budget::requests(2)));
    }
}

#[tokio::test(start_paused = true)]
async fn second_refusal_without_a_raised_budget_ends_without_a_call() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let hooks = Hooks::new().on_error(move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        ErrorDecision::Retry
    });
    let (provider, builder) = looking([looks(1)]);
    let agent = builder.budget(Budget::requests(1)).callbacks(hooks).start().await.unwrap();
    assert_stopped(&agent.ask("Look").await.unwrap(), 3);
    assert_eq!((calls.load(Ordering::SeqCst), provider.requests().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn unknown_price_after_an_answer_money_cannot_be_checked() {
    let run = async |budget: Budget, price: Option<f64>| {
        let failures = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&failures);
        let hooks = Hooks::new().on_error(move |failure, _| {
            seen.lock().unwrap().push(failure.to_string());
            ErrorDecision::Stop
        });
        let (provider, builder) = looking([looks(10), Step::text("Done.")]);
        let model = price.map_or_else(|| provider.model(), |price| priced(&provider, price, price));
        let agent = builder.model(model).budget(budget).callbacks(hooks).start().await.unwrap();
        let reason = agent.ask("Look").await.unwrap().stop_reason.clone();
        (reason, failures.lock().unwrap().join("\n"))
    };
    let (reason, text) = run(Budget::usd(100.0), None).await;
    assert_eq!(reason, StopReason::Budget);
    assert!(text.contains("Model::with_info") && text.contains("limit tokens"), "{text}");
    for (budget, price) in [(Budget::usd(0.001), Some(0.0)), (Budget::tokens(9_000), None)] {
        assert_eq!(run(budget, price).await, (StopReason::Stop, String::new()), "{budget:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_request_is_charged_and_its_reservation_released() {
    let team = SharedBudget::new(Budget::tokens(2_500));
    let step = || Step::new().usage(Usage::default().with_input(7)).then_text(["Well"]);
    let mut agents = Vec::new();
    for _ in 0..2 {
        let gate = Gate::new();
        let agent = scripted([step().gate(&gate).hang()]).1.shared_budget(&team).start().await.unwrap();
        agent.prompt("Hi").await.unwrap();
        gate.reached().await;
        agents.push(agent);
    }
    let (_, builder) = scripted([says("Done.", 1)]);
    let third = builder.shared_budget(&team).start().await.unwrap();
    let error = third.ask("Hi").await.unwrap_err();
    assert!(report_of(&error).shared, "{error}");

    agents[0].cancel().await.unwrap();
    assert_eq!(third.ask("Hi").await.unwrap().text(), "Done.");
    agents[1].interrupt().await.unwrap();
    let spent = team.spent();
    assert_eq!((spent.requests, spent.usage.total()), (3, 7 + 7 + 1));
}

#[tokio::test(start_paused = true)]
async fn ended_agent_with_a_request_in_flight_reservation_is_released() {
    let team = SharedBudget::new(Budget::tokens(1_500));
    let gate = Gate::new();
    let agent = scripted([Step::new().gate(&gate).hang()]).1.shared_budget(&team).start().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    gate.reached().await;
    agent.stop(std::time::Duration::from_secs(1)).await.unwrap();
    let other = scripted([Step::text("Done.")]).1.shared_budget(&team).start().await.unwrap();
    assert_eq!(other.ask("Hi").await.unwrap().text(), "Done.");
}

#[tokio::test(start_paused = true)]
async fn attempt_of_the_retry_policy_is_charged_as_a_request() {
    let team = SharedBudget::new(Budget::requests(2));
    let overloaded = || Step::error(ProviderError::new(ProviderErrorKind::Overloaded, "busy"));
    let (provider, builder) = scripted([overloaded(), Step::text("Done."), Step::text("never")]);
    let builder = builder.options(Options::default().with_max_retries(1)).shared_budget(&team);
    let agent = builder.start().await.unwrap();
    assert_eq!(agent.ask("Hi").await.unwrap().text(), "Done.");
    assert_eq!((team.spent().requests, provider.requests().len()), (2, 2));
    assert!(report_of(&agent.ask("Hi").await.unwrap_err()).shared);

    // A failed request counts too, although it has no usage.
    let failed = SharedBudget::new(Budget::default());
    let (_, builder) = scripted([overloaded()]);
    let builder = builder.options(Options::default().with_max_retries(0)).shared_budget(&failed);
    builder.start().await.unwrap().ask("Hi").await.unwrap_err();
    assert_eq!(failed.spent().requests, 1);
}

#[tokio::test(start_paused = true)]
async fn four_fifths_spent_reported_once_and_in_snapshots() {
    let gate = Gate::new();
    let last = Step::new().gate(&gate).then_text(["Done."]).stop();
    let (_, builder) = looking((0..4).map(|_| looks(5)).chain([last]));
    let agent = builder.budget(Budget::requests(5)).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    let mut view = agent.snapshot().await.unwrap();
    let mut running = agent.run("Look").follow().await.unwrap();
    gate.reached().await;
    let snapshot = agent.snapshot().await.unwrap();
    let report = snapshot.budget.clone().expect("4 of 5 requests are spent");
    assert_eq!((report.spent.requests, report.spent.usage.total(), report.shared), (4, 20, false));
    gate.open();
    let mut reported = Vec::new();
    running.response().await.unwrap();
    let mut step = 0;
    loop {
        let event = next(&mut events).await;
        apply(&mut view, &event);
        match &*event {
            Event::Step(response) => step = response.step,
            Event::Budget(report) => reported.push((step, report.clone())),
            Event::Turn { .. } => break,
            _ => {}
        }
    }
    assert_eq!(reported, [(4, report)]);
    assert_eq!((&view.budget, &agent.snapshot().await.unwrap().budget), (&None, &None));
}

#[tokio::test(start_paused = true)]
async fn follower_of_a_run_gets_the_report_once() {
    let gate = Gate::new();
    let last = Step::new().gate(&gate).then_text(["Done."]).stop();
    let (_, builder) = looking([looks(9_000), last]);
    let agent = builder.budget(Budget::tokens(11_000)).start().await.unwrap();
    let mut first = agent.run("Look").follow().await.unwrap();
    gate.reached().await;
    // This follower reads the report from a snapshot.
    let mut late = agent.follow(FollowTarget::InFlight).await.unwrap();
    gate.open();
    for running in [&mut first, &mut late] {
        let mut reports = Vec::new();
        loop {
            match running.next().await.unwrap() {
                Some(RunStep::Budget(report)) => reports.push(report.spent.usage.total()),
                Some(_) => {}
                None => break,
            }
        }
        assert_eq!(reports, [9_000]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn shared_budget_of_64_agents_in_parallel_is_never_exceeded() {
    let requests = SharedBudget::new(Budget::requests(100));
    let tokens = SharedBudget::new(Budget::tokens(150_000));
    let asked = Arc::new(AtomicUsize::new(0));
    let mut agents = tokio::task::JoinSet::new();
    for index in 0..64 {
        let (asked, budget) = (Arc::clone(&asked), if index % 2 == 0 { &requests } else { &tokens });
        let usage = Usage::default().with_input(3).with_output(1_000);
        let provider = ScriptedProvider::from_fn(move |_| {
            asked.fetch_add(1, Ordering::SeqCst);
            Step::new().usage(usage).then_text(["Yes."]).stop()
        });
        let builder = Agent::builder().model(provider.model()).shared_budget(budget).shared_budget(budget);
        let agent = builder.start().await.unwrap();
        agents.spawn(async move {
            while let Ok(response) = agent.ask("Again?").await {
                assert_eq!(response.text(), "Yes.");
                tokio::task::yield_now().await;
            }
        });
    }
    while let Some(done) = agents.join_next().await {
        done.unwrap();
    }
    let (by_requests, by_tokens) = (requests.spent(), tokens.spent());
    assert_eq!(by_requests.requests, 100);
    assert!((145_000..=150_000).contains(&by_tokens.usage.total()), "{by_tokens:?}");
    assert_eq!(asked.load(Ordering::SeqCst) as u64, by_requests.requests + by_tokens.requests);
}

#[tokio::test(start_paused = true)]
async fn shared_budget_starts_with_what_was_spent_and_can_be_raised() {
    let mut stored = UsageSum::new(None);
    stored.add(9, Usage::default().with_input(900).with_cost(0.2));
    let team = SharedBudget::new(Budget::requests(10)).with_spent(&stored);
    let (_, builder) = scripted([says("One.", 100), says("Two.", 1)]);
    let agent = builder.shared_budget(&team).start().await.unwrap();
    agent.ask("Hi").await.unwrap();
    assert_eq!((team.spent().requests, team.spent().usage.total()), (10, 1_000));
    agent.ask("Hi").await.unwrap_err();
    team.set_budget(Budget::requests(11));
    assert_eq!(agent.ask("Hi").await.unwrap().text(), "Two.");
}

#[tokio::test(start_paused = true)]
async fn invalid_limit_is_rejected() {
    for usd in [-0.01, f64::NAN, f64::INFINITY] {
        let builder = || scripted([]).1;
        let invalid = Budget::usd(usd);
        let started = builder().budget(invalid).start().await;
        assert_eq!(started.unwrap_err().kind(), ErrorKind::InvalidBudget, "{usd}");
        let started = builder().shared_budget(&SharedBudget::new(invalid)).start().await;
        assert_eq!(started.unwrap_err().kind(), ErrorKind::InvalidBudget, "{usd}");
        let agent = builder().start().await.unwrap();
        let sent = agent.prompt(Prompt::new("Hi").with_budget(invalid)).await;
        assert_eq!(sent.unwrap_err().kind(), ErrorKind::InvalidBudget, "{usd}");
        let edit = move |draft: &mut StateEdit| {
            draft.config.set_budget(invalid);
            Ok(())
        };
        let edited = agent.set_state(edit).await;
        assert_eq!(edited.unwrap_err().kind(), ErrorKind::InvalidBudget, "{usd}");
    }
}

#[tokio::test(start_paused = true)]
async fn options_that_json_cannot_express_are_rejected() {
    let builder = || scripted([]).1;
    let agent = builder().start().await.unwrap();
    for number in [f64::NAN, f64::INFINITY] {
        for options in [Options::default().with_temperature(number), Options::default().with_top_p(number)] {
            let started = builder().options(options.clone()).start().await;
            assert_eq!(started.unwrap_err().kind(), ErrorKind::InvalidSettings, "{options:?}");
            let sent = agent.prompt(Prompt::new("Hi").with_options(options.clone())).await;
            assert_eq!(sent.unwrap_err().kind(), ErrorKind::InvalidSettings, "{options:?}");
            let edit = move |draft: &mut StateEdit| {
                draft.config.settings.options = options;
                Ok(())
            };
            assert_eq!(agent.set_state(edit).await.unwrap_err().kind(), ErrorKind::InvalidSettings);
        }
    }
    let deep = |levels| [("deep", (0..levels).fold(json!(1), |inner, _| json!([inner])))];
    let all = |levels| {
        let (options, deep) = (Options::default, deep(levels));
        [
            options().with_extra(deep.clone()),
            options().with_metadata(deep.clone()),
            options().with_backend(deep),
        ]
    };
    for (too_deep, deep) in all(65).into_iter().zip(all(64)) {
        let sent = agent.prompt(Prompt::new("Hi").with_options(too_deep)).await;
        assert_eq!(sent.unwrap_err().kind(), ErrorKind::InvalidPrompt);
        assert!(Prompt::new("Hi").with_options(deep).check().is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn prepare_step_sees_the_usage_of_the_turn_so_far() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let shown = Arc::clone(&seen);
    let hooks = Hooks::new().on_prepare(move |_, state| shown.lock().unwrap().push(state.usage().total()));
    let (_, builder) = looking([looks(10), looks(20), says("Done.", 1), says("Next.", 1)]);
    let agent = builder.callbacks(hooks).start().await.unwrap();
    agent.ask("Look").await.unwrap();
    agent.ask("Go on").await.unwrap();
    assert_eq!(*seen.lock().unwrap(), [0, 10, 30, 0]);
}

#[test]
fn account_whose_part_is_replaced_has_the_rest_and_the_new_part() {
    let sum = |requests, output, cost| {
        let usage = Usage::default().with_output(output).with_cost(cost);
        UsageSum { requests, usage, ..UsageSum::default() }
    };
    let parent = Arc::new(BudgetAccount::new(Budget::default(), &UsageSum::default(), Vec::new()));
    let account = BudgetAccount::new(Budget::usd(1.0), &sum(3, 300, 0.75), vec![Arc::clone(&parent)]);
    account.replace(&sum(1, 100, 0.25), &sum(2, 250, 0.375));
    assert_eq!(account.amounts().0, [875_000_000, 450, 4]);
    // A part that is larger than the sum leaves nothing.
    account.replace(&sum(9, 900, 9.0), &UsageSum::default());
    assert_eq!((account.amounts().0, parent.amounts().0), ([0; 3], [0; 3]));
}
