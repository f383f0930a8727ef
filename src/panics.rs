//! Protection against panics in code outside the crate.

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
};

use futures_util::FutureExt;

use crate::text::clip;

/// Runs `work`. If `work` panics, returns the panic message as the error.
#[inline]
pub(crate) fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // `AssertUnwindSafe` is correct here: after a panic, callers do not use state that `work` has only partly changed.
    catch_unwind(AssertUnwindSafe(work)).map_err(panic_message)
}

/// Runs `work` to its end. If `work` panics, returns the panic message as the error.
///
/// # Cancel safety
///
/// As cancel-safe as `work`.
// This is not an `async fn`, because the future of an `async fn` would store `work` twice.
#[inline]
pub(crate) fn contained_async<T>(work: impl Future<Output = T>) -> impl Future<Output = Result<T, String>> {
    AssertUnwindSafe(work).catch_unwind().map(|outcome| outcome.map_err(panic_message))
}

/// Returns the message of a panic.
#[cold]
fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let text = match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => match payload.downcast::<&'static str>() {
            Ok(text) => (*text).to_owned(),
            Err(payload) => {
                // Dropping a payload of unknown type may panic as well. Leaking it is the lesser harm.
                std::mem::forget(payload);
                "panic without a message".to_owned()
            }
        },
    };
    clip(&text, 500).into_owned()
}
