//! Catches panics in the application's code, so that a panic affects only the call in which it happens.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use crate::panics::contained;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A future that catches panics and returns the message of a panic as its error. The wrapped future may panic when it
/// is created, polled or dropped.
pub(super) struct Contained<'a, T>(Option<Result<BoxFuture<'a, T>, String>>);

impl<'a, T> Contained<'a, T> {
    pub(super) fn new(make: impl FnOnce() -> BoxFuture<'a, T>) -> Self {
        Self(Some(contained(make)))
    }

    fn discard(&mut self) {
        let future = self.0.take();
        if let Err(panic) = contained(|| drop(future)) {
            tracing::warn!(panic, "a tool panicked while its call was dropped");
        }
    }
}

impl<T> Future for Contained<'_, T> {
    type Output = Result<T, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &mut self.0 {
            Some(Ok(future)) => match contained(|| future.as_mut().poll(cx)) {
                Ok(Poll::Pending) => return Poll::Pending,
                Ok(Poll::Ready(output)) => Ok(output),
                Err(panic) => Err(panic),
            },
            Some(Err(panic)) => Err(std::mem::take(panic)),
            None => return Poll::Pending,
        };
        self.discard();
        Poll::Ready(outcome)
    }
}

impl<T> Drop for Contained<'_, T> {
    fn drop(&mut self) {
        self.discard();
    }
}
