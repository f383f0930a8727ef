//! A provider for another service: `cargo run --example first_provider`.
//! This one uses the tool `clock`, and then answers with its result.

use std::sync::Arc;

use futures_util::stream;
use omni_agent::provider::custom::{BlockStart, Delta, Part, RequestContext};
use omni_agent::provider::{DeltaStream, Provider, ProviderError, Request, StopReason};
use omni_agent::{Agent, Model, async_trait, tool};

struct Service;

#[async_trait]
impl Provider for Service {
    fn name(&self) -> &'static str {
        "service"
    }

    async fn stream(&self, request: Request, _: RequestContext) -> Result<DeltaStream, ProviderError> {
        // A real provider sends `request.history`, `request.tools` and `request.options` to its service.
        let last = request.history.iter().last();
        let (block, part, stop) = if let Some(result) = last.and_then(|it| it.tool_results().next()) {
            (BlockStart::Text, Part::Text(format!("It is {}.", result.text())), StopReason::Stop)
        } else {
            let block = BlockStart::ToolUse { id: "call-1".into(), name: "clock".into() };
            (block, Part::Input("{}".into()), StopReason::ToolUse)
        };
        let deltas = [
            Delta::Start { index: 0, block },
            Delta::Extend { index: 0, part },
            Delta::End { index: 0 },
            Delta::stop(stop),
        ];
        Ok(Box::pin(stream::iter(deltas.map(Ok))))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = tool!("clock", "Returns the time.", async || Ok("12:00"));
    let model = Model::new(Arc::new(Service), "some-model");
    let agent = Agent::builder().model(model).tool(clock).start().await?;
    println!("{}", agent.ask("What time is it?").await?.text());
    Ok(())
}
