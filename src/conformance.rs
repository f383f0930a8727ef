//! Shared parts of the conformance suites of stores and backends: running the checks, and the report.

use std::pin::Pin;

use crate::panics::contained_async;

/// The result of a conformance suite in which no check failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConformanceReport {
    /// The checks that passed.
    pub passed: Vec<&'static str>,
    /// The checks that were skipped because they need an ability that the implementation or its test lacks.
    pub skipped: Vec<&'static str>,
}

/// The outcome of a check that did not fail.
pub(crate) enum PassedOrSkipped {
    Made,
    Skipped,
}

pub(crate) type Check<T> = for<'a> fn(&'a T) -> Pin<Box<dyn Future<Output = PassedOrSkipped> + 'a>>;

/// Defines the list of checks, each an async function of a submodule.
macro_rules! checks {
    ($under_test:ty; $($module:ident: $($name:ident),+;)+) => {
        const CHECKS: &[(&str, $crate::conformance::Check<$under_test>)] =
            &[$($((stringify!($name), |under_test| Box::pin($module::$name(under_test))),)+)+];
    };
}

pub(crate) use checks;

/// Runs each check on a new instance from `make`.
///
/// # Panics
///
/// If a check failed, panics after all checks have run.
pub(crate) async fn run<S, T: ?Sized>(
    checks: &[(&'static str, Check<T>)],
    mut make: impl AsyncFnMut() -> S,
    as_under_test: fn(&S) -> &T,
) -> ConformanceReport {
    let mut report = ConformanceReport { passed: Vec::new(), skipped: Vec::new() };
    let mut failed = Vec::new();
    for (name, check) in checks {
        let under_test = make().await;
        match contained_async(check(as_under_test(&under_test))).await {
            Ok(PassedOrSkipped::Made) => report.passed.push(*name),
            Ok(PassedOrSkipped::Skipped) => report.skipped.push(*name),
            Err(_) => failed.push(*name),
        }
    }
    assert!(failed.is_empty(), "{} of {} checks failed: {}", failed.len(), checks.len(), failed.join(", "));
    report
}
