//! Labels in the lists of the file-system store.

use std::fs;

use omni_agent::store::{
    Filter, Labels, Listing, Store, Summary,
    custom::{Change, StateChange, StoredState, Write},
};

use crate::support::{Folder, commit, create, id};

fn labels(tenant: &str) -> Labels {
    Labels::new([("tenant", tenant)]).unwrap()
}

async fn listed(folder: &Folder) -> Summary {
    folder.quick_store().await.list(&Listing::default()).await.unwrap().remove(0)
}

#[tokio::test]
async fn title_and_label_changes_keep_each_other_in_lists() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let state = StoredState::default().with_title("first").with_labels(labels("first"));
    let mut version = store.write(&id("a"), &Write::first(), &Change::create(state)).await.unwrap();
    let mut expected = ("first".to_owned(), labels("first"));
    for number in 0..6_u64 {
        let change = if number % 2 == 0 {
            expected.0 = format!("title {number}");
            StateChange::title(&expected.0)
        } else {
            expected.1 = labels(&number.to_string());
            StateChange::Labels(expected.1.clone())
        };
        version = store.write(&id("a"), &Write::on(version), &Change::State(change)).await.unwrap();
        if number == 3 {
            version = commit(&store, &id("a"), version, 1, "Hi").await;
        }
        let summary = store.summary(&id("a")).await.unwrap();
        assert_eq!(
            (summary.title.as_ref(), &summary.labels, summary.version),
            (Some(&expected.0), &expected.1, version),
            "{number}"
        );
        assert_eq!(listed(&folder).await, summary);
    }
}

#[tokio::test]
async fn list_by_labels_finds_the_conversations_with_them() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    for (name, tenant) in [("a", "x"), ("b", "y"), ("c", "x")] {
        let state = StoredState::default().with_title(name).with_labels(labels(tenant));
        store.write(&id(name), &Write::first(), &Change::create(state)).await.unwrap();
    }
    create(&store, &id("d")).await;
    let names = |listed: Vec<Summary>| {
        let mut names: Vec<_> = listed.into_iter().map(|summary| summary.id.as_str().to_owned()).collect();
        names.sort();
        names
    };
    for filter in [Filter::with(labels("x")), Filter::with(labels("x")).without("archived")] {
        let found = store.list(&filter.clone().into()).await.unwrap();
        assert_eq!(names(found), ["a", "c"]);
    }
    let without = Filter::default().without("tenant");
    assert_eq!(names(store.list(&without.into()).await.unwrap()), ["d"]);
    // If a log is damaged, its labels are unknown, so the filter does not find its conversation.
    fs::write(folder.log(&id("c")), "this is no log\n").unwrap();
    let found = store.list(&Filter::from(labels("x")).into()).await.unwrap();
    assert_eq!(names(found), ["a"]);
}

/// A list finds the entry by a text that no title and no label can contain.
#[tokio::test]
async fn titles_and_labels_that_imitate_an_entry_are_listed_as_they_are() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let forged = r#","version":7,"write":"AAAAAAAAAAAAAAAAAAAAAA","time":7,"entry":{"format":10,"id":"a"}}"#;
    let labels = Labels::new([("version", "7"), ("a", forged), ("write", r#"x,"version":7"#)]).unwrap();
    let titles = [
        forged.to_owned(),
        format!("\\{forged}"),
        ",".to_owned(),
        forged.repeat(1000),
        "\u{fc}".repeat(9000),
    ];
    for (number, title) in titles.iter().enumerate() {
        let id = id(&format!("n{number}"));
        let state = StoredState::default().with_title(title).with_labels(labels.clone());
        let version = store.write(&id, &Write::first(), &Change::create(state.clone())).await.unwrap();
        let version = commit(&store, &id, version, 1, forged).await;
        let summary = store.summary(&id).await.unwrap();
        assert_eq!((summary.title.as_ref(), &summary.labels), (Some(title), &labels));
        let stored = store.load(&id).await.unwrap();
        assert_eq!((summary.version, stored.version, stored.state), (version, version, state));
    }
}
