//! Implements [`Tool`] for pointers to tools, and for a tool whose time limit is replaced.

use std::{borrow::Cow, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::Value;

use super::{Schema, Tool, ToolContext, ToolError, ToolOutput};

/// A tool whose time limit is replaced.
pub(super) struct WithTimeout<T>(pub(super) T, pub(super) Duration);

macro_rules! delegate {
    (<$($parameter:ident),*> $tool:ty, |$this:ident| $inner:expr, $timeout:expr) => {
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

            async fn call(&self, input: Value, context: ToolContext) -> Result<ToolOutput, ToolError> {
                let $this = self;
                $inner.call(input, context).await
            }
        }
    };
}

delegate!(<Sized> Arc<T>, |tool| (**tool), (**tool).timeout());
delegate!(<Sized> Box<T>, |tool| (**tool), (**tool).timeout());
delegate!(<> WithTimeout<T>, |tool| tool.0, Some(tool.1));
