//! Output into a pipe that nobody reads any more, such as that of `| head`.

use std::{panic, process};

/// Ends the process quietly if `println!` meets a closed pipe, which is a panic otherwise.
pub fn quiet_on_broken_pipe() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let message = info.payload().downcast_ref::<String>();
        if message.is_some_and(|message| {
            message.starts_with("failed printing to") && message.contains("Broken pipe")
        }) {
            // As a shell reports a program that SIGPIPE ended.
            process::exit(141);
        }
        report(info);
    }));
}
