//! Cancel and interrupt in each phase of a run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    agent::{
        Agent, AgentCallbacks, AgentSubscription, Event, Failure, Response, State, Status, ToolDecision,
        TurnDecision,
    },
    message::{Content, Role, ToolResult, ToolUse},
    provider::{Part, Request, StopReason},
    run::ErrorKind,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, ToolContext, tool_fn},
};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{
    predicament::{Amid, no_timeout},
    rig::{Deed, Flag, Rogue, answered, echo, echoing, ready_events, tokens},
    support::{names, next, returned, run_events, scripted},
};

/// The response in the last event of the run.
async fn outcome(events: &mut AgentSubscription) -> Arc<Response> {
    match &**run_events(events).await.last().unwrap() {
        Event::Turn { response, continues: false, .. } | Event::Cancelled { response, .. } => {
            Arc::clone(response)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn cancel_streaming_or_opening_request_dropped() {
    for deed in [Deed::Hang, Deed::HangInOpen] {
        let provider = Rogue::new(&[deed]);
        let agent = Agent::builder().model(provider.model()).start().await.unwrap();
        agent.prompt("Hi").await.unwrap();
        provider.reached().await;
        assert!(!provider.was_dropped());
        answered(agent.cancel()).await.unwrap();
        assert!(provider.was_dropped(), "{deed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn cancel_streaming_event_carries_the_pending_messages_and_their_usage() {
    let mut scene = Amid::Stream.agent().await;
    scene.agent.cancel().await.unwrap();
    let response = outcome(&mut scene.events).await;
    assert_eq!(response.usage.output, 3);
    assert_eq!(response.messages.len(), 2);
    assert_eq!(response.message.as_ref().unwrap().text(), "Half");
}

#[tokio::test(start_paused = true)]
async fn cancel_second_turn_first_stays_committed() {
    let provider = Rogue::new(&[Deed::Answer, Deed::Hang]);
    let agent = Agent::builder().model(provider.model()).start().await.unwrap();
    agent.ask("One").await.unwrap();
    let before = agent.state().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Two").await.unwrap();
    provider.reached().await;
    agent.cancel().await.unwrap();
    assert_eq!(outcome(&mut events).await.messages[0].text(), "Two");
    assert!(agent.state().await.unwrap().history().same(before.history()));
}

/// Returns an agent with two tools: one has finished and one hangs. The flag is set when the hanging tool is dropped.
/// The gate is reached when the context of the hanging tool is cancelled.
async fn amid_tools() -> (Agent, AgentSubscription, Arc<AtomicBool>, Gate) {
    let (reached, cancelled) = (Gate::new(), Gate::new());
    let dropped = Arc::new(AtomicBool::new(false));
    let slow = {
        let (reached, cancelled, dropped) = (reached.clone(), cancelled.clone(), Arc::clone(&dropped));
        tool_fn("slow", "Hangs.", move |_: Value, context: ToolContext| {
            let (reached, cancelled, flag) = (reached.clone(), cancelled.clone(), Flag(Arc::clone(&dropped)));
            async move {
                // The tool does a part of its work in a second task, which must be notified when the call has ended.
                tokio::spawn(async move {
                    context.cancelled().await;
                    cancelled.pass().await;
                });
                let _flag = flag;
                reached.pass().await;
                Ok("")
            }
        })
    };
    let step = Step::new()
        .usage(tokens(5))
        .then_text(["Working."])
        .then_tool_use("t1", "echo", json!({}))
        .then_tool_use("t2", "slow", json!({}));
    let builder = scripted([step.stop(), Step::text("Again.")]).1;
    let agent = builder.tool_limits(no_timeout()).tool(echo()).tool(slow).start().await.unwrap();
    let events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    answered(reached.reached()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    (agent, events, dropped, cancelled)
}

#[tokio::test(start_paused = true)]
async fn cancel_tools_run_aborted_and_contexts_cancelled() {
    let (agent, mut events, dropped, cancelled) = amid_tools().await;
    assert!(!dropped.load(Ordering::SeqCst));
    answered(agent.cancel()).await.unwrap();
    answered(cancelled.reached()).await;
    assert!(dropped.load(Ordering::SeqCst));
    let response = outcome(&mut events).await;
    assert_eq!((response.messages.len(), response.usage.output), (2, 5));
    assert_eq!(agent.state().await.unwrap().history().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn interrupt_tools_run_finished_result_kept_others_aborted() {
    let (agent, mut events, dropped, cancelled) = amid_tools().await;
    answered(agent.interrupt()).await.unwrap();
    answered(cancelled.reached()).await;
    assert!(dropped.load(Ordering::SeqCst));
    let response = outcome(&mut events).await;
    assert_eq!((&response.stop_reason, response.usage.output), (&StopReason::Interrupted, 5));
    let results: Vec<_> = response.messages[2].tool_results().collect();
    let [finished, running] = results[..] else { panic!("{results:?}") };
    assert_eq!((finished.is_error, finished.text().as_str()), (false, "{}"));
    assert!(running.is_error && running.text().contains("while the tool was running"), "{running:?}");
    let history = agent.state().await.unwrap().history().clone();
    history.check().unwrap();
    assert_eq!(history.len(), 3);
    agent.ask("Go on").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn run_tool_done_work_that_it_spawned_is_not_cancelled() {
    let cancelled = Arc::new(AtomicBool::new(false));
    let tool = {
        let cancelled = Arc::clone(&cancelled);
        tool_fn("start", "Starts a job.", move |_: Value, context: ToolContext| {
            let cancelled = Arc::clone(&cancelled);
            async move {
                tokio::spawn(async move {
                    context.cancelled().await;
                    cancelled.store(true, Ordering::SeqCst);
                });
                Ok("started")
            }
        })
    };
    let script = [Step::tool_use("t1", "start", json!({})), Step::text("Done.")];
    let agent = scripted(script).1.tool(tool).start().await.unwrap();
    agent.ask("Hi").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!cancelled.load(Ordering::SeqCst), "the call was neither cancelled nor dropped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_tool_never_awaits_sees_it_in_its_context() {
    let begun = Gate::new();
    let (tell, cancelled) = tokio::sync::oneshot::channel();
    let tell = std::sync::Mutex::new(Some(tell));
    let tool = {
        let begun = begun.clone();
        tool_fn("busy", "Computes.", move |_: Value, context: ToolContext| {
            let (begun, tell) = (begun.clone(), tell.lock().unwrap().take());
            async move {
                begun.open();
                let start = std::time::Instant::now();
                while !context.is_cancelled() && start.elapsed() < Duration::from_secs(10) {
                    std::thread::yield_now();
                }
                let _ = tell.unwrap().send(context.is_cancelled());
                Ok("")
            }
        })
    };
    let script = [Step::tool_use("t1", "busy", json!({}))];
    let agent = scripted(script).1.tool_limits(no_timeout()).tool(tool).start().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    begun.pass().await;
    agent.cancel().await.unwrap();
    assert!(cancelled.await.unwrap());
}

/// Runs a step whose stream stays open and interrupts it. Returns the agent, the kept response and the names of the
/// events.
async fn interrupted(step: Step) -> (Agent, Arc<Response>, Vec<String>) {
    let gate = Gate::new();
    let agent = echoing([step.gate(&gate), Step::text("Again.")]).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    answered(gate.reached()).await;
    answered(agent.interrupt()).await.unwrap();
    let run = run_events(&mut events).await;
    let response = match &**run.last().unwrap() {
        Event::Turn { response, continues: false, .. } | Event::Cancelled { response, .. } => {
            Arc::clone(response)
        }
        other => panic!("{other:?}"),
    };
    agent.state().await.unwrap().history().check().unwrap();
    (agent, response, names(&run))
}

#[tokio::test(start_paused = true)]
async fn interrupt_text_streams_kept_and_events_end_it() {
    let (agent, response, events) =
        interrupted(Step::new().usage(tokens(2)).then_text(["One ", "two"])).await;
    assert_eq!(response.stop_reason, StopReason::Interrupted);
    assert_eq!((response.text().as_str(), response.usage.output), ("One two", 2));
    assert_eq!(
        events,
        [
            "status(busy)",
            "message(user)",
            "step_start",
            "text_start",
            "text_delta",
            "text_delta",
            "usage",
            "text_end",
            "message(assistant)",
            "status(idle)",
            "turn(stop)"
        ]
    );
    assert_eq!(agent.state().await.unwrap().history().len(), 2);
    let answer = agent.ask("Go on").await.unwrap();
    assert_eq!((answer.text().as_str(), answer.usage.output), ("Again.", 0));
}

#[tokio::test(start_paused = true)]
async fn interrupt_thinking_kept_only_if_signed_and_complete() {
    let signed = Step::new().then_thinking("Hm.", "sig").then_text(["So"]);
    let (_, response, _) = interrupted(signed).await;
    assert!(matches!(&*response.message.as_ref().unwrap().content, [Content::Thinking(_), Content::Text(_)]));

    let unsigned = Step::new().then_thinking("Hm.", "").then_text(["So"]);
    let (_, response, _) = interrupted(unsigned).await;
    assert!(matches!(&*response.message.as_ref().unwrap().content, [Content::Text(_)]));
}

#[tokio::test(start_paused = true)]
async fn interrupt_complete_tool_use_answered_incomplete_dropped() {
    let step = Step::new()
        .then_text(["Look."])
        .then_tool_use("t1", "echo", json!({ "a": 1 }))
        .then_raw_tool_use("t2", "echo", &["{\"a\": "]);
    let (agent, response, _) = interrupted(step).await;
    let [_, answer, results] = &*response.messages else { panic!("{response:?}") };
    assert_eq!(answer.tool_uses().map(|tool_use| tool_use.id.as_str()).collect::<Vec<_>>(), ["t1"]);
    assert_eq!(results.role, Role::User);
    let results: Vec<_> = results.tool_results().collect();
    assert_eq!(results.len(), 1);
    assert!(results[0].is_error && results[0].tool_use_id == "t1".into());
    assert!(response.open_tool_uses.is_empty());
    agent.ask("Go on").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn interrupt_nothing_to_keep_is_a_cancel() {
    for step in [
        Step::new(),
        Step::new().usage(tokens(1)),
        Step::new().then_text(["  \n"]),
        Step::new().then_thinking("Hm.", ""),
        Step::new().then_raw_tool_use("t1", "echo", &["{\"a\": "]),
    ] {
        let (agent, response, events) = interrupted(step).await;
        assert_eq!(response.stop_reason, StopReason::Cancelled);
        assert_eq!(events.last().unwrap(), "cancelled");
        assert_eq!(agent.state().await.unwrap().history().len(), 0);
    }
}

/// Callbacks that count the calls of `handle_tool_use`, `handle_tool_result`, `handle_turn` and `handle_error`. They
/// pause each use of the tool `ask`, and always continue the run.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

#[async_trait]
impl AgentCallbacks for Counting {
    async fn handle_tool_use(&mut self, tool_use: &ToolUse, _: &mut State) -> ToolDecision {
        self.0.fetch_add(1, Ordering::SeqCst);
        if tool_use.name == "ask" { ToolDecision::Pause(json!("may I?")) } else { ToolDecision::Execute }
    }

    async fn handle_tool_result(&mut self, result: ToolResult, _: &mut State) -> ToolResult {
        self.0.fetch_add(1, Ordering::SeqCst);
        result
    }

    async fn handle_turn(&mut self, _: &Response, _: &mut State) -> TurnDecision {
        self.0.fetch_add(1, Ordering::SeqCst);
        TurnDecision::continue_with("more")
    }

    async fn handle_error(&mut self, _: &Failure, _: &mut State) -> crate::agent::ErrorDecision {
        self.0.fetch_add(1, Ordering::SeqCst);
        crate::agent::ErrorDecision::Stop
    }
}

#[tokio::test(start_paused = true)]
async fn interrupt_in_any_phase_no_callback_runs() {
    let gate = Gate::new();
    let counting = Counting::default();
    let builder =
        echoing([Step::new().then_text(["Text"]).then_tool_use("t1", "echo", json!({})).gate(&gate)]);
    let agent = builder.callbacks(counting.clone()).start().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    answered(gate.reached()).await;
    agent.interrupt().await.unwrap();
    agent.wait_until_idle().await.unwrap();
    assert_eq!(counting.0.load(Ordering::SeqCst), 0);
}

/// Returns an agent that is paused on the second of three tool uses.
async fn paused() -> (Agent, AgentSubscription, ScriptedProvider) {
    let step = Step::new()
        .usage(tokens(4))
        .then_tool_use("t1", "echo", json!({}))
        .then_tool_use("t2", "ask", json!({ "q": 1 }))
        .then_tool_use("t3", "echo", json!({}))
        .stop();
    let (provider, builder) = scripted([step, Step::text("Again.")]);
    let agent = builder.tool(echo()).callbacks(Counting::default()).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    while !matches!(&*next(&mut events).await, Event::Status { status: Status::Paused, .. }) {}
    (agent, events, provider)
}

#[tokio::test(start_paused = true)]
async fn cancel_paused_discards_and_resume_is_refused() {
    let (agent, mut events, _) = paused().await;
    agent.prompt("next").await.unwrap();
    answered(agent.cancel()).await.unwrap();
    let run = run_events(&mut events).await;
    assert_eq!(names(&run), ["prompt(staged)", "status(idle)", "prompt(returned)", "cancelled"]);
    let Event::Cancelled { response } = &*run[3] else { panic!() };
    assert_eq!((response.usage.output, response.messages.len()), (4, 2));
    assert_eq!(returned(&run)[0].content, "next".into());
    let resumed = agent.resume("t2", Decision::Execute).await;
    let error = resumed.unwrap_err();
    assert_eq!((error.kind(), error.member("activity")), (ErrorKind::NotPaused, Some(&"idle".into())));
    assert_eq!(agent.snapshot().await.unwrap().pauses, []);
}

#[tokio::test(start_paused = true)]
async fn interrupt_paused_all_tool_uses_answered_as_interrupted() {
    let (agent, mut events, provider) = paused().await;
    answered(agent.interrupt()).await.unwrap();
    let run = run_events(&mut events).await;
    assert_eq!(
        names(&run),
        [
            "tool_result(t1)",
            "tool_result(t2)",
            "tool_result(t3)",
            "message(user)",
            "status(idle)",
            "turn(stop)"
        ]
    );
    assert_eq!(agent.state().await.unwrap().history().len(), 3);
    provider.push(Step::text("Fine."));
    // `handle_turn` always continues, so only the limit can end the run.
    agent.prompt(crate::agent::Prompt::new("Go on").with_max_steps(1)).await.unwrap();
    run_events(&mut events).await;
    provider.requests()[1].history.check_sendable().unwrap();
}

#[tokio::test(start_paused = true)]
async fn snapshot_paused_has_the_tool_use_and_the_reason() {
    let (agent, _, _) = paused().await;
    let mut snapshot = agent.snapshot().await.unwrap();
    assert_eq!(snapshot.status, Status::Paused);
    let pause = snapshot.pauses.remove(0);
    assert_eq!((pause.tool_use.id.as_str(), &pause.reason), ("t2", &json!("may I?")));
    assert_eq!(pause.tool_use.input, json!({ "q": 1 }));
    let joined = agent.subscribe().await.unwrap();
    assert_eq!(joined.snapshot().unwrap().pauses[0].tool_use.id, "t2".into());
    // A paused agent is not idle.
    super::rig::unanswered(agent.wait_until_idle()).await;
}

#[tokio::test(start_paused = true)]
async fn interrupt_while_asked_resolves_with_the_kept_messages() {
    let gate = Gate::new();
    let agent = echoing([Step::new().then_text(["Half"]).gate(&gate)]).start().await.unwrap();
    let (asked, ()) = tokio::join!(agent.ask("Hi"), async {
        gate.reached().await;
        agent.interrupt().await.unwrap();
    });
    let response = asked.unwrap();
    assert_eq!((response.text().as_str(), &response.stop_reason), ("Half", &StopReason::Interrupted));
}

#[tokio::test(start_paused = true)]
async fn cancel_while_asked_resolves_with_the_discarded_messages() {
    let gate = Gate::new();
    let agent = echoing([Step::new().then_text(["Half"]).gate(&gate)]).start().await.unwrap();
    let (asked, ()) = tokio::join!(agent.ask("Hi"), async {
        gate.reached().await;
        agent.cancel().await.unwrap();
    });
    let error = asked.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    let response = error.response().unwrap();
    assert_eq!((response.text().as_str(), &response.stop_reason), ("Half", &StopReason::Cancelled));
}

#[tokio::test(start_paused = true)]
async fn cancel_and_interrupt_idle_error_and_no_event() {
    let agent = echoing([Step::text("Hello!")]).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    for _ in 0..2 {
        assert_eq!(agent.cancel().await.unwrap_err().kind(), ErrorKind::Idle);
        assert_eq!(agent.interrupt().await.unwrap_err().kind(), ErrorKind::Idle);
    }
    assert_eq!(ready_events(&mut events).await, []);
    agent.ask("Hi").await.unwrap();
    run_events(&mut events).await;
    assert_eq!(agent.cancel().await.unwrap_err().kind(), ErrorKind::Idle);
    assert_eq!(ready_events(&mut events).await, []);
}

/// Callbacks that pause on every question of the service.
struct Deferring;

#[async_trait]
impl AgentCallbacks for Deferring {
    async fn handle_tool_use(&mut self, _: &ToolUse, _: &mut State) -> ToolDecision {
        ToolDecision::Pause(json!("the service wants to know"))
    }
}

#[tokio::test(start_paused = true)]
async fn interrupt_or_cancel_while_paused_on_a_providers_question_ends_the_run() {
    for interrupt in [false, true] {
        let question = ToolUse::new("q1", "shell", json!({ "cmd": "ls" }));
        let step = Step::new().then_text(["Let me see."]).decide(question).stop();
        let (provider, builder) = scripted([step, Step::text("Again.")]);
        let agent = builder.callbacks(Deferring).start().await.unwrap();
        let mut events = agent.subscribe().await.unwrap();
        agent.prompt("Hi").await.unwrap();
        while !matches!(&*next(&mut events).await, Event::Status { status: Status::Paused, .. }) {}
        assert_eq!(agent.snapshot().await.unwrap().pauses.remove(0).tool_use.id, "q1".into());
        if interrupt {
            answered(agent.interrupt()).await.unwrap();
            assert_eq!(outcome(&mut events).await.text(), "Let me see.");
        } else {
            answered(agent.cancel()).await.unwrap();
            assert_eq!(outcome(&mut events).await.stop_reason, StopReason::Cancelled);
        }
        assert!(provider.decisions().is_empty());
        let resumed = agent.resume("q1", Decision::Execute).await;
        let error = resumed.unwrap_err();
        assert_eq!((error.kind(), error.member("activity")), (ErrorKind::NotPaused, Some(&"idle".into())));
        agent.ask("Hello?").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn cancel_between_two_turns_second_discarded_first_kept() {
    /// Callbacks that continue after each turn, and hang before the second turn's request.
    struct Twice(Gate, usize);

    #[async_trait]
    impl AgentCallbacks for Twice {
        async fn prepare_step(&mut self, _: &mut Request, _: &mut State) {
            self.1 += 1;
            if self.1 == 2 {
                self.0.pass().await;
            }
        }

        async fn handle_turn(&mut self, _: &Response, _: &mut State) -> TurnDecision {
            TurnDecision::continue_with("more")
        }
    }

    let gate = Gate::new();
    let agent = echoing([Step::text("One.")]).callbacks(Twice(gate.clone(), 0)).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    answered(gate.reached()).await;
    agent.cancel().await.unwrap();
    let run = run_events(&mut events).await;
    let Event::Cancelled { response, .. } = &**run.last().unwrap() else { panic!() };
    assert_eq!(response.messages.len(), 1);
    assert_eq!(response.messages[0].text(), "more");
    assert_eq!(agent.state().await.unwrap().history().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn interrupt_while_handle_error_runs_partial_answer_of_the_failed_step_kept() {
    let error =
        crate::provider::ProviderError::new(crate::provider::ProviderErrorKind::InvalidRequest, "broken off");
    let callbacks = super::rig::Misbehaving {
        at: super::rig::At::HandleError,
        act: super::rig::Act::Hang,
        gate: Gate::new(),
        done: false,
    };
    let gate = callbacks.gate.clone();
    let step = Step::new().then_text(["Half"]).more(Part::Text(" of it".into())).fail(error);
    let agent = echoing([step]).callbacks(callbacks).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    answered(gate.reached()).await;
    agent.interrupt().await.unwrap();
    assert_eq!(outcome(&mut events).await.text(), "Half of it");
}

#[tokio::test(start_paused = true)]
async fn cancel_late_results_of_aborted_tools_are_ignored() {
    let (first, second) = (Gate::new(), Gate::new());
    let gates = std::sync::Mutex::new(vec![second.clone(), first.clone()]);
    let tool = tool_fn("hang", "Waits.", move |_: Value, _: ToolContext| {
        let gate = gates.lock().unwrap().pop().unwrap();
        async move {
            gate.pass().await;
            Ok("done")
        }
    });
    let script = [
        Step::tool_use("t1", "hang", json!({})),
        Step::tool_use("t1", "hang", json!({})),
        Step::text("Done."),
    ];
    let agent = scripted(script).1.tool_limits(no_timeout()).tool(tool).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("One").await.unwrap();
    answered(first.reached()).await;
    // The tool finishes at the same moment as the cancel.
    let (cancelled, ()) = tokio::join!(agent.cancel(), async { first.open() });
    cancelled.unwrap();
    run_events(&mut events).await;
    agent.prompt("Two").await.unwrap();
    answered(second.reached()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let seen = names(&ready_events(&mut events).await);
    assert!(!seen.contains(&"tool_result(t1)".to_owned()), "{seen:?}");
    second.open();
    run_events(&mut events).await;
    assert_eq!(agent.state().await.unwrap().history().len(), 4);
}
