//! Runs that are followed to their end.

use crate::{
    agent::{Accepted, FollowTarget, Prompt, RunStep, Running, Status, ToolDecision},
    message::Usage,
    run::ErrorKind,
    session::Session,
    store::MemoryStore,
    subscription::FeedLimits,
    testing::{Gate, Step},
    tool::{Decision, ToolContext, tool_fn},
};
use serde_json::{Value, json};

use super::{
    hooks::Hooks,
    rig::{answered, echoing},
    support::scripted,
};

async fn text(running: &mut Running) -> String {
    let mut text = String::new();
    while let Some(step) = running.next().await.unwrap() {
        if let RunStep::Text { new, .. } = step {
            text.push_str(&new);
        }
    }
    text
}

#[tokio::test]
async fn reader_that_is_too_slow_gets_the_rest_and_the_response() {
    let words: Vec<_> = (0..2000).map(|word| format!("{word} ")).collect();
    let whole = words.concat();
    let step = Step::new().then_text(words.iter().map(String::as_str)).stop();
    let limits = FeedLimits::default().with_lag(16);
    let agent = scripted([step]).1.feed_limits(limits).start().await.unwrap();
    let mut running = agent.follow(FollowTarget::Prompt("a".into())).await.unwrap();
    let response = agent.ask(Prompt::new("Count.").with_id("a")).await.unwrap();
    assert_eq!(text(&mut running).await, whole);
    assert_eq!(running.response().await.unwrap().message, response.message);
}

#[tokio::test]
async fn turn_whose_run_is_over_is_followed_from_its_first_message() {
    let agent = scripted([Step::text("One."), Step::text("Two.")]).1.start().await.unwrap();
    let Accepted::Started { turn } = agent.prompt("Count.").await.unwrap() else { panic!("a run is active") };
    agent.wait_until_idle().await.unwrap();
    let mut running = agent.follow(FollowTarget::Turn(turn)).await.unwrap();
    assert_eq!(text(&mut running).await, "One.");
    agent.ask("Go on.").await.unwrap();
    let mut running = agent.follow(FollowTarget::Turn(turn)).await.unwrap();
    let response = running.response().await.unwrap();
    assert_eq!((response.text().as_str(), response.model.as_str()), ("One.", "scripted"));
}

#[tokio::test(start_paused = true)]
async fn interrupt_after_the_end_leaves_the_next_run() {
    let gate = Gate::new();
    let slow = || Step::new().then_text(["Two"]).gate(&gate).then_text([", three."]).stop();
    let agent = scripted([Step::text("One."), slow()]).1.start().await.unwrap();
    let mut first = agent.follow(FollowTarget::InFlight).await.unwrap();
    agent.ask("Count.").await.unwrap();
    first.response().await.unwrap();
    let mut second = agent.follow(FollowTarget::InFlight).await.unwrap();
    assert!(!second.interrupt().await.unwrap(), "no run has begun");
    agent.prompt("Go on.").await.unwrap();
    answered(gate.reached()).await;
    assert!(!first.interrupt().await.unwrap());
    assert_eq!(agent.snapshot().await.unwrap().status, Status::Busy);
    while !matches!(second.next().await, Ok(Some(RunStep::Text { .. }))) {}
    assert!(second.interrupt().await.unwrap());
    assert_eq!(second.response().await.unwrap().text(), "Two");
}

#[tokio::test]
async fn decision_lets_the_followed_run_continue_to_a_value() {
    let steps = [Step::new().then_tool_use("0", "echo", json!({})).stop(), Step::text("[1, 2]")];
    let hooks = Hooks::new().deciding([("echo", ToolDecision::Pause(json!(null)))]);
    let agent = echoing(steps).callbacks(hooks).start().await.unwrap();
    let mut running = agent.follow(FollowTarget::InFlight).await.unwrap();
    agent.prompt("Echo it.").await.unwrap();
    let pause = loop {
        match running.next().await {
            Ok(Some(RunStep::Pause(pause))) => break pause,
            Ok(Some(_)) => {}
            end => panic!("the run has ended: {end:?}"),
        }
    };
    pause.approve().await.unwrap();
    let again = pause.decide(Decision::Execute).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::NotPaused);
    assert_eq!(running.value::<Vec<u8>>().await.unwrap(), [1, 2]);
}

/// Two uses of a tool that needs a decision, then an answer.
async fn pausing() -> crate::agent::Agent {
    let uses = ["0", "1"].into_iter().fold(Step::new(), |step, id| step.then_tool_use(id, "echo", json!({})));
    let hooks = Hooks::new().deciding([("echo", ToolDecision::Pause(json!(null)))]);
    echoing([uses.stop(), Step::text("Done.")]).callbacks(hooks).start().await.unwrap()
}

/// Returns the results of the tools, each with whether it is an error.
async fn results(running: &mut Running) -> Vec<(String, bool)> {
    let mut results = Vec::new();
    while let Some(step) = answered(running.next()).await.unwrap() {
        if let RunStep::ToolResult(result) = step {
            results.push((result.tool_use_id.to_string(), result.is_error));
        }
    }
    results.sort();
    results
}

#[tokio::test(start_paused = true)]
async fn pause_that_is_dropped_without_a_decision_is_rejected() {
    let agent = pausing().await;
    let mut running = agent.run("Echo it twice.").follow().await.unwrap();
    assert_eq!(results(&mut running).await, [("0".to_owned(), true), ("1".to_owned(), true)]);

    // One is approved. The other is dropped elsewhere while the reader waits.
    let agent = pausing().await;
    let mut running = agent.run("Echo it twice.").follow().await.unwrap();
    let mut waiting = Vec::new();
    while waiting.len() < 2 {
        if let Some(RunStep::Pause(pause)) = answered(running.next()).await.unwrap() {
            waiting.push(pause);
        }
    }
    assert_eq!(running.pauses().len(), 2);
    waiting[0].approve().await.unwrap();
    let kept = waiting[1].clone();
    let ((), read) = tokio::join!(
        async {
            drop(waiting);
            tokio::task::yield_now().await;
            drop(kept);
        },
        results(&mut running)
    );
    assert_eq!(read, [("0".to_owned(), false), ("1".to_owned(), true)]);
}

#[tokio::test(start_paused = true)]
async fn pause_that_is_left_waits_for_a_decision_from_elsewhere() {
    // A reader that has not started the run leaves every pause.
    for starts in [true, false] {
        let agent = pausing().await;
        let mut running = if starts {
            agent.run("Echo it twice.").follow().await.unwrap()
        } else {
            let Accepted::Started { turn } = agent.prompt("Echo it twice.").await.unwrap() else { panic!() };
            agent.follow(FollowTarget::Turn(turn)).await.unwrap()
        };
        let mut seen = 0;
        while seen < 2 {
            if let Some(RunStep::Pause(pause)) = answered(running.next()).await.unwrap() {
                seen += 1;
                if starts {
                    pause.leave();
                }
            }
        }
        let waits = tokio::time::timeout(std::time::Duration::from_hours(1), running.next()).await;
        assert!(waits.is_err(), "{waits:?}");
        for id in ["0", "1"] {
            agent.resume(id, Decision::Execute).await.unwrap();
        }
        assert_eq!(results(&mut running).await, [("0".to_owned(), false), ("1".to_owned(), false)]);
    }
}

#[tokio::test(start_paused = true)]
async fn reader_that_is_dropped_leaves_its_pauses() {
    let agent = pausing().await;
    let mut running = agent.run("Echo it twice.").follow().await.unwrap();
    while !matches!(answered(running.next()).await, Ok(Some(RunStep::Pause(_)))) {}
    drop(running);
    assert_eq!(agent.snapshot().await.unwrap().pauses.len(), 2);
}

#[tokio::test]
async fn tool_that_starts_is_shown_with_its_name_and_the_decided_input() {
    let agent = pausing().await;
    let mut running = agent.run("Echo it twice.").follow().await.unwrap();
    let (mut started, mut ended) = (Vec::new(), Vec::new());
    while let Some(step) = running.next().await.unwrap() {
        match step {
            RunStep::Pause(pause) if pause.tool_use.id.as_str() == "0" => {
                pause.decide_as(Decision::ExecuteWith(json!({ "text": "hi" })), "ann").await.unwrap();
            }
            RunStep::Pause(pause) => pause.reject("No.").await.unwrap(),
            RunStep::PauseEnded(id) => ended.push(id.to_string()),
            RunStep::ToolStarted(tool_use) => started.push((tool_use.name, tool_use.input)),
            _ => {}
        }
    }
    assert_eq!(started, [("echo".to_owned(), json!({ "text": "hi" }))]);
    assert_eq!(ended, ["0", "1"]);
}

#[tokio::test]
async fn failed_run_ends_with_its_error() {
    let agent = scripted([Step::text("One.")]).1.start().await.unwrap();
    agent.ask("Count.").await.unwrap();
    // The script has no second answer.
    let mut running = agent.run("Go on.").follow().await.unwrap();
    let error = loop {
        match running.next().await {
            Ok(Some(step)) => assert!(!matches!(step, RunStep::Ended(_))),
            Ok(None) => panic!("the run has ended without an error"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert!(matches!(running.next().await, Ok(None)));
    assert_eq!(running.response().await.unwrap_err().kind(), ErrorKind::Failed);
}

#[tokio::test(start_paused = true)]
async fn prompt_that_is_not_used_fails_by_its_reason() {
    let gate = Gate::new();
    let agent = scripted([Step::new().gate(&gate).stop()]).1.start().await.unwrap();
    agent.prompt("Count.").await.unwrap();
    answered(gate.reached()).await;
    let mut followed = Vec::new();
    for id in ["a", "b"] {
        followed.push(agent.follow(FollowTarget::Prompt(id.into())).await.unwrap());
        agent.prompt(Prompt::new("Later.").with_id(id)).await.unwrap();
    }
    agent.unstage("a").await.unwrap();
    agent.cancel().await.unwrap();
    assert_eq!(followed[0].response().await.unwrap_err().kind(), ErrorKind::NotStaged);
    assert_eq!(followed[1].response().await.unwrap_err().kind(), ErrorKind::Cancelled);
    let mut waiting = agent.follow(FollowTarget::InFlight).await.unwrap();
    agent.stop(std::time::Duration::ZERO).await.unwrap();
    assert_eq!(waiting.response().await.unwrap_err().kind(), ErrorKind::Ended);
}

#[tokio::test]
async fn run_of_a_session_is_followed_beside_the_other_events_of_the_session() {
    let session = Session::builder(MemoryStore::new())
        .agent(scripted([Step::text("One."), Step::text("Two.")]).1)
        .create()
        .await
        .unwrap();
    let mut running = session.follow(FollowTarget::Prompt("a".into())).await.unwrap();
    session.ask(Prompt::new("Count.").with_id("a")).await.unwrap();
    session.set_title(Some("Numbers")).await.unwrap();
    session.ask("Go on.").await.unwrap();
    assert_eq!(text(&mut running).await, "One.");
    assert_eq!(running.response().await.unwrap().text(), "One.");
}

#[tokio::test(start_paused = true)]
async fn followed_request_is_read_whether_it_starts_waits_or_is_known() {
    let gate = Gate::new();
    let script = [Step::new().gate(&gate).then_text(["One."]).stop(), Step::text("Two.")];
    let agent = scripted(script).1.start().await.unwrap();
    let mut first = agent.run("Count.").follow().await.unwrap();
    let mut staged = agent.run("Go on.").with_id("b").follow().await.unwrap();
    assert!(matches!(staged.next().await, Ok(Some(RunStep::Waiting))));
    let mut known = agent.run("Go on.").with_id("b").follow().await.unwrap();
    gate.open();
    assert_eq!(text(&mut first).await, "One.");
    assert_eq!(text(&mut staged).await, "Two.");
    assert_eq!(text(&mut known).await, "Two.");
    assert_eq!(known.response().await.unwrap().text(), "Two.");
}

#[tokio::test(start_paused = true)]
async fn followed_request_misses_nothing_of_a_run_that_ends_at_once() {
    let usage = || Usage::default().with_input(10).with_output(5);
    let script =
        || [Step::tool_use("a", "echo", json!({})).usage(usage()), Step::text("Done.").usage(usage())];
    for is_session in [false, true] {
        let echo = tool_fn("echo", "Echoes.", |_: Value, _: ToolContext| std::future::ready(Ok("echoed")));
        let builder = scripted(script()).1.tool(echo);
        let (agent, session);
        let run = if is_session {
            session = Session::builder(MemoryStore::new()).agent(builder).create().await.unwrap();
            session.run("Go")
        } else {
            agent = builder.start().await.unwrap();
            agent.run("Go")
        };
        let mut running = run.follow().await.unwrap();
        let mut started = 0;
        while let Some(step) = running.next().await.unwrap() {
            started += usize::from(matches!(step, RunStep::ToolStarted(_)));
        }
        let response = running.response().await.unwrap();
        let seen = (started, response.usage.total(), response.messages.len(), response.step);
        assert_eq!(seen, (1, 30, 4, 2), "{is_session}");
    }
}

#[tokio::test(start_paused = true)]
async fn followed_request_with_the_id_of_a_returned_prompt_follows_the_new_run() {
    let gate = Gate::new();
    let script = [Step::new().gate(&gate).then_text(["One."]).stop(), Step::text("Two.")];
    let agent = scripted(script).1.start().await.unwrap();
    agent.prompt("Wait.").await.unwrap();
    gate.reached().await;
    agent.prompt(Prompt::new("Go on.").with_id("b")).await.unwrap();
    agent.cancel().await.unwrap();
    let mut running = agent.run("Go on.").with_id("b").follow().await.unwrap();
    assert_eq!(text(&mut running).await, "Two.");
    assert_eq!(running.response().await.unwrap().text(), "Two.");
}

#[tokio::test(start_paused = true)]
async fn followed_request_of_a_session_is_read_on_its_branch() {
    let agent = scripted(["One.", "Two.", "Three."].map(Step::text)).1;
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    let mut first = session.run("Count.").follow().await.unwrap();
    assert_eq!(text(&mut first).await, "One.");
    let question = session.tree().await.unwrap().roots().next().unwrap().id();
    let mut again = session.again(question).follow().await.unwrap();
    assert_eq!(text(&mut again).await, "Two.");
    let mut other = session.run("Count down.").below(None).follow().await.unwrap();
    assert_eq!(text(&mut other).await, "Three.");
    assert_eq!(other.response().await.unwrap().text(), "Three.");
}

#[tokio::test(start_paused = true)]
async fn reader_that_missed_the_next_run_ends_with_its_own() {
    let gate = Gate::new();
    let script = [Step::new().gate(&gate).then_text(["One."]).stop(), Step::text("Two.")];
    let limits = FeedLimits::default().with_lag(4);
    let agent = scripted(script).1.feed_limits(limits).start().await.unwrap();
    agent.prompt("Count.").await.unwrap();
    let mut running = agent.follow(FollowTarget::InFlight).await.unwrap();
    gate.reached().await;
    while !matches!(running.next().await, Ok(Some(RunStep::Request { .. }))) {}
    gate.open();
    agent.wait_until_idle().await.unwrap();
    agent.ask("Go on.").await.unwrap();
    let mut ends = 0;
    while let Some(step) = running.next().await.unwrap() {
        assert!(ends == 0, "{step:?} follows the end");
        ends += usize::from(matches!(step, RunStep::Ended(_)));
    }
    assert_eq!(ends, 1);
}

#[tokio::test(start_paused = true)]
async fn returned_prompt_is_known_even_after_many_others() {
    let gate = Gate::new();
    let mut script: Vec<_> = (0..40).map(|_| Step::text("Done.")).collect();
    script.push(Step::new().gate(&gate));
    let agent = scripted(script).1.start().await.unwrap();
    for number in 0..40 {
        agent.ask(Prompt::new("Go on.").with_id(number.to_string())).await.unwrap();
    }
    agent.prompt("Wait.").await.unwrap();
    gate.reached().await;
    agent.prompt(Prompt::new("Then go on.").with_id("late")).await.unwrap();
    agent.cancel().await.unwrap();
    let mut running = agent.follow(FollowTarget::Prompt("late".into())).await.unwrap();
    assert_eq!(running.response().await.unwrap_err().kind(), ErrorKind::Cancelled);
}
