//! Shared parts of the benchmarks: clocks, a provider in memory, and the output of tables.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures_util::stream;
use omni_agent::provider::{
    DeltaStream, Model, Provider, ProviderError, Request, StopReason,
    custom::{BlockStart, Delta, Part, RequestContext},
};
use rustix::time::{ClockId, clock_gettime};

/// Returns whether the benchmark only has to prove that it works, as in `cargo test --benches`. In `cargo bench`, it
/// measures.
pub(crate) fn smoke() -> bool {
    !std::env::args().any(|argument| argument == "--bench")
}

/// Returns the case and the number of repetitions from the arguments `--count CASE TIMES`. With these arguments, the
/// case runs without a measurement, so that `scripts/instructions.sh` can count its instructions.
pub(crate) fn counted() -> Option<(String, usize)> {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--count").skip(1);
    let case = arguments.next()?;
    let times = arguments.next()?.parse().expect("`--count` takes a case and a number");
    Some((case, times))
}

/// Returns `full` if the benchmark measures, and `small` otherwise.
pub(crate) fn size(full: usize, small: usize) -> usize {
    if smoke() { small } else { full }
}

/// Returns the CPU time that this process has used. It includes all threads and the kernel's work.
pub(crate) fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        now.tv_sec.try_into().expect("CPU time is not negative"),
        now.tv_nsec.try_into().expect("CPU time is not negative"),
    )
}

/// Returns the resident memory of this process in bytes.
pub(crate) fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has /proc/self/statm");
    let pages: usize = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("the second number is the resident size");
    pages * rustix::param::page_size()
}

/// Returns the peak resident memory of this process in bytes.
pub(crate) fn peak_resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc/self/status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM is listed");
    let kib: usize = peak.trim().trim_end_matches(" kB").trim().parse().expect("the peak is a number of KiB");
    kib * 1024
}

/// Returns the median.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Returns the value below which the given part of the figures lies.
pub(crate) fn percentile(figures: &mut [f64], part: f64) -> f64 {
    figures.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index of a small list")]
    let index = (figures.len() as f64 * part) as usize;
    figures[index.min(figures.len() - 1)]
}

/// Runs `work`, which performs `count` operations. Returns the CPU time per operation in microseconds.
pub(crate) fn cpu_each(count: usize, work: impl FnOnce()) -> f64 {
    let before = cpu();
    work();
    cpu().saturating_sub(before).as_secs_f64() * 1e6 / count as f64
}

/// Runs `work` on a runtime of the current thread.
pub(crate) fn on_this_thread<F: Future>(work: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("the runtime starts").block_on(work)
}

/// Repeats `run` for this time, with this many runs at once. Returns the number of runs per second, and the CPU time
/// per run in microseconds.
pub(crate) async fn race<F, R>(at_once: usize, time: Duration, run: &R) -> (f64, f64)
where
    R: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let runs = Arc::new(AtomicUsize::new(0));
    let (before, began) = (cpu(), Instant::now());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..at_once {
        let (run, runs) = (run.clone(), Arc::clone(&runs));
        tasks.spawn(async move {
            while began.elapsed() < time {
                run().await;
                runs.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("every run succeeds");
    }
    let runs = runs.load(Ordering::Relaxed) as f64;
    (runs / began.elapsed().as_secs_f64(), cpu().saturating_sub(before).as_secs_f64() * 1e6 / runs)
}

/// Prints a row of a table: the case, the figure and the goal.
pub(crate) fn row(what: &str, figure: impl AsRef<str>, goal: &str) {
    println!("{what:<58} {:>22}   {goal}", figure.as_ref());
}

/// Prints the title of a table.
pub(crate) fn head(title: &str) {
    println!("\n{title}");
    row("what", "figure", "goal");
    row("----", "------", "----");
}

/// A provider in memory. The closure returns its answer to each request.
pub(crate) struct InMemory<F>(pub(crate) F);

#[async_trait]
impl<F, S> Provider for InMemory<F>
where
    F: Fn(&Request) -> S + Send + Sync + 'static,
    S: IntoIterator<Item = Result<Delta, ProviderError>, IntoIter: Send + 'static>,
{
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn stream(&self, request: Request, _context: RequestContext) -> Result<DeltaStream, ProviderError> {
        Ok(Box::pin(stream::iter((self.0)(&request))))
    }
}

/// Returns a model of this provider.
pub(crate) fn model(provider: impl Provider) -> Model {
    Model::new(Arc::new(provider), "bench")
}

/// Returns a model that answers every request with the same short text in one delta.
pub(crate) fn brief() -> Model {
    model(InMemory(|_: &Request| text("Hello!")))
}

/// Returns an answer with one text in one delta.
pub(crate) fn text(text: &str) -> [Result<Delta, ProviderError>; 3] {
    [
        Ok(Delta::Start { index: 0, block: BlockStart::Text }),
        Ok(Delta::Extend { index: 0, part: Part::Text(text.to_owned()) }),
        Ok(Delta::stop(StopReason::Stop)),
    ]
}

/// Returns an answer that uses the tool `echo`.
pub(crate) fn tool_use(id: String) -> [Result<Delta, ProviderError>; 3] {
    tool_use_at(0, id)
}

/// Returns a tool use at this index of the answer, and the end of the answer.
pub(crate) fn tool_use_at(index: usize, id: String) -> [Result<Delta, ProviderError>; 3] {
    [
        Ok(Delta::Start { index, block: BlockStart::ToolUse { id: id.into(), name: "echo".to_owned() } }),
        Ok(Delta::Extend { index, part: Part::Input(r#"{"text":"hi"}"#.to_owned()) }),
        Ok(Delta::stop(StopReason::ToolUse)),
    ]
}
