//! Sums of usage.
//!
//! A deleted conversation leaves sums by labels, hour and model, so their number does not depend on the number of
//! requests. The labels with the parent and the call of a sub-agent are left out, because they differ for each
//! sub-agent, so no sums would merge.

use std::collections::{BTreeMap, HashMap};

use super::Labels;
use crate::message::{Timestamp, Usage, UsageRow, UsageSum};

/// Sums of usage, one for each model.
#[derive(Default)]
pub(super) struct UsageSumsByModel(BTreeMap<Option<String>, UsageSum>);

impl UsageSumsByModel {
    pub(super) fn add(&mut self, model: Option<&str>, requests: u64, usage: Usage) {
        let model = model.map(str::to_owned);
        self.0.entry(model.clone()).or_insert_with(|| UsageSum::new(model)).add(requests, usage);
    }

    pub(super) fn into_vec(self) -> Vec<UsageSum> {
        self.0.into_values().collect()
    }
}

/// Returns the labels under which the usage of a conversation with these labels is kept when it is deleted.
pub(super) fn kept_labels(labels: &Labels) -> Labels {
    labels.without(&[Labels::PARENT, Labels::CALL])
}

/// The condition of SQL statements for the labels in [`kept_labels`].
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) const IS_KEPT_LABEL: &str = "name NOT IN ('omni.parent', 'omni.call')";

/// Returns the beginning of the hour that contains this time. The usage of deleted conversations is kept by hour.
pub(super) fn hour(at: Timestamp) -> Timestamp {
    const HOUR: u64 = 60 * 60 * 1000;
    Timestamp(at.0 / HOUR * HOUR)
}

/// Returns the usage of a conversation that is about to be deleted, by hour and model.
pub(super) fn by_hour<'r>(
    rows: impl IntoIterator<Item = &'r UsageRow>,
) -> HashMap<(Timestamp, Option<String>), UsageSum> {
    let mut sums = HashMap::new();
    for row in rows {
        let sum = sums.entry((hour(row.at), row.model.clone()));
        sum.or_insert_with(|| UsageSum::new(row.model.clone())).add(1, row.usage);
    }
    sums
}

/// The usage of deleted conversations, by labels, hour and model.
#[derive(Default)]
pub(super) struct DeletedConversationsUsage(HashMap<(Labels, Timestamp, Option<String>), UsageSum>);

impl DeletedConversationsUsage {
    pub(super) fn keep<'r>(&mut self, labels: &Labels, rows: impl IntoIterator<Item = &'r UsageRow>) {
        let labels = kept_labels(labels);
        for ((hour, _), sum) in by_hour(rows) {
            self.add(&labels, hour, sum);
        }
    }

    pub(super) fn add(&mut self, labels: &Labels, hour: Timestamp, sum: UsageSum) {
        let kept = self.0.entry((labels.clone(), hour, sum.model.clone()));
        kept.or_insert_with(|| UsageSum::new(sum.model)).add(sum.requests, sum.usage);
    }

    /// Iterates over the sums with their labels and hours.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Labels, Timestamp, &UsageSum)> {
        self.0.iter().map(|((labels, at, _), sum)| (labels, *at, sum))
    }
}
