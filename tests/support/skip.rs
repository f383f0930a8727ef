//! Tests that need a program which this machine may not have.

/// Reports that a test is skipped for `reason`.
///
/// Some environments must run every test. They set `OMNI_NO_SKIPS`, which turns a skipped test into a failed one.
///
/// # Panics
///
/// If `OMNI_NO_SKIPS` is set.
#[allow(clippy::print_stderr, reason = "the log of the tests has to show what was not tested")]
pub(crate) fn skip(reason: &str) {
    assert!(
        std::env::var_os("OMNI_NO_SKIPS").is_none(),
        "OMNI_NO_SKIPS is set, and a test is skipped: {reason}"
    );
    eprintln!("skipped: {reason}");
}
