//! Implements [`Tool`] for pointers to tools, and for a tool with one changed property.

use std::{borrow::Cow, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::Value;

use super::{Replay, Schema, Tool, ToolContext, ToolError, ToolOutput};

/// A tool whose time limit is replaced.
pub(super) struct WithTimeout<T>(pub(super) T, pub(super) Duration);

/// A tool whose declaration about repeated calls is replaced.
pub(super) struct WithReplay<T>(pub(super) T, pub(super) Replay);

/// A tool that needs an approval.
pub(super) struct WithApproval<T>(pub(super) T);

macro_rules! delegate {
    (<$($parameter:ident),*> $tool:ty, |$this:ident| $inner:expr, $timeout:expr, $approval:expr, $replay:expr) => {
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
                $timeout
            }

            fn requires_approval(&self) -> bool {
                let $this = self;
                $approval
            }

            fn replay(&self) -> Replay {
                let $this = self;
                $replay
            }

            async fn call(&self, input: Value, context: ToolContext) -> Result<ToolOutput, ToolError> {
                let $this = self;
                $inner.call(input, context).await
            }
        }
    };
}

delegate!(<Sized> Arc<T>, |tool| (**tool), (**tool).timeout(), (**tool).requires_approval(), (**tool).replay());
delegate!(<Sized> Box<T>, |tool| (**tool), (**tool).timeout(), (**tool).requires_approval(), (**tool).replay());
delegate!(<> WithTimeout<T>, |tool| tool.0, Some(tool.1), tool.0.requires_approval(), tool.0.replay());
delegate!(<> WithApproval<T>, |tool| tool.0, tool.0.timeout(), { let _ = tool; true }, tool.0.replay());
delegate!(<> WithReplay<T>, |tool| tool.0, tool.0.timeout(), tool.0.requires_approval(), tool.1);
