//! Code that the examples share: the selection of a model, the terminal, and an offline demo model. The library does
//! not need any of this code. Read the examples first.

#![allow(dead_code, unused_imports, reason = "each example uses a part of it")]

mod demo;
mod folder;
mod model;
mod pipe;
mod terminal;

pub use folder::{Folder, STORE};
pub use model::{Flag, Picked, missing_key, model_named, models, pick_model, pick_model_with};
pub use pipe::quiet_on_broken_pipe;
pub use terminal::{
    Interrupts, Lines, Printer, ago, compaction_line, dim, explain, first_words, prompts, total_line,
};
