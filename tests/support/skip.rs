//! The skipping of tests that need a program that may not be installed on this machine.

/// Reports that a test is skipped for `reason`.
///
/// Some environments must run every test. They set `OMNI_NO_SKIPS`. If it is set, a skipped test fails.
///
/// # Panics
///
/// Panics if `OMNI_NO_SKIPS` is set.
#[allow(clippy::print_stderr, reason = "the log of the tests has to show what was not tested")]
pub(crate) fn skip(reason: &str) {
    assert!(
        std::env::var_os("OMNI_NO_SKIPS").is_none(),
        "OMNI_NO_SKIPS is set, and a test is skipped: {reason}"
    );
    eprintln!("skipped: {reason}");
}
