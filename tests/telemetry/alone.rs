//! Runs a test in a separate process.

use std::{env, process::Command};

/// The variable that marks the child process.
const MARK: &str = "OMNI_TELEMETRY_TEST";

/// Runs `body` in a new process with these variables. `test` is the full name of the calling test.
pub fn alone(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if env::var(MARK).is_ok_and(|marked| marked == test) {
        return body();
    }
    let output = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env_remove("OTEL_SEMCONV_STABILITY_OPT_IN")
        .env(MARK, test)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test} failed in its own process:\n{out}\n{errors}");
    assert!(out.contains("1 passed"), "{test} is not the name of the calling test:\n{out}");
}

/// Runs `body` on one thread with paused time.
pub fn paused<T>(body: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(body)
}

/// Runs `body` on several threads.
pub fn threaded<T>(body: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap().block_on(body)
}
