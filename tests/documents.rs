//! Checks the Markdown documents: their links, their programs, their sizes, and the files that they name.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The maximum sizes of documents, in bytes. A reader finishes each of them in one sitting.
const SIZES: [(&str, usize); 4] = [
    ("ARCHITECTURE.md", 14 << 10),
    ("README.md", 10 << 10),
    ("CHANGELOG.md", 1 << 10),
    ("BENCHMARKS.md", 10 << 10),
];

/// The folders whose files are checked if a document names them in a code span.
const NAMED: [&str; 7] = ["src/", "tests/", "docs/", "examples/", "benches/", "fuzz/", "scripts/"];

/// The first programs, in `examples/first`, with their greatest numbers of lines that are neither blank nor comments.
const FIRST: [(&str, usize); 11] = [
    ("chat", 20),
    ("terminal", 8),
    ("approval", 20),
    ("typed", 12),
    ("branches", 25),
    ("mcp", 15),
    ("service", 80),
    ("durable", 30),
    ("agents", 20),
    ("unit_test", 20),
    ("provider", 60),
];

#[derive(Default)]
struct Document {
    path: PathBuf,
    /// The lines of programs: their numbers and texts.
    programs: Vec<(usize, String)>,
    /// The other lines outside code blocks. In these lines, each code span is replaced by a word without brackets.
    prose: Vec<(usize, String)>,
    spans: Vec<(usize, String)>,
    anchors: Vec<String>,
    /// The targets of links by name, such as `[durable]: durable.md`.
    definitions: BTreeMap<String, (usize, String)>,
}

impl Document {
    fn read(path: &Path) -> Self {
        let mut document = Self { path: path.to_owned(), ..Self::default() };
        let mut fence = None;
        for (number, line) in fs::read_to_string(path).unwrap().lines().enumerate() {
            let number = number + 1;
            match (&fence, line.trim_start().strip_prefix("```")) {
                (None, Some(info)) => fence = Some(info.is_empty() || info.starts_with("rust")),
                (Some(_), Some("")) => fence = None,
                (Some(true), _) => document.programs.push((number, line.to_owned())),
                (Some(false), _) => {}
                (None, None) => document.line(number, line),
            }
        }
        assert!(fence.is_none(), "{}: a code block has no end", path.display());
        document
    }

    fn line(&mut self, number: usize, line: &str) {
        if line.starts_with('#') {
            self.anchors.push(anchor(line.trim_start_matches('#').trim()));
        }
        let definition = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        if let Some((name, target)) = definition {
            self.definitions.insert(name.to_lowercase(), (number, target.to_owned()));
            return;
        }
        let mut prose = String::new();
        for (place, part) in line.split('`').enumerate() {
            if place % 2 == 0 {
                prose.push_str(part);
            } else {
                prose.push_str("code");
                self.spans.push((number, part.to_owned()));
            }
        }
        self.prose.push((number, prose));
    }

    /// Returns the targets of all links with the numbers of their lines. A link to a name without a definition, such as
    /// a link that only rustdoc resolves, has no target.
    fn links(&self) -> Vec<(usize, Option<String>)> {
        let mut links: Vec<_> =
            self.definitions.values().map(|(number, target)| (*number, Some(target.clone()))).collect();
        // A link's text may continue on the next line.
        let text = self.prose.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("\n");
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once('[') {
            let line = text[..text.len() - rest.len() + before.len()].matches('\n').count();
            let number = self.prose[line].0;
            let (name, after) = after.split_once(']').expect("a bracket has no end");
            let defined = |name: &str| {
                let name = name.replace('\n', " ").to_lowercase();
                self.definitions.get(&name).map(|(_, target)| target.clone())
            };
            if let Some(after) = after.strip_prefix('(') {
                let (target, after) = after.split_once(')').expect("a parenthesis has no end");
                links.push((number, Some(target.to_owned())));
                rest = after;
            } else if let Some(after) = after.strip_prefix('[') {
                let (reference, after) = after.split_once(']').expect("a bracket has no end");
                links.push((number, defined(if reference.is_empty() { name } else { reference })));
                rest = after;
            } else {
                links.push((number, defined(name)));
                rest = after;
            }
        }
        links
    }

    fn place(&self, line: usize) -> String {
        format!("{}:{line}", self.path.strip_prefix(root()).unwrap().display())
    }
}

/// Returns the name of a heading in links.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().replace(' ', "-")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the documents at the top of the repository and the guides.
fn documents() -> Vec<Document> {
    let files = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = files(root().to_owned())
        .chain(files(root().join("docs")))
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    paths.sort();
    let documents: Vec<_> = paths.iter().map(|path| Document::read(path)).collect();
    assert!(documents.len() >= 20, "{paths:?}");
    documents
}

#[test]
fn links_lead_to_a_file_a_heading_or_an_address() {
    let documents = documents();
    let (mut broken, mut checked) = (Vec::new(), 0);
    for document in &documents {
        for (line, target) in document.links() {
            let leads = target.as_ref().is_some_and(|target| {
                if target.starts_with("https://") {
                    return true;
                }
                let (file, heading) =
                    target.split_once('#').map_or((target.as_str(), None), |(file, name)| (file, Some(name)));
                let path = match file {
                    "" => document.path.clone(),
                    file => document.path.parent().unwrap().join(file),
                };
                let Ok(path) = path.canonicalize() else { return false };
                heading.is_none_or(|heading| {
                    let other = documents.iter().find(|other| other.path.canonicalize().unwrap() == path);
                    other.is_some_and(|other| other.anchors.iter().any(|anchor| anchor == heading))
                })
            });
            checked += 1;
            if !leads {
                broken.push(format!("{}: {target:?}", document.place(line)));
            }
        }
    }
    assert!(broken.is_empty(), "links that do not work in plain Markdown: {broken:#?}");
    assert!(checked >= 90, "{checked}");
}

#[test]
fn programs_have_no_hidden_lines() {
    let (mut hidden, mut checked) = (Vec::new(), 0);
    for document in documents() {
        for (line, text) in &document.programs {
            let text = text.trim();
            checked += 1;
            if text == "#" || text.starts_with("# ") {
                hidden.push(format!("{}: {text}", document.place(*line)));
            }
        }
    }
    assert!(hidden.is_empty(), "lines that only rustdoc hides: {hidden:#?}");
    assert!(checked >= 800, "{checked}");
}

#[test]
fn named_files_exist() {
    let (mut missing, mut checked) = (Vec::new(), 0);
    for document in documents() {
        for (line, name) in &document.spans {
            let is_path = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
            if NAMED.iter().any(|folder| name.starts_with(folder)) && name.chars().all(is_path) {
                checked += 1;
                if !root().join(name).exists() {
                    missing.push(format!("{}: {name}", document.place(*line)));
                }
            }
        }
    }
    assert!(missing.is_empty(), "files that do not exist: {missing:#?}");
    assert!(checked >= 90, "{checked}");
}

#[test]
fn documents_are_short_enough() {
    for (name, limit) in SIZES {
        let size = fs::metadata(root().join(name)).unwrap().len();
        assert!(size <= limit as u64, "{name} has {size} bytes, more than {limit}");
    }
}

#[test]
fn first_programs_are_short_and_listed() {
    let guide = fs::read_to_string(root().join("docs/getting-started.md")).unwrap();
    for (name, limit) in FIRST {
        let path = format!("examples/first/{name}.rs");
        let program = fs::read_to_string(root().join(&path)).unwrap();
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
        let count = program.lines().filter(is_code).count();
        assert!(count <= limit, "{path} has {count} lines, more than {limit}");
        assert!(
            program.lines().all(|line| line.chars().count() <= 110),
            "{path} has lines that are too long"
        );
        let row = format!("| `{name}.rs` | {count} |");
        assert!(guide.contains(&row), "docs/getting-started.md has no row with {row:?}");
    }
    // The other file is the one that all of them include.
    assert_eq!(fs::read_dir(root().join("examples/first")).unwrap().count(), FIRST.len() + 1);
}
