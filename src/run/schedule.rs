//! Prompts that are sent at set times.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Error, ErrorKind, Prompt, PromptId, prompt::is_default};
use crate::{message::Timestamp, setters::setters};

/// The shortest interval of a [`Schedule`]. A shorter one would keep the manager and the store busy.
const SHORTEST: u64 = 1000;
/// The beginning of the ids of prompts that a schedule sends.
const RESERVED: &str = "omni.";

/// A prompt that a manager sends to a conversation at set times:
/// [`Manager::schedule`](crate::manager::Manager::schedule).
///
/// ```
/// use std::time::Duration;
/// use omni_agent::run::{Missed, Schedule};
///
/// let hour = Duration::from_hours(1);
/// let report = Schedule::every(24 * hour, "Write the report.").missed(Missed::Skip(hour));
/// assert_eq!(report.missed, Missed::Skip(hour));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Schedule {
    /// The times at which the prompt is sent.
    pub timing: Timing,
    /// The prompt. It gets another id at each time.
    pub prompt: Prompt,
    /// The handling of times that have passed without the prompt being sent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub missed: Missed,
}

/// The times of a [`Schedule`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Timing {
    /// Once, at this time.
    At(Timestamp),
    /// Once, this long after the schedule is stored.
    After(Duration),
    /// Again and again in this interval. The first time is one interval after the schedule is stored.
    Every(Duration),
    /// At the times of a cron pattern. Only a process with the feature `cron` sends the prompt.
    Cron {
        /// The pattern, such as `0 9 * * 1-5`.
        pattern: String,
        /// The IANA name of the time zone, such as `Europe/Berlin`.
        zone: String,
    },
}

/// The handling of times of a [`Schedule`] that have passed without its prompt being sent: no manager was running, the
/// conversation was unavailable, or the run of an earlier time has taken until then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Missed {
    /// The prompt is sent once for all of them.
    #[default]
    Once,
    /// Times that are longer ago than this are left out. The prompt is sent once for the others.
    Skip(Duration),
}

impl Schedule {
    fn new(timing: Timing, prompt: Prompt) -> Self {
        Self { timing, prompt, missed: Missed::default() }
    }

    /// Sends the prompt once, at this time. If the time has passed, sends it at once.
    pub fn at(time: Timestamp, prompt: impl Into<Prompt>) -> Self {
        Self::new(Timing::At(time), prompt.into())
    }

    /// Sends the prompt once, this long after the schedule is stored.
    pub fn after(delay: Duration, prompt: impl Into<Prompt>) -> Self {
        Self::new(Timing::After(delay), prompt.into())
    }

    /// Sends the prompt again and again in this interval, which is at least one second. The first time is one interval
    /// after the schedule is stored.
    pub fn every(interval: Duration, prompt: impl Into<Prompt>) -> Self {
        Self::new(Timing::Every(interval.max(Duration::from_millis(SHORTEST))), prompt.into())
    }

    /// Sends the prompt at the times of a cron pattern with five fields, in a time zone with an IANA name.
    ///
    /// A time of the pattern that a change to daylight saving time skips is replaced by the first instant after the
    /// change. A time that occurs twice counts once, at its first occurrence. Patterns that repeat within the hour, such
    /// as `*/15 * * * *`, continue through both.
    ///
    /// ```
    /// use omni_agent::run::Schedule;
    ///
    /// let report = Schedule::cron("0 9 * * 1-5", "Europe/Berlin", "Write the report.")?;
    /// # let _ = report;
    /// assert!(Schedule::cron("0 9 * *", "Europe/Berlin", "Write the report.").is_err());
    /// # Ok::<(), omni_agent::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::InvalidSettings`] if the pattern or the zone is invalid.
    #[cfg(feature = "cron")]
    pub fn cron(
        pattern: impl Into<String>,
        zone: impl Into<String>,
        prompt: impl Into<Prompt>,
    ) -> Result<Self, Error> {
        let (pattern, zone) = (pattern.into(), zone.into());
        cron::parse(&pattern, &zone)?;
        Ok(Self::new(Timing::Cron { pattern, zone }, prompt.into()))
    }

    setters! {
        /// Sets how missed times are handled. Defaults to [`Missed::Once`].
        pub fn missed(self, missed: Missed) { self.missed = missed }
    }

    /// Returns the first time, if the schedule is stored at `now`.
    pub(crate) fn first(&self, now: Timestamp) -> Result<Timestamp, Error> {
        match &self.timing {
            Timing::At(time) => Ok(*time),
            Timing::After(wait) | Timing::Every(wait) => Ok(now.after(*wait)),
            Timing::Cron { pattern, zone } => cron::next(pattern, zone, now)?.ok_or_else(|| {
                let text = format!("the pattern {pattern:?} of a schedule has no time after now");
                Error::new(ErrorKind::InvalidSettings, text)
            }),
        }
    }

    /// Returns the first time after `now` for a schedule with the time `due`, or `None` if the schedule is over. Fails if
    /// this process can't compute the time. A later attempt or another process may be able to.
    pub(crate) fn next(&self, due: Timestamp, now: Timestamp) -> Result<Option<Timestamp>, Error> {
        match &self.timing {
            Timing::At(_) | Timing::After(_) => Ok(None),
            Timing::Every(interval) => {
                let interval = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(SHORTEST);
                let steps = now.0.saturating_sub(due.0) / interval + 1;
                Ok(Some(Timestamp(due.0.saturating_add(steps.saturating_mul(interval)))))
            }
            Timing::Cron { pattern, zone } => cron::next(pattern, zone, due.max(now)),
        }
    }
}

impl PromptId {
    /// Returns the id of the prompt that a schedule sends at the time `due`.
    pub(crate) fn of_schedule(name: &str, rev: u32, due: Timestamp) -> Self {
        Self::new(format!("{RESERVED}{name}.{rev:x}@{:x}", due.0))
    }

    /// Returns whether the id has the form of [`of_schedule`](Self::of_schedule). A client with such an id could keep a
    /// schedule from sending its prompt.
    #[cfg(feature = "web")]
    pub(crate) fn is_reserved(&self) -> bool {
        let due = self.as_str().strip_prefix(RESERVED).and_then(|rest| rest.rsplit_once('@'));
        due.is_some_and(|(_, due)| due.bytes().all(|digit| digit.is_ascii_hexdigit()))
    }
}

#[cfg(feature = "cron")]
mod cron {
    use std::str::FromStr;

    use croner::Cron;
    use jiff::tz::{TimeZone, TimeZoneDatabase};

    use crate::{
        message::Timestamp,
        run::{Error, ErrorKind},
    };

    pub(super) fn parse(pattern: &str, zone: &str) -> Result<(Cron, TimeZone), Error> {
        let invalid = |what: &str, value: &str, problem: String| {
            let text = format!("the {what} {value:?} of a schedule is invalid: {problem}");
            Error::new(ErrorKind::InvalidSettings, text)
        };
        // The database of the machine may lack zones, such as `US/Eastern`, or be unreadable for a moment.
        let zone = TimeZone::get(zone)
            .or_else(|error| TimeZoneDatabase::bundled().get(zone).map_err(|_| error))
            .map_err(|error| invalid("time zone", zone, error.to_string()))?;
        let cron = Cron::from_str(pattern).map_err(|error| invalid("pattern", pattern, error.to_string()))?;
        Ok((cron, zone))
    }

    /// Returns the first time of the pattern after `now`, or `None` if there is none.
    pub(super) fn next(pattern: &str, zone: &str, now: Timestamp) -> Result<Option<Timestamp>, Error> {
        let (cron, zone) = parse(pattern, zone)?;
        let millis = i64::try_from(now.0).unwrap_or(i64::MAX);
        // Both fail only if the time is beyond the calendar or the pattern fits no date.
        let Ok(now) = jiff::Timestamp::from_millisecond(millis) else { return Ok(None) };
        let next = cron.find_next_occurrence(&now.to_zoned(zone), false).ok();
        Ok(next.map(|next| Timestamp(u64::try_from(next.timestamp().as_millisecond()).unwrap_or_default())))
    }
}

#[cfg(not(feature = "cron"))]
mod cron {
    use super::{Error, ErrorKind, Timestamp};

    pub(super) fn next(_: &str, _: &str, _: Timestamp) -> Result<Option<Timestamp>, Error> {
        let text = "this program can't compute the times of a cron pattern; enable the feature `cron`";
        Err(Error::new(ErrorKind::Unsupported, text).with_member("operation", "cron patterns"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_time_of_an_interval_is_the_first_multiple_after_now() {
        let every = Schedule::every(Duration::from_secs(10), "Go");
        for (due, now, next) in [
            (1_000, 1_000, 11_000),
            (1_000, 10_999, 11_000),
            (1_000, 11_000, 21_000),
            (1_000, 500, 11_000),
            (1_000, 61_500, 71_000),
            (u64::MAX, 5, u64::MAX),
        ] {
            assert_eq!(
                every.next(Timestamp(due), Timestamp(now)).unwrap(),
                Some(Timestamp(next)),
                "{due} {now}"
            );
        }
        let endless = Schedule { timing: Timing::Every(Duration::ZERO), ..every };
        assert_eq!(endless.next(Timestamp(0), Timestamp(0)).unwrap(), Some(Timestamp(SHORTEST)));
    }

    #[test]
    fn id_of_a_schedule_with_the_longest_name_fits() {
        let id = PromptId::of_schedule(&"n".repeat(32), u32::MAX, Timestamp(u64::MAX));
        assert!(id.as_str().len() <= crate::run::MAX_ID);
    }

    /// The last Sundays of March and October 2026 in Berlin. All times of the test are in UTC.
    #[cfg(feature = "cron")]
    #[test]
    fn cron_on_both_days_of_daylight_saving_fires_once_per_day() {
        let time = |text: &str| {
            let time: jiff::Timestamp = text.parse().unwrap();
            Timestamp(u64::try_from(time.as_millisecond()).unwrap())
        };
        let daily = Schedule::cron("30 2 * * *", "Europe/Berlin", "Go").unwrap();
        let days = |first: &str, rest: [&str; 3]| {
            let mut due = daily.first(time(first)).unwrap();
            for wanted in rest {
                assert_eq!(due.rfc_3339(), wanted);
                due = daily.next(due, due).unwrap().unwrap();
            }
        };
        // 02:30 does not exist on 29 March, so the first instant after the gap counts: 03:00 in summer time.
        days(
            "2026-03-28T00:00:00Z",
            ["2026-03-28T01:30:00.000Z", "2026-03-29T01:00:00.000Z", "2026-03-30T00:30:00.000Z"],
        );
        // 02:30 occurs twice on 25 October.
        days(
            "2026-10-24T00:00:00Z",
            ["2026-10-24T00:30:00.000Z", "2026-10-25T00:30:00.000Z", "2026-10-26T01:30:00.000Z"],
        );
        let late = daily.next(time("2026-10-24T00:30:00Z"), time("2026-10-25T00:45:00Z")).unwrap().unwrap();
        assert_eq!(late.rfc_3339(), "2026-10-26T01:30:00.000Z", "the second 02:30 is left out");
    }

    #[cfg(feature = "cron")]
    #[test]
    fn cron_with_an_invalid_pattern_or_zone_is_an_error() {
        for (pattern, zone) in
            [("0 9 * *", "Europe/Berlin"), ("0 25 * * *", "UTC"), ("0 9 * * *", "Mars/North")]
        {
            let error = Schedule::cron(pattern, zone, "Go").unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidSettings, "{error:?}");
        }
        let never = Schedule::cron("0 0 30 2 *", "UTC", "Go").unwrap();
        assert!(never.first(Timestamp(0)).is_err());
        assert_eq!(never.next(Timestamp(0), Timestamp(0)).unwrap(), None);
        let timing = Timing::Cron { pattern: "0 9 * * *".to_owned(), zone: "Mars/North".to_owned() };
        let unknown = Schedule { timing, ..never };
        assert!(unknown.next(Timestamp(0), Timestamp(0)).is_err(), "it is not over");
    }

    /// The database of the machine lacks this zone in a child process.
    #[cfg(all(feature = "cron", unix))]
    #[test]
    fn cron_in_a_zone_that_the_machine_lacks_uses_the_bundled_database() {
        const NAME: &str = "cron_in_a_zone_that_the_machine_lacks_uses_the_bundled_database";
        let zones = std::env::temp_dir().join(format!("zones-{}", std::process::id()));
        if std::env::var_os("OMNI_CHILD").is_some() {
            assert!(jiff::tz::TimeZone::get("US/Eastern").is_err(), "the machine lacks it");
            assert!(Schedule::cron("0 9 * * *", "US/Eastern", "Go").is_ok());
            return;
        }
        std::fs::create_dir(&zones).unwrap();
        std::fs::write(zones.join("Elsewhere"), "TZif").unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &format!("{}::{NAME}", module_path!().split_once("::").unwrap().1)]);
        let output = child.env("OMNI_CHILD", "1").env("TZDIR", &zones).output().unwrap();
        std::fs::remove_dir_all(zones).unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
