//! Handles output into a pipe whose reader has ended, for example `| head`.

use std::{panic, process};

/// Ends the process without a message if `println!` writes to a closed pipe. Otherwise, `println!` would panic.
pub fn quiet_on_broken_pipe() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let message = info.payload().downcast_ref::<String>();
        if message.is_some_and(|message| {
            message.starts_with("failed printing to") && message.contains("Broken pipe")
        }) {
            // The exit code that a shell reports for SIGPIPE.
            process::exit(141);
        }
        report(info);
    }));
}
