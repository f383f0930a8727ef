//! A tool that prompts another session, and the guard that ends this run with the call.

use std::time::Duration;

use omni_agent::{
    Agent, ToolContext,
    run::{Accepted, RunOutcome},
    session::Session,
    store::MemoryStore,
    testing::{Gate, ScriptedProvider, Step},
    tool::Tool,
    tool_fn,
};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(10);

/// Returns a tool that prompts the session and waits, and an agent that calls the tool.
async fn asking(session: &Session, guards: bool) -> Agent {
    let weak = session.downgrade();
    let ask = tool_fn("ask", "Asks.", move |_: Value, context: ToolContext| {
        let session = weak.upgrade().unwrap();
        async move {
            let Accepted::Started { turn } = session.prompt("Hi").await? else { unreachable!() };
            let _guard = guards.then(|| context.guard_run(&session, turn));
            session.wait_until_idle().await?;
            Ok("asked")
        }
    });
    let model = ScriptedProvider::new([Step::tool_use("c", "ask", json!({})), Step::text("Done.")]).model();
    Agent::builder().model(model).tool(ask.with_timeout(LIMIT)).start().await.unwrap()
}

async fn waiting(gate: &Gate) -> (ScriptedProvider, Session) {
    let provider =
        ScriptedProvider::new([Step::new().then_text(["Half"]).gate(gate).then_text(["."]).stop()]);
    let agent = Agent::builder().model(provider.model());
    (provider, Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn call_that_ends_with_a_guard_interrupts_the_turn() {
    for (guards, times_out) in [(true, false), (true, true), (false, false)] {
        let gate = Gate::new();
        let (provider, session) = waiting(&gate).await;
        let agent = asking(&session, guards).await;
        agent.prompt("Go").await.unwrap();
        gate.reached().await;
        if times_out {
            tokio::time::sleep(LIMIT).await;
        } else {
            agent.cancel().await.unwrap();
        }
        tokio::time::sleep(LIMIT).await;
        assert_eq!(provider.streaming(), usize::from(!guards));
        gate.open();
        session.wait_until_idle().await.unwrap();
        let outcome = session.snapshot().await.unwrap().agent.last_run.as_ref().unwrap().outcome.clone();
        let is_interrupted = !matches!(&outcome, RunOutcome::Stopped { stop_reason } if *stop_reason == omni_agent::provider::StopReason::Stop);
        assert_eq!(is_interrupted, guards, "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn guard_of_an_ended_turn_changes_nothing() {
    let gate = Gate::new();
    gate.open();
    let (provider, session) = waiting(&gate).await;
    let agent = asking(&session, true).await;
    assert_eq!(agent.ask("Go").await.unwrap().text(), "Done.");
    let hold = Gate::new();
    provider.push(Step::new().gate(&hold).then_text(["Hello!"]).stop());
    session.prompt("Again").await.unwrap();
    tokio::time::sleep(LIMIT).await;
    hold.open();
    session.wait_until_idle().await.unwrap();
    assert_eq!(session.tree().await.unwrap().len(), 4);
}

/// Returns an agent that calls `ask` once.
async fn calling(ask: impl Tool) -> Agent {
    let model = ScriptedProvider::new([Step::tool_use("c", "ask", json!({})), Step::text("Done.")]).model();
    Agent::builder().model(model).tool(ask).start().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn guard_that_is_dropped_during_the_call_interrupts_the_turn() {
    let (gate, late) = (Gate::new(), Gate::new());
    let (provider, session) = waiting(&gate).await;
    let (asked, at) = (session.clone(), late.clone());
    let ask = tool_fn("ask", "Asks.", move |_: Value, context: ToolContext| {
        let (session, at) = (asked.clone(), at.clone());
        async move {
            let Accepted::Started { turn } = session.prompt("Hi").await? else { unreachable!() };
            drop(context.guard_run(&session, turn));
            at.pass().await;
            Ok("not asked")
        }
    });
    let agent = calling(ask).await;
    agent.prompt("Go").await.unwrap();
    late.reached().await;
    tokio::time::timeout(LIMIT, session.wait_until_idle()).await.expect("the gate is closed").unwrap();
    assert_eq!(provider.streaming(), 0);
    late.open();
    agent.wait_until_idle().await.unwrap();
    assert_eq!(agent.snapshot().await.unwrap().messages().last().unwrap().text(), "Done.");
}

#[tokio::test(start_paused = true)]
async fn guard_that_outlives_the_future_of_the_call_interrupts_the_turn() {
    let gate = Gate::new();
    let (provider, session) = waiting(&gate).await;
    let asked = session.clone();
    let ask = tool_fn("ask", "Asks.", move |_: Value, context: ToolContext| {
        let session = asked.clone();
        async move {
            let Accepted::Started { turn } = session.prompt("Hi").await? else { unreachable!() };
            let guard = context.guard_run(&session, turn);
            // The task has the guard, and nobody ends the task with the call.
            let watching = tokio::spawn(async move {
                let _guard = guard;
                session.wait_until_idle().await
            });
            watching.await.unwrap()?;
            Ok("asked")
        }
    });
    let agent = calling(ask).await;
    agent.prompt("Go").await.unwrap();
    gate.reached().await;
    agent.cancel().await.unwrap();
    tokio::time::timeout(LIMIT, session.wait_until_idle()).await.expect("the gate is closed").unwrap();
    assert_eq!(provider.streaming(), 0);
}

#[tokio::test(start_paused = true)]
async fn guard_of_an_earlier_turn_leaves_the_turn_that_follows_in_the_run() {
    let (gate, hold) = (Gate::new(), Gate::new());
    let (provider, session) = waiting(&gate).await;
    provider.push(Step::new().gate(&hold).then_text(["Hello!"]).stop());
    let agent = asking(&session, true).await;
    agent.prompt("Go").await.unwrap();
    gate.reached().await;
    session.prompt("Again").await.unwrap();
    gate.open();
    hold.reached().await;
    agent.cancel().await.unwrap();
    tokio::time::sleep(LIMIT).await;
    assert_eq!(provider.streaming(), 1);
    hold.open();
    session.wait_until_idle().await.unwrap();
    assert_eq!(session.tree().await.unwrap().history().last().unwrap().text(), "Hello!");
}
