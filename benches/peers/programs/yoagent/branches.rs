//! A conversation with branches in a file of JSON lines. The tree is in memory, and the program saves it.

use yoagent::{Agent, Session, provider::ModelConfig};

async fn ask(session: &mut Session, question: &str) -> Result<String, Box<dyn std::error::Error>> {
    let agent = Agent::from_config(ModelConfig::claude_sonnet_5()).without_context_management();
    let mut agent = agent.with_messages(session.path_messages());
    let mut events = agent.prompt(question).await;
    while events.recv().await.is_some() {}
    agent.finish().await;
    session.append_new(agent.messages())?;
    std::fs::write("conversation.jsonl", session.to_jsonl())?;
    Ok(session.head().unwrap_or_default().to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut session = Session::new();
    ask(&mut session, "Answer in one sentence.").await?;
    session.checkpoint("start")?;
    let lisbon = ask(&mut session, "Plan a weekend in Lisbon.").await?;

    session.seek_checkpoint("start")?;
    ask(&mut session, "Plan a weekend in Lisbon.").await?;
    session.seek_checkpoint("start")?;
    ask(&mut session, "Plan a weekend in Porto.").await?;
    session.seek(&lisbon)?;
    ask(&mut session, "What does it cost?").await?;

    for tip in session.branch_tips() {
        println!("{tip}: {:?}", session.entry(tip).map(|entry| &entry.message));
    }
    Ok(())
}
