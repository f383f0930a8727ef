//! Labels in the summaries of the file-system store.

use std::fs;

use omni_agent::store::{Filter, Labels, Page, StateChange, Store, StoredState, Summary, Write, WriteId};

use crate::support::{Folder, commit, create, id};

fn labels(tenant: &str) -> Labels {
    Labels::new([("tenant", tenant)]).unwrap()
}

async fn listed(folder: &Folder) -> Summary {
    folder.quick_store().await.list(Page::default()).await.unwrap().remove(0)
}

/// The state of the summary after a crash: it is up to date, it is missing, or it is older than the last write.
#[derive(Clone, Copy, Debug)]
enum Lost {
    Nothing,
    Summary,
    LastSummary,
}

#[tokio::test]
async fn title_and_label_changes_keep_each_other_in_the_summary() {
    for lost in [Lost::Nothing, Lost::Summary, Lost::LastSummary] {
        let folder = Folder::new();
        let store = folder.quick_store().await;
        let state = StoredState::default().with_title("first").with_labels(labels("first"));
        let mut version = store.create(&id("a"), WriteId::generate(), &state).await.unwrap();
        let mut older = fs::read(folder.summary(&id("a"))).unwrap();
        let mut expected = ("first".to_owned(), labels("first"));
        for number in 0..6_u64 {
            let before = fs::read(folder.summary(&id("a"))).ok();
            match lost {
                Lost::Nothing => {}
                Lost::Summary => drop(fs::remove_file(folder.summary(&id("a")))),
                Lost::LastSummary => fs::write(folder.summary(&id("a")), &older).unwrap(),
            }
            older = before.unwrap_or(older);
            let change = if number % 2 == 0 {
                expected.0 = format!("title {number}");
                StateChange::title(&expected.0)
            } else {
                expected.1 = labels(&number.to_string());
                StateChange::Labels(expected.1.clone())
            };
            version = store.save_state(&id("a"), &Write::on(version), &change).await.unwrap();
            if number == 3 {
                version = commit(&store, &id("a"), version, 1, "Hi").await;
            }
            let summary = store.summary(&id("a")).await.unwrap();
            assert_eq!(
                (summary.title.as_ref(), &summary.labels, summary.version),
                (Some(&expected.0), &expected.1, version),
                "{lost:?}, {number}"
            );
            assert_eq!(listed(&folder).await, summary);
        }
        let log = fs::read_to_string(folder.log(&id("a"))).unwrap();
        assert!(!log.contains("compacted"), "the changes stay lines of their own");
    }
}

#[tokio::test]
async fn change_of_one_part_saves_a_summary_with_both() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let state = StoredState::default().with_title("A talk");
    let version = store.create(&id("a"), WriteId::generate(), &state).await.unwrap();
    let version = commit(&store, &id("a"), version, 1, "Hi").await;
    let change = StateChange::Labels(labels("acme"));
    let version = store.save_state(&id("a"), &Write::on(version), &change).await.unwrap();
    let summary = fs::read_to_string(folder.summary(&id("a"))).unwrap();
    let both = r#""title":"A talk","labels":{"tenant":"acme"},"#;
    assert!(summary.contains(both) && summary.contains(&format!("\"version\":{version}")), "{summary}");
}

#[tokio::test]
async fn list_by_labels_reads_them_from_logs_without_summaries() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    for (name, tenant) in [("a", "x"), ("b", "y"), ("c", "x")] {
        let state = StoredState::default().with_title(name).with_labels(labels(tenant));
        store.create(&id(name), WriteId::generate(), &state).await.unwrap();
        fs::remove_file(folder.summary(&id(name))).unwrap();
    }
    create(&store, &id("d")).await;
    let names = |listed: Vec<Summary>| {
        let mut names: Vec<_> = listed.into_iter().map(|summary| summary.id.as_str().to_owned()).collect();
        names.sort();
        names
    };
    for filter in [Filter::with(labels("x")), Filter::with(labels("x")).without("archived")] {
        let found = store.list_where(&filter, Page::default()).await.unwrap();
        assert_eq!(names(found), ["a", "c"]);
    }
    let without = Filter::default().without("tenant");
    assert_eq!(names(store.list_where(&without, Page::default()).await.unwrap()), ["d"]);
    // If a log is damaged, its labels are unknown, so the filter does not find its conversation.
    fs::write(folder.log(&id("c")), "this is no log\n").unwrap();
    fs::remove_file(folder.summary(&id("c"))).unwrap();
    let found = store.list_where(&labels("x").into(), Page::default()).await.unwrap();
    assert_eq!(names(found), ["a"]);
}
