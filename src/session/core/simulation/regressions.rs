//! Short schedules that reproduce errors found by the simulator.

use std::sync::Arc;

use super::{agent::random_turn, start::config};
use crate::{
    actor::random::Rng,
    agent::Event,
    message::History,
    provider::StopReason,
    run::Response,
    session::{
        SessionEvent, StoreReport,
        core::{SessionCore, SessionCoreEnv, SessionEffect},
    },
    store::{StoreError, Version, WriteId},
    subscription::{EventId, Numbered},
};

fn reports(effects: &[SessionEffect]) -> Vec<&StoreReport> {
    let report = |effect| match effect {
        &SessionEffect::Emit(SessionEvent::Store(ref report)) => Some(report),
        _ => None,
    };
    effects.iter().filter_map(report).collect()
}

/// If a turn still has to be written after the conversation is created, the creation is not reported. A reader of the
/// events therefore does not see that the creation succeeded, and a fresh snapshot must not show it either.
#[test]
fn late_creation_keeps_reported_failure_until_turn_is_saved() {
    let config = config();
    let id = |number| EventId { life: 1, number };
    let env = SessionCoreEnv { write_id: &WriteId::generate, unsaved_limit: usize::MAX, left: None };
    let mut core = SessionCore::new(None, crate::store::Labels::default(), false, Arc::clone(&config), id(1));
    let messages = random_turn(1, &History::new(), &mut Rng::new(1)).to_vec();
    let response = Arc::new(Response { messages, ..Response::empty("model", StopReason::Stop, 0, 1) });
    let turn = Arc::new(Event::Turn { response, continues: false });
    core.delivered(Some(&Numbered { id: id(2), event: turn }), None, &config, &env, &mut Vec::new());

    let mut effects = Vec::new();
    let failure = StoreError::damaged("the place", "the data is damaged");
    core.written(Err(failure), &env, &mut effects);
    let failed = reports(&effects)[0].clone();
    assert!(matches!(failed, StoreReport::Failed { .. }));

    core.save(&env, &mut Vec::new());
    effects.clear();
    core.written(Ok(Version::new(7)), &env, &mut effects);
    assert!(reports(&effects).is_empty());
    assert_eq!(core.report(), Some(&failed));

    effects.clear();
    core.written(Ok(Version::new(8)), &env, &mut effects);
    assert!(matches!(reports(&effects)[..], [StoreReport::Saved { .. }]));
    assert_eq!(core.report(), None);
}
