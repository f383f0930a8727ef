//! Attachments whose bytes a store keeps once per conversation: their place on the disk, damage, crashes and copies.

use std::fs;

use omni_agent::{
    message::{Attachment, Content, Message, Source},
    store::{
        MemoryStore, Store, StoreError, copy,
        custom::{Change, Commit, Stored, TurnRecord, Version, Write},
        export_json, import_json,
    },
    tree::{Erased, Node},
};
use serde_json::json;

use crate::support::{Folder, create, id, line, node};

const MEGABYTE: usize = 1024 * 1024;

/// Returns bytes of this length in base64. They are different for each seed, and can't be compressed.
fn bytes(seed: u8, len: usize) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Encodes bytes as base64, whose length is a multiple of three.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letters = bytes.chunks(3).flat_map(|three| {
        let number = three.iter().fold(0_usize, |number, byte| number << 8 | usize::from(*byte));
        [18, 12, 6, 0].map(|shift| char::from(LETTERS[number >> shift & 63]))
    });
    letters.collect()
}

/// Returns a commit of one node without a parent: a text beside a photo.
fn beside(number: u64, text: &str, photo: &str) -> Commit {
    let photo = Attachment::base64("image/png", photo);
    let message = Message::user([Content::from(text), photo.into()]);
    Commit::new(Some(node(number))).with_nodes([Node::new(node(number), None, message)])
}

async fn write(store: &dyn Store, base: Version, commit: Commit) -> Version {
    store.write(&id("a"), &Write::on(base), &Change::Commit(commit)).await.unwrap()
}

async fn erase(store: &dyn Store, base: Version, number: u64) -> Version {
    let erased: Erased =
        serde_json::from_value(json!({ "nodes": [number], "head": null, "next": 50 })).unwrap();
    store.write(&id("a"), &Write::on(base), &Change::Erase(erased)).await.unwrap()
}

fn record(photo: &str) -> Commit {
    let turn = "00112233445566778899aabbccddeeff".parse().unwrap();
    let photo = Attachment::base64("image/png", photo);
    // The state of an agent contains the results of tools.
    let core = serde_json::json!({ "result": photo }).to_string();
    let record = TurnRecord::new(1, turn, core).with_append(vec![Message::user(photo).into()]);
    Commit::new(None).with_usage([]).with_turn(record)
}

fn data(stored: &Stored, index: usize) -> std::sync::Arc<str> {
    match &stored.nodes[index].message().content[1] {
        Content::Attachment(Attachment { source: Source::Base64 { data }, .. }) => data.clone(),
        other => panic!("{other:?}"),
    }
}

/// Returns the sizes of the store after one message with a photo and after eleven more, the last of
/// which is written three times.
async fn sizes(store: &dyn Store, size: impl AsyncFn() -> u64) -> (u64, u64) {
    let photo = base64(&bytes(1, 2 * MEGABYTE / 3 * 3));
    let version = create(store, &id("a")).await;
    let mut version = write(store, version, beside(1, "What is it?", &photo)).await;
    let before = size().await;
    for number in 2..12 {
        if store.traits().turns {
            version = write(store, version, record(&photo).clone()).await;
        }
        version = write(store, version, beside(number, &format!("What is it? ({number})"), &photo)).await;
    }
    let repeated = Write::on(version);
    for _ in 0..3 {
        let change = Change::Commit(beside(12, "What is it? (again)", &photo));
        store.write(&id("a"), &repeated, &change).await.unwrap();
    }
    let stored = store.load(&id("a")).await.unwrap();
    assert_eq!(stored.nodes.len(), 12);
    assert!((0..12).all(|index| *data(&stored, index) == *photo), "a photo has changed");
    let first = data(&stored, 0);
    assert!(
        (1..12).all(|index| std::sync::Arc::ptr_eq(&first, &data(&stored, index))),
        "the memory is not shared"
    );
    (before, size().await)
}

#[tokio::test]
async fn ten_messages_beside_one_photo_grow_the_log_by_less_than_one_photo() {
    let folder = Folder::new();
    let size = async || fs::metadata(folder.log(&id("a"))).unwrap().len();
    let (before, after) = sizes(&folder.quick_store().await, size).await;
    assert!(before > 2 * MEGABYTE as u64 && after - before < MEGABYTE as u64 / 10, "{before}, {after}");
}

#[tokio::test]
async fn log_contains_each_of_many_photos_once() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let photo = |seed| Content::from(Attachment::base64("image/png", base64(&bytes(seed, 18_000))));
    let message = Message::user((0..80).map(photo).collect::<Vec<_>>());
    let commit =
        |number| Commit::new(Some(node(number))).with_nodes([Node::new(node(number), None, message.clone())]);
    let version = create(&store, &id("a")).await;
    let version = write(&store, version, commit(1)).await;
    let before = fs::metadata(folder.log(&id("a"))).unwrap().len();
    write(&store, version, commit(2)).await;
    let grown = fs::metadata(folder.log(&id("a"))).unwrap().len() - before;
    assert!(grown < 24_000, "{grown} bytes were added, so a photo was written again");
    let stored = store.load(&id("a")).await.unwrap();
    assert!(stored.nodes.iter().all(|node| **node.message() == message));
}

/// Returns whether a file of the folder contains the bytes or their base64.
fn is_on_disk(folder: &Folder, bytes: &[u8]) -> bool {
    let (text, few) = (base64(&bytes[..900]), &bytes[..900]);
    folder.names().iter().any(|name| {
        let file = fs::read(folder.path().join(name)).unwrap();
        file.windows(few.len()).any(|part| part == few)
            || file.windows(text.len()).any(|part| part == text.as_bytes())
    })
}

/// Checks that the bytes of a photo are in the folder until the last of two messages is erased.
async fn erases(store: &dyn Store, folder: &Folder, first: u64, second: u64) {
    let bytes = bytes(7, 60_000);
    let photo = base64(&bytes);
    let mut version = create(store, &id("a")).await;
    if store.traits().turns {
        version = write(store, version, record(&photo)).await;
    }
    for number in 1..4 {
        let photo = if number == 3 { base64(&self::bytes(8, 60_000)) } else { photo.clone() };
        version = write(store, version, beside(number, "a text", &photo)).await;
    }
    let version = erase(store, version, first).await;
    assert!(is_on_disk(folder, &bytes), "another message needs the photo");
    let stored = store.load(&id("a")).await.unwrap();
    assert_eq!(*data(&stored, 0), *photo);
    erase(store, version, second).await;
    assert!(!is_on_disk(folder, &bytes), "the photo is still on the disk");
    assert!(is_on_disk(folder, &self::bytes(8, 60_000)), "the other photo stays");
    assert_eq!(store.load(&id("a")).await.unwrap().nodes.len(), 1);
}

#[tokio::test]
async fn erase_of_the_last_message_with_a_photo_removes_it_from_the_folder() {
    for (first, second) in [(1, 2), (2, 1)] {
        let folder = Folder::new();
        erases(&folder.quick_store().await, &folder, first, second).await;
    }
    let folder = Folder::new();
    let exclusive = omni_agent::store::FileSystemStore::builder(folder.path()).exclusive();
    erases(&exclusive.open().await.unwrap(), &folder, 1, 2).await;
}

#[tokio::test]
async fn discarded_record_leaves_its_photo_until_the_log_is_rewritten() {
    let folder = Folder::new();
    let exclusive = omni_agent::store::FileSystemStore::builder(folder.path()).exclusive();
    let store = exclusive.open().await.unwrap();
    let (gone, kept) = (bytes(1, 2_100_000), bytes(2, 60_000));
    let mut version = create(&store, &id("a")).await;
    version = write(&store, version, record(&base64(&gone))).await;
    version = write(&store, version, record(&base64(&kept))).await;
    // The line of the second record has the bytes to which this commit refers.
    version = write(&store, version, beside(1, "kept", &base64(&kept))).await;
    assert!(is_on_disk(&folder, &gone));
    let before = store.load(&id("a")).await.unwrap();
    assert!(!is_on_disk(&folder, &gone) && is_on_disk(&folder, &kept), "the load rewrites the log");
    let size = fs::metadata(folder.log(&id("a"))).unwrap().len();
    assert_eq!(store.load(&id("a")).await.unwrap(), before);
    assert_eq!(*data(&before, 0), *base64(&kept));
    assert_eq!(fs::metadata(folder.log(&id("a"))).unwrap().len(), size);
    write(&store, version, beside(2, "again", &base64(&kept))).await;
    assert!(fs::metadata(folder.log(&id("a"))).unwrap().len() < size + 1000, "the photo is found again");
}

/// A crash leaves the whole line of a write or a part of it. Its files are in this line.
#[tokio::test]
async fn log_cut_within_a_photo_drops_its_write() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let photos = [1, 2].map(|seed| base64(&bytes(seed, 18_000)));
    let version = create(&store, &id("a")).await;
    let version = write(&store, version, beside(1, "first", &photos[0])).await;
    let begin = fs::metadata(folder.log(&id("a"))).unwrap().len();
    let next = beside(2, "second", &photos[1]);
    write(&store, version, next.clone()).await;
    let log = fs::read(folder.log(&id("a"))).unwrap();
    let begin = usize::try_from(begin).unwrap();
    for cut in (begin..log.len()).step_by(997).chain([log.len() - 2, log.len() - 1]) {
        fs::write(folder.log(&id("a")), &log[..cut]).unwrap();
        let stored = store.load(&id("a")).await.unwrap();
        assert_eq!((stored.version, stored.nodes.len()), (version, 1), "cut at byte {cut}");
        // The write is repeated after the crash, as a whole.
        write(&store, version, next.clone()).await;
        let stored = store.load(&id("a")).await.unwrap();
        assert_eq!([*data(&stored, 0) == *photos[0], *data(&stored, 1) == *photos[1]], [true; 2]);
    }
    // A sector that a power failure has left empty is in the same line, too.
    let mut torn = log;
    let sector = (begin / 512 + 4) * 512;
    torn[sector..sector + 512].fill(0);
    fs::write(folder.log(&id("a")), &torn).unwrap();
    assert_eq!(store.load(&id("a")).await.unwrap().version, version);
}

fn is_damaged(loaded: &Result<Stored, StoreError>, node: &str) {
    let Err(StoreError::Damaged { place, problem, .. }) = &loaded else { panic!("{loaded:?}") };
    let text = format!("{place}: {problem}");
    assert!(text.contains(node) && text.contains("is missing, or it has other bytes"), "{text}");
}

/// The name of a file is 64 hexadecimal digits. Any other name is unknown.
#[tokio::test]
async fn log_with_other_files_is_damaged_at_the_node() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let version = create(&store, &id("a")).await;
    let version = write(&store, version, beside(1, "none", "")).await;
    write(&store, version, beside(2, "a photo", &base64(&bytes(1, 18_000)))).await;
    let log = fs::read_to_string(folder.log(&id("a"))).unwrap();
    let lines: Vec<_> = log.lines().collect();
    let record = lines[2].split_once(r#""record":"#).unwrap().1.strip_suffix('}').unwrap();
    let (files, change) = record.split_at(record.find(r#""change""#).unwrap());
    let name = files[11..75].to_owned();
    let other = base64(&bytes(2, 18_000));
    let hostile = [
        format!("{{{change}"),
        record.replacen(&name, &"0".repeat(64), 1),
        record.replacen(&name, &name.to_uppercase(), 1),
        format!(r#"{{"files":["{name}"],"data":["{other}"],{change}"#),
        format!(r#"{{"files":["{name}"],"data":["x"],{change}"#),
        format!(r#"{{"files":["{name}"],"data":[],{change}"#),
        format!(r#"{{"files":[],"data":["{other}"],{change}"#),
        format!("{files}{}", change.replace(&name, "../../../etc/passwd")),
    ];
    for record in hostile {
        fs::write(folder.log(&id("a")), lines[..2].join("\n") + "\n" + &line(&record)).unwrap();
        is_damaged(&store.load(&id("a")).await, "node 2: ");
        assert!(store.delete(&id("a"), None).await.is_ok());
    }
    for files in
        [r#"{"files":["#, r#"{"files":7,"#, r#"{"files":[],"more":[],"#, r#"{"files":[7],"data":[7],"#]
    {
        let record = format!("{files}{change}");
        fs::write(folder.log(&id("a")), lines[..2].join("\n") + "\n" + &line(&record)).unwrap();
        let loaded = store.load(&id("a")).await;
        assert!(matches!(loaded, Err(StoreError::Damaged { .. })), "{loaded:?}");
        assert!(store.delete(&id("a"), None).await.is_ok());
    }
}

/// No JSON from outside can refer to bytes in a store, even if it knows their name.
#[tokio::test]
async fn import_with_a_reference_is_refused() {
    let store = MemoryStore::new();
    let version = create(&store, &id("a")).await;
    write(&store, version, beside(1, "none", "QQ==")).await;
    let document = export_json(&store, &id("a")).await.unwrap();
    let reference = format!(r#"{{"type":"file","sha256":"{}"}}"#, "a".repeat(64));
    let mut document: serde_json::Value = serde_json::from_str(&document).unwrap();
    let source = document.pointer_mut("/conversation/nodes/0/message/content/1/source").unwrap();
    assert_eq!(*source, json!({ "type": "base64", "data": "QQ==" }));
    *source = serde_json::from_str(&reference).unwrap();
    let folder = Folder::new();
    let imported = import_json(&folder.quick_store().await, &document.to_string(), None).await;
    let Err(StoreError::Damaged { problem, .. }) = &imported else { panic!("{imported:?}") };
    assert!(problem.contains("unknown variant `file`, expected `base64` or `url`"), "{problem}");
    assert!(serde_json::from_str::<Source>(&reference).is_err());
}

#[tokio::test]
async fn copies_between_all_stores_keep_photos() {
    let folders = [(); 3].map(|()| Folder::new());
    let mut stores: Vec<Box<dyn Store>> = vec![Box::new(folders[0].quick_store().await)];
    stores.push(Box::new(MemoryStore::new()));
    #[cfg(feature = "sqlite")]
    stores.push(Box::new(crate::sqlite::quick(&folders[1]).await));
    #[cfg(feature = "postgres")]
    if let Some(url) = crate::postgres::server::url() {
        stores.push(Box::new(crate::postgres::server::fresh(url).open().await.unwrap()));
    }
    stores.push(Box::new(folders[2].quick_store().await));
    let photo = base64(&bytes(1, 2 * MEGABYTE / 3 * 3));
    let mut version = create(&*stores[0], &id("a")).await;
    for number in 1..8 {
        version = write(&*stores[0], version, beside(number, "a text", &photo)).await;
    }
    // An import accepts no path that ends with a prompt.
    write(&*stores[0], version, Commit::new(None)).await;
    let exported = export_json(&*stores[0], &id("a")).await.unwrap();
    let first = stores[0].load(&id("a")).await.unwrap();
    for pair in stores.windows(2) {
        for copies in [1, 0] {
            let copied = copy(&*pair[0], &*pair[1], |_, _| {}).await;
            assert!(copied.is_complete() && copied.copied == copies, "{copied:?}");
        }
        let copied = pair[1].load(&id("a")).await.unwrap();
        assert!(
            serde_json::to_string(&copied.nodes).unwrap() == serde_json::to_string(&first.nodes).unwrap()
        );
    }
    let last = fs::metadata(folders[2].log(&id("a"))).unwrap().len();
    assert!(last < 3 * MEGABYTE as u64, "the photo is stored more than once: {last} bytes");
    let imported = MemoryStore::new();
    import_json(&imported, &exported, None).await.unwrap();
    assert!(imported.load(&id("a")).await.unwrap().nodes == first.nodes);
}

#[cfg(feature = "sqlite")]
mod in_sqlite {
    use super::*;
    use crate::sqlite::{quick, raw};

    fn counts(folder: &Folder) -> [i64; 2] {
        ["files", "file_uses"].map(|table| {
            let count = format!("SELECT count(*) FROM {table}");
            raw(folder).query_row(&count, [], |row| row.get(0)).unwrap()
        })
    }

    #[tokio::test]
    async fn ten_messages_beside_one_photo_grow_the_file_by_less_than_one_photo() {
        let folder = Folder::new();
        let store = quick(&folder).await;
        // Emptying the log leaves only the file.
        let size = async || {
            raw(&folder).execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
            folder.names().iter().map(|name| fs::metadata(folder.path().join(name)).unwrap().len()).sum()
        };
        let (before, after) = sizes(&store, size).await;
        assert!(before > 2 * MEGABYTE as u64 && after - before < MEGABYTE as u64 / 10, "{before}, {after}");
        assert_eq!(counts(&folder), [1, 12], "the references of records are removed");
    }

    #[tokio::test]
    async fn erase_of_the_last_message_with_a_photo_removes_it_from_the_file() {
        for (first, second) in [(1, 2), (2, 1)] {
            let folder = Folder::new();
            erases(&quick(&folder).await, &folder, first, second).await;
            assert_eq!(counts(&folder), [1, 1]);
        }
    }

    #[tokio::test]
    async fn end_of_a_turn_or_of_a_conversation_removes_its_photo() {
        let folder = Folder::new();
        let store = quick(&folder).await;
        let photos = [1, 2].map(|seed| base64(&bytes(seed, 18_000)));
        let version = create(&store, &id("a")).await;
        let version = write(&store, version, record(&photos[0])).await;
        assert_eq!(counts(&folder), [1, 1]);
        let version = write(&store, version, beside(1, "another", &photos[1])).await;
        assert_eq!(counts(&folder), [1, 1], "the turn is over");
        write(&store, version, beside(2, "another", &photos[0])).await;
        assert_eq!(counts(&folder), [2, 2]);
        store.delete(&id("a"), None).await.unwrap();
        assert_eq!(counts(&folder), [0, 0]);
    }

    #[tokio::test]
    async fn file_that_is_missing_or_has_other_bytes_is_damage_at_the_node() {
        for change in
            ["UPDATE files SET bytes = x'00'", "UPDATE files SET digest = '../x'", "DELETE FROM files"]
        {
            let folder = Folder::new();
            let store = quick(&folder).await;
            let photo = base64(&bytes(1, 18_000));
            let version = create(&store, &id("a")).await;
            let version = write(&store, version, beside(1, "none", "")).await;
            let version = write(&store, version, beside(2, "a photo", &photo)).await;
            raw(&folder).execute_batch(change).unwrap();
            is_damaged(&store.load(&id("a")).await, "node 2 ");
            // The damage ends with the message.
            erase(&store, version, 2).await;
            assert_eq!(store.load(&id("a")).await.unwrap().nodes.len(), 1);
        }
    }

    #[tokio::test]
    async fn search_finds_the_text_beside_a_photo() {
        let folder = Folder::new();
        let file = crate::sqlite::file(&folder);
        let store = omni_agent::store::SqliteStore::builder(file).search(true).open().await.unwrap();
        let version = create(&store, &id("a")).await;
        write(&store, version, beside(1, "a blue lake", &base64(&bytes(1, 300_000)))).await;
        // Of a few matching texts, all are sorted. Among many, the conversations are examined one by one.
        for others in [0, 20_001] {
            let texts = format!(
                "BEGIN; INSERT INTO texts (conversation, version, place)
                 WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {others})
                 SELECT 0, n, 0 FROM numbers WHERE n <= {others};
                 INSERT INTO words (rowid, text) SELECT key, ' lake ' FROM texts WHERE conversation = 0; COMMIT"
            );
            crate::sqlite::raw(&folder).execute_batch(&texts).unwrap();
            let found = store.search(&"lake".parse().unwrap(), &omni_agent::store::Listing::default()).await;
            assert_eq!(found.unwrap().hits[0].excerpt, "a blue lake");
        }
    }
}

#[cfg(feature = "postgres")]
mod in_postgres {
    use super::*;
    use crate::postgres::server::{fresh, raw, url};

    #[tokio::test]
    async fn ten_messages_beside_one_photo_grow_the_tables_by_less_than_one_photo() {
        let Some(url) = url() else { return };
        let store = fresh(url).open().await.unwrap();
        let client = raw(url).await;
        let schema = format!("\"{}\"", store.schema().replace('"', "\"\""));
        let all = "SELECT coalesce(sum(pg_total_relation_size(pg_class.oid)), 0)::bigint FROM pg_class
             JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = $1 AND relkind = 'r'";
        let size = async || {
            let size: i64 = client.query_one(all, &[&store.schema()]).await.unwrap().get(0);
            size.unsigned_abs()
        };
        let counts = async || {
            let count = format!(
                "SELECT (SELECT count(*) FROM {schema}.files), (SELECT count(*) FROM {schema}.file_uses)"
            );
            let row = client.query_one(&count, &[]).await.unwrap();
            [row.get::<_, i64>(0), row.get::<_, i64>(1)]
        };
        let (before, after) = sizes(&store, &size).await;
        assert!(before > 2 * MEGABYTE as u64 && after - before < 2 * MEGABYTE as u64, "{before}, {after}");
        assert_eq!(counts().await, [1, 12], "the references of records are removed");

        // The bytes go with the last message, and with the end of a turn.
        let mut version = store.summary(&id("a")).await.unwrap().version;
        for (number, left) in (1..13).zip((0..12).rev()) {
            version = erase(&store, version, number).await;
            assert_eq!(counts().await, [i64::from(left > 0), left]);
        }
        let photos = [1, 2].map(|seed| base64(&bytes(seed, 18_000)));
        let version = write(&store, version, record(&photos[0])).await;
        assert_eq!(counts().await, [1, 1]);
        let version = write(&store, version, beside(60, "another", &photos[1])).await;
        assert_eq!(counts().await, [1, 1], "the turn is over");
        client.batch_execute(&format!("UPDATE {schema}.files SET bytes = '\\x00'")).await.unwrap();
        is_damaged(&store.load(&id("a")).await, "node 60 ");
        let version = erase(&store, version, 60).await;
        write(&store, version, beside(61, "another", &photos[1])).await;
        assert_eq!(*data(&store.load(&id("a")).await.unwrap(), 0), *photos[1]);
        store.delete(&id("a"), None).await.unwrap();
        assert_eq!(counts().await, [0, 0]);
    }
}
