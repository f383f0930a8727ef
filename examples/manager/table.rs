//! A table of the manager's conversations. In a terminal, the table is redrawn in place. Otherwise, each change is
//! printed as a line.

use std::{
    env,
    io::{IsTerminal, Write},
    time::Instant,
};

use omni_agent::{
    manager::{Activity, ManagerEvent, ManagerSnapshot, OpenSession},
    store::ConversationId,
    subscription::{Subscription, Update},
};
use tokio::{sync::mpsc, task::JoinHandle};

use super::support::{dim, first_words};

/// A handle with which the example shows its texts together with the manager's table.
#[derive(Clone)]
pub(super) struct Screen(mpsc::UnboundedSender<Said>);

enum Said {
    Note(String),
    Words(ConversationId, String),
}

impl Screen {
    /// Shows a line above the table.
    pub(super) fn note(&self, text: &str) {
        // If the manager has ended, the table's task has also ended. The line is then not shown.
        let _ = self.0.send(Said::Note(text.to_owned()));
    }

    /// Shows the text that a model is streaming.
    pub(super) fn words(&self, id: &ConversationId, words: &str) {
        let _ = self.0.send(Said::Words(id.clone(), words.to_owned()));
    }
}

/// Returns the beginning of an id, which is enough to tell a few conversations apart.
pub(super) fn short(id: &ConversationId) -> String {
    id.as_str().chars().take(6).collect()
}

/// Starts a task that shows a table until the manager has ended.
pub(super) fn show(mut manager: Subscription<ManagerSnapshot, ManagerEvent>) -> (Screen, JoinHandle<()>) {
    let (sender, mut said) = mpsc::unbounded_channel();
    let task = tokio::spawn(async move {
        let mut table = Table::new();
        loop {
            tokio::select! {
                biased;
                Some(said) = said.recv() => match said {
                    Said::Note(text) => table.note(&text),
                    Said::Words(id, words) => table.words(&id, &words),
                },
                update = manager.next() => match update {
                    Some(Update::Event(numbered)) => table.event(&numbered.event),
                    Some(Update::Resync(snapshot)) => table.resync(&snapshot.open, &snapshot.waiting),
                    _ => return,
                },
            }
            table.draw();
        }
    });
    (Screen(sender), task)
}

struct Row {
    id: ConversationId,
    title: Option<String>,
    doing: String,
    words: String,
}

struct Table {
    rows: Vec<Row>,
    /// Whether the table can be redrawn in place.
    is_live: bool,
    /// The number of the table's lines on the screen.
    drawn: usize,
    begun: Instant,
}

impl Table {
    fn new() -> Self {
        let is_live =
            std::io::stdout().is_terminal() && env::var_os("TERM").is_none_or(|term| term != "dumb");
        Self { rows: Vec::new(), is_live, drawn: 0, begun: Instant::now() }
    }

    fn event(&mut self, event: &ManagerEvent) {
        match event {
            ManagerEvent::Waiting { id } => self.doing(id, "waiting"),
            ManagerEvent::GivenUp { id } => self.doing(id, "given up"),
            ManagerEvent::Opened { session } => self.opened(session),
            ManagerEvent::Status { id, activity } => self.doing(id, word(*activity)),
            ManagerEvent::Title { id, title } => {
                self.row(id).title = title.as_deref().map(str::to_owned);
                self.tell(id, &format!("is called {:?}", title.as_deref().unwrap_or_default()));
            }
            ManagerEvent::Closed { id, reason } => self.doing(id, &format!("closed: {reason}")),
            ManagerEvent::Deleted { id } => self.doing(id, "deleted"),
            _ => {}
        }
    }

    fn opened(&mut self, session: &OpenSession) {
        let row = self.row(&session.id);
        row.title = session.title.as_deref().map(str::to_owned);
        self.doing(&session.id, word(session.activity));
    }

    /// Shows the current state after missed events.
    fn resync(&mut self, open: &[OpenSession], waiting: &[ConversationId]) {
        for row in &mut self.rows {
            "closed".clone_into(&mut row.doing);
        }
        for session in open {
            self.opened(session);
        }
        for id in waiting {
            self.doing(id, "waiting");
        }
    }

    fn row(&mut self, id: &ConversationId) -> &mut Row {
        let place = self.rows.iter().position(|row| row.id == *id).unwrap_or_else(|| {
            let (doing, words) = (String::new(), String::new());
            self.rows.push(Row { id: id.clone(), title: None, doing, words });
            self.rows.len() - 1
        });
        &mut self.rows[place]
    }

    fn doing(&mut self, id: &ConversationId, what: &str) {
        let row = self.row(id);
        what.clone_into(&mut row.doing);
        row.words.clear();
        self.tell(id, what);
    }

    fn words(&mut self, id: &ConversationId, words: &str) {
        self.row(id).words.push_str(words);
    }

    /// Prints a line for a change if the table can't be redrawn in place.
    fn tell(&self, id: &ConversationId, what: &str) {
        if !self.is_live {
            println!("{:>6.2} s  {}  {what}", self.begun.elapsed().as_secs_f64(), short(id));
        }
    }

    fn note(&mut self, text: &str) {
        self.erase();
        println!("{text}");
    }

    fn erase(&mut self) {
        if self.drawn > 0 {
            print!("\x1b[{}A\x1b[J", std::mem::take(&mut self.drawn));
        }
    }

    fn draw(&mut self) {
        if !self.is_live {
            return;
        }
        self.erase();
        // Line wrapping is turned off, because redrawing works only if each row is one line, even on a narrow terminal.
        print!("\x1b[?7l");
        println!("{}", dim(&format!("{:<7} {:<31} what it does", "id", "title")));
        for row in &self.rows {
            let title = first_words(row.title.as_deref().unwrap_or("—"), 30);
            let doing = first_words(&row.doing, 38);
            // The streamed text is shortened, so that the row has at most 80 columns.
            let room = 38_usize.saturating_sub(doing.chars().count().max(8) + 1);
            let from = row.words.char_indices().rev().nth(room.saturating_sub(1)).map_or(0, |(at, _)| at);
            let words = if room > 0 { dim(&first_words(&row.words[from..], room)) } else { String::new() };
            println!("{:<7} {title:<31} {doing:<8} {words}", short(&row.id));
        }
        print!("\x1b[?7h");
        self.drawn = self.rows.len() + 1;
        // Errors of a closed terminal are ignored.
        let _ = std::io::stdout().flush();
    }
}

fn word(activity: Activity) -> &'static str {
    match activity {
        Activity::Idle => "idle",
        Activity::Queued => "queued",
        Activity::Busy => "busy",
        Activity::Paused => "paused",
        _ => "?",
    }
}
