//! Commands.

use omni_agent::{
    Agent, Error, Manager, Prompt, ProviderError, ProviderErrorKind, Session,
    message::{Attachment, Content},
    store::{ConversationId, Labels, MemoryStore},
    testing::{Gate, ScriptedProvider, Step},
};

use crate::support::{Talk, scripted, session};

#[tokio::test(start_paused = true)]
async fn unknown_command_is_reported_and_the_chat_continues() {
    let mut talk = Talk::start(&scripted([Step::text("Hello")]).await);
    talk.type_line("/frobnicate now");
    talk.sees("/frobnicate is not a command; /help lists them.\n> ").await;
    talk.type_line("Hi");
    talk.sees("Hello").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn branch_switches_between_versions_of_an_answer() {
    let mut talk = Talk::start(&scripted([Step::text("Red"), Step::text("Blue"), Step::text("Green")]).await);
    talk.type_line("A colour?");
    talk.sees("Red").await;
    talk.sees("> ").await;
    talk.type_line("/regenerate");
    talk.sees("Blue").await;
    talk.sees("> ").await;
    talk.type_line("/branch");
    talk.sees("  2 assistant: Red\n> 3 assistant: Blue\n").await;
    talk.type_line("/branch 2");
    talk.sees("1 user: A colour?\n2 assistant: Red\n").await;
    talk.type_line("/edit A cold colour?");
    talk.sees("Green").await;
    talk.sees("> ").await;
    talk.type_line("/branch");
    talk.sees("> 5 assistant: Green\n").await;
    talk.type_line("/tree");
    talk.sees("4 user: A cold colour?").await;
    talk.type_line("/branch seven");
    talk.sees("Missing node number").await;
    talk.type_line("/goto 77");
    talk.sees("the tree has no node 77").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn title_cost_and_tools_show_the_state() {
    let mut talk = Talk::start(&scripted([]).await);
    talk.type_line("/title");
    talk.sees("[untitled;").await;
    talk.type_line("/title Colours");
    talk.type_line("/title");
    talk.sees("Colours\n").await;
    talk.type_line("/cost");
    talk.sees("[nothing was used yet]").await;
    talk.type_line("/tools");
    talk.sees("this chat\n  weather: Tells the weather.\n  delete: Deletes a file.\n").await;
    talk.type_line("/regenerate");
    talk.sees("You have not sent a message here yet.").await;
    talk.type_line("/edit");
    talk.sees("Missing text: /edit TEXT").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failed_prompt_is_sent_again() {
    let failure = Step::error(ProviderError::new(ProviderErrorKind::Auth, "the key is wrong"));
    let mut talk = Talk::start(&scripted([failure, Step::text("Hello")]).await);
    talk.type_line("Hi");
    talk.sees("error: ").await;
    talk.sees("the key is wrong").await;
    talk.sees("[no response to \"Hi\"; /again sends it again]").await;
    talk.type_line("/again");
    talk.sees("Hello").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn compaction_is_shown_and_undone() {
    let mut talk = Talk::start(&scripted(["One", "Two", "Three", "Counting."].map(Step::text)).await);
    for (prompt, answer) in [("1", "One"), ("2", "Two"), ("3", "Three")] {
        talk.type_line(prompt);
        talk.sees(answer).await;
        talk.sees("> ").await;
    }
    talk.type_line("/compact the numbers");
    talk.sees("Counting.]").await;
    talk.sees("> ").await;
    talk.type_line("/undo");
    talk.sees("[all messages are sent again]").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn compaction_is_refused_or_interrupted() {
    let gate = Gate::new();
    let steps = [Step::text("One"), Step::text("Two"), Step::text("Three"), Step::new().gate(&gate).hang()];
    let mut talk = Talk::start(&scripted(steps).await);
    talk.type_line("/compact");
    talk.sees("compact").await;
    talk.sees("> ").await;
    for (prompt, answer) in [("1", "One"), ("2", "Two"), ("3", "Three")] {
        talk.type_line(prompt);
        talk.sees(answer).await;
        talk.sees("> ").await;
    }
    talk.type_line("/compact");
    gate.reached().await;
    talk.interrupt();
    talk.sees("> ").await;
    talk.type_line("/tree");
    talk.sees("6 assistant: Three").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn own_command_replaces_one_of_the_chat_and_is_in_the_help() {
    let session = scripted([]).await;
    let mut talk = Talk::with(&session, |chat| {
        chat.command("/tools", "shows no tools", async |_| Ok::<_, String>("none\x1b[2J".to_owned())).command(
            "/twice",
            "repeats",
            async |text: String| {
                if text.is_empty() { Err("Missing text: /twice TEXT") } else { Ok(format!("{text} {text}")) }
            },
        )
    });
    talk.type_line("/tools");
    talk.sees("none\u{fffd}[2J\n").await;
    talk.type_line("/twice again");
    talk.sees("again again\n").await;
    talk.type_line("/twice");
    talk.sees("Missing text: /twice TEXT").await;
    talk.type_line("/help");
    talk.sees("/twice          repeats").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn omitted_file_is_not_sent_until_it_is_restored() {
    let provider = ScriptedProvider::new(["One", "Two", "Three", "Four"].map(Step::text));
    let session = session(provider.model()).await;
    let picture = || Content::from(Attachment::base64("image/png", "iVBORw0KGgo="));
    let paper = Attachment::base64("application/pdf", "JVBERi0=").named("paper.pdf");
    session.ask([Content::from("Look"), picture()]).await.unwrap();
    session.ask([Content::from("Compare"), picture(), paper.into()]).await.unwrap();
    let sent = || {
        let messages = provider.last_request().unwrap().history;
        let blocks = messages.iter().flat_map(|message| message.content.clone());
        blocks.filter(|block| matches!(block, Content::Attachment(_))).count()
    };
    let mut talk = Talk::start(&session);
    talk.type_line("/omit");
    talk.sees("1 user: image/png\n3.1 user: image/png\n3.2 user: paper.pdf\n> ").await;
    talk.type_line("/omit 3.2");
    talk.sees("3.2 user: paper.pdf [left out]\n> ").await;
    talk.type_line("And now?");
    talk.sees("Three").await;
    assert_eq!(sent(), 2);
    talk.sees("> ").await;
    talk.type_line("/restore");
    talk.sees("3.1 user: image/png\n3.2 user: paper.pdf [left out]\n> ").await;
    talk.type_line("/restore 3.2");
    talk.sees("3.2 user: paper.pdf\n> ").await;
    talk.type_line("And now?");
    talk.sees("Four").await;
    assert_eq!(sent(), 3);
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn omit_with_a_wrong_name_or_during_a_run_is_reported() {
    let session = scripted([Step::text("One"), Step::new().then_text(["Once"]).hang()]).await;
    let mut talk = Talk::start(&session);
    talk.type_line("/omit");
    talk.sees("[no files]\n> ").await;
    talk.type_line("/restore 1.x");
    talk.sees("No file has the name 1.x; /omit lists them.\n> ").await;
    session.ask([Content::from(Attachment::base64("image/png", "iVBORw0KGgo="))]).await.unwrap();
    talk.type_line("/omit 2");
    talk.sees("No file has the name 2; /omit lists them.").await;
    talk.type_line("Tell");
    talk.sees("Once").await;
    talk.type_line("/omit 1");
    talk.sees("the session is Busy").await;
    talk.interrupt();
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failed_prompt_is_sent_again_without_an_omitted_file() {
    let failure = ProviderError::new(ProviderErrorKind::InvalidRequest, "the picture is broken");
    let provider = ScriptedProvider::new([Step::error(failure), Step::text("I see nothing.")]);
    let session = session(provider.model()).await;
    let picture = Content::from(Attachment::base64("image/png", "iVBORw0KGgo="));
    let prompt = Prompt::new([Content::from("Look"), picture]);
    let mut talk = Talk::with(&session, |chat| chat.first(prompt));
    talk.sees("the picture is broken").await;
    talk.sees("[no response to \"Look\"; /again sends it again]").await;
    talk.type_line("/omit 1");
    talk.sees("1 user: image/png [left out]\n> ").await;
    talk.type_line("/again");
    talk.sees("I see nothing.").await;
    talk.sees("> ").await;
    talk.type_line("/again");
    talk.sees("Every prompt has a response.").await;
    talk.end_input().await.0.unwrap();
    let sent = provider.last_request().unwrap().history;
    let texts: Vec<_> = sent.get(0).unwrap().content.iter().filter_map(Content::as_text).collect();
    assert_eq!((sent.len(), texts.len(), texts[0]), (1, 2, "Look"));
    assert_eq!(session.tree().await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn own_command_with_a_manager_forks_the_conversation() {
    async fn forked(manager: Manager, session: Session) -> Result<String, Error> {
        let end = session.tree().await?.head().unwrap();
        let id = manager.fork(session.id(), end, Labels::default()).await?;
        Ok(format!("copied to {id}"))
    }
    let manager = Manager::builder(MemoryStore::new()).build();
    let agent = || Agent::builder().model(ScriptedProvider::new([Step::text("Hello")]).model());
    let session = manager.create(agent()).await.unwrap().session;
    let mut talk = Talk::with(&session, |chat| {
        let (manager, session) = (manager.clone(), session.clone());
        chat.command("/fork", "copies", move |_| forked(manager.clone(), session.clone()))
    });
    talk.type_line("Hi");
    talk.sees("Hello").await;
    talk.sees("> ").await;
    talk.type_line("/fork");
    talk.sees("copied to ").await;
    let id = ConversationId::new(talk.sees("\n").await).unwrap();
    talk.end_input().await.0.unwrap();
    let fork = manager.open(&id, agent()).await.unwrap().session;
    assert_eq!(fork.tree().await.unwrap().history().last().unwrap().text(), "Hello");
}
