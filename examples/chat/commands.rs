//! The commands of the chat.

use std::{error::Error, sync::Arc, time::Duration};

use omni_agent::{
    agent::Compact,
    message::Role,
    run::{Next, Prompt},
    store::Page,
    tree::{Node, NodeId},
};

use super::{Chat, conversation::show_end, text_of};
use crate::support::{self, ago, explain};

pub const HELP: &str = "\
/tree          shows the conversation with all its branches, and the numbers of its messages
/regenerate    asks for another answer to your last message, as a new branch
/edit TEXT     replaces your last message, as a new branch
/again         repeats a prompt that got no answer because of a stop or an error
/goto NUMBER   continues from that message, along the branch that was last used
/clear         starts an empty conversation; /goto leads back
/compact [TEXT] replaces old messages by a summary, about TEXT in detail
/undo          sends all messages again
/title [TEXT]  shows or sets the title
/sessions      lists the stored conversations
/tools         lists the tools, by server
/system TEXT   sets the instructions for the model
/model NAME    switches the model, for example to openai:gpt-5.2
/now TEXT      adds this to the answer in progress, after the running tools
/queue         shows the prompts that wait for the end of the turn
/unqueue       takes back the last of them
/quit          ends the chat, like Ctrl-D, or Ctrl-C while nothing runs
Ctrl-C stops an answer and keeps the text so far. What you type while the model works is queued.
To see the tool, type: run `ls`";

impl Chat {
    /// Handles a line that the user typed. A rejected command is reported, and the conversation continues.
    pub async fn line(&mut self, line: &str) {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let done = match command {
            _ if !self.waiting.is_empty() => self.decide(line).await.map_err(Into::into),
            "" => Ok(()),
            _ if command.starts_with('/') => self.command(command, rest.trim()).await,
            _ => self.say(line).await.map_err(Into::into),
        };
        if let Err(error) = done {
            self.printer.line(&explain(&*error));
        }
        self.show_prompt();
    }

    async fn command(&mut self, command: &str, rest: &str) -> Result<(), Box<dyn Error>> {
        let session = self.conversation.session.clone();
        match command {
            "/help" => self.printer.note(HELP),
            "/tree" => match session.tree().await? {
                tree if tree.is_empty() => self.printer.note("[no messages yet]"),
                tree => self.printer.line(&tree.to_string()),
            },
            "/regenerate" => {
                let question = self.last_question().await?;
                session.again(question.id()).start().await?;
                self.runs += 1;
            }
            "/edit" if rest.is_empty() => return Err("Missing text: /edit TEXT".into()),
            "/edit" => {
                let question = self.last_question().await?;
                session.run(rest).instead_of(question.id()).start().await?;
                self.runs += 1;
            }
            "/compact" | "/undo" => {
                let wanted = if command == "/undo" { Compact::undo() } else { Compact::from(rest) };
                session.compact(wanted).await?;
            }
            "/again" => {
                let question = self.unanswered.take().ok_or("Every prompt has a response.")?;
                self.say(&question).await?;
            }
            "/goto" => {
                let node = rest
                    .parse()
                    .ok()
                    .and_then(NodeId::new)
                    .ok_or("Missing node number: /tree shows the numbers.")?;
                session.navigate(node).await?;
                show_end(&session, &mut self.printer).await?;
            }
            "/clear" => session.navigate(None).await?,
            "/title" if rest.is_empty() => {
                let title = session.title().await?;
                self.printer.note(title.as_deref().unwrap_or("[untitled; set a title with /title TEXT]"));
            }
            "/title" => session.set_title(Some(rest)).await?,
            "/sessions" => self.list().await?,
            "/tools" => self.conversation.show_tools(&mut self.printer).await?,
            "/now" if rest.is_empty() => return Err("Missing text: /now TEXT".into()),
            "/now" => self.say(Prompt::new(rest).at(Next::Step)).await?,
            "/queue" => {
                let staged = session.snapshot().await?.agent.staged;
                for (number, prompt) in (1..).zip(&staged) {
                    self.printer.note(&format!("{number}. {}", text_of(prompt)));
                }
                if staged.is_empty() {
                    self.printer.note("[nothing waits]");
                }
            }
            "/unqueue" => {
                let staged = session.snapshot().await?.agent.staged;
                let id = staged.last().and_then(|prompt| prompt.id.clone()).ok_or("Nothing waits.")?;
                let prompt = session.unstage(id).await?;
                self.printer.note(&format!("[taken back: {}]", text_of(&prompt)));
            }
            "/system" => {
                let system = (!rest.is_empty()).then(|| rest.into());
                session
                    .configure(|config| {
                        config.settings.system = system;
                        Ok(())
                    })
                    .await?;
            }
            "/model" if rest.is_empty() => {
                let model = session.state().await?.config().model.to_string();
                self.printer.note(&format!("[{model}; change it with /model PROVIDER:ID]"));
            }
            "/model" => {
                let model = support::model_named(rest)?;
                if let Some(variable) = support::missing_key(&model) {
                    return Err(format!("{variable} is not set, and {model} needs its key").into());
                }
                let known = if model.info().is_some() { "" } else { "; the catalogue does not know it" };
                let chosen = format!("[the model is now {model}{known}]");
                session
                    .configure(|config| {
                        config.model = model;
                        Ok(())
                    })
                    .await?;
                self.printer.note(&chosen);
            }
            _ => return Err(format!("{command} is not a command; /help lists them.").into()),
        }
        Ok(())
    }

    /// Returns the last user message of the path.
    async fn last_question(&self) -> Result<Node, Box<dyn Error>> {
        let tree = self.conversation.session.tree().await?;
        // Messages with tool results also have the role of the user.
        let asks = |node: &&Node| {
            node.message().role == Role::User && node.message().tool_results().next().is_none()
        };
        Ok(tree.iter().rev().find(asks).cloned().ok_or("You have not sent a message here yet.")?)
    }

    async fn list(&mut self) -> Result<(), omni_agent::Error> {
        // Saving runs in the background, so the last turn may not be stored yet.
        if let Err(error) = self.conversation.session.flush(Duration::from_secs(1)).await {
            self.printer.note(&explain(&error));
        }
        let store = Arc::clone(&self.conversation.store);
        let listed = store.list(&Page::first(20).into()).await?;
        for found in &listed {
            let here = if found.id == *self.conversation.session.id() { '>' } else { ' ' };
            let title = found.damage.as_deref().or(found.title.as_deref()).unwrap_or("untitled");
            self.printer.line(&format!("{here} {}  {title}  ({})", found.id, ago(found.updated)));
        }
        if listed.is_empty() {
            self.printer.note("[no stored conversations yet]");
        }
        Ok(())
    }
}
