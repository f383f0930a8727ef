//! The tool calls whose tasks still exist. An aborted task may continue until its tool awaits or returns.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::{actor::TaskWakeSignal, agent::phase::DispatchedToolCall, message::ToolUse};

use crate::sync::lock;

/// The calls of an agent that have not ended, including aborted calls.
#[derive(Debug, Default)]
pub(super) struct UnfinishedToolCalls {
    calls: Mutex<Vec<Arc<DispatchedToolCall>>>,
    ended: TaskWakeSignal,
}

/// A guard that keeps a call in the list until the guard is dropped, which is the last action of the call's task.
pub(super) struct UnfinishedToolCallGuard {
    call: Arc<DispatchedToolCall>,
    all: Arc<UnfinishedToolCalls>,
}

impl UnfinishedToolCalls {
    pub(super) fn enter(self: &Arc<Self>, call: &Arc<DispatchedToolCall>) -> UnfinishedToolCallGuard {
        self.calls().push(Arc::clone(call));
        UnfinishedToolCallGuard { call: Arc::clone(call), all: Arc::clone(self) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls().is_empty()
    }

    /// Returns the tool uses whose tools are still running.
    pub(super) fn running(&self) -> Vec<ToolUse> {
        self.calls().iter().map(|call| call.tool_use.clone()).collect()
    }

    /// Waits until every call has ended. Only one task may wait.
    pub(super) async fn all_ended(&self) {
        while !self.is_empty() {
            self.ended.given().await;
        }
    }

    fn calls(&self) -> MutexGuard<'_, Vec<Arc<DispatchedToolCall>>> {
        lock(&self.calls)
    }
}

impl Drop for UnfinishedToolCallGuard {
    fn drop(&mut self) {
        self.all.calls().retain(|call| !Arc::ptr_eq(call, &self.call));
        self.all.ended.give();
    }
}
