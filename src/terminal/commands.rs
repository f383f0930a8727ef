//! The commands of a chat.

use std::error::Error as StdError;

use super::{
    printer::{first_words, total_line},
    talk::{ChatInProgress, text_of},
};
use crate::{
    agent::Compact,
    message::Content,
    run::{Next, Prompt},
    tree::{Node, NodeId, Tree},
};

const HELP: &str = "\
/tree           shows the conversation with all its branches, and the numbers of its messages
/regenerate     asks for another answer to your last message, as a new branch
/edit TEXT      replaces your last message, as a new branch
/again          repeats a prompt that got no answer because of a stop or an error
/branch         lists the last messages of all branches
/branch NUMBER  continues from that message, along the branch that was last used; the same as /goto
/clear          starts an empty conversation; /branch leads back
/compact [TEXT] replaces old messages by a summary, about TEXT in detail
/undo           sends all messages again
/omit [FILE]    lists the files, or leaves this one out of requests
/restore FILE   sends it again
/cost           shows the tokens and the cost of the conversation
/title [TEXT]   shows or sets the title
/tools          lists the tools, by server
/system TEXT    sets the instructions for the model
/now TEXT       adds this to the answer in progress, after the running tools
/queue          shows the prompts that wait for the end of the turn
/unqueue        takes back the last of them
/quit           ends the chat, like Ctrl-D, or Ctrl-C twice while nothing runs
Ctrl-C stops an answer and keeps the text so far. What you type while the model works is queued.";

pub(super) type CommandResult = Result<(), Box<dyn StdError + Send + Sync>>;

impl ChatInProgress {
    /// Runs the command with this name.
    pub(super) async fn command(&mut self, name: &str, rest: &str) -> CommandResult {
        if let Some(own) = self.chat.commands.iter_mut().find(|own| own.usage.split(' ').next() == Some(name))
        {
            let shown = (own.run)(rest.to_owned()).await?;
            if !shown.is_empty() {
                self.printer.line(shown.trim_end());
            }
            return Ok(());
        }
        let session = self.chat.session.clone();
        match name {
            "/help" => {
                for own in &self.chat.commands {
                    self.printer.note(&format!("{:<15} {}", own.usage, own.help));
                }
                self.printer.note(HELP);
            }
            "/tree" => match session.tree().await? {
                tree if tree.is_empty() => self.printer.note("[no messages yet]"),
                tree => self.printer.line(&tree.to_string()),
            },
            "/regenerate" => {
                session.again(last_question(&session.tree().await?)?).start().await?;
                self.runs += 1;
            }
            "/edit" => {
                let prompt = given(rest, "/edit TEXT")?;
                session.run(prompt).instead_of(last_question(&session.tree().await?)?).start().await?;
                self.runs += 1;
            }
            "/compact" | "/undo" => {
                let wanted = if name == "/undo" { Compact::undo() } else { Compact::from(rest) };
                // The chat continues in the meantime, so that Ctrl-C ends the compaction.
                self.compacting = Some(Box::pin(async move { session.compact(wanted).await }));
            }
            "/omit" | "/restore" => self.omit(rest, name == "/omit").await?,
            "/again" => {
                let prompt = self.unanswered.clone().ok_or("Every prompt has a response.")?;
                let tree = session.tree().await?;
                // A failed prompt is in the tree, perhaps with files that are left out.
                match prompt.id.as_ref().and_then(|id| tree.find(id)) {
                    Some(node) => {
                        session.again(node).start().await?;
                        self.runs += 1;
                    }
                    None => self.say(prompt.content.clone()).await?,
                }
                self.unanswered = None;
            }
            "/branch" if rest.is_empty() => self.list_branches(&session.tree().await?),
            "/branch" | "/goto" => {
                let node = rest.parse().ok().and_then(NodeId::new);
                session.navigate(node.ok_or("Missing node number: /tree shows the numbers.")?).await?;
                self.show_end(&session.tree().await?);
            }
            "/clear" => session.navigate(None).await?,
            "/cost" => {
                let total = total_line(&session.snapshot().await?.used);
                self.printer.note(total.as_deref().unwrap_or("[nothing was used yet]"));
            }
            "/title" if rest.is_empty() => {
                let title = session.title().await?;
                self.printer.note(title.as_deref().unwrap_or("[untitled; set a title with /title TEXT]"));
            }
            "/title" => session.set_title(Some(rest)).await?,
            "/tools" => self.show_tools().await?,
            "/now" => self.say(Prompt::new(given(rest, "/now TEXT")?).at(Next::Step)).await?,
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
                let edit = |config: &mut crate::agent::Config| {
                    config.settings.system = system;
                    Ok(())
                };
                session.configure(edit).await?;
            }
            _ => return Err(format!("{name} is not a command; /help lists them.").into()),
        }
        Ok(())
    }

    /// Shows the tools that the model can use now. The tools of a server have its name before `__`.
    async fn show_tools(&mut self) -> CommandResult {
        let state = self.chat.session.state().await?;
        let mut shown = None;
        for tool in &state.config().tools {
            let server = tool.name().split_once("__").map_or("this chat", |(server, _)| server);
            if shown != Some(server) {
                self.printer.line(server);
                shown = Some(server);
            }
            self.printer.note(&format!("  {}: {}", tool.name(), first_words(&tool.description(), 80)));
        }
        if shown.is_none() {
            self.printer.note("[no tools]");
        }
        Ok(())
    }

    /// Leaves a file out of requests, or sends it again, and shows it. Without the name of a file, shows all files.
    async fn omit(&mut self, name: &str, is_omitted: bool) -> CommandResult {
        let session = self.chat.session.clone();
        let tree = session.tree().await?;
        let mut files = files(&tree);
        if !name.is_empty() {
            files.retain(|file| file.0 == name);
            match files.first() {
                Some((_, node, block)) if is_omitted => session.omit(node.id(), *block).await?,
                Some((_, node, block)) => session.restore(node.id(), *block).await?,
                None => return Err(format!("No file has the name {name}; /omit lists them.").into()),
            }
        }
        let state = session.state().await?;
        for (name, node, block) in &files {
            let message = node.message();
            let omitted = message.id.as_ref().and_then(|id| state.config().settings.omitted.get(id));
            let mark = if omitted.is_some_and(|blocks| blocks.contains(block)) { " [left out]" } else { "" };
            let about = match &message.content[*block] {
                Content::Attachment(file) => file.name.as_ref().unwrap_or(&file.media_type),
                block => block.kind(),
            };
            self.printer.note(&format!("{name} {}: {about}{mark}", message.role));
        }
        if files.is_empty() {
            self.printer.note("[no files]");
        }
        Ok(())
    }

    /// Shows the last message of each branch, and marks that of the path.
    fn list_branches(&mut self, tree: &Tree) {
        let is_last = |node: &&Node| tree.children(node.id()).is_some_and(|mut below| below.next().is_none());
        for node in tree.nodes().filter(is_last) {
            let mark = if tree.head() == Some(node.id()) { '>' } else { ' ' };
            self.printer.note(&format!("{mark} {}", words_of(node)));
        }
        if tree.is_empty() {
            self.printer.note("[no messages yet]");
        }
    }

    /// Shows the last messages of the path, for example after a switch to another branch.
    pub(super) fn show_end(&mut self, tree: &Tree) {
        // Messages without text, such as tool results, are not shown.
        let last: Vec<_> =
            tree.iter().rev().filter(|node| !node.message().text().is_empty()).take(2).collect();
        for node in last.into_iter().rev() {
            self.printer.note(&words_of(node));
        }
    }
}

/// Returns the files of all branches: each name, message and block. The name is the number of the message. If the message
/// has several files, a dot and the number of the file follow.
fn files(tree: &Tree) -> Vec<(String, &Node, usize)> {
    let mut files = Vec::new();
    for node in tree.nodes() {
        let blocks = node.message().content.iter().enumerate().filter(|(_, block)| block.has_file());
        let is_alone = blocks.clone().count() == 1;
        files.extend((1..).zip(blocks).map(|(number, (block, _))| {
            let name = if is_alone { node.id().to_string() } else { format!("{}.{number}", node.id()) };
            (name, node, block)
        }));
    }
    files
}

fn words_of(node: &Node) -> String {
    format!("{} {}: {}", node.id(), node.message().role, first_words(&node.message().text(), 200))
}

fn given<'a>(text: &'a str, usage: &str) -> Result<&'a str, String> {
    if text.is_empty() { Err(format!("Missing text: {usage}")) } else { Ok(text) }
}

/// Returns the last message of the path that the person has sent.
fn last_question(tree: &Tree) -> Result<NodeId, &'static str> {
    let last = tree.iter().rev().find(|node| node.message().is_prompt());
    last.map(Node::id).ok_or("You have not sent a message here yet.")
}

/// Returns the texts that the person has sent, from the first to the last of the path.
pub(super) fn questions(tree: &Tree) -> Vec<String> {
    let texts = tree.iter().filter(|node| node.message().is_prompt()).map(|node| node.message().text());
    texts.filter(|text| !text.is_empty()).collect()
}
