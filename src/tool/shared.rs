//! Implements [`Tool`] for pointers to tools.

use std::{borrow::Cow, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::Value;

use super::{Schema, Tool, ToolContext, ToolError, ToolOutput};

macro_rules! delegate {
    ($($pointer:ident),+) => {$(
        #[async_trait]
        impl<T: Tool + ?Sized> Tool for $pointer<T> {
            fn name(&self) -> &str {
                (**self).name()
            }

            fn description(&self) -> Cow<'_, str> {
                (**self).description()
            }

            fn schema(&self) -> &Schema {
                (**self).schema()
            }

            fn has_handler(&self) -> bool {
                (**self).has_handler()
            }

            fn timeout(&self) -> Option<Duration> {
                (**self).timeout()
            }

            async fn call(&self, input: Value, context: ToolContext) -> Result<ToolOutput, ToolError> {
                (**self).call(input, context).await
            }
        }
    )+};
}

delegate!(Arc, Box);
