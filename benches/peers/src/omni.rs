//! This crate as one of the compared libraries.

use std::sync::Arc;

use async_trait::async_trait;
use omni_agent::{agent::Agent, provider::Model, tool::ToolSet};

use crate::{
    contender::{Contender, Reader},
    formats::Format,
    ours,
};

struct Omni {
    model: Model,
    tools: ToolSet,
}

#[expect(clippy::unnecessary_wraps, reason = "not every library supports every format")]
pub(crate) fn contender(format: Format, url: &str) -> Option<Arc<dyn Contender>> {
    Some(Arc::new(Omni { model: ours::model(format, url), tools: ours::tools() }))
}

#[async_trait]
impl Reader for Omni {
    async fn read(&self) -> usize {
        let agent = Agent::builder().model(self.model.clone()).start().await;
        ours::read(&agent.expect("the agent starts")).await
    }
}

#[async_trait]
impl Contender for Omni {
    async fn run(&self) -> String {
        ours::run(&self.model, &self.tools).await
    }
}
