use super::{BackendUnderTest, PassedOrSkipped, answered, prompted, read, soon, started, terminated};
use crate::provider::backend::PermissionAnswer;

pub(super) async fn turn_ends_in_one_terminal_event(subject: &dyn BackendUnderTest) -> PassedOrSkipped {
    let session = started(subject).await;
    answered(subject, &*session, subject.prompt()).await;
    terminated(subject, session).await;
    PassedOrSkipped::Made
}

pub(super) async fn turns_follow_one_another(subject: &dyn BackendUnderTest) -> PassedOrSkipped {
    let session = started(subject).await;
    for _ in 0..3 {
        answered(subject, &*session, subject.prompt()).await;
    }
    terminated(subject, session).await;
    PassedOrSkipped::Made
}

pub(super) async fn tool_results_follow_their_uses(subject: &dyn BackendUnderTest) -> PassedOrSkipped {
    let Some(prompt) = subject.tool_prompt() else {
        return PassedOrSkipped::Skipped;
    };
    let session = started(subject).await;
    let events = prompted(subject, &*session, prompt).await;
    let ended = read(subject, events, drop).await;
    ended.result.expect("the turn ends in a result");
    assert!(ended.tools > 0, "the turn must run a tool");
    terminated(subject, session).await;
    PassedOrSkipped::Made
}

/// Runs a turn and gives all its requests for permission the same answer. The turn must end with a result, and the
/// session must then accept another prompt.
async fn decided(subject: &dyn BackendUnderTest, answer: PermissionAnswer) -> PassedOrSkipped {
    let Some(prompt) = subject.asking_prompt() else {
        return PassedOrSkipped::Skipped;
    };
    let session = started(subject).await;
    let events = prompted(subject, &*session, prompt).await;
    let mut asked = 0;
    let ended = read(subject, events, |request| {
        asked += 1;
        request.answer(answer.clone());
    });
    ended.await.result.expect("a decided turn ends in a result");
    assert!(asked > 0, "the turn must ask for permission");
    answered(subject, &*session, subject.prompt()).await;
    terminated(subject, session).await;
    PassedOrSkipped::Made
}

pub(super) async fn permission_allowed_continues_the_turn(subject: &dyn BackendUnderTest) -> PassedOrSkipped {
    decided(subject, PermissionAnswer::Allow).await
}

pub(super) async fn permission_rejected_continues_the_turn(
    subject: &dyn BackendUnderTest,
) -> PassedOrSkipped {
    decided(subject, PermissionAnswer::Reject("not today".to_owned())).await
}

pub(super) async fn turn_that_asks_can_be_cancelled(subject: &dyn BackendUnderTest) -> PassedOrSkipped {
    let Some(prompt) = subject.asking_prompt() else {
        return PassedOrSkipped::Skipped;
    };
    let session = started(subject).await;
    let mut events = prompted(subject, &*session, prompt).await;
    super::until_asked(subject, &mut events).await;
    drop(events);
    soon(subject, "cancel", session.cancel()).await.expect("a turn that asks can be cancelled");
    answered(subject, &*session, subject.prompt()).await;
    terminated(subject, session).await;
    PassedOrSkipped::Made
}
