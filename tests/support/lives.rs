//! Processes that die.

/// Runs `work` in a new runtime, and then ends the runtime with all its tasks, as if a process had died.
pub(crate) fn in_a_life<T: Send>(work: impl Future<Output = T> + Send) -> T {
    let life = || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let result = runtime.block_on(work);
        // Wait for the tasks, or one of them could take what is meant for the next life.
        runtime.shutdown_timeout(std::time::Duration::from_mins(1));
        result
    };
    std::thread::scope(|scope| scope.spawn(life).join().unwrap())
}
