//! Implements [`Tool`] for pointers to tools, and for a tool with one changed property.

use std::{borrow::Cow, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::Value;

use super::{Schema, Tool, ToolContext, ToolError, ToolOutput};

/// A tool whose time limit is replaced.
pub(super) struct WithTimeout<T>(pub(super) T, pub(super) Duration);

/// A tool that needs an approval.
pub(super) struct WithApproval<T>(pub(super) T);

macro_rules! delegate {
    (<$($parameter:ident),*> $tool:ty, |$this:ident| $inner:expr, $timeout:expr, $approval:expr) => {
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

            async fn call(&self, input: Value, context: ToolContext) -> Result<ToolOutput, ToolError> {
                let $this = self;
                $inner.call(input, context).await
            }
        }
    };
}

delegate!(<Sized> Arc<T>, |tool| (**tool), (**tool).timeout(), (**tool).requires_approval());
delegate!(<Sized> Box<T>, |tool| (**tool), (**tool).timeout(), (**tool).requires_approval());
delegate!(<> WithTimeout<T>, |tool| tool.0, Some(tool.1), tool.0.requires_approval());
delegate!(<> WithApproval<T>, |tool| tool.0, tool.0.timeout(), { let _ = tool; true });
