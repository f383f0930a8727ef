//! Checks the layers: a file may import only from its own layer and from earlier layers.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The layers in their order. A layer consists of a file in `src` and the folder of the same name.
const LAYERS: &[&str] = &[
    "setters",
    "debug",
    "sync",
    "time",
    "text",
    "json",
    "panics",
    "process",
    "error",
    "conformance",
    "chunks",
    "message",
    "budget",
    "telemetry",
    "tool",
    "acp",
    "provider",
    "subscription",
    "run",
    "tree",
    "store",
    "actor",
    "agent",
    "session",
    "terminal",
    "manager",
    "mcp",
    "access",
    "schema",
    "web",
    "serve",
];

/// Modules outside the layers: they may use all layers, and no layer uses them.
const ASIDE: &[&str] = &["lib", "guides", "testing"];

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_stem().is_some_and(|name| name == "tests")
            || path.ends_with("src/schema/generate")
            || path.ends_with("src/schema/generate.rs")
        {
            // Unit tests may use every layer, and so may the generator of the schemas, which is one.
            continue;
        }
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// Returns the layer to which a file in `src` belongs.
fn layer_of(file: &Path, src: &Path) -> String {
    let first = file.strip_prefix(src).unwrap().components().next().unwrap();
    first.as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned()
}

/// Returns the layers that occur in a file's `crate::…` paths, including grouped imports. Comments are ignored.
fn layers_named(source: &str) -> Vec<String> {
    let code: String =
        source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut named = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let mut depth = 0_usize;
            let mut item = String::new();
            for c in group.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => named.push(std::mem::take(&mut item)),
                    c if depth == 0 => item.push(c),
                    _ => {}
                }
            }
            named.push(item);
        } else {
            named.push(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
    }
    let first = |path: String| path.trim().split("::").next().unwrap_or_default().to_owned();
    named.into_iter().map(first).filter(|name| !name.is_empty()).collect()
}

#[test]
fn every_file_uses_only_its_own_layer_and_earlier_ones() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut breaches = Vec::new();
    for file in rust_files(&src) {
        let layer = layer_of(&file, &src);
        if ASIDE.contains(&layer.as_str()) {
            continue;
        }
        let Some(own) = LAYERS.iter().position(|name| *name == layer) else {
            breaches.push(format!("{}: {layer} is not a layer; add it to this test", file.display()));
            continue;
        };
        for named in layers_named(&fs::read_to_string(&file).unwrap()) {
            match LAYERS.iter().position(|name| *name == named) {
                Some(other) if other > own => breaches.push(format!("{}: uses {named}", file.display())),
                None if ASIDE.contains(&named.as_str()) => {
                    breaches.push(format!("{}: uses {named}", file.display()));
                }
                Some(_) | None => {}
            }
        }
    }
    assert!(breaches.is_empty(), "files use later layers:\n{}", breaches.join("\n"));
}

#[test]
fn layers_named_finds_grouped_and_plain_paths() {
    let source = "use crate::{agent::{Event, Status}, message::Message};\nfn f() -> crate::tool::Tool {} // crate::nothing";
    assert_eq!(layers_named(source), ["agent", "message", "tool"]);
}

#[test]
fn no_file_is_named_mod_rs() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert!(rust_files(&src).iter().all(|file| file.file_name().is_some_and(|name| name != "mod.rs")));
}
