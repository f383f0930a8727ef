//! A provider for another service. This one uses the tool `clock`, and then answers with its result.
//! It is a handler on the library's bus. A service over HTTP implements `Wire` and `Decoder` instead.

use rig::core::effect::{EffectKind, FamilyDescriptor, HandlerDescriptor, family};
use rig::core::serve::{Dispatch, Reply, Serve};
use rig::message::{Message, Origin, ToolResultContent, UserContent};
use rig::prelude::*;
use rig::{ErrorKind, ErrorReport, bus::Bus, operation::Finish, rig_tool, tool::ToolExecutionError};

#[rig_tool(description = "Returns the time.")]
async fn clock() -> Result<String, ToolExecutionError> {
    Ok("12:00".to_owned())
}

struct Service;

impl Serve for Service {
    type Family = family::Completion;

    fn descriptor(&self) -> HandlerDescriptor {
        let family =
            FamilyDescriptor::Completion { model: "some-model".into(), capabilities: Default::default() };
        HandlerDescriptor { key: "model:service".into(), family, layers: Vec::new() }
    }

    async fn serve(&self, kind: EffectKind, _: Dispatch) -> Reply {
        let EffectKind::Completion { request, .. } = kind else {
            return Reply::Outcome(Err(ErrorReport::new(ErrorKind::Other, "only completions")));
        };
        // A real provider sends `request.chat_history` and `request.tools` to its service.
        let result = match request.chat_history.last() {
            Some(Message::User { content }) => content.iter().find_map(|part| match part {
                UserContent::ToolResult(result) => result.content.iter().find_map(|part| match part {
                    ToolResultContent::Text(text) => Some(text.text().to_owned()),
                    _ => None,
                }),
                _ => None,
            }),
            _ => None,
        };
        Reply::written(Origin::new("service", "service", "some-model"), |mut writer| async move {
            let written = match result {
                Some(result) => writer.text(format!("It is {result}.")).await,
                None => writer.tool_call("clock", serde_json::json!({})).await,
            };
            if written.is_ok() {
                let _ = writer.finish(Finish::default()).await;
            }
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (dispatcher, registrar, mut driver) = Bus::channel();
    driver.register("model:service", Service)?;
    tokio::spawn(driver);
    let agent = AgentBuilder::over_bus(dispatcher, registrar, "agent", "model:service".into());
    let response = agent.tool(Clock).build().prompt("What time is it?").max_turns(3).await?;
    println!("{}", response.output());
    Ok(())
}
