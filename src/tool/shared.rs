//! Implements [`Tool`] for pointers to tools, and for a tool with one changed property.

use std::{borrow::Cow, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::Value;

use super::{Replay, Schema, Tool, ToolContext, ToolError, ToolOutput};

/// A tool whose time limit is replaced.
pub(super) struct ToolWithTimeout<T>(pub(super) T, pub(super) Duration);

/// A tool whose limit on the time between progress reports is replaced.
pub(super) struct ToolWithIdleTimeout<T>(pub(super) T, pub(super) Duration);

/// A tool whose declaration about repeated calls is replaced.
pub(super) struct ToolWithReplay<T>(pub(super) T, pub(super) Replay);

/// A tool that needs an approval.
pub(super) struct ToolWithApproval<T>(pub(super) T);

/// Returns the given property of a wrapper, or otherwise the property of the tool inside.
macro_rules! property {
    (; $inner:expr) => {
        $inner
    };
    ($own:expr; $inner:expr) => {
        $own
    };
}

macro_rules! delegate {
    (
        <$($parameter:ident),*> $tool:ty, |$this:ident| $inner:expr
        $(, timeout: $timeout:expr)? $(, idle: $idle:expr)? $(, approval: $approval:expr)? $(, replay: $replay:expr)?
    ) => {
        #[async_trait]
        impl<T: Tool $(+ ?$parameter)*> Tool for $tool {
            fn name(&self) -> &str {
                let $this = self;
                $inner.name()
            }

            fn description(&self) -> Cow<'_, str> {
                let $this = self;
                $inner.description()
            }

            fn schema(&self) -> &Schema {
                let $this = self;
                $inner.schema()
            }

            fn has_handler(&self) -> bool {
                let $this = self;
                $inner.has_handler()
            }

            fn timeout(&self) -> Option<Duration> {
                let $this = self;
                property!($($timeout)?; $inner.timeout())
            }

            fn idle_timeout(&self) -> Option<Duration> {
                let $this = self;
                property!($($idle)?; $inner.idle_timeout())
            }

            fn requires_approval(&self) -> bool {
                let $this = self;
                property!($($approval)?; $inner.requires_approval())
            }

            fn replay(&self) -> Replay {
                let $this = self;
                property!($($replay)?; $inner.replay())
            }

            async fn call(&self, input: Value, context: ToolContext) -> Result<ToolOutput, ToolError> {
                let $this = self;
                $inner.call(input, context).await
            }
        }
    };
}

delegate!(<Sized> Arc<T>, |tool| (**tool));
delegate!(<Sized> Box<T>, |tool| (**tool));
delegate!(<> ToolWithTimeout<T>, |tool| tool.0, timeout: Some(tool.1));
delegate!(<> ToolWithIdleTimeout<T>, |tool| tool.0, idle: Some(tool.1));
delegate!(<> ToolWithApproval<T>, |tool| tool.0, approval: { let _ = tool; true });
delegate!(<> ToolWithReplay<T>, |tool| tool.0, replay: tool.1);
