//! Backup models: the choice that the core must make, and deliberate faults that the check must notice.

use std::{sync::Arc, time::Duration};

use super::{
    Check, ensure,
    model::Model,
    world::{World, model, room},
};
use crate::{
    actor::random::Rng,
    agent::{
        BackupCause, BackupModel, Config, Failure, backup::ResolvedBackupModel, compaction::times,
        phase::Turn,
    },
    provider::{self, ModelInfo, ProviderError, ProviderErrorKind, StopReason},
    tool::Replay,
};

const CAUSES: [BackupCause; 4] =
    [BackupCause::Overload, BackupCause::Outage, BackupCause::ContextTooLong, BackupCause::Refusal];

/// A deliberate fault in the use of backup models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum BackupFault {
    /// The next prompt begins with the backup model of the prompt before it.
    KeptForNextPrompt,
    /// A conversation that is too long for a model goes to a model with less room.
    SmallerRoom,
}

/// The backup models of a schedule.
#[derive(Default)]
pub(super) struct Backups {
    list: Vec<(provider::Model, Vec<BackupCause>)>,
    /// The configured model.
    pub(super) first: Option<provider::Model>,
    /// The place of the model in use, counted from 1, or 0.
    pub(super) place: usize,
    fault: Option<BackupFault>,
    /// The index that the fault keeps.
    kept: Option<u8>,
    /// The sizes of the next request to each model of the list.
    pub(super) sizes: Vec<u64>,
    /// The tokens that are kept free for the answer, and the share of the room that the request must not reach.
    pub(super) reserve: u64,
    threshold: f64,
}

impl Backups {
    /// Returns the backup models of this configuration, to which some are added in a third of the schedules.
    pub(super) fn random(config: &mut Config, rng: &mut Rng) -> Self {
        let count = if rng.percent(33) { 1 + rng.below(3) } else { 0 };
        if count > 0 {
            config.model = model(rng.pick(&["model", "other"]));
        }
        let list: Vec<_> = (0..count)
            .map(|_| {
                let is_same = rng.percent(10);
                let own =
                    if is_same { config.model.clone() } else { model(rng.pick(&["small", "large", "new"])) };
                (own, CAUSES.into_iter().filter(|_| rng.percent(70)).collect::<Vec<_>>())
            })
            .collect();
        config.set_backups(resolved(&list));
        let threshold = config.compactor().map_or(1.0, |compactor| compactor.policy.threshold);
        Self { list, first: Some(config.model.clone()), threshold, ..Self::default() }
    }

    /// Notes the sizes of the next request of `turn`.
    pub(super) fn note_sizes(&mut self, turn: &Turn, config: &Config) {
        self.sizes = self.list.iter().map(|(own, _)| turn.size(own, config)).collect();
    }

    /// Returns whether the next request to a model of the list is smaller than the room that may be used.
    fn fits(&self, index: usize, room: u64) -> bool {
        let window = room + 1;
        self.sizes[index] < times(window - self.reserve.min(window / 2), self.threshold)
    }
}

fn resolved(list: &[(provider::Model, Vec<BackupCause>)]) -> Arc<[ResolvedBackupModel]> {
    let resolve = |(own, causes): &(provider::Model, Vec<BackupCause>)| {
        let backup = BackupModel::new(own.clone()).with_causes(causes.iter().copied());
        backup.resolve(None, own).expect("it is a model")
    };
    list.iter().map(resolve).collect()
}

impl Model {
    pub(super) fn with_backups(mut self, backups: Backups) -> Self {
        self.backups = backups;
        self
    }

    /// Returns the model of the next request.
    pub(super) fn model_in_use(&self) -> Option<&provider::Model> {
        match self.backups.place.checked_sub(1) {
            Some(index) => Some(&self.backups.list[index].0),
            None => self.named_for_run.as_ref().or(self.backups.first.as_ref()),
        }
    }

    /// Returns the place of the backup model that must repeat the step after this failure, if there is one.
    pub(super) fn next_backup(&self, failure: &Failure) -> Option<usize> {
        let is_final = self.turn.as_ref().is_none_or(|turn| turn.replay == Replay::Never);
        if is_final || self.exhausted() {
            return None;
        }
        let cause = match failure {
            Failure::ProviderPanicked { .. } => BackupCause::Outage,
            Failure::Refused => BackupCause::Refusal,
            Failure::Provider { error } => match error.kind {
                ProviderErrorKind::Overloaded | ProviderErrorKind::Quota => BackupCause::Overload,
                ProviderErrorKind::ContextTooLong => BackupCause::ContextTooLong,
                ProviderErrorKind::Auth | ProviderErrorKind::InvalidRequest => return None,
                _ => BackupCause::Outage,
            },
            _ => return None,
        };
        let former = self.model_in_use()?;
        let has_room = |index: usize, own: &provider::Model| {
            room(own.id()).is_none_or(|own| self.backups.fits(index, own))
        };
        let is_larger = |own: &provider::Model| match (room(own.id()), room(former.id())) {
            (Some(own), Some(former)) => own > former,
            _ => true,
        };
        let mut next = self.backups.list.iter().enumerate().skip(self.backups.place);
        let found = next.find(|(index, (own, causes))| {
            let fits = cause != BackupCause::ContextTooLong || is_larger(own);
            causes.contains(&cause) && own != former && fits && has_room(*index, own)
        });
        found.map(|(index, _)| index + 1)
    }

    /// Returns whether the delay that a service requests must not be waited for.
    pub(super) fn avoids_wait(&self, error: &ProviderError) -> bool {
        error.retry_after > Some(Duration::from_secs(5)) && self.next_backup(&error.clone().into()).is_some()
    }

    /// Checks a repetition with the backup model of this name.
    pub(super) fn backed_up(&mut self, failure: &Failure, name: &str) -> Check {
        let next = self.next_backup(failure).ok_or_else(|| format!("{name} is used after {failure:?}"))?;
        let (expected, _) = &self.backups.list[next - 1];
        ensure!(expected.name() == name, "{name} is used after {failure:?}, not {expected}");
        self.backups.place = next;
        if *failure == Failure::Refused {
            let turn = self.turn()?;
            ensure!(
                turn.told == Some(StopReason::Refusal),
                "a response that ends as {:?} is void",
                turn.told
            );
            turn.refused = false;
        } else {
            self.refuses(failure);
        }
        Ok(())
    }
}

impl World {
    /// Commits a deliberate fault.
    fn break_backups(&mut self, fault: BackupFault) {
        self.model.backups.fault = Some(fault);
        if fault == BackupFault::SmallerRoom {
            let widen = |(own, causes): &(provider::Model, Vec<BackupCause>)| {
                (
                    own.with_info(ModelInfo::new("wide").with_context_window(u64::MAX).with_output_limit(1)),
                    causes.clone(),
                )
            };
            let list: Vec<_> = self.model.backups.list.iter().map(widen).collect();
            self.config.set_backups(resolved(&list));
        }
    }

    /// Keeps the backup model of an earlier prompt, if this is the deliberate fault.
    pub(super) fn keep_backup(&mut self) {
        let backups = &mut self.model.backups;
        if backups.fault != Some(BackupFault::KeptForNextPrompt) {
            return;
        }
        if let Some((origin, step)) = self.core.phase.origin_mut() {
            if step == 1 && origin.backup.is_none() {
                origin.backup = backups.kept;
            }
            backups.kept = backups.kept.max(origin.backup);
        }
    }
}

#[test]
fn faults_in_the_choice_of_a_backup_model_are_noticed() {
    for fault in [BackupFault::KeptForNextPrompt, BackupFault::SmallerRoom] {
        let is_noticed = |seed: &u64| {
            let mut world = World::new(*seed, false);
            world.break_backups(fault);
            world.play().is_err()
        };
        assert!((0..5000).find(is_noticed).is_some(), "{fault:?} is not noticed");
    }
}
