use futures_util::StreamExt;

use super::{BackendUnderTest, PassedOrSkipped, answered, prompted, soon, started, terminated};
use crate::provider::backend::EventStream;

/// Waits for the first event, so that the turn has started.
async fn begun(subject: &dyn BackendUnderTest, events: &mut EventStream) {
    let event = soon(subject, "the first event", events.next()).await;
    let event = event.expect("a turn that continues until it is cancelled");
    assert!(!event.is_terminal(), "the turn must continue until it is cancelled: {event:?}");
}

pub(super) async fn cancel_ends_the_turn_and_keeps_the_session(
    subject: &dyn BackendUnderTest,
) -> PassedOrSkipped {
    let Some(prompt) = subject.long_prompt() else {
        return PassedOrSkipped::Skipped;
    };
    let session = started(subject).await;
    for _ in 0..2 {
        let mut events = prompted(subject, &*session, prompt.clone()).await;
        begun(subject, &mut events).await;
        drop(events);
        soon(subject, "cancel", session.cancel()).await.expect("a turn can be cancelled");
        answered(subject, &*session, subject.prompt()).await;
    }
    terminated(subject, session).await;
    PassedOrSkipped::Made
}

pub(super) async fn cancel_without_a_turn_succeeds(subject: &dyn BackendUnderTest) -> PassedOrSkipped {
    let session = started(subject).await;
    soon(subject, "cancel", session.cancel()).await.expect("there is nothing to cancel");
    answered(subject, &*session, subject.prompt()).await;
    soon(subject, "cancel", session.cancel()).await.expect("the turn is over");
    answered(subject, &*session, subject.prompt()).await;
    terminated(subject, session).await;
    PassedOrSkipped::Made
}

pub(super) async fn terminate_leaves_nothing_running(subject: &dyn BackendUnderTest) -> PassedOrSkipped {
    let session = started(subject).await;
    answered(subject, &*session, subject.prompt()).await;
    soon(subject, "terminate", session.terminate()).await;
    match subject.running() {
        Some(running) => assert_eq!(running, 0, "nothing runs when terminate has returned"),
        None => return PassedOrSkipped::Skipped,
    }
    PassedOrSkipped::Made
}

pub(super) async fn terminate_during_a_turn_ends_its_stream(
    subject: &dyn BackendUnderTest,
) -> PassedOrSkipped {
    let Some(prompt) = subject.long_prompt() else {
        return PassedOrSkipped::Skipped;
    };
    let session = started(subject).await;
    let mut events = prompted(subject, &*session, prompt).await;
    begun(subject, &mut events).await;
    soon(subject, "terminate", session.terminate()).await;
    soon(subject, "the end of the stream", async { while events.next().await.is_some() {} }).await;
    PassedOrSkipped::Made
}

pub(super) async fn prompt_after_terminate_is_an_error(subject: &dyn BackendUnderTest) -> PassedOrSkipped {
    let session = started(subject).await;
    soon(subject, "terminate", session.terminate()).await;
    let refused = soon(subject, "prompt", session.prompt(subject.prompt())).await;
    assert!(refused.is_err(), "a terminated session accepts no prompt");
    PassedOrSkipped::Made
}

pub(super) async fn dropped_session_leaves_nothing_running(
    subject: &dyn BackendUnderTest,
) -> PassedOrSkipped {
    let session = started(subject).await;
    answered(subject, &*session, subject.prompt()).await;
    drop(session);
    let ended = soon(subject, "the end of what the session ran", subject.all_ended()).await;
    if ended { PassedOrSkipped::Made } else { PassedOrSkipped::Skipped }
}
