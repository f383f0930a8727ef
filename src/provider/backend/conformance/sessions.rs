use futures_util::future::join;

use super::{BackendUnderTest, PassedOrSkipped, answered, memory, soon, started, terminated};
use crate::provider::backend::{BackendError, BackendSession, SessionId, SessionPosition};

pub(super) async fn name_and_capabilities_are_constant(subject: &dyn BackendUnderTest) -> PassedOrSkipped {
    let backend = subject.backend();
    let before = (backend.name().to_owned(), backend.capabilities());
    assert!(
        !before.0.is_empty() && !before.0.contains(':'),
        "a name is not empty and has no colon, unlike {:?}",
        before.0
    );
    let session = started(subject).await;
    answered(subject, &*session, subject.prompt()).await;
    terminated(subject, session).await;
    assert_eq!((backend.name().to_owned(), backend.capabilities()), before);
    PassedOrSkipped::Made
}

pub(super) async fn session_remembers(subject: &dyn BackendUnderTest) -> PassedOrSkipped {
    let Some(memory) = memory(subject) else {
        return PassedOrSkipped::Skipped;
    };
    let session = started(subject).await;
    answered(subject, &*session, memory.tell).await;
    let answer = answered(subject, &*session, memory.ask).await;
    assert!(answer.contains(memory.word), "the session forgot the word: {answer}");
    terminated(subject, session).await;
    PassedOrSkipped::Made
}

pub(super) async fn parallel_sessions_are_independent(subject: &dyn BackendUnderTest) -> PassedOrSkipped {
    let (one, two) = join(started(subject), started(subject)).await;
    let prompt = || subject.prompt();
    join(answered(subject, &*one, prompt()), answered(subject, &*two, prompt())).await;
    if let Some(memory) = memory(subject) {
        answered(subject, &*one, memory.tell).await;
        let answer = answered(subject, &*two, memory.ask).await;
        assert!(!answer.contains(memory.word), "a session knows the word of another session: {answer}");
    }
    terminated(subject, one).await;
    answered(subject, &*two, subject.prompt()).await;
    terminated(subject, two).await;
    PassedOrSkipped::Made
}

fn id(session: &dyn BackendSession) -> SessionId {
    session.id().expect("a session that can be resumed or forked has an id after its first turn")
}

pub(super) async fn resume_continues_the_conversation(subject: &dyn BackendUnderTest) -> PassedOrSkipped {
    let (backend, options) = (subject.backend(), subject.options());
    if !backend.capabilities().resume {
        return PassedOrSkipped::Skipped;
    }
    let memory = memory(subject);
    let tell = memory.as_ref().map_or_else(|| subject.prompt(), |memory| memory.tell.clone());
    let session = started(subject).await;
    answered(subject, &*session, tell).await;
    let (id, checkpoint) = (id(&*session), session.checkpoint());
    terminated(subject, session).await;
    let resumed =
        soon(subject, "resume", backend.resume(&id, &options)).await.expect("the session is resumed");
    assert_eq!(resumed.checkpoint(), checkpoint, "the checkpoint is the same without another turn");
    let ask = memory.as_ref().map_or_else(|| subject.prompt(), |memory| memory.ask.clone());
    let answer = answered(subject, &*resumed, ask).await;
    if let Some(memory) = memory {
        assert!(answer.contains(memory.word), "the resumed session forgot the word: {answer}");
    }
    terminated(subject, resumed).await;
    PassedOrSkipped::Made
}

pub(super) async fn resume_of_an_unknown_session_is_refused(
    subject: &dyn BackendUnderTest,
) -> PassedOrSkipped {
    let (backend, options) = (subject.backend(), subject.options());
    if !backend.capabilities().resume {
        return PassedOrSkipped::Skipped;
    }
    let nobody = SessionId::new("00000000-0000-4000-8000-000000000000");
    match soon(subject, "resume", backend.resume(&nobody, &options)).await {
        Err(BackendError::UnknownSession { id, .. }) => assert_eq!(id, nobody),
        Err(error) => panic!("an unknown id must be reported as `UnknownSession`, not as: {error}"),
        Ok(_) => panic!("a session that never existed was resumed"),
    }
    PassedOrSkipped::Made
}

pub(super) async fn fork_starts_at_its_position(subject: &dyn BackendUnderTest) -> PassedOrSkipped {
    let (backend, options) = (subject.backend(), subject.options());
    let Some(memory) = memory(subject).filter(|_| backend.capabilities().fork) else {
        return PassedOrSkipped::Skipped;
    };
    let session = started(subject).await;
    answered(subject, &*session, subject.prompt()).await;
    let place =
        |prompts| SessionPosition { session: id(&*session), prompts, checkpoint: session.checkpoint() };
    let before = place(1);
    answered(subject, &*session, memory.tell).await;
    let after = place(2);
    for (place, knows) in [(before, false), (after, true)] {
        let fork =
            soon(subject, "fork", backend.fork(&place, &options)).await.expect("the session is forked");
        assert_ne!(fork.id(), session.id(), "a fork is a separate session");
        let answer = answered(subject, &*fork, memory.ask.clone()).await;
        assert_eq!(answer.contains(memory.word), knows, "a fork after {} prompts: {answer}", place.prompts);
        terminated(subject, fork).await;
    }
    let answer = answered(subject, &*session, memory.ask).await;
    assert!(answer.contains(memory.word), "the fork changed the original session: {answer}");
    terminated(subject, session).await;
    PassedOrSkipped::Made
}
