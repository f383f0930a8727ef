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

/// A yield that ends when the runtime has polled all other ready tasks, and not before.
///
/// tokio wakes a yielding task after all others, and after the future that it blocks on. But other wakers can wake the
/// task earlier. In a fast stream, the connection's task does that at every chunk. On a runtime with one thread the two
/// tasks would keep each other running while the reader waits. So this yield waits for its own waker.
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
        // The first poll registers the waker with the runtime. Nothing else is needed of this future.
        let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&waker));
        own_wake
    }

    /// Ready when the runtime has finished its round.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        self.task.register(cx.waker());
        if self.over.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until the runtime has finished its round.
    pub(crate) async fn over(&self) {
        std::future::poll_fn(|cx| self.poll(cx)).await;
    }
}
