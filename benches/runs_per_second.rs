//! The number of agent runs per second against a local server. In each run, a new agent calls a tool and gives its
//! final answer. Both answers of the model are streamed.
//!
//! The runs are measured in wall time, because wall time limits their number. The client's CPU time per run is also
//! shown. The server is another process on the same cores. `benches/peers` compares the same runs with other libraries.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[allow(dead_code)]
mod formats;
#[allow(dead_code)]
mod ours;
#[allow(dead_code)]
mod server;
#[allow(dead_code)]
mod support;

use std::time::Duration;

use formats::Format;
use support::{head, median, race, row, size, smoke};

fn main() {
    let server = server::start(server::runs);
    for format in Format::ALL {
        head(&format!("{}: runs a second", format.name()));
        let url = format!("http://{}/{}", server.address, format.slug());
        let (model, tools) = (ours::model(format, &url), ours::tools());
        let run = move || {
            let (model, tools) = (model.clone(), tools.clone());
            async move { assert_eq!(ours::run(&model, &tools).await, server::ANSWER) }
        };
        let time = if smoke() { Duration::from_millis(50) } else { Duration::from_secs(2) };
        for at_once in [1, 16, 64] {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
            let runtime = runtime.expect("the runtime starts");
            let figures = (0..size(7, 1)).map(|_| {
                // A short run opens the connections before the measurement.
                runtime.block_on(race(at_once, time / 10, &run));
                runtime.block_on(race(at_once, time, &run))
            });
            let (rate, used): (Vec<_>, Vec<_>) = figures.unzip();
            let figure = format!("{:.0} ({:.0} µs CPU each)", median(rate), median(used));
            row(&format!("{at_once} at once"), figure, "ahead of all peers");
        }
    }
}
