//! Compactions: before a request, after a refusal because of the size, at the end of a run, and by request.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::time::advance;

use super::{
    cut_compactions::slow,
    hooks::{Hooks, Log, Watched, brief, failed, reached, sent, stopped, tokens},
    support::{name, names, returned},
};
use crate::{
    agent::{
        Accepted, Agent, AgentBuilder, BackupCause, BackupModel, Compact, CompactionPolicy, ErrorDecision,
        Event, Failure, Next, Prompt, RunStep,
    },
    message::{CompactionTrigger, Message, Purpose, RequestEnd, Usage},
    provider::{
        Model, ModelInfo, ProviderError, ProviderErrorKind, Request, RetryPolicy, StopReason, ToolChoice,
    },
    run::ErrorKind,
    testing::{Gate, ScriptedProvider, Step},
    tool::tool_fn,
};

/// An answer after which the service has counted this many tokens.
pub(crate) fn counted(text: &str, context: u64) -> Step {
    Step::new().usage(Usage::default().with_input(context)).then_text([text]).stop()
}

/// Returns an agent whose model has room for 1,000 tokens.
pub(crate) fn agent(provider: &ScriptedProvider, policy: CompactionPolicy) -> AgentBuilder {
    let info = ModelInfo::new("small").with_context_window(1_100).with_output_limit(100);
    Agent::builder().model(provider.model().with_info(info)).compaction(policy)
}

pub(crate) fn too_long() -> ProviderError {
    ProviderError::new(ProviderErrorKind::ContextTooLong, "too long")
}

pub(crate) fn refused() -> Step {
    Step::error(too_long())
}

/// Returns the messages that compactions have inserted, and the failures of those that failed.
pub(crate) fn compactions(events: &[Arc<Event>]) -> Vec<Result<Arc<Message>, Failure>> {
    let ended = events.iter().filter_map(|event| match &**event {
        Event::CompactionEnd { message: Some(message), .. } => Some(Ok(Arc::clone(message))),
        Event::CompactionEnd { failure: Some(failure), .. } => Some(Err(failure.clone())),
        _ => None,
    });
    ended.collect()
}

pub(crate) fn without_preamble(mut texts: Vec<String>) -> Vec<String> {
    if let Some((_, summary)) = texts[0].split_once("\n\n") {
        texts[0] = format!("summary: {summary}");
    }
    texts
}

#[tokio::test(start_paused = true)]
async fn request_at_the_threshold_sends_a_summary_of_the_earlier_turns() {
    let summary = Step::new().usage(tokens(7)).then_text(["They greeted."]).stop();
    let provider = ScriptedProvider::new([
        counted("A1", 500),
        counted("A2", 860),
        summary,
        counted("A3", 300),
        Step::text("A4"),
    ]);
    let mut agent = Watched::start(agent(&provider, CompactionPolicy::default())).await;
    agent.run("Q1").await;
    agent.run("Q2").await;
    let events = agent.run("Q3").await;
    assert_eq!(
        names(&events)[..6],
        ["status(busy)", "message(user)", "compaction_start", "usage", "compaction_end", "step_start"]
    );
    let Event::CompactionStart { trigger: CompactionTrigger::Size, tokens: size, .. } = &*events[2] else {
        panic!("{:?}", events[2])
    };
    assert!((860..900).contains(size), "{size}");
    let Event::Usage(row) = &*events[3] else { panic!("{:?}", events[3]) };
    assert_eq!((row.purpose, row.end, row.usage), (Purpose::Summary, RequestEnd::Answered, tokens(7)));
    let inserted = compactions(&events)[0].clone().unwrap();
    let own = inserted.compaction.as_ref().unwrap();
    assert_eq!((own.is_summary, own.kept, own.cleared), (true, 2, 0));
    assert!(own.tokens.is_some_and(|(before, after)| before == *size && after < 100), "{own:?}");
    let response = stopped(&events);
    assert_eq!((response.text().as_str(), response.step), ("A3", 1), "a compaction is not a step");
    assert_eq!(response.usage.total(), 314);

    let requests = provider.requests();
    let asked = sent(&requests[2]);
    assert_eq!(
        asked[..4],
        sent(&requests[1])[..].iter().cloned().chain(["assistant: A2".into()]).collect::<Vec<_>>()
    );
    assert!(asked[4].contains("replaced by a summary"), "{asked:?}");
    let texts = without_preamble(sent(&requests[3]));
    assert_eq!(texts, ["summary: They greeted.", "user: Q2", "assistant: A2", "user: Q3"]);
    let path = ["user: Q1", "assistant: A1", "user: Q2", "assistant: A2", "user: They greeted.", "user: Q3"];
    assert_eq!(agent.history().await[..6], path, "nothing is deleted");

    // The counts from before the compaction do not count any more.
    agent.run("Q4").await;
    let texts = without_preamble(sent(&provider.last_request().unwrap()));
    assert_eq!(texts[0], "summary: They greeted.");
    assert_eq!(texts[1..4], ["user: Q2", "assistant: A2", "user: Q3"]);
}

#[tokio::test(start_paused = true)]
async fn request_at_the_threshold_clears_old_results_if_that_makes_enough_room() {
    let long = "word ".repeat(600);
    let text = long.clone();
    let read = tool_fn("read", "Reads.", move |_: std::collections::BTreeMap<String, u8>, _| {
        let text = text.clone();
        async move { Ok::<_, crate::tool::ToolError>(text) }
    });
    let steps = [Step::tool_use("a", "read", json!({})), counted("A1", 900), Step::text("A2")];
    let provider = ScriptedProvider::new(steps);
    let policy = CompactionPolicy::default().with_kept_turns(1);
    let mut agent = Watched::start(agent(&provider, policy).tool(read)).await;
    let inserted = compactions(&agent.run("Q1").await)[0].clone().unwrap();
    assert_eq!(stopped(&agent.run("Q2").await).text(), "A2");
    let own = inserted.compaction.as_ref().unwrap();
    assert_eq!((own.is_summary, own.kept, own.cleared), (false, 1, 3));
    let request = provider.last_request().unwrap();
    assert_eq!((provider.requests().len(), request.history.len()), (3, 5), "no summary is requested");
    let shown = request.history.get(2).unwrap().tool_results().next().unwrap().text();
    assert_eq!(shown, "[Not shown: 3,000 characters were removed to make room.]");
    let state = agent.agent.state().await.unwrap();
    assert_eq!(state.history().get(2).unwrap().tool_results().next().unwrap().text(), long);
}

#[tokio::test(start_paused = true)]
async fn overflow_is_repeated_with_a_summary() {
    let steps = [Step::text("A1"), refused(), Step::text("S."), Step::text("A2")];
    let provider = ScriptedProvider::new(steps);
    let builder = Agent::builder().model(provider.model());
    let mut agent = Watched::start(builder.compaction(CompactionPolicy::default().with_kept_turns(1))).await;
    agent.run("Q1").await;
    let events = agent.run("Q2").await;
    assert_eq!(
        names(&events)[1..6],
        ["message(user)", "step_start", "retry", "compaction_start", "compaction_end"]
    );
    let response = stopped(&events);
    assert_eq!((response.text().as_str(), response.step), ("A2", 2));
    let own = compactions(&events)[0].clone().unwrap();
    assert_eq!(own.compaction.as_ref().unwrap().trigger, CompactionTrigger::Overflow);
    let texts = without_preamble(sent(&provider.last_request().unwrap()));
    assert_eq!(texts, ["summary: S.", "assistant: A1", "user: Q2"], "the last answer is kept");
}

#[tokio::test(start_paused = true)]
async fn answer_at_the_end_of_the_window_is_repeated_with_a_summary() {
    let full = Step::new().usage(tokens(9)).then_text(["A2 is cu"]).stop_with(StopReason::ContextLength);
    let provider = ScriptedProvider::new([Step::text("A1"), full, Step::text("S."), Step::text("A2")]);
    let policy = CompactionPolicy::default().with_kept_turns(1);
    let mut agent = Watched::start(Agent::builder().model(provider.model()).compaction(policy)).await;
    agent.run("Q1").await;
    let events = agent.run("Q2").await;
    let response = stopped(&events);
    assert_eq!((response.text().as_str(), response.usage), ("A2", tokens(9)));
    assert_eq!(compactions(&events).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn overflow_whose_summary_fails_ends_with_the_first_failure() {
    let steps =
        [Step::text("A1"), refused(), Step::error(ProviderError::new(ProviderErrorKind::Auth, "no key"))];
    let provider = ScriptedProvider::new(steps);
    let log = Log::<Failure>::default();
    let seen = log.clone();
    let hooks = Hooks::new().on_error(move |failure, _| {
        seen.push(failure.clone());
        ErrorDecision::Stop
    });
    let policy = CompactionPolicy::default().with_kept_turns(1);
    let builder = Agent::builder().model(provider.model()).compaction(policy).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    agent.run("Q1").await;
    let events = agent.run("Q2").await;
    assert_eq!(failed(&events).0, Failure::from(too_long()));
    assert_eq!(log.all(), [Failure::from(too_long())]);
    let failure = compactions(&events)[0].clone().unwrap_err();
    assert!(failure.to_string().contains("no key"), "{failure}");
    assert_eq!(agent.history().await, ["user: Q1", "assistant: A1"]);
}

#[tokio::test(start_paused = true)]
async fn summary_that_fails_by_size_leaves_the_request_as_it_is() {
    let broken = Step::error(ProviderError::new(ProviderErrorKind::Auth, "no key"));
    let provider = ScriptedProvider::new([counted("A1", 900), broken, Step::text("A2")]);
    let policy = CompactionPolicy::default().with_kept_turns(0);
    let mut agent = Watched::start(agent(&provider, policy)).await;
    agent.run("Q1").await;
    let events = agent.run("Q2").await;
    assert!(compactions(&events)[0].is_err());
    assert_eq!(stopped(&events).text(), "A2");
    assert_eq!(sent(&provider.last_request().unwrap()), ["user: Q1", "assistant: A1", "user: Q2"]);
}

#[tokio::test(start_paused = true)]
async fn blank_summary_is_a_failure() {
    let provider = ScriptedProvider::new([counted("A1", 900), Step::text(" "), Step::text("A2")]);
    let mut agent = Watched::start(agent(&provider, CompactionPolicy::default().with_kept_turns(1))).await;
    agent.run("Q1").await;
    let events = agent.run("Q2").await;
    let failure = compactions(&events)[0].clone().unwrap_err();
    assert!(failure.to_string().contains("wrote no summary"), "{failure}");
    assert_eq!(stopped(&events).text(), "A2");
}

#[tokio::test(start_paused = true)]
async fn summary_with_tool_uses_is_requested_again_without_tools() {
    let uses = Step::tool_use("a", "read", json!({}));
    let provider = ScriptedProvider::new([counted("A1", 900), uses, Step::text("S."), Step::text("A2")]);
    let mut agent = Watched::start(agent(&provider, CompactionPolicy::default().with_kept_turns(1))).await;
    agent.run("Q1").await;
    let events = agent.run("Q2").await;
    assert_eq!(stopped(&events).text(), "A2");
    let requests = provider.requests();
    let choices: Vec<_> = requests.iter().map(|request| request.options.tool_choice().cloned()).collect();
    assert_eq!(choices, [None, None, Some(ToolChoice::None), None]);
    assert_eq!(sent(&requests[1]), sent(&requests[2]));
}

#[tokio::test(start_paused = true)]
async fn compaction_that_does_not_help_is_not_repeated() {
    let long = "word ".repeat(1200);
    let provider = ScriptedProvider::new([counted("A1", 900), Step::text("S."), counted("A2", 100)]);
    let mut agent = Watched::start(agent(&provider, CompactionPolicy::default().with_kept_turns(1))).await;
    agent.run("Q1").await;
    let events = agent.run(long.as_str()).await;
    assert_eq!((compactions(&events).len(), stopped(&events).text().as_str()), (1, "A2"));
}

#[tokio::test(start_paused = true)]
async fn kept_prompts_follow_the_summary_word_for_word() {
    let provider = ScriptedProvider::new([counted("A1", 900), Step::text("S."), Step::text("A2")]);
    let policy =
        CompactionPolicy::default().with_kept_turns(1).with_kept_prompts().with_instructions("Be kind.");
    let mut agent = Watched::start(agent(&provider, policy)).await;
    agent.run("My name is Ada.").await;
    let events = agent.run("Q2").await;
    let text = compactions(&events)[0].clone().unwrap().text();
    assert_eq!(text, "S.\n\nEarlier messages of the user, the newest first:\n\nMy name is Ada.");
    assert!(sent(&provider.requests()[1]).last().unwrap().ends_with("\n\nBe kind."));
}

#[tokio::test(start_paused = true)]
async fn kept_prompts_omit_a_long_one_after_others() {
    let steps = [counted("A1", 100), counted("A2", 300), counted("A3", 900), Step::text("S.")];
    let provider = ScriptedProvider::new(steps);
    let policy = CompactionPolicy::default().with_kept_turns(1).with_kept_prompts();
    let mut agent = Watched::start(agent(&provider, policy)).await;
    agent.run("My name is Ada.").await;
    agent.run("line ".repeat(150).as_str()).await;
    let events = agent.run("Q3").await;
    let text = compactions(&events)[0].clone().unwrap().text();
    assert_eq!(text, "S.\n\nEarlier messages of the user, the newest first:\n\nMy name is Ada.");
}

#[tokio::test(start_paused = true)]
async fn cancel_and_interrupt_during_a_summary_drop_the_turn() {
    for interrupts in [false, true] {
        let gate = Gate::new();
        let held = Step::new().usage(tokens(3)).then_text(["S."]).gate(&gate).stop();
        let provider = ScriptedProvider::new([counted("A1", 900), held, Step::text("S."), Step::text("A2")]);
        let policy = CompactionPolicy::default().with_kept_turns(1);
        let mut agent = Watched::start(agent(&provider, policy)).await;
        agent.run("Q1").await;
        agent.agent.prompt("Q2").await.unwrap();
        reached(&gate).await;
        let snapshot = agent.agent.snapshot().await.unwrap();
        assert!(snapshot.compacting.is_some() && snapshot.turn.is_some());
        if interrupts {
            agent.agent.interrupt().await.unwrap();
        } else {
            agent.agent.cancel().await.unwrap();
        }
        let events = agent.end().await;
        assert!(
            matches!(&**events.last().unwrap(), Event::Cancelled { response } if response.usage == tokens(3))
        );
        assert!(events.iter().any(|event| name(event) == "usage"), "the summary has its row");
        assert_eq!(agent.history().await, ["user: Q1", "assistant: A1"]);
        assert_eq!(agent.agent.snapshot().await.unwrap().compacting, None);
        assert_eq!(stopped(&agent.run("Q3").await).text(), "A2");
    }
}

#[tokio::test(start_paused = true)]
async fn compaction_within_a_turn_stands_after_the_results() {
    let read = tool_fn("read", "Reads.", |_: std::collections::BTreeMap<String, u8>, _| async {
        Ok::<_, crate::tool::ToolError>("short")
    });
    let usage = Usage::default().with_input(900);
    let asking = Step::new().usage(usage).then_tool_use("a", "read", json!({})).stop();
    let provider = ScriptedProvider::new([Step::text("A1"), asking, Step::text("S."), Step::text("A2")]);
    let policy = CompactionPolicy::default().with_kept_turns(1);
    let mut agent = Watched::start(agent(&provider, policy).tool(read)).await;
    agent.run("Q1").await;
    let events = agent.run("Q2").await;
    let response = stopped(&events);
    let path: Vec<_> = response.messages.iter().map(|message| brief(message)).collect();
    assert_eq!(path[3..], ["user: S.", "assistant: A2"]);
    let own = compactions(&events)[0].clone().unwrap();
    assert_eq!(own.compaction.as_ref().unwrap().kept, 3, "the turn in flight is kept");
    let request = provider.last_request().unwrap();
    assert_eq!(request.history.len(), 4);
    let step = events.iter().rev().find_map(|event| match &**event {
        Event::Step(response) => Some(Arc::clone(response)),
        _ => None,
    });
    assert_eq!(step.unwrap().messages.len(), 2, "a step has no compaction");
}

#[tokio::test(start_paused = true)]
async fn kept_turn_includes_what_precedes_a_prompt_that_joined_it() {
    for (turns, in_tool, in_answer, kept) in [(1, 900, 0, 4), (2, 100, 900, 5)] {
        let gate = Gate::new();
        let usage = Usage::default().with_input(in_tool);
        let asking = Step::new().usage(usage).then_tool_use("t", "slow", json!({})).stop();
        let answer = counted("A2", in_answer);
        let rest = if in_answer == 0 { [Step::text("S."), answer] } else { [answer, Step::text("S.")] };
        let steps = [Step::text("A1"), asking].into_iter().chain(rest).chain([Step::text("A3")]);
        let provider = ScriptedProvider::new(steps);
        let policy = CompactionPolicy::default().with_kept_turns(turns);
        let mut agent = Watched::start(agent(&provider, policy).tool(slow(&gate))).await;
        agent.run("Q1").await;
        agent.agent.prompt("Q2").await.unwrap();
        reached(&gate).await;
        agent.agent.prompt(Prompt::new("Now").at(Next::Step)).await.unwrap();
        gate.open();
        let mut events = agent.end().await;
        events.extend(agent.run("Q3").await);
        let own = compactions(&events)[0].clone().unwrap();
        assert_eq!(own.compaction.as_ref().unwrap().kept, kept, "{turns}");
    }
}

#[tokio::test]
async fn start_with_an_invalid_policy_is_refused() {
    let provider = ScriptedProvider::new([]);
    let policy = CompactionPolicy::default().with_threshold(1.5);
    let error = agent(&provider, policy).start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSettings);
    assert!(error.to_string().contains("1.5"), "{error}");
    let policy = CompactionPolicy::default().with_model("nobody:small");
    let error = agent(&provider, policy).start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownModel);
}

#[tokio::test(start_paused = true)]
async fn policy_with_a_model_asks_it_for_summaries() {
    let provider = ScriptedProvider::new([counted("A1", 900), Step::text("A2")]);
    let writer = ScriptedProvider::new([Step::text("S.")]);
    let policy = CompactionPolicy::default().with_kept_turns(1).with_model(writer.model());
    let mut agent = Watched::start(agent(&provider, policy)).await;
    agent.run("Q1").await;
    assert_eq!(stopped(&agent.run("Q2").await).text(), "A2");
    assert_eq!((provider.requests().len(), writer.requests().len()), (2, 1));
}

/// Returns a provider, and its model, whose id is the name.
fn named(name: &str, step: Step) -> (ScriptedProvider, Model) {
    let provider = ScriptedProvider::new([step]).named(name.to_owned());
    let model = Model::new(Arc::new(provider.clone()), name);
    (provider, model)
}

#[tokio::test(start_paused = true)]
async fn summary_that_fails_is_written_by_the_next_backup_model() {
    let failure = ProviderError::new(ProviderErrorKind::Service, "broken");
    let failing = Step::new().usage(tokens(3)).then_text(["Half"]).fail(failure);
    let provider = ScriptedProvider::new([counted("A1", 900), failing, Step::text("A2")]);
    let (unused, for_refusals) = named("unused", Step::text("no"));
    let ((blank, second), (_, third)) = (named("blank", Step::text(" ")), named("third", Step::text("S.")));
    let builder = agent(&provider, CompactionPolicy::default().with_kept_turns(1));
    let builder = builder.retry_policy(RetryPolicy::default().with_max_retries(0));
    let refusals = BackupModel::new(for_refusals).with_causes([BackupCause::Refusal]);
    let mut agent =
        Watched::start(builder.backup_model(refusals).backup_model(second).backup_model(third)).await;
    agent.run("Q1").await;
    let events = agent.run("Q2").await;
    let ends = compactions(&events);
    let [Ok(inserted)] = &ends[..] else { panic!("{ends:?}") };
    let own = inserted.compaction.as_ref().unwrap();
    assert_eq!((inserted.text().as_str(), own.model.as_deref()), ("S.", Some("third")));
    let usage = events.iter().find_map(|event| match &**event {
        Event::Usage(row) => Some((row.purpose, row.end, row.usage)),
        _ => None,
    });
    assert_eq!(usage, Some((Purpose::Summary, RequestEnd::Failed, tokens(3))));
    assert_eq!(stopped(&events).text(), "A2", "the prompt itself goes to the first model");
    assert_eq!((unused.requests().len(), blank.requests().len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn request_to_another_model_does_not_trust_a_smaller_count() {
    for changes in [false, true] {
        let long =
            Step::new().usage(Usage::default().with_input(100)).then_text(["word ".repeat(1_200)]).stop();
        let provider = ScriptedProvider::new([long, counted("A2", 120), Step::text("A3")]);
        let (other, model) = named("other", Step::text("S."));
        other.push(Step::text("A3"));
        let policy = CompactionPolicy::default().with_kept_turns(1);
        let mut agent = Watched::start(agent(&provider, policy)).await;
        for prompt in ["Q1", "Q2"] {
            assert_eq!(compactions(&agent.run(prompt).await).len(), 0);
        }
        if changes {
            let info = ModelInfo::new("small").with_context_window(1_100).with_output_limit(100);
            let model = model.with_info(info);
            agent.agent.set_state(|draft| Ok(draft.config.set_model(model)?)).await.unwrap();
        }
        let events = agent.run("Q3").await;
        assert_eq!(
            (stopped(&events).text(), compactions(&events).len()),
            ("A3".into(), usize::from(changes))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn failed_request_to_another_model_does_not_make_an_earlier_count_its_own() {
    let words = "word ".repeat(1_200);
    let long = Step::new().usage(Usage::default().with_input(100)).then_text([words]);
    let no = || Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no"));
    let provider = ScriptedProvider::new([long.then_tool_use("a", "read", json!({})).stop(), no()]);
    // The summary and the request fail.
    let (other, model) = named("other", no());
    for step in [no(), Step::text("S."), counted("A2", 100)] {
        other.push(step);
    }
    let model = model.with_info(ModelInfo::new("small").with_context_window(1_100).with_output_limit(100));
    let mut first = Some(model);
    let hooks = Hooks::new().on_error(move |_, state| match first.take() {
        Some(model) => {
            state.config_mut().set_model(model).unwrap();
            ErrorDecision::Retry
        }
        None => ErrorDecision::Stop,
    });
    let read = tool_fn("read", "Reads.", |_: std::collections::BTreeMap<String, u8>, _| async {
        Ok::<_, crate::tool::ToolError>("ok")
    });
    let builder = agent(&provider, CompactionPolicy::default().with_kept_turns(1)).tool(read);
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    let prompt = "word ".repeat(600);
    assert!(compactions(&agent.run(prompt.as_str()).await)[0].is_err());
    let events = agent.run("Q2").await;
    assert_eq!(stopped(&events).text(), "A2");
    assert!(matches!(&compactions(&events)[..], [Ok(_)]), "{:?}", compactions(&events));
}

#[tokio::test(start_paused = true)]
async fn larger_backup_model_summarises_what_a_smaller_one_was_not_sent() {
    let words = "word ".repeat(400);
    let long =
        |context| Step::new().usage(Usage::default().with_input(context)).then_text([words.clone()]).stop();
    let fails = || Step::error(ProviderError::new(ProviderErrorKind::Quota, "no"));
    let provider = ScriptedProvider::new([long(300), long(900), fails(), Step::text("A3")]);
    let sized = |name: &str, window, step| {
        let (provider, model) = named(name, step);
        let info = ModelInfo::new(name).with_context_window(window).with_output_limit(100);
        (provider, model.with_info(info))
    };
    let (tiny, second) = sized("tiny", 150, fails());
    let (large, third) = sized("large", 100_000, Step::text("S."));
    let builder = agent(&provider, CompactionPolicy::default().with_kept_turns(1));
    let builder = builder.retry_policy(RetryPolicy::default().with_max_retries(0));
    let mut agent = Watched::start(builder.backup_model(second).backup_model(third)).await;
    agent.run("Q1").await;
    agent.run("Q2").await;
    assert_eq!(stopped(&agent.run("Q3").await).text(), "A3");
    let (tiny, large) = (tiny.last_request().unwrap(), large.last_request().unwrap());
    let last = |request: &Request| request.history.last().unwrap().text();
    assert!(last(&tiny).contains("replaced by a summary"), "even a tiny model gets the instruction");
    assert_eq!(last(&tiny), last(&large));
    assert!(tiny.history.len() < large.history.len());
    assert_eq!(large.history.get(0).unwrap().text(), "Q1", "nothing is missing");
}

/// Runs two prompts, after whose answers the size has reached the threshold.
async fn large(steps: impl IntoIterator<Item = Step>) -> (ScriptedProvider, Watched, Vec<Arc<Event>>) {
    let answers = [counted("A1", 300), counted("A2", 900)];
    let provider = ScriptedProvider::new(answers.into_iter().chain(steps));
    let mut agent = Watched::start(agent(&provider, CompactionPolicy::default().with_kept_turns(1))).await;
    agent.run("Q1").await;
    let events = agent.run("Q2").await;
    (provider, agent, events)
}

#[tokio::test(start_paused = true)]
async fn run_that_ends_at_the_threshold_is_compacted_after_its_answer() {
    let summary = Step::new().usage(tokens(7)).then_text(["S."]).stop();
    let (provider, mut agent, events) = large([summary, Step::text("A3")]).await;
    let seen = names(&events);
    let end = ["turn(continue)", "compaction_start", "usage", "compaction_end", "status(idle)", "turn(stop)"];
    assert_eq!(seen[seen.len() - end.len()..], end);
    let turns: Vec<_> = events
        .iter()
        .filter_map(|event| match &**event {
            Event::Turn { response, continues } => Some((Arc::clone(response), *continues)),
            _ => None,
        })
        .collect();
    let [(answered, true), (last, false)] = &turns[..] else { panic!("{turns:?}") };
    assert_eq!((last.text().as_str(), last.usage.total()), ("A2", tokens(7).total()));
    assert_eq!((last.messages.len(), last.turn != answered.turn, last.run), (1, true, answered.run));
    assert_eq!(agent.history().await, ["user: Q1", "assistant: A1", "user: Q2", "assistant: A2", "user: S."]);
    agent.run("Q3").await;
    let texts = without_preamble(sent(&provider.last_request().unwrap()));
    assert_eq!(texts, ["summary: S.", "user: Q2", "assistant: A2", "user: Q3"]);
}

#[tokio::test(start_paused = true)]
async fn ask_that_ends_at_the_threshold_returns_its_answer() {
    for fails in [false, true] {
        let summary = if fails { refused() } else { Step::text("S.") };
        let provider = ScriptedProvider::new([counted("A1", 300), counted("A2", 900), summary]);
        let policy = CompactionPolicy::default().with_kept_turns(1);
        let agent = agent(&provider, policy).start().await.unwrap();
        agent.ask("Q1").await.unwrap();
        let response = agent.ask("Q2").await.unwrap();
        assert_eq!((response.text().as_str(), response.messages.len()), ("A2", 2));
        assert_eq!(agent.state().await.unwrap().history().len(), if fails { 4 } else { 5 });
    }
}

#[tokio::test(start_paused = true)]
async fn stop_during_a_compaction_at_the_end_keeps_the_answer() {
    for stop in ["cancel", "interrupt", "time limit"] {
        let gate = Gate::new();
        let held = Step::new().usage(tokens(3)).then_text(["S."]).gate(&gate).stop();
        let provider = ScriptedProvider::new([counted("A1", 300), counted("A2", 900), held]);
        let policy = CompactionPolicy::default().with_kept_turns(1);
        let limit = Duration::from_secs(10);
        let mut agent = Watched::start(agent(&provider, policy).turn_timeout(limit)).await;
        agent.run("Q1").await;
        let mut running = agent.agent.run("Q2").follow().await.unwrap();
        let ended = loop {
            if let Some(RunStep::Ended(response)) = running.next().await.unwrap() {
                break response;
            }
        };
        assert_eq!(ended.text(), "A2", "the stream ends with the answer");
        reached(&gate).await;
        let waits = agent.agent.prompt("Q3").await.unwrap();
        assert!(matches!(waits, Accepted::Staged { .. }));
        assert_eq!(agent.agent.compact("").await.unwrap_err().kind(), ErrorKind::Busy);
        match stop {
            "cancel" => agent.agent.cancel().await.unwrap(),
            "interrupt" => agent.agent.interrupt().await.unwrap(),
            _ => advance(limit).await,
        }
        let events = agent.end().await;
        let response = stopped(&events);
        assert_eq!((response.text().as_str(), response.messages.len(), response.usage), ("A2", 0, tokens(3)));
        assert_eq!(returned(&events).len(), 1, "the staged prompt is returned");
        assert!(compactions(&events).is_empty());
        assert_eq!(agent.history().await, ["user: Q1", "assistant: A1", "user: Q2", "assistant: A2"]);
    }
}

#[tokio::test(start_paused = true)]
async fn compaction_by_request_is_a_turn_alone() {
    let steps = ["A1", "A2", "A3", "S.", "A4"].map(Step::text);
    let provider = ScriptedProvider::new(steps);
    let mut agent = Watched::start(Agent::builder().model(provider.model())).await;
    let refused = agent.agent.compact(Compact::undo()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotCompactable);
    for prompt in ["Q1", "Q2", "Q3"] {
        agent.run(prompt).await;
    }
    let message = agent.agent.compact("the invoices").await.unwrap();
    let events = agent.end().await;
    let expected = ["status(busy)", "compaction_start", "compaction_end", "status(idle)", "turn(stop)"];
    assert_eq!(names(&events), expected);
    assert_eq!(message.compaction.as_ref().unwrap().trigger, CompactionTrigger::Request);
    assert!(sent(&provider.requests()[3]).last().unwrap().ends_with("in detail: the invoices"));
    let again = agent.agent.compact(Compact::summary()).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::NotCompactable, "{again}");
    agent.agent.compact(Compact::undo()).await.unwrap();
    agent.end().await;
    let undone = agent.agent.compact(Compact::undo()).await.unwrap_err();
    assert_eq!(undone.kind(), ErrorKind::NotCompactable, "{undone}");
    agent.run("Q4").await;
    assert_eq!(provider.last_request().unwrap().history.len(), 7, "everything is sent again");
}

#[tokio::test(start_paused = true)]
async fn compaction_by_request_that_fails_changes_nothing() {
    let held = Step::new().then_text(["S."]).gate(&Gate::new()).stop();
    for (summary, failures) in [(refused(), 1), (held, 0)] {
        let steps = [Step::text("A1"), Step::text("A2"), Step::text("A3"), summary];
        let provider = ScriptedProvider::new(steps);
        let builder = Agent::builder().model(provider.model()).turn_timeout(Duration::from_secs(10));
        let mut agent = Watched::start(builder).await;
        for prompt in ["Q1", "Q2", "Q3"] {
            agent.run(prompt).await;
        }
        let error = agent.agent.compact("").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Failed, "{error}");
        let events = agent.end().await;
        assert_eq!(compactions(&events).iter().filter(|end| end.is_err()).count(), failures);
        assert_eq!(stopped(&events).messages.len(), 0);
        assert_eq!(agent.history().await.len(), 6);
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_during_a_compaction_by_request_starts_after_it() {
    let gate = Gate::new();
    let held = Step::new().then_text(["S."]).gate(&gate).stop();
    let steps = [Step::text("A1"), Step::text("A2"), Step::text("A3"), held, Step::text("A4")];
    let provider = ScriptedProvider::new(steps);
    let mut agent = Watched::start(Agent::builder().model(provider.model())).await;
    for prompt in ["Q1", "Q2", "Q3"] {
        agent.run(prompt).await;
    }
    let handle = agent.agent.clone();
    let compacting = tokio::spawn(async move { handle.compact(Compact::summary()).await });
    reached(&gate).await;
    agent.agent.prompt("Q4").await.unwrap();
    gate.open();
    assert_eq!(compacting.await.unwrap().unwrap().text(), "S.");
    let events = agent.end().await;
    let response = stopped(&events);
    assert_eq!((response.text().as_str(), response.run), ("A4", 5));
    let texts = without_preamble(sent(&provider.last_request().unwrap()));
    assert_eq!(texts[0], "summary: S.");
}

#[tokio::test(start_paused = true)]
async fn overflow_after_a_failed_summary_of_an_earlier_step_is_compacted() {
    let failed = Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no"));
    let steps = [
        counted("A1", 300),
        Step::new().usage(Usage::default().with_input(900)).then_tool_use("a", "read", json!({})).stop(),
        failed,
        Step::new().usage(Usage::default().with_input(910)).then_tool_use("b", "read", json!({})).stop(),
        refused(),
        Step::text("S."),
        Step::text("A2"),
    ];
    let provider = ScriptedProvider::new(steps);
    let read = tool_fn("read", "Reads.", |_: std::collections::BTreeMap<String, u8>, _| async {
        Ok::<_, crate::tool::ToolError>("ok")
    });
    let policy = CompactionPolicy::default().with_kept_turns(1);
    let mut agent = Watched::start(agent(&provider, policy).tool(read)).await;
    agent.run("Q1").await;
    let events = agent.run("Q2").await;
    assert_eq!(stopped(&events).text(), "A2");
    let ends = compactions(&events);
    assert!(ends[0].is_err() && ends[1].is_ok(), "{ends:?}");
}

#[tokio::test(start_paused = true)]
async fn overflow_of_one_long_turn_below_the_known_window_is_compacted() {
    let steps = [
        Step::tool_use("a", "read", json!({})),
        Step::tool_use("b", "read", json!({})),
        Step::tool_use("c", "read", json!({})),
        refused(),
        Step::text("S."),
        Step::text("A1"),
    ];
    let provider = ScriptedProvider::new(steps);
    let read = tool_fn("read", "Reads.", |_: std::collections::BTreeMap<String, u8>, _| async {
        Ok::<_, crate::tool::ToolError>("word ".repeat(600))
    });
    // The server has a much smaller window than the one that is known for its model.
    let model = provider.model().with_info(ModelInfo::new("large").with_context_window(200_000));
    let policy = CompactionPolicy::default().without_clearing();
    let builder = Agent::builder().model(model).compaction(policy).tool(read);
    let mut agent = Watched::start(builder).await;
    let events = agent.run("Q1").await;
    assert_eq!(stopped(&events).text(), "A1");
    let texts = without_preamble(sent(&provider.last_request().unwrap()));
    assert_eq!(texts[0], "summary: S.");
}

#[tokio::test(start_paused = true)]
async fn overflow_right_after_a_compaction_at_the_end_of_a_run_is_compacted_again() {
    let steps = [
        counted("A1", 300),
        counted("A2", 900),
        Step::text("S1."),
        refused(),
        Step::text("S2."),
        Step::text("A3"),
    ];
    let provider = ScriptedProvider::new(steps);
    let policy = CompactionPolicy::default().with_kept_turns(1);
    let mut agent = Watched::start(agent(&provider, policy)).await;
    agent.run("Q1").await;
    agent.run("Q2").await;
    let events = agent.run("Q3").await;
    assert_eq!(stopped(&events).text(), "A3");
    let texts = without_preamble(sent(&provider.last_request().unwrap()));
    assert_eq!(texts[0], "summary: S2.");
}

#[tokio::test(start_paused = true)]
async fn overflow_whose_summary_fails_leaves_its_step_for_a_backup_model() {
    let no_summary = Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no"));
    let provider = ScriptedProvider::new([counted("A1", 300), refused(), no_summary]);
    let other = ScriptedProvider::new([Step::text("A2")]).named("other");
    let large = other.model().with_info(ModelInfo::new("large").with_context_window(100_000));
    let policy = CompactionPolicy::default().with_kept_turns(1);
    let builder = agent(&provider, policy).backup_model(large).max_steps(2);
    let mut agent = Watched::start(builder).await;
    agent.run("Q1").await;
    assert_eq!(stopped(&agent.run("Q2").await).text(), "A2");
}

#[tokio::test(start_paused = true)]
async fn summary_that_is_not_complete_is_a_failure_and_a_long_one_is_cut() {
    for (reason, is_kept) in
        [(StopReason::Length, true), (StopReason::ContextLength, false), (StopReason::Refusal, false)]
    {
        let summary = Step::new().then_text(["S."]).stop_with(reason);
        let provider = ScriptedProvider::new([counted("A1", 900), summary, Step::text("A2")]);
        let policy = CompactionPolicy::default().with_kept_turns(1);
        let mut agent = Watched::start(agent(&provider, policy)).await;
        agent.run("Q1").await;
        let ends = compactions(&agent.run("Q2").await);
        assert_eq!(ends[0].is_ok(), is_kept, "{ends:?}");
    }
    for (text, expected) in [
        (format!("# Summary\n\n{}", "line\n".repeat(10_000)), 32_765),
        (format!("{}\n\n{}", "a".repeat(20_000), "b".repeat(20_000)), 20_000),
        ("c".repeat(40_000), 32_768),
    ] {
        let steps = [counted("A1", 900), Step::text(text), Step::text("A2")];
        let provider = ScriptedProvider::new(steps);
        let policy = CompactionPolicy::default().with_kept_turns(1);
        let mut agent = Watched::start(agent(&provider, policy)).await;
        agent.run("Q1").await;
        let ends = compactions(&agent.run("Q2").await);
        assert_eq!(ends[0].as_ref().unwrap().text().len(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn model_for_summaries_gets_only_what_fits_it() {
    let words = "word ".repeat(400);
    let long =
        |context| Step::new().usage(Usage::default().with_input(context)).then_text([words.clone()]).stop();
    let provider = ScriptedProvider::new([long(300), long(900), Step::text("A3")]);
    let small = ScriptedProvider::new([Step::text("S.")]).named("other");
    let info = ModelInfo::new("tiny").with_context_window(700).with_output_limit(100);
    let policy = CompactionPolicy::default().with_kept_turns(1).with_model(small.model().with_info(info));
    let mut agent = Watched::start(agent(&provider, policy)).await;
    agent.run("Q1").await;
    agent.run("Q2").await;
    assert_eq!(stopped(&agent.run("Q3").await).text(), "A3");
    let request = small.last_request().unwrap();
    let size: u64 = request.history.iter().map(|message| message.estimated_tokens()).sum();
    assert!(size <= 600, "{size} tokens");
    let texts = sent(&request);
    assert_eq!((texts[0].as_str(), texts.len()), ("user: Q1", 3), "only what the summary replaces is sent");
}
