//! The chat on the standard streams of a process, which are a pseudo-terminal. The test is the keyboard and the screen.

use std::{
    env,
    fs::{File, OpenOptions},
    io::{Read as _, Write as _, stdin},
    os::unix::fs::OpenOptionsExt as _,
    thread,
    time::Duration,
};

use omni_agent::{
    ErrorKind, Session,
    message::{Message, Role},
    terminal::Chat,
    testing::Step,
};
use rustix::{
    process::{Pid, Signal, ioctl_tiocsctty, kill_process, setsid},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize},
};
use serde_json::json;
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{Instant, timeout_at},
};

use crate::support::scripted;

/// The variable that marks the child process.
const MARK: &str = "OMNI_TERMINAL_TEST";

/// The maximum duration of a test.
const PATIENCE: Duration = Duration::from_mins(3);

/// A terminal with a process that runs the same test.
struct Terminal {
    keyboard: File,
    /// Keeps the mode of the terminal after the end of the process.
    device: File,
    /// The mode before the start of the process.
    mode: String,
    screen: mpsc::UnboundedReceiver<Vec<u8>>,
    /// The text after the last text that was waited for.
    shown: Vec<u8>,
    process: Child,
    deadline: Instant,
}

impl Terminal {
    /// Starts this test in a process on a new terminal. In that process, makes the terminal its own and returns `None`.
    fn start(test: &str) -> Option<Self> {
        if env::var(MARK).is_ok_and(|marked| marked == test) {
            setsid().unwrap();
            ioctl_tiocsctty(stdin()).unwrap();
            return None;
        }
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let keyboard = openpt(flags).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let name = ptsname(&keyboard, Vec::new()).unwrap().into_string().unwrap();
        let no_owner = i32::try_from(OpenptFlags::NOCTTY.bits()).unwrap();
        let device = OpenOptions::new().read(true).write(true).custom_flags(no_owner).open(name).unwrap();
        tcsetwinsize(&device, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let stream = || device.try_clone().unwrap();
        let process = Command::new(env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .envs([(MARK, test), ("TERM", "xterm"), ("NO_COLOR", "1")])
            .stdin(stream())
            .stdout(stream())
            .stderr(stream())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let keyboard = File::from(keyboard);
        let (sender, screen) = mpsc::unbounded_channel();
        let mut reader = keyboard.try_clone().unwrap();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Without a device, the screen has an error.
            while let Ok(count) = reader.read(&mut bytes)
                && sender.send(bytes[..count].to_vec()).is_ok()
            {}
        });
        let mode = mode_of(&device);
        let deadline = Instant::now() + PATIENCE;
        Some(Self { keyboard, device, mode, screen, shown: Vec::new(), process, deadline })
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the screen shows this text after the last one that was waited for.
    async fn sees(&mut self, text: &str) {
        let found = |shown: &[u8]| shown.windows(text.len()).position(|part| part == text.as_bytes());
        loop {
            if let Some(at) = found(&self.shown) {
                self.shown.drain(..at + text.len());
                return;
            }
            let Ok(Some(piece)) = timeout_at(self.deadline, self.screen.recv()).await else {
                panic!("the screen does not show {text:?} in {:?}", String::from_utf8_lossy(&self.shown));
            };
            self.shown.extend(piece);
        }
    }

    /// Returns whether the terminal itself reads lines, without an editor.
    fn reads_lines(&self) -> bool {
        tcgetattr(&self.device).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    /// Waits for the end of the process. Its test must succeed, and must leave the mode of the terminal as it was.
    async fn ends(mut self) {
        self.sees("test result: ok. 1 passed").await;
        let status = timeout_at(self.deadline, self.process.wait()).await.expect("the process ends").unwrap();
        assert!(status.success(), "{status}");
        assert_eq!(mode_of(&self.device), self.mode);
    }
}

/// Returns the mode without the control modes, in which the speed of the line has two forms.
fn mode_of(terminal: &File) -> String {
    let Termios { input_modes, output_modes, local_modes, special_codes, .. } = tcgetattr(terminal).unwrap();
    format!("{input_modes:?} {output_modes:?} {local_modes:?} {special_codes:?}")
}

/// Runs a chat on the standard streams. Returns the kind of its error, and prints the prompts of the session.
async fn chat(session: &Session) -> Option<ErrorKind> {
    let ended = Chat::new(session).user("ann").run().await;
    if let Ok(tree) = session.tree().await {
        let is_prompt = |message: &&Message| message.role == Role::User && !message.text().is_empty();
        for message in tree.iter().map(|node| &**node.message()).filter(is_prompt) {
            println!("asked: {}.", message.text());
        }
    }
    ended.err().map(|error| error.kind())
}

#[tokio::test]
async fn chat_on_a_terminal_edits_streams_asks_and_is_interrupted() {
    let test = "pty::chat_on_a_terminal_edits_streams_asks_and_is_interrupted";
    let Some(mut terminal) = Terminal::start(test) else {
        let steps = [
            Step::tool_use("call-1", "delete", json!({ "path": "a.txt" })),
            Step::text("Done."),
            Step::new().then_text(["Once ", "upon"]).hang(),
            Step::text("Again."),
        ];
        assert_eq!(chat(&scripted(steps).await).await, None);
        return;
    };
    terminal.sees("/help tells what you can type here.").await;
    terminal.sees("> ").await;
    assert!(!terminal.reads_lines(), "the editor reads");
    // The key Ctrl-A moves the cursor to the beginning of the line.
    terminal.types("orld\x01Hello w\r");
    terminal.sees("delete {\"path\":\"a.txt\"} waits: \"needs approval\"").await;
    terminal.sees("or edit PATH? ").await;
    terminal.types("y\r");
    terminal.sees("[allowed by ann]").await;
    terminal.sees("delete: a.txt is gone.").await;
    terminal.sees("Done.").await;
    terminal.sees("> ").await;
    terminal.types("Tell\r");
    // The response never ends, so its beginning is shown as it arrives.
    terminal.sees("Once upon").await;
    assert!(terminal.reads_lines(), "the terminal reads");
    terminal.types("\x03");
    terminal.sees("[interrupted; the response so far is kept]").await;
    terminal.sees("> ").await;
    // The key Up shows the last line again.
    terminal.types("\x1b[A\r");
    terminal.sees("Again.").await;
    terminal.sees("> ").await;
    terminal.types("\x04");
    for asked in ["asked: Hello world.", "asked: Tell.", "asked: Tell."] {
        terminal.sees(asked).await;
    }
    terminal.ends().await;
}

#[tokio::test]
async fn session_that_ends_while_a_line_is_edited_restores_the_terminal() {
    let test = "pty::session_that_ends_while_a_line_is_edited_restores_the_terminal";
    let Some(mut terminal) = Terminal::start(test) else {
        let session = scripted([]).await;
        let (mut signals, ended) = (signal(SignalKind::user_defined1()).unwrap(), session.clone());
        tokio::spawn(async move {
            signals.recv().await;
            ended.stop(Duration::from_secs(5)).await.unwrap();
        });
        assert_eq!(chat(&session).await, Some(ErrorKind::Ended));
        return;
    };
    terminal.sees("> ").await;
    terminal.types("half");
    terminal.sees("half").await;
    assert!(!terminal.reads_lines(), "the editor reads");
    let process = terminal.process.id().and_then(|id| Pid::from_raw(id.try_into().unwrap()));
    kill_process(process.unwrap(), Signal::USR1).unwrap();
    terminal.ends().await;
}
