//! Backup models: which model repeats a step after a failure of another one.
//!
//! The choice lasts until the end of the prompt's run, because caches and signed thinking belong to a model. The next
//! prompt begins with the first model. A failure leads only forward in the list, so a run never returns to a model that
//! has failed, and ends when no model is left.

use std::{sync::Arc, time::Duration};

use super::{
    Config, Failure,
    compaction::times,
    model_spec::ModelSpec,
    phase::{CompactionPlan, Turn},
};
use crate::{
    provider::{Model, ProviderErrorKind, Registry, RegistryError},
    tool::Replay,
};

/// A group of failures after which a [`BackupModel`] repeats the step.
///
/// [`ProviderErrorKind::Auth`] and [`ProviderErrorKind::InvalidRequest`] belong to no group, because a faulty setup must
/// be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackupCause {
    /// The service accepts no request now: [`ProviderErrorKind::RateLimit`], `Overloaded` or `Quota`.
    Overload,
    /// The service does not work for this request: [`ProviderErrorKind::Timeout`], `Transport`, `Truncated`, `Decoding`,
    /// `Service` or `Unsupported`, or a panic of the provider.
    Outage,
    /// The conversation is too long for the model: [`ProviderErrorKind::ContextTooLong`]. A backup model whose context
    /// window is known and not larger is skipped. If the agent has a
    /// [`CompactionPolicy`](super::CompactionPolicy), the conversation is compacted first.
    ContextTooLong,
    /// The response has ended with [`StopReason::Refusal`](crate::provider::StopReason::Refusal). It is discarded.
    Refusal,
}

impl BackupCause {
    const ALL: [Self; 4] = [Self::Overload, Self::Outage, Self::ContextTooLong, Self::Refusal];

    /// Returns the cause to which the failure belongs, if it is one after which another model helps.
    fn of(failure: &Failure) -> Option<Self> {
        use ProviderErrorKind::{
            Auth, ContextTooLong, Contract, Decoding, InvalidRequest, Output, Overloaded, Quota, RateLimit,
            Service, Timeout, Transport, Truncated, Unsupported,
        };
        match failure {
            Failure::Provider { error } => match error.kind {
                RateLimit | Overloaded | Quota => Some(Self::Overload),
                Timeout | Transport | Truncated | Decoding | Service | Unsupported => Some(Self::Outage),
                ContextTooLong => Some(Self::ContextTooLong),
                Auth | InvalidRequest | Output | Contract => None,
            },
            Failure::ProviderPanicked { .. } => Some(Self::Outage),
            Failure::Refused => Some(Self::Refusal),
            _ => None,
        }
    }
}

/// A model that repeats a step after a failure of the model before it. See
/// [`AgentBuilder::backup_model`](super::AgentBuilder::backup_model).
///
/// A [`Model`] or the name of a model converts into a backup model for all causes.
#[derive(Clone, Debug)]
pub struct BackupModel {
    model: ModelSpec,
    causes: Vec<BackupCause>,
}

impl BackupModel {
    /// Creates a backup model for all causes, from a [`Model`] or a name such as `openai:gpt-5.2`.
    pub fn new(model: impl Into<ModelSpec>) -> Self {
        Self { model: model.into(), causes: BackupCause::ALL.to_vec() }
    }

    /// Sets the causes. After a failure that belongs to another cause, this model is skipped.
    pub fn with_causes(mut self, causes: impl IntoIterator<Item = BackupCause>) -> Self {
        self.causes = causes.into_iter().collect();
        self
    }

    /// Resolves the model as [`Config::set_model`] does.
    pub(super) fn resolve(
        self,
        registry: Option<&Registry>,
        used: &Model,
    ) -> Result<ResolvedBackupModel, RegistryError> {
        Ok(ResolvedBackupModel { model: self.model.resolve(registry, used)?, causes: self.causes })
    }
}

impl<M: Into<ModelSpec>> From<M> for BackupModel {
    fn from(model: M) -> Self {
        Self::new(model)
    }
}

/// A backup model whose name is resolved.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedBackupModel {
    pub(crate) model: Model,
    causes: Vec<BackupCause>,
}

/// The longest delay requested by a service for which an agent with another model waits.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

impl Turn {
    /// Returns the backup model in use. The list can lack it, because a restart can shorten the list.
    fn backup_in<'a>(&self, config: &'a Config) -> Option<&'a ResolvedBackupModel> {
        config.backups().get(usize::from(self.origin.backup?))
    }

    /// Returns the model of the next request.
    pub(crate) fn model_in<'a>(&'a self, config: &'a Config) -> &'a Model {
        let first = self.origin.prompt.model.as_ref().unwrap_or(&config.model);
        self.backup_in(config).map_or(first, |backup| &backup.model)
    }

    /// Returns the index of the backup model that repeats the step after this failure, if there is one.
    fn next_backup(&self, failure: &Failure, config: &Config) -> Option<u8> {
        // A request that must not be repeated may have had effects.
        if self.is_exhausted() || self.request.replay == Replay::Never {
            return None;
        }
        let used = self.backup_in(config).and(self.origin.backup);
        let former = self.model_in(config);
        let mut others = others(used, former, failure, config);
        others.find(|(_, own)| self.has_room(own, config)).map(|(index, _)| index)
    }

    /// Returns the model that writes the summary: a backup model if others have failed, or that of the policy.
    pub(super) fn writer<'a>(&'a self, plan: &CompactionPlan, config: &'a Config) -> &'a Model {
        let backup = plan.backup.and_then(|index| config.backups().get(usize::from(index)));
        let own = config.compactor().and_then(|compactor| compactor.model.as_ref());
        backup.map_or_else(|| own.unwrap_or_else(|| self.model_in(config)), |backup| &backup.model)
    }

    /// Returns the backup models that can write the summary after this failure, in their order.
    pub(super) fn next_writers<'a>(
        &'a self,
        plan: &CompactionPlan,
        failure: &Failure,
        config: &'a Config,
    ) -> impl Iterator<Item = (u8, &'a Model)> {
        let has_own = config.compactor().is_some_and(|compactor| compactor.model.is_some());
        let first = self.origin.backup.filter(|_| !has_own);
        others(plan.backup.or(first), self.writer(plan, config), failure, config)
    }

    /// Changes to the backup model that repeats the step after this failure, and returns its name. Returns `None` if
    /// there is no such model.
    pub(super) fn take_backup(&mut self, failure: &Failure, config: &Config) -> Option<Arc<str>> {
        self.origin.backup = Some(self.next_backup(failure, config)?);
        Some(self.model_in(config).name().into())
    }

    /// Returns whether a backup model is used instead of waiting, because the service requests a long delay.
    pub(super) fn avoids_wait(&self, failure: &Failure, config: &Config) -> bool {
        matches!(failure, Failure::Provider { error } if error.retry_after > Some(LONGEST_WAIT))
            && self.next_backup(failure, config).is_some()
    }

    /// Returns whether the request that has failed has room in the context window of `model`, so that the conversation
    /// is not compacted for this model.
    fn has_room(&self, model: &Model, config: &Config) -> bool {
        let threshold = config.compactor().map_or(1.0, |compactor| compactor.policy.threshold);
        let room = self.room(model, config);
        room.is_none_or(|room| self.size(model, config) < times(room, threshold))
    }
}

/// Returns the backup models after the `used` one that help after this failure of the model `former`, with their
/// indices.
fn others<'a>(
    used: Option<u8>,
    former: &Model,
    failure: &Failure,
    config: &'a Config,
) -> impl Iterator<Item = (u8, &'a Model)> {
    let (cause, former) = (BackupCause::of(failure), former.clone());
    let limit = |model: &Model| model.info().and_then(|info| info.input_limit.or(info.context_window));
    let untried = (0..=u8::MAX).zip(config.backups()).skip(used.map_or(0, |index| usize::from(index) + 1));
    untried
        .filter(move |(_, own)| {
            let is_larger = || limit(&own.model).zip(limit(&former)).is_none_or(|(own, former)| own > former);
            let helps =
                |cause| own.causes.contains(&cause) && (cause != BackupCause::ContextTooLong || is_larger());
            own.model != former && cause.is_some_and(helps)
        })
        .map(|(index, own)| (index, &own.model))
}
