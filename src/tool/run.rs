use std::{fmt, sync::Arc, time::Duration};

use super::{ToolContext, ToolSet};
use crate::message::{ToolResult, ToolUse};

/// How long a tool may take.
#[derive(Clone)]
pub enum ToolTimeout {
    /// The same for every tool.
    Fixed(Duration),
    /// By the tool's name; `None` is for ever.
    ByName(Arc<dyn Fn(&str) -> Option<Duration> + Send + Sync>),
}

impl ToolTimeout {
    /// The limit for the tool of this name.
    pub fn of(&self, name: &str) -> Option<Duration> {
        match self {
            Self::Fixed(limit) => Some(*limit),
            Self::ByName(limit) => limit(name),
        }
    }
}

impl Default for ToolTimeout {
    /// Five seconds.
    fn default() -> Self {
        Self::Fixed(Duration::from_secs(5))
    }
}

impl fmt::Debug for ToolTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(limit) => f.debug_tuple("Fixed").field(limit).finish(),
            Self::ByName(_) => f.write_str("ByName"),
        }
    }
}

/// What one tool call may take.
#[derive(Clone, Debug)]
pub struct ToolLimits {
    /// How long.
    pub timeout: ToolTimeout,
    /// How many bytes of output the model gets; what is beyond is cut, and the result says so.
    pub max_output: usize,
}

impl Default for ToolLimits {
    /// Five seconds and 256 KiB.
    fn default() -> Self {
        Self { timeout: ToolTimeout::default(), max_output: 256 * 1024 }
    }
}

impl ToolSet {
    /// Runs the tool that `tool_use` names, whatever happens: malformed or invalid input, an unknown name, a
    /// tool without a handler, an error, a panic and a timeout each become an error result that the model can
    /// read and act on.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the call.
    pub async fn run(&self, _tool_use: &ToolUse, _context: ToolContext, _limits: &ToolLimits) -> ToolResult {
        todo!()
    }
}
