//! The tools of the chat. They are harmless samples: one reports progress, one needs an approval, one returns an image,
//! one asks a question, and one is an agent, which has a sub-agent of its own.

use std::time::Duration;

use omni_agent::{
    agent::{Agent, AgentBuilder, SubAgent},
    message::{Attachment, ResultBlock},
    provider::Model,
    tool::{Answer, Replay, Tool, ToolContext, ToolError, ToolOutput, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

/// Returns an agent with the tools.
pub fn agent(model: &Model) -> AgentBuilder {
    // Measuring twice does no harm, so this tool runs again if the server was killed while it was running.
    let measure =
        tool_fn("measure_temperature", "Measures the temperature in a city. The result is made up.", measure)
            .with_replay(Replay::Safe);
    let paint = tool_fn("paint_picture", "Paints a small picture of a subject.", paint);
    let book =
        tool_fn("book_table", "Books a table in a restaurant. This is a sample that books nothing.", book);
    let agent = Agent::builder().model(model.clone()).max_steps(20);
    agent.tool(measure).tool(send_mail()).tool(paint).tool(book).tool(research(model))
}

/// Returns a sub-agent that looks things up, and has another one for letters.
fn research(model: &Model) -> SubAgent {
    let model = model.clone();
    SubAgent::new("research", "Answers one question about a city, or has a letter delivered.", move |_| {
        let look_up = async |City { city }, context: ToolContext| -> Result<String, ToolError> {
            context.progress(json!({ "message": format!("reading about {city}") })).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(format!("{city} has {} letters. This sample knows nothing else.", city.chars().count()))
        };
        let agent = Agent::builder().model(model.clone()).max_steps(6);
        agent.tool(tool_fn("look_up", "Looks a city up.", look_up)).tool(writer(&model))
    })
}

/// Returns a sub-agent with a tool that needs an approval.
fn writer(model: &Model) -> SubAgent {
    let model = model.clone();
    SubAgent::new("writer", "Writes a letter, and has it delivered.", move |_| {
        let deliver = async |mail: Mail, _: ToolContext| -> Result<String, ToolError> {
            Ok(format!("This sample delivers nothing. The letter would have been: {}", mail.text))
        };
        let deliver =
            tool_fn("deliver", "Delivers a letter. This is a sample that delivers nothing.", deliver);
        Agent::builder().model(model.clone()).max_steps(6).tool(deliver.needs_approval())
    })
}

#[derive(Deserialize, JsonSchema)]
struct City {
    /// The name of the city.
    city: String,
}

async fn measure(input: City, context: ToolContext) -> Result<String, ToolError> {
    const STEPS: u32 = 5;
    for step in 1..=STEPS {
        let message = format!("measurement {step} of {STEPS} in {}", input.city);
        context.progress(json!({ "done": step, "total": STEPS, "message": message })).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    if input.city.eq_ignore_ascii_case("Atlantis") {
        return Err(ToolError::new("Atlantis is not on the map"));
    }
    let degrees = 5 + input.city.len() % 20;
    Ok(format!("{degrees} °C in {}", input.city))
}

#[derive(Deserialize, JsonSchema)]
struct Mail {
    /// The text of the mail.
    text: String,
}

fn send_mail() -> impl Tool {
    let send = async |mail: Mail, _: ToolContext| -> Result<String, ToolError> {
        Ok(format!("This sample sends nothing. The mail would have been: {}", mail.text))
    };
    tool_fn("send_mail", "Sends a mail to the user's team. This is a sample that sends nothing.", send)
        .needs_approval()
}

#[derive(Deserialize, JsonSchema)]
struct Restaurant {
    /// The name of the restaurant.
    name: String,
}

async fn book(input: Restaurant, context: ToolContext) -> Result<String, ToolError> {
    let question = json!({
        "message": format!("Which table at {}?", input.name),
        "schema": {
            "type": "object",
            "properties": {
                "people": { "type": "integer", "title": "People", "minimum": 1, "maximum": 12 },
                "time": { "type": "string", "title": "Time", "enum": ["18:00", "20:00"] },
                "outside": { "type": "boolean", "title": "Outside" },
            },
            "required": ["people", "time"],
        },
    });
    match context.ask(question).await {
        Answer::Accepted(Some(table)) => {
            Ok(format!("This sample books nothing. The table would have been: {table}"))
        }
        Answer::Declined(reason) => Err(ToolError::new(format!("no table was booked: {reason}"))),
        _ => Err(ToolError::new("the answer describes no table")),
    }
}

#[derive(Deserialize, JsonSchema)]
struct Subject {
    /// The subject of the picture.
    subject: String,
}

async fn paint(input: Subject, _: ToolContext) -> Result<ToolOutput, ToolError> {
    let shade = input.subject.bytes().fold(0_u8, u8::wrapping_add);
    let picture = Attachment::from_bytes("image/png", png(shade)).named(format!("{}.png", input.subject));
    Ok(ToolOutput::blocks([ResultBlock::from("The picture is attached."), picture.into()]))
}

/// Returns a PNG image with a gradient. The image data is stored without compression.
fn png(shade: u8) -> Vec<u8> {
    const SIDE: u8 = 96;
    let mut rows = Vec::new();
    for y in 0..SIDE {
        rows.push(0);
        for x in 0..SIDE {
            rows.extend([shade, x.saturating_mul(2), 255 - y.saturating_mul(2)]);
        }
    }
    let mut data = vec![0x78, 0x01];
    let mut blocks = rows.chunks(0xffff).peekable();
    while let Some(block) = blocks.next() {
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        data.push(u8::from(blocks.peek().is_none()));
        data.extend(length.to_le_bytes());
        data.extend((!length).to_le_bytes());
        data.extend(block);
    }
    let (a, b) = rows.iter().fold((1_u32, 0_u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65_521;
        (a, (b + a) % 65_521)
    });
    data.extend((b << 16 | a).to_be_bytes());
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut chunk = |kind: &[u8; 4], data: &[u8]| {
        let body = [kind.as_slice(), data].concat();
        png.extend(u32::try_from(data.len()).unwrap_or_default().to_be_bytes());
        png.extend(&body);
        png.extend(checksum(&body).to_be_bytes());
    };
    let side = u32::from(SIDE).to_be_bytes();
    chunk(b"IHDR", &[side.as_slice(), &side, &[8, 2, 0, 0, 0]].concat());
    chunk(b"IDAT", &data);
    chunk(b"IEND", &[]);
    png
}

fn checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| sum >> 1 ^ (0xedb8_8320 & (sum & 1).wrapping_neg()))
    })
}
