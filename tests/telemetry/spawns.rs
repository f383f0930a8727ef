//! Checks each spawn in the sources: the new task carries a span, or the list below explains why it has none.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The spawns without a span: the file, the start of the call, and the reason.
const WITHOUT_SPAN: &[(&str, &str, &str)] = &[
    ("agent/builder.rs", "tokio::spawn(Box::new(task).run(callbacks", "an agent outlives its starter"),
    (
        "agent/task/ending.rs",
        "tokio::spawn(async move { poll_fn(|cx| commit.poll(cx))",
        "events of an agent that ended",
    ),
    ("agent/task/work.rs", "tasks.set.spawn(running)", "no run has a span, because nobody listens"),
    (
        "manager/recovery.rs",
        "tokio::spawn(async move { let (mut attempts, mut after)",
        "a sweep lives as long as the manager",
    ),
    ("manager/schedule.rs", "tokio::spawn(async move { loop", "a sweep lives as long as the manager"),
    ("manager/schedule.rs", "self.tasks.spawn(fired)", "a firing belongs to no caller"),
    ("mcp/connection.rs", "tokio::spawn(async move { over", "a subscription lives as long as its connection"),
    ("mcp/tool.rs", "tokio::spawn(", "following a list lives as long as the session"),
    ("mcp/connection.rs", "tokio::spawn(", "standard error is read as long as the program runs"),
    ("mcp/server.rs", "tasks.spawn(", "the connection's tasks outlive the caller"),
    ("mcp/tool.rs", "spawn_blocking(move", "it opens no spans and runs no code of the application"),
    ("process.rs", "command.spawn()", "a program, not a task"),
    ("process.rs", "spawn(move ||", "a thread that waits for a program"),
    ("process/watcher.rs", "command.spawn()", "a program, not a task"),
    ("provider/backend/acp/connection.rs", "task.spawn(", "a connection outlives its first request"),
    ("provider/backend/acp/shared.rs", "tokio::spawn(", "it only forwards a decision"),
    ("provider/backend/adapter.rs", "spawn(move ||", "a thread after the end of the runtime"),
    ("provider/http/answer.rs", "tokio::spawn(", "it only discards the rest of a body"),
    ("serve/acp/relay.rs", "state.questions.spawn(", "a pause outlives the event that reported it"),
    ("serve/acp/sessions.rs", "tokio::spawn(", "a relay outlives the request that started it"),
    ("serve/stdio.rs", "spawn(move ||", "a thread that lives as long as the program"),
    ("session/starting.rs", "tokio::spawn(task.run(", "a session outlives its starter"),
    ("session/tenure/keeper.rs", "runtime.spawn(", "leases are renewed as long as the manager lives"),
    ("session/tenure/keeper.rs", "spawn(run)", "a thread that lives as long as the process"),
    (
        "store/file_system.rs",
        "spawn_blocking(action)",
        "it opens no spans and runs no code of the application",
    ),
    ("store/postgres/connect.rs", "tokio::spawn(", "a connection outlives its first operation"),
    ("store/sqlite/workers.rs", "spawn(move ||", "a thread that lives as long as the store"),
    ("terminal/editor.rs", "thread::spawn(move ||", "a thread that reads lines as long as the chat lives"),
];

/// Returns the source files, without the tests and the suites for tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    const FOR_TESTS: [&str; 4] = ["tests", "testing", "conformance", "simulation"];
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_stem().is_some_and(|stem| FOR_TESTS.iter().any(|name| stem == *name)) {
            continue;
        }
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// Returns the calls in this source that spawn tasks, threads or programs, each on one line with its receiver.
fn spawns(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
    let code = lines.collect::<Vec<_>>().join(" ");
    let mut calls = Vec::new();
    for name in ["spawn(", "spawn_blocking(", "spawn_local("] {
        for (at, _) in code.match_indices(name) {
            let is_receiver = |c: char| c.is_alphanumeric() || "_.:".contains(c);
            let start = code[..at].rfind(|c| !is_receiver(c)).map_or(0, |before| before + 1);
            if code[..start].ends_with("fn ") {
                continue;
            }
            let mut depth = 0_usize;
            let end = code[at..].find(|c| {
                depth = match c {
                    '(' => depth + 1,
                    ')' => depth - 1,
                    _ => depth,
                };
                c == ')' && depth == 0
            });
            calls.push(code[start..=at + end.unwrap()].to_owned());
        }
    }
    calls
}

#[test]
fn spawn_in_the_sources_carries_a_span_or_is_listed_with_a_reason() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut unused: Vec<_> = WITHOUT_SPAN.iter().collect();
    let mut bare = Vec::new();
    for file in sources(&src) {
        let name = file.strip_prefix(&src).unwrap().to_str().unwrap();
        for call in spawns(&fs::read_to_string(&file).unwrap()) {
            let is_listed = |(file, start, _): &(&str, &str, &str)| {
                *file == name && (call.starts_with(start) || call.trim_start_matches('.').starts_with(start))
            };
            if call.contains("instrument(") || call.contains("in_current_span()") {
                continue;
            }
            if !WITHOUT_SPAN.iter().any(is_listed) {
                bare.push(format!("{name}: {call}"));
            }
            unused.retain(|entry| !is_listed(entry));
        }
    }
    assert!(
        bare.is_empty(),
        "these tasks have no span; use `in_current_span`, or list them with a reason:\n{}",
        bare.join("\n")
    );
    assert!(unused.is_empty(), "these entries of the list match no spawn: {unused:?}");
}

#[test]
fn spawns_of_a_source_are_found_with_their_whole_arguments() {
    let source =
        "fn spawn(a: u8) {}\n tokio::spawn(async move {\n  f(1).await; // spawn(x)\n });\n set.spawn(g());";
    assert_eq!(spawns(source), ["tokio::spawn(async move { f(1).await; })", "set.spawn(g())"]);
}
