//! How answers are sent. The rules are those for server-sent events
//! (<https://html.spec.whatwg.org/multipage/server-sent-events.html>) and for JSON lines.

use std::fmt::Write;

use super::Event;

/// The way in which a server sends events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habit {
    /// The number of bytes per chunk.
    pub(crate) chunk: usize,
    line_end: &'static str,
    /// Whether comments, unneeded fields and blank lines are added.
    noise: bool,
    /// Whether the stream begins with a byte order mark.
    mark: bool,
    /// Whether the names of events are sent, and a space follows each colon.
    named: bool,
}

const PLAIN: Habit = Habit { chunk: 4096, line_end: "\n", noise: false, mark: false, named: true };

pub(crate) const HABITS: [Habit; 7] = [
    PLAIN,
    Habit { chunk: 7, ..PLAIN },
    Habit { line_end: "\r\n", chunk: 61, ..PLAIN },
    Habit { line_end: "\r", ..PLAIN },
    Habit { noise: true, ..PLAIN },
    Habit { mark: true, named: false, ..PLAIN },
    Habit { chunk: 13, line_end: "\r\n", noise: true, mark: true, named: false },
];

impl Habit {
    /// Returns the usual way of sending events, with this many bytes per chunk.
    pub(crate) fn chunks(chunk: usize) -> Self {
        Self { chunk, ..PLAIN }
    }

    /// Returns the bytes of the events. If `lines` is set, each event is a line of JSON.
    pub(crate) fn bytes(self, events: &[Event], lines: bool) -> Vec<u8> {
        let mut body = String::new();
        if lines {
            // In JSON lines, a carriage return alone does not end a line, and a byte order mark is not allowed.
            let end = if self.line_end == "\r" { "\n" } else { self.line_end };
            for event in events {
                write!(body, "{}{end}{}", event.data, if self.noise { end } else { "" }).unwrap();
            }
            return body.into_bytes();
        }
        let end = self.line_end;
        body.push_str(if self.mark { "\u{feff}" } else { "" });
        body.push_str(if self.noise { "retry: 3000\n\n" } else { "" });
        for (id, event) in events.iter().enumerate() {
            if self.noise {
                write!(body, ": still here{end}{end}id: {id}{end}").unwrap();
            }
            let space = if self.named { " " } else { "" };
            if self.named && !event.name.is_empty() {
                write!(body, "event:{space}{}{end}", event.name).unwrap();
            }
            write!(body, "data:{space}{}{end}{end}", event.data).unwrap();
        }
        body.into_bytes()
    }
}
