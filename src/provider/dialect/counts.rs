use serde_json::{Map, Value};

use super::lenient::Reported;
use crate::{
    message::Usage,
    provider::{Delta, MessageDelta},
};

/// The counts in a service's usage report. An unreadable count is ignored with a warning, because it must not make a
/// response fail.
pub(super) struct Counts<'v> {
    members: Option<&'v Map<String, Value>>,
    /// The first member that cannot be read.
    unreadable: Option<String>,
}

impl<'v> Counts<'v> {
    /// Reads `report`, which is the value of the response's member `name`.
    pub(super) fn of(name: &str, report: &'v Value) -> Self {
        let unreadable = !report.is_null() && !report.is_object();
        Self { members: report.as_object(), unreadable: unreadable.then(|| name.to_owned()) }
    }

    /// Returns whether the report is missing or is not an object.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_none()
    }

    /// Returns the count at this path, if the service reports it.
    pub(super) fn count(&mut self, path: &[&str]) -> Option<u64> {
        self.read(path, |value| match value {
            Value::Number(number) => number.as_u64().or_else(|| whole(number.as_f64()?)),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        })
    }

    /// Returns the amount of money at this path, if the service reports it.
    pub(super) fn amount(&mut self, path: &[&str]) -> Option<f64> {
        let amount = |value: &Value| match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        self.read(path, |value| amount(value).filter(|amount| amount.is_finite() && *amount >= 0.0))
    }

    fn read<T>(&mut self, path: &[&str], read: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let mut members = self.members?;
        let (last, parents) = path.split_last()?;
        for (depth, parent) in parents.iter().enumerate() {
            match members.get(*parent)? {
                Value::Null => return None,
                Value::Object(inner) => members = inner,
                _ => return self.fail(&path[..=depth]),
            }
        }
        match members.get(*last)? {
            Value::Null => None,
            value => read(value).or_else(|| self.fail(path)),
        }
    }

    fn fail<T>(&mut self, path: &[&str]) -> Option<T> {
        self.unreadable.get_or_insert_with(|| path.join("."));
        None
    }

    /// Emits a warning if a count could not be read. `warned` limits the warnings to one per response.
    pub(super) fn warn(self, warned: &mut bool, deltas: &mut Vec<Delta>) {
        warn(self.unreadable.as_deref(), warned, deltas);
    }
}

/// Reads a usage report that was parsed into a struct, for wire formats that have a report in each event.
#[derive(Debug, Default)]
pub(super) struct TypedCounts {
    /// The first member that cannot be read.
    unreadable: Option<&'static str>,
}

impl TypedCounts {
    /// Returns the value of this member, if the service reports it.
    pub(super) fn read<T>(&mut self, member: &'static str, reported: Reported<T>) -> Option<T> {
        match reported {
            Reported::Nothing => None,
            Reported::Value(value) => Some(value),
            Reported::Unreadable => {
                self.unreadable.get_or_insert(member);
                None
            }
        }
    }
}

/// The usage of one response, for wire formats that report it repeatedly. The last report counts.
#[derive(Debug, Default)]
pub(super) struct LatestUsage {
    /// Whether the request asks for usage.
    expected: bool,
    usage: Option<Usage>,
    /// Whether the warning about unreadable usage was emitted.
    warned: bool,
}

impl LatestUsage {
    /// Returns the state before the first report. `expected` indicates whether the request asks for usage.
    pub(super) fn new(expected: bool) -> Self {
        Self { expected, ..Self::default() }
    }

    /// Records the usage in a report, and warns about its unreadable counts.
    pub(super) fn report(&mut self, usage: Option<Usage>, counts: &TypedCounts, deltas: &mut Vec<Delta>) {
        warn(counts.unreadable, &mut self.warned, deltas);
        if usage.is_some() && self.usage != usage {
            self.usage = usage;
            deltas.push(Delta::Message(Box::new(MessageDelta { usage, ..MessageDelta::default() })));
        }
    }

    /// Records that the response is complete and that its usage is not reported in another event.
    pub(super) fn is_settled(&mut self) {
        self.expected = false;
    }

    /// Emits a warning if the stream ended before an expected usage report arrived.
    pub(super) fn end(&self, deltas: &mut Vec<Delta>) {
        if self.expected && self.usage.is_none() && !self.warned {
            let warning = "usage is unknown: the stream ended before the service reported it";
            deltas.push(Delta::warning(warning));
        }
    }
}

fn warn(unreadable: Option<&str>, warned: &mut bool, deltas: &mut Vec<Delta>) {
    if let Some(member) = unreadable
        && !std::mem::replace(warned, true)
    {
        deltas.push(Delta::warning(format!(
            "usage is incomplete: the service reports `{member}` in a form that cannot be read as a number"
        )));
    }
}

/// Converts a float to a count, if it is a whole number. Every actual count is so small that a float represents it
/// exactly.
pub(super) fn whole(number: f64) -> Option<u64> {
    let fits = (0.0..=f64::from(u32::MAX)).contains(&number) && number.fract() == 0.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    fits.then_some(number as u64)
}
