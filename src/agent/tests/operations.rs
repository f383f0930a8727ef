//! Every operation gets a reply in every phase.

use std::time::Duration;

use crate::{
    agent::{Accepted, Event, PromptState, Status},
    message::ToolUseId,
    provider::StopReason,
    run::ErrorKind,
    subscription::{EndReason, Update},
    tool::Decision,
};

use super::{
    predicament::Amid,
    rig::{At, answered, closed, stuck_in, unanswered},
    support::{ends_run, next, returned, run_events},
};

#[tokio::test(start_paused = true)]
async fn queries_in_any_phase_answered() {
    for amid in Amid::ALL {
        let scene = amid.agent().await;
        let agent = &scene.agent;
        assert_eq!(answered(agent.status()).await.unwrap(), Status::Busy, "{amid:?}");
        let state = answered(agent.state()).await.unwrap();
        assert_eq!((state.status(), state.history().len()), (Status::Busy, 0), "{amid:?}");
        assert_eq!(
            state.config().settings.system,
            None,
            "{amid:?}: a callback's edits apply when it returns"
        );
        let snapshot = answered(agent.snapshot()).await.unwrap();
        assert_eq!((snapshot.status, snapshot.pauses.is_empty()), (Status::Busy, true), "{amid:?}");
        assert_eq!(snapshot.pending.first().unwrap().text(), "Hi", "{amid:?}");
        let joined = answered(agent.subscribe()).await.unwrap();
        assert_eq!(**joined.snapshot().unwrap(), snapshot, "{amid:?}");
        let resumed = answered(agent.resume_from(snapshot.last)).await.unwrap();
        assert_eq!(resumed.last_id(), snapshot.last, "{amid:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_in_any_phase_is_staged_in_order() {
    for amid in Amid::ALL {
        let scene = amid.agent().await;
        let agent = &scene.agent;
        let staged = answered(agent.prompt("one")).await.unwrap();
        assert!(matches!(staged, Accepted::Staged { ahead: 0, .. }), "{amid:?}: {staged:?}");
        let staged = answered(agent.prompt("two")).await.unwrap();
        assert!(matches!(staged, Accepted::Staged { ahead: 1, .. }), "{amid:?}: {staged:?}");
        let snapshot = answered(agent.snapshot()).await.unwrap();
        let staged: Vec<_> = snapshot.staged.iter().map(|prompt| prompt.content.clone()).collect();
        assert_eq!(staged, ["one".into(), "two".into()], "{amid:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_only_operations_in_any_other_phase_refused() {
    for amid in Amid::ALL {
        let scene = amid.agent().await;
        let agent = &scene.agent;
        let asked = answered(agent.ask("Hello?")).await;
        let error = asked.unwrap_err();
        assert_eq!((error.kind(), error.member("activity")), (ErrorKind::Busy, Some(&"busy".into())));
        let resumed = answered(agent.resume("t1", Decision::Execute)).await;
        let error = resumed.unwrap_err();
        assert_eq!((error.kind(), error.member("activity")), (ErrorKind::NotPaused, Some(&"busy".into())));
        let set = answered(agent.set_state(|_| panic!("called while busy"))).await;
        let error = set.unwrap_err();
        assert_eq!((error.kind(), error.member("activity")), (ErrorKind::Busy, Some(&"busy".into())));
        answered(agent.notify("an event")).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn cancel_in_any_phase_discards_and_agent_survives() {
    for amid in Amid::ALL {
        let mut scene = amid.agent().await;
        let agent = &scene.agent;
        answered(agent.prompt("next")).await.unwrap();
        answered(agent.cancel()).await.unwrap();
        let state = answered(agent.state()).await.unwrap();
        assert_eq!((state.status(), state.history().len()), (Status::Idle, 0), "{amid:?}");
        let events = run_events(&mut scene.events).await;
        let [.., status, prompt, end] = &*events else { panic!("{amid:?}") };
        assert_eq!(**status, Event::Status { status: Status::Idle, pauses: Vec::new() }, "{amid:?}");
        let Event::Prompt { state: PromptState::Returned, prompt: Some(prompt), .. } = &**prompt else {
            panic!("{amid:?}: {prompt:?}")
        };
        let Event::Cancelled { response } = &**end else { panic!("{amid:?}: {end:?}") };
        assert_eq!(response.stop_reason, StopReason::Cancelled, "{amid:?}");
        assert_eq!(response.messages[0].text(), "Hi", "{amid:?}");
        assert_eq!(prompt.content, "next".into(), "{amid:?}");
        assert_eq!(answered(agent.cancel()).await.unwrap_err().kind(), ErrorKind::Idle, "{amid:?}");
        if amid != Amid::NoRoom {
            let response = answered(agent.ask("Hello?")).await.unwrap();
            assert_eq!(response.messages.len(), 2, "{amid:?}: {response:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn interrupt_in_any_phase_ends_the_run_and_agent_survives() {
    for amid in Amid::ALL {
        let mut scene = amid.agent().await;
        let agent = &scene.agent;
        answered(agent.prompt("next")).await.unwrap();
        answered(agent.interrupt()).await.unwrap();
        assert_eq!(answered(agent.status()).await.unwrap(), Status::Idle, "{amid:?}");
        let events = run_events(&mut scene.events).await;
        // In these phases, the turn contains more than the prompt, so the interrupt commits the turn.
        let keeps = matches!(
            amid,
            Amid::Stream
                | Amid::Tools
                | Amid::Callback(At::HandleToolUse | At::HandleToolResult | At::HandleTurn)
        );
        let response = match &**events.last().unwrap() {
            Event::Turn { response, continues: false } | Event::Cancelled { response } => response,
            other => panic!("{amid:?}: {other:?}"),
        };
        let reason = if keeps { StopReason::Interrupted } else { StopReason::Cancelled };
        assert_eq!(response.stop_reason, reason, "{amid:?}");
        assert_eq!(returned(&events)[0].content, "next".into(), "{amid:?}");
        let history = answered(agent.state()).await.unwrap().history().clone();
        let expected = if keeps { response.messages.len() } else { 0 };
        assert_eq!(history.len(), expected, "{amid:?}");
        history.check().unwrap();
        assert_eq!(answered(agent.interrupt()).await.unwrap_err().kind(), ErrorKind::Idle, "{amid:?}");
        if amid != Amid::NoRoom {
            let response = answered(agent.ask("Hello?")).await.unwrap();
            assert_eq!(response.messages.len(), 2, "{amid:?}: {response:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stop_in_any_phase_ends_the_run_and_closes() {
    for (amid, discards) in Amid::ALL.into_iter().flat_map(|amid| [(amid, false), (amid, true)]) {
        let mut scene = amid.agent().await;
        let (agent, limit) = (&scene.agent, Duration::from_millis(100));
        let stopped = answered(async {
            if discards { agent.stop_discarding(limit).await } else { agent.stop(limit).await }
        });
        let stopped = stopped.await;
        if amid == Amid::NoRoom {
            assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Deadline);
        } else {
            stopped.unwrap();
        }
        let run = run_events(&mut scene.events).await;
        let kept = match &**run.last().unwrap() {
            Event::Turn { response, continues: false, .. } if !discards => response.messages.len(),
            Event::Cancelled { .. } => 0,
            other => panic!("{amid:?}: {other:?}"),
        };
        let (reason, snapshot) = closed(&mut scene.events).await;
        let snapshot = snapshot.unwrap();
        assert_eq!(reason, EndReason::Stopped, "{amid:?}");
        assert_eq!((snapshot.status, snapshot.pending.len()), (Status::Idle, 0), "{amid:?}");
        assert_eq!(snapshot.state.history.len(), kept, "{amid:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn wait_until_idle_in_any_phase_waits_for_the_end_of_the_run() {
    for amid in Amid::ALL {
        let scene = amid.agent().await;
        let agent = &scene.agent;
        unanswered(agent.wait_until_idle()).await;
        let waiting = tokio::spawn({
            let agent = agent.clone();
            async move { agent.wait_until_idle().await }
        });
        answered(agent.cancel()).await.unwrap();
        if amid == Amid::NoRoom {
            // While events are undelivered, the agent does not count as idle.
            unanswered(agent.wait_until_idle()).await;
            drop(scene.kept);
        }
        let waited = answered(waiting).await.unwrap();
        // Without a receiver of its events, the agent has ended.
        assert_eq!(waited.is_ok(), amid != Amid::NoRoom, "{amid:?}: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_operation_while_handle_event_never_returns_answered() {
    let (agent, mut events) = stuck_in(At::HandleEvent).await;
    assert_eq!(answered(agent.status()).await.unwrap(), Status::Idle, "no run is active");
    answered(agent.state()).await.unwrap();
    answered(agent.snapshot()).await.unwrap();
    drop(answered(agent.subscribe()).await.unwrap());
    let error = answered(agent.resume("t1", Decision::Execute)).await.unwrap_err();
    assert_eq!((error.kind(), error.member("activity")), (ErrorKind::NotPaused, Some(&"idle".into())));
    answered(agent.notify("another")).await.unwrap();
    answered(agent.set_state(|draft| {
        draft.config.settings.system = Some("set".into());
        Ok(())
    }))
    .await
    .unwrap();
    assert!(matches!(&*next(&mut events).await, Event::State(_)));
    unanswered(agent.wait_until_idle()).await;

    // A run begins, but its first callback is called only after `handle_event` has returned.
    assert!(matches!(answered(agent.prompt("Hi")).await.unwrap(), Accepted::Started { .. }));
    assert_eq!(answered(agent.status()).await.unwrap(), Status::Busy);
    assert_eq!(answered(agent.ask("Hello?")).await.unwrap_err().kind(), ErrorKind::Busy);
    answered(agent.interrupt()).await.unwrap();
    while !ends_run(&*next(&mut events).await) {}

    // The interrupt dropped `handle_event` for the first event. The second event is now handled, and the agent
    // continues.
    answered(agent.wait_until_idle()).await.unwrap();
    answered(agent.ask("Hello?")).await.unwrap();
    assert_eq!(answered(agent.state()).await.unwrap().config().settings.system.as_deref(), Some("set"));
}

#[tokio::test(start_paused = true)]
async fn cancel_while_handle_event_never_returns_next_event_handled() {
    let (agent, mut events) = stuck_in(At::HandleEvent).await;
    answered(agent.cancel()).await.unwrap();
    answered(agent.wait_until_idle()).await.unwrap();
    answered(agent.ask("Hello?")).await.unwrap();
    let first = next(&mut events).await;
    assert_eq!(
        *first,
        Event::Status { status: Status::Busy, pauses: Vec::new() },
        "a cancel without a run emits no event"
    );
}

#[tokio::test(start_paused = true)]
async fn stop_and_ask_while_handle_event_never_returns_answered() {
    let (agent, _events) = stuck_in(At::HandleEvent).await;
    let asking = tokio::spawn({
        let agent = agent.clone();
        async move { agent.ask("Hello?").await }
    });
    tokio::task::yield_now().await;
    answered(agent.stop(Duration::from_secs(1))).await.unwrap();
    assert_eq!(answered(asking).await.unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn every_operation_after_the_end_stopped_with_its_reason() {
    let (agent, mut events) = stuck_in(At::PrepareStep).await;
    answered(agent.stop(Duration::from_secs(1))).await.unwrap();
    macro_rules! assert_stopped {
        ($($operation:expr),+ $(,)?) => {$(
            match answered($operation).await {
                Err(error) if error.to_string() == "the agent has ended: stopped" => {}
                _ => panic!(stringify!($operation)),
            }
        )+};
    }
    assert_stopped!(
        agent.prompt("Hi"),
        agent.ask("Hi"),
        agent.ask_as::<String>("Hi"),
        agent.resume(ToolUseId::from("t1"), Decision::Execute),
        agent.cancel(),
        agent.interrupt(),
        agent.notify(1),
        agent.set_state(|_| Ok(())),
        agent.state(),
        agent.status(),
        agent.snapshot(),
        agent.subscribe(),
        agent.resume_from(events.last_id()),
        agent.wait_until_idle(),
    );
    answered(agent.stop(Duration::ZERO)).await.unwrap();
    let end = agent.end().unwrap();
    assert_eq!(end.reason, EndReason::Stopped);
    assert_eq!(end.snapshot, closed(&mut events).await.1);
}

#[tokio::test(start_paused = true)]
async fn operations_waiting_for_the_agent_when_it_ends_stopped_with_its_reason() {
    let (agent, _events) = stuck_in(At::PrepareStep).await;
    let waiting = tokio::spawn({
        let agent = agent.clone();
        async move { agent.wait_until_idle().await }
    });
    let asking = agent.ask("busy, so refused");
    assert_eq!(answered(asking).await.unwrap_err().kind(), ErrorKind::Busy);
    let (stopped, status) = tokio::join!(agent.stop(Duration::from_secs(1)), agent.status());
    stopped.unwrap();
    let error = status.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"stopped".into())));
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"stopped".into())));
}

#[tokio::test(start_paused = true)]
async fn operations_dropped_before_their_answer_agent_continues() {
    let (agent, mut events) = stuck_in(At::PrepareStep).await;
    for _ in 0..100 {
        drop(futures_util::FutureExt::now_or_never(agent.snapshot()));
        drop(futures_util::FutureExt::now_or_never(agent.subscribe()));
        drop(futures_util::FutureExt::now_or_never(agent.ask("x")));
        drop(futures_util::FutureExt::now_or_never(agent.wait_until_idle()));
        answered(agent.status()).await.unwrap();
    }
    answered(agent.cancel()).await.unwrap();
    assert!(ends_run(run_events(&mut events).await.last().unwrap()));
    assert!(matches!(
        tokio::time::timeout(Duration::from_secs(1), events.next()).await,
        Err(_) | Ok(Some(Update::Event(_)))
    ));
}
