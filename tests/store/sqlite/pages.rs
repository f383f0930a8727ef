//! Pages of long lists.

use std::cmp::Reverse;

use omni_agent::store::{Filter, Labels, Page, Query, SqliteStore, Store, file_system::Durability};

use super::{file, raw};
use crate::support::Folder;

/// The number of conversations.
const ALL: u32 = 62_000;

/// Inserts the conversations, most of them with times that three conversations share. The latest 9,000 have the same
/// time. The labels are those of the 6,000 and of the 56,000 oldest conversations, and of all except the latest 100.
const LABELLED: &str = "
INSERT INTO conversations (id, version, created, updated, epoch)
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 62000)
SELECT format('c%05d', n), 1, 1, min(n / 3, 17667), 1 FROM numbers;
UPDATE conversations SET title = 'title';
INSERT INTO texts (conversation) SELECT key FROM conversations;
INSERT INTO words (rowid, text) SELECT key, 'title' FROM texts;
INSERT INTO states SELECT key, '{}' FROM conversations;
INSERT INTO labels SELECT key, 'age', iif(key <= 6000, 'oldest', 'later') FROM conversations;
INSERT INTO labels SELECT key, 'kind', 'most' FROM conversations WHERE key <= 56000;
INSERT INTO labels SELECT key, 'shown', 'yes' FROM conversations WHERE key <= 61900;";

fn updated(number: u32) -> u32 {
    (number / 3).min(17_667)
}

/// Returns the filter by a label, and the numbers of the conversations that have it, in the order of the list.
fn labelled(name: &str, value: &str) -> (Filter, Vec<u32>) {
    let has_label = |number: &u32| match (name, value) {
        ("age", "oldest") => *number <= 6000,
        ("age", _) => *number > 6000,
        ("kind", _) => *number <= 56_000,
        _ => *number <= 61_900,
    };
    let mut numbers: Vec<_> = (1..=ALL).filter(has_label).collect();
    numbers.sort_by_key(|number| (Reverse(updated(*number)), *number));
    (Filter::with(Labels::new([(name, value)]).unwrap()), numbers)
}

async fn filled(folder: &Folder) -> SqliteStore {
    let builder = SqliteStore::builder(file(folder)).durability(Durability::Process).search(true);
    let store = builder.open().await.unwrap();
    raw(folder).execute_batch(&format!("BEGIN; {LABELLED} COMMIT")).unwrap();
    store
}

const LABELS: [(&str, &str); 4] = [("age", "oldest"), ("age", "later"), ("kind", "most"), ("shown", "yes")];

#[tokio::test]
async fn pages_of_a_label_of_old_or_simultaneous_conversations_are_complete() {
    let folder = Folder::new();
    let store = filled(&folder).await;
    for (name, value) in LABELS {
        let (filter, expected) = labelled(name, value);
        let ids = |numbers: &[u32]| numbers.iter().map(|n| format!("c{n:05}")).collect::<Vec<_>>();
        let (mut page, mut found) = (Page::first(900), Vec::new());
        for _ in 0..9 {
            let listed = store.list(&(filter.clone(), page.clone()).into()).await.unwrap();
            let Some(last) = listed.last() else { break };
            page = page.after(last);
            found.extend(listed.into_iter().map(|summary| summary.id.to_string()));
        }
        assert_eq!(found.len(), expected.len().min(8100), "{name} {value}");
        assert_eq!(found, ids(&expected[..found.len()]), "{name} {value}");
        // This page begins after the conversations that are examined first.
        let listed = store.list(&(filter.clone(), Page::first(50).from(5500)).into()).await.unwrap();
        let listed: Vec<_> = listed.iter().map(|summary| summary.id.to_string()).collect();
        assert_eq!(listed, ids(&expected[5500..5550]), "{name} {value}");
    }
}

#[tokio::test]
async fn search_in_old_conversations_finds_every_page() {
    let folder = Folder::new();
    let store = filled(&folder).await;
    let query: Query = "title".parse().unwrap();
    for (name, value) in LABELS {
        let (filter, expected) = labelled(name, value);
        for from in [0, 5500] {
            let found =
                store.search(&query, &(filter.clone(), Page::first(50).from(from)).into()).await.unwrap();
            let found: Vec<_> = found.hits.iter().map(|hit| hit.conversation.id.to_string()).collect();
            let expected: Vec<_> = expected[from..from + 50].iter().map(|n| format!("c{n:05}")).collect();
            assert_eq!(found, expected, "{name} {value}");
        }
    }
}
