//! Yielding to all other tasks.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::task::AtomicWaker;

/// A yield that ends only after the runtime has polled all other ready tasks.
///
/// When a task yields, tokio polls all other ready tasks and the future of `block_on` before it wakes the task. But
/// other wakers can wake the task earlier. In a fast stream, the connection's task wakes the yielding task at every
/// chunk. On a runtime with one thread, these two tasks would then keep waking each other, and a subscriber's task
/// would never run. So this yield ends only when its own waker is called.
#[derive(Default)]
pub(crate) struct FairYield {
    over: AtomicBool,
    task: AtomicWaker,
}

impl Wake for FairYield {
    fn wake(self: Arc<Self>) {
        self.over.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl FairYield {
    pub(crate) fn begin() -> Arc<Self> {
        let own_wake = Arc::new(Self::default());
        let waker = Waker::from(Arc::clone(&own_wake));
        // The first poll registers the waker with the runtime. After that, the future is no longer needed.
        let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&waker));
        own_wake
    }

    /// Returns `Ready` when the runtime has polled all other ready tasks.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        self.task.register(cx.waker());
        if self.over.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until the runtime has polled all other ready tasks.
    pub(crate) async fn over(&self) {
        std::future::poll_fn(|cx| self.poll(cx)).await;
    }
}
