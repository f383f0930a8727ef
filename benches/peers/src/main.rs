//! Compares this crate with comparable crates. All of them do the same work in the same run, against the same local
//! server. The first part is a stream of 10,000 deltas from a socket to its reader. It measures the CPU time of the
//! client, and compares this time with the minimum that a program for a single format could need. The second part
//! consists of agent runs with a tool call and a final answer, both streamed. It measures the wall time of 1, 16 and 64
//! runs at the same time.
//!
//! In each round, every library does the work once, so that changes in the machine's load affect all libraries. The
//! ratios are the medians of the ratios of the rounds. Each library is the first one in some of the rounds. Arguments
//! select tables by parts of their titles. Without arguments, all tables are printed.
#![allow(clippy::print_stdout, clippy::cast_precision_loss)]

mod contender;
#[path = "../../formats.rs"]
mod formats;
mod genai;
mod omni;
#[path = "../../ours.rs"]
mod ours;
#[allow(dead_code)]
#[path = "../../raw.rs"]
mod raw;
mod rig;
#[allow(dead_code)]
#[path = "../../server.rs"]
mod server;
#[allow(dead_code)]
#[path = "../../support.rs"]
mod support;
mod yoagent;

use std::{sync::Arc, time::Duration};

use contender::{ALL, Contender, Raw, Reader};
use formats::Format;
use server::streamed;
use support::{cpu, median, on_this_thread, race, size, smoke};

const DELTAS: usize = 10_000;
const WORDS: [&str; 8] = ["The", " quick", " brown", " fox", " jumps", " over", " the lazy", " dog\n"];
const LARGE: usize = 16 * 1024;

fn main() {
    let server = server::start(|| {
        let pieces: Vec<&str> = WORDS.into_iter().cycle().take(DELTAS).collect();
        let streams = Format::ALL.map(|format| {
            let events = format.text(&pieces);
            let how = [("large", Some(LARGE)), ("small", None)];
            how.map(|(chunks, size)| {
                (format!("/{}-{chunks}/", format.slug()), streamed(format, &events, size))
            })
        });
        let runs = server::runs();
        Box::new(move |head, body| {
            let stream = streams.iter().flatten().find(|(path, _)| head.contains(path));
            stream.map_or_else(|| runs(head, body), |(_, answer)| Arc::clone(answer))
        })
    });
    for format in Format::ALL {
        for (chunks, how) in [("large", "chunks of 16 KiB"), ("small", "a chunk an event")] {
            let url = format!("http://{}/{}-{chunks}", server.address, format.slug());
            let contenders = contenders(format, &url).into_iter();
            let mut readers: Entries<dyn Reader> = contenders
                .map(|(name, contender)| (name, contender.map(|contender| contender as _)))
                .collect();
            readers.push(("raw reference", Some(Arc::new(Raw::new(format, &url)))));
            let title = format!("{}, 10,000 deltas, {how}: client CPU", format.name());
            if is_wanted(&title) {
                println!("\n{title}");
                on_this_thread(streams(&readers));
            }
        }
    }
    for format in Format::ALL {
        let contenders = contenders(format, &format!("http://{}/{}", server.address, format.slug()));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.expect("the runtime starts");
        for at_once in [1, 16, 64] {
            let title = format!("{}, {at_once} at once: runs a second", format.name());
            if is_wanted(&title) {
                println!("\n{title}");
                runtime.block_on(runs(&contenders, at_once));
            }
        }
    }
}

fn is_wanted(title: &str) -> bool {
    let mut names = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).peekable();
    names.peek().is_none() || names.any(|name| title.contains(&name))
}

/// The libraries with their names. An entry is `None` if the library does not support the format.
type Entries<T> = Vec<(&'static str, Option<Arc<T>>)>;

fn contenders(format: Format, url: &str) -> Entries<dyn Contender> {
    ALL.map(|(name, make)| (name, make(format, url))).into()
}

/// Returns the indices of the libraries that support the format. Each round begins with another library.
fn order<T: ?Sized>(contenders: &Entries<T>, round: usize) -> impl Iterator<Item = usize> {
    let speaking = (0..contenders.len()).filter(|index| contenders[*index].1.is_some());
    let count = speaking.clone().count();
    speaking.collect::<Vec<_>>().into_iter().cycle().skip(round % count).take(count)
}

async fn streams(contenders: &Entries<dyn Reader>) {
    let rounds = size(11, 1);
    let mut figures = vec![Vec::new(); contenders.len()];
    // The first round is a warm-up.
    for round in 0..=rounds {
        for index in order(contenders, round) {
            let contender = contenders[index].1.as_ref().expect("the library supports the format");
            let before = cpu();
            assert_eq!(contender.read().await, DELTAS, "{}", contenders[index].0);
            let used = cpu().saturating_sub(before);
            if round > 0 {
                figures[index].push(used.as_secs_f64() * 1e3);
            }
        }
    }
    // Lower is better.
    table(contenders, &figures, |figure| format!("{figure:.1} ms"), |ours, theirs| theirs / ours);
}

async fn runs(contenders: &Entries<dyn Contender>, at_once: usize) {
    let rounds = size(5, 1);
    let time = if smoke() { Duration::from_millis(50) } else { Duration::from_secs(1) };
    let mut figures = vec![Vec::new(); contenders.len()];
    for round in 0..rounds {
        for index in order(contenders, round) {
            let contender =
                Arc::clone(contenders[index].1.as_ref().expect("the library supports the format"));
            let run = move || {
                let contender = Arc::clone(&contender);
                async move { assert_eq!(contender.run().await, server::ANSWER) }
            };
            // A short run opens the connections before the measurement.
            race(at_once, time / 10, &run).await;
            figures[index].push(race(at_once, time, &run).await.0);
        }
    }
    // Higher is better.
    table(contenders, &figures, |figure| format!("{figure:.0}"), |ours, theirs| ours / theirs);
}

/// Prints a row for each library. The row contains the library's median, and the lead of this crate as the median of
/// the ratios of the rounds.
fn table<T: ?Sized>(
    contenders: &Entries<T>,
    figures: &[Vec<f64>],
    unit: impl Fn(f64) -> String,
    ahead: impl Fn(f64, f64) -> f64,
) {
    for ((name, contender), theirs) in contenders.iter().zip(figures) {
        if contender.is_none() {
            println!("{name:<34} does not support it");
            continue;
        }
        let ratios = figures[0].iter().zip(theirs).map(|(ours, theirs)| ahead(*ours, *theirs)).collect();
        println!("{name:<34} {:>10}   {:>5.2}", unit(median(theirs.clone())), median(ratios));
    }
}
