//! The same work done by this crate and by comparable ones, in the same run, against the same local server: a
//! stream of 10,000 deltas from a socket to whoever reads it (client CPU, beside the least that a program written
//! for the one format could do), and agent runs of a tool call and a
//! final answer, both streamed, at 1, 16 and 64 at once (wall time).
//!
//! Each round has every contender do the work once, so that the machine's moods hit all of them; ratios are
//! medians of the rounds' ratios. The contenders take turns at being first. Arguments name the tables to make, by
//! parts of their titles; without any, all are made.
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
        let runtime = runtime.expect("a runtime can be made");
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

/// By name; nobody where a library does not speak the format.
type Entries<T> = Vec<(&'static str, Option<Arc<T>>)>;

fn contenders(format: Format, url: &str) -> Entries<dyn Contender> {
    ALL.map(|(name, make)| (name, make(format, url))).into()
}

/// The places of those that speak the format, each round from another one on.
fn order<T: ?Sized>(contenders: &Entries<T>, round: usize) -> impl Iterator<Item = usize> {
    let speaking = (0..contenders.len()).filter(|index| contenders[*index].1.is_some());
    let count = speaking.clone().count();
    speaking.collect::<Vec<_>>().into_iter().cycle().skip(round % count).take(count)
}

async fn streams(contenders: &Entries<dyn Reader>) {
    let rounds = size(11, 1);
    let mut figures = vec![Vec::new(); contenders.len()];
    // The first round is to warm up.
    for round in 0..=rounds {
        for index in order(contenders, round) {
            let contender = contenders[index].1.as_ref().expect("it speaks the format");
            let before = cpu();
            assert_eq!(contender.read().await, DELTAS, "{}", contenders[index].0);
            let used = cpu().saturating_sub(before);
            if round > 0 {
                figures[index].push(used.as_secs_f64() * 1e3);
            }
        }
    }
    // To be ahead is to take less.
    table(contenders, &figures, |figure| format!("{figure:.1} ms"), |ours, theirs| theirs / ours);
}

async fn runs(contenders: &Entries<dyn Contender>, at_once: usize) {
    let rounds = size(5, 1);
    let time = if smoke() { Duration::from_millis(50) } else { Duration::from_secs(1) };
    let mut figures = vec![Vec::new(); contenders.len()];
    for round in 0..rounds {
        for index in order(contenders, round) {
            let contender = Arc::clone(contenders[index].1.as_ref().expect("it speaks the format"));
            let run = move || {
                let contender = Arc::clone(&contender);
                async move { assert_eq!(contender.run().await, server::ANSWER) }
            };
            // Connections are there before it counts.
            race(at_once, time / 10, &run).await;
            figures[index].push(race(at_once, time, &run).await.0);
        }
    }
    // To be ahead is to do more.
    table(contenders, &figures, |figure| format!("{figure:.0}"), |ours, theirs| ours / theirs);
}

/// A row for each: its median, and by how much we are ahead, the median of the rounds' ratios.
fn table<T: ?Sized>(
    contenders: &Entries<T>,
    figures: &[Vec<f64>],
    unit: impl Fn(f64) -> String,
    ahead: impl Fn(f64, f64) -> f64,
) {
    for ((name, contender), theirs) in contenders.iter().zip(figures) {
        if contender.is_none() {
            println!("{name:<34} does not speak it");
            continue;
        }
        let ratios = figures[0].iter().zip(theirs).map(|(ours, theirs)| ahead(*ours, *theirs)).collect();
        println!("{name:<34} {:>10}   {:>5.2}", unit(median(theirs.clone())), median(ratios));
    }
}
