//! Letting everyone else run.

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

/// A yield that ends when the runtime has had its round, and not before.
///
/// tokio wakes a task that yields after all others, and after the future that it blocks on. But other wakers
/// of the task wake it in between: in a fast stream the connection's task does, at every chunk. On a runtime
/// of one thread the two would keep each other going, and the reader waiting. So this one waits for the wake
/// that belongs to it.
#[derive(Default)]
pub(crate) struct OwnWake {
    over: AtomicBool,
    task: AtomicWaker,
}

impl Wake for OwnWake {
    fn wake(self: Arc<Self>) {
        self.over.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl OwnWake {
    pub(crate) fn begin() -> Arc<Self> {
        let own_wake = Arc::new(Self::default());
        let waker = Waker::from(Arc::clone(&own_wake));
        // Its first poll leaves the waker with the runtime, which is all that is wanted of it.
        let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&waker));
        own_wake
    }

    /// Ready when the runtime has had its round.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        self.task.register(cx.waker());
        if self.over.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until the runtime has had its round.
    pub(crate) async fn over(&self) {
        std::future::poll_fn(|cx| self.poll(cx)).await;
    }
}
