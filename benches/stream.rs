//! A stream of 10,000 deltas from a local socket to a subscriber of an agent. It is compared with the minimum that a
//! program for a single format could do with reqwest, eventsource-stream and typed serde.
//!
//! The figures are the CPU time of the client only, because the server is another process. In each round, every
//! contender runs once, so that changes in the machine's load affect all contenders. The ratios are the medians of the
//! ratios of the rounds.
//!
//! Each chunk of Gemini contains the usage so far, which the agent reports each time. The minimum for Ollama has no
//! events to frame and reads one member per line, so most of the figure is the agent's work. Both explain their missed
//! goals.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[allow(dead_code)]
mod formats;
#[allow(dead_code)]
mod ours;
mod raw;
#[allow(dead_code)]
mod server;
#[allow(dead_code)]
mod support;

use std::sync::Arc;

use formats::Format;
use futures_util::TryStreamExt;
use omni_agent::{
    agent::Agent,
    provider::{Model, Request},
};
use server::{Server, streamed};
use support::{cpu, head, median, on_this_thread, row, size};

const DELTAS: usize = 10_000;
const WORDS: [&str; 8] = ["The", " quick", " brown", " fox", " jumps", " over", " the lazy", " dog\n"];
const LARGE: usize = 16 * 1024;

fn events(format: Format) -> Vec<String> {
    let pieces: Vec<&str> = WORDS.into_iter().cycle().take(DELTAS).collect();
    format.text(&pieces)
}

fn main() {
    let server = server::start(|| {
        let answers: Vec<_> = Format::ALL
            .into_iter()
            .flat_map(|format| {
                let events = events(format);
                [("large", Some(LARGE)), ("small", None)].map(|(chunks, size)| {
                    (format!("/{}-{chunks}/", format.slug()), streamed(format, &events, size))
                })
            })
            .collect();
        Box::new(move |head, _| {
            let found = answers.iter().find(|(path, _)| head.contains(path));
            Arc::clone(&found.expect("the path names a known answer").1)
        })
    });
    for format in Format::ALL {
        let bytes = events(format).concat().len() as f64 / 1e6;
        for (chunks, how) in [("large", "chunks of 16 KiB"), ("small", "a chunk an event")] {
            let title = format!("{}, {bytes:.2} MB, {how}", format.name());
            on_this_thread(compare(&server, format, chunks, &title));
        }
    }
}

async fn compare(server: &Server, format: Format, chunks: &str, title: &str) {
    let rounds = size(31, 1);
    let url = format!("http://{}/{}-{chunks}", server.address, format.slug());
    let raw_url = format!("{url}/raw");
    let client = raw::client();
    let model = ours::model(format, &url);
    let agent = Agent::builder().model(model.clone()).start().await.expect("the agent starts");

    let (mut bytes, mut typed, mut ours, mut alone) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut ratio, mut ratio_alone) = (Vec::new(), Vec::new());
    // The first round is a warm-up.
    for round in 0..=rounds {
        let before = cpu();
        assert!(raw::read_bytes(&client, &raw_url).await > 1_000_000);
        let after_bytes = cpu();
        assert_eq!(raw::read_typed(&client, &raw_url, format).await, DELTAS);
        let after_raw = cpu();
        assert_eq!(ours::read(&agent).await, DELTAS);
        let after_agent = cpu();
        read_model(&model).await;
        let after_model = cpu();
        if round > 0 {
            let ms = |from: std::time::Duration, to: std::time::Duration| {
                to.checked_sub(from).unwrap().as_secs_f64() * 1e3
            };
            bytes.push(ms(before, after_bytes));
            typed.push(ms(after_bytes, after_raw));
            ours.push(ms(after_raw, after_agent));
            alone.push(ms(after_agent, after_model));
            ratio.push(ms(after_raw, after_agent) / ms(after_bytes, after_raw));
            ratio_alone.push(ms(after_agent, after_model) / ms(after_bytes, after_raw));
        }
    }
    head(&format!("{title}: CPU, median of {rounds}"));
    row("bytes only", format!("{:.1} ms", median(bytes)), "—");
    row("raw reference: reqwest, events or lines, typed serde", format!("{:.1} ms", median(typed)), "—");
    row("a model without an agent, its deltas", format!("{:.1} ms", median(alone)), "—");
    row("an agent, to its subscriber", format!("{:.1} ms", median(ours)), "—");
    row("ratio of the model to the raw reference", format!("{:.2}", median(ratio_alone)), "—");
    row("ratio of the agent to the raw reference", format!("{:.2}", median(ratio)), "≤ 1.1");
}

async fn read_model(model: &Model) {
    let mut deltas = model.stream(Request::prompt("Go on."));
    let mut count = 0;
    while let Some(delta) = deltas.try_next().await.expect("the server sends an answer") {
        count += usize::from(delta.is_content());
    }
    assert!(count >= DELTAS);
}
