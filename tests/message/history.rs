//! `History` compared with a plain vector.

use std::sync::Arc;

use omni_agent::message::{History, Message, Timestamp};
use proptest::{collection::vec, prelude::*};

fn message(number: u64) -> Arc<Message> {
    let mut message = Message::user("");
    message.timestamp = Timestamp(number);
    Arc::new(message)
}

fn numbered(count: u64) -> Vec<Arc<Message>> {
    (0..count).map(message).collect()
}

/// Compares the contents through every way of reading a history.
fn assert_holds(history: &History, expected: &[Arc<Message>]) {
    assert_eq!(history.len(), expected.len());
    assert_eq!(history.is_empty(), expected.is_empty());
    assert_eq!(history.iter().len(), expected.len());
    assert!(history.iter().zip(expected).all(|(a, b)| Arc::ptr_eq(a, b)), "forward");
    assert_eq!(history.iter().fold(0, |count, _| count + 1), expected.len());
    assert!(history.iter().rev().zip(expected.iter().rev()).all(|(a, b)| Arc::ptr_eq(a, b)), "backward");
    assert_eq!(history.iter().rev().fold(0, |count, _| count + 1), expected.len());
    assert!((0..expected.len()).all(|index| Arc::ptr_eq(history.get(index).unwrap(), &expected[index])));
    assert!(history.get(expected.len()).is_none());
    assert!(history.get(usize::MAX).is_none());
    assert_eq!(history.first(), expected.first());
    assert_eq!(history.last(), expected.last());
}

#[derive(Clone, Debug)]
enum Step {
    Push,
    Extend(u16),
    /// Keeps a clone of the history. The clone is compared at the end.
    Keep,
    /// Continues with the n-th kept clone, and keeps the current history in its place.
    Swap(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Push),
        3 => (0u16..80).prop_map(Step::Extend),
        1 => (900u16..1100).prop_map(Step::Extend),
        2 => Just(Step::Keep),
        2 => any::<usize>().prop_map(Step::Swap),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Read {
    Next,
    Back,
    Nth(usize),
    NthBack(usize),
}

fn read() -> impl Strategy<Value = Read> {
    prop_oneof![
        4 => Just(Read::Next),
        4 => Just(Read::Back),
        1 => (0usize..70).prop_map(Read::Nth),
        1 => (0usize..70).prop_map(Read::NthBack),
    ]
}

proptest! {
    #[test]
    fn random_operations_on_clones_match_a_vector_each(steps in vec(step(), 0..40)) {
        let mut number = 0;
        let mut next = move || { number += 1; message(number) };
        let (mut history, mut expected) = (History::new(), Vec::new());
        let mut kept: Vec<(History, Vec<Arc<Message>>)> = Vec::new();
        for step in steps {
            match step {
                Step::Push => {
                    let message = next();
                    history.push(Arc::clone(&message));
                    expected.push(message);
                }
                Step::Extend(count) => {
                    let more: Vec<_> = (0..count).map(|_| next()).collect();
                    history.extend(more.iter().cloned());
                    expected.extend(more);
                }
                Step::Keep => {
                    let clone = history.clone();
                    prop_assert!(clone.same(&history));
                    kept.push((clone, expected.clone()));
                }
                Step::Swap(n) if !kept.is_empty() => {
                    let at = n % kept.len();
                    let (other, others) = std::mem::replace(&mut kept[at], (history, expected));
                    (history, expected) = (other, others);
                }
                Step::Swap(_) => {}
            }
        }
        kept.push((history, expected));
        for (history, expected) in &kept {
            assert_holds(history, expected);
        }
        // Each number is used only once, so two histories here have equal content only if they contain the same
        // messages.
        for (a, numbers_a) in &kept {
            for (b, numbers_b) in &kept {
                prop_assert_eq!(a == b, numbers_a == numbers_b);
                prop_assert!(!a.same(b) || numbers_a == numbers_b);
            }
        }
    }

    #[test]
    fn iterating_from_both_ends_matches_a_slice(count in 0u64..200, reads in vec(read(), 0..250)) {
        let expected = numbered(count);
        let history: History = expected.iter().cloned().collect();
        let (mut ours, mut theirs) = (history.iter(), expected.iter());
        for read in reads {
            let (a, b) = match read {
                Read::Next => (ours.next(), theirs.next()),
                Read::Back => (ours.next_back(), theirs.next_back()),
                Read::Nth(n) => (ours.nth(n), theirs.nth(n)),
                Read::NthBack(n) => (ours.nth_back(n), theirs.nth_back(n)),
            };
            prop_assert_eq!(a.map(Arc::as_ptr), b.map(Arc::as_ptr));
            prop_assert_eq!(ours.len(), theirs.len());
            prop_assert_eq!(ours.size_hint(), theirs.size_hint());
        }
        prop_assert_eq!(ours.clone().last(), theirs.clone().last());
        prop_assert_eq!(ours.clone().count(), theirs.len());
        prop_assert!(ours.eq(theirs));
    }
}

#[test]
fn push_across_every_level_keeps_earlier_messages() {
    let sizes = [
        0, 1, 31, 32, 33, 63, 64, 1023, 1024, 1025, 1055, 1056, 1057, 32_767, 32_768, 32_769, 32_800, 40_000,
    ];
    let all = numbered(40_000);
    let mut history = History::new();
    let mut clones = Vec::new();
    for size in sizes {
        history.extend(all[history.len()..size].iter().cloned());
        assert_holds(&history, &all[..size]);
        clones.push(history.clone());
    }
    for (clone, size) in clones.iter().zip(sizes) {
        assert_holds(clone, &all[..size]);
    }
}

#[test]
fn push_beyond_a_million_keeps_every_message() {
    const COUNT: usize = 32 * 32 * 32 * 32 + 40;
    let pool = numbered(1009);
    let history: History = (0..COUNT).map(|index| Arc::clone(&pool[index % pool.len()])).collect();
    assert_eq!(history.len(), COUNT);
    assert!(
        history.iter().enumerate().all(|(index, message)| Arc::ptr_eq(message, &pool[index % pool.len()]))
    );
    for index in [0, 31, 32, 1_048_575, 1_048_576, COUNT - 1] {
        assert!(Arc::ptr_eq(history.get(index).unwrap(), &pool[index % pool.len()]));
    }
}

#[test]
fn clone_shares_every_message() {
    let history: History = numbered(5_000).into_iter().collect();
    let clone = history.clone();
    assert!(clone.same(&history));
    assert!((0..5_000).all(|index| Arc::ptr_eq(clone.get(index).unwrap(), history.get(index).unwrap())));
    // The trie is the only owner of each message, no matter how many clones of the history exist. Cloning did not even
    // copy the pointers to the messages.
    assert_eq!(Arc::strong_count(clone.get(0).unwrap()), 1);
    assert_eq!(Arc::strong_count(clone.get(4_999).unwrap()), 1);
}

#[test]
fn push_on_a_clone_copies_only_the_last_run() {
    let history: History = numbered(5_000).into_iter().collect();
    let mut clone = history.clone();
    clone.push(message(5_000));
    let shared_alone =
        (0..5_000).filter(|&index| Arc::strong_count(history.get(index).unwrap()) == 1).count();
    assert_eq!(shared_alone, 5_000 - 5_000 % 32);
}

#[test]
fn same_after_a_push_is_false() {
    for count in [0, 5, 31, 32, 1024] {
        let history: History = numbered(count).into_iter().collect();
        let (mut a, mut b) = (history.clone(), history.clone());
        let message = message(count);
        a.push(Arc::clone(&message));
        b.push(message);
        assert!(!a.same(&history) && !history.same(&a), "{count}");
        assert!(!a.same(&b), "equal content, but pushed separately: {count}");
        assert_eq!(a, b);
        assert_ne!(a, history);
    }
}

#[test]
fn same_of_equal_but_separate_histories_is_false() {
    let (a, b) = (History::from_iter([Message::user("a")]), History::from_iter([Message::user("a")]));
    assert!(!a.same(&b));
    assert!(History::new().same(&History::default()));
}

#[test]
fn new_history_owns_no_memory() {
    // A value made at compile time cannot own memory on the heap.
    const EMPTY: History = History::new();
    assert!(EMPTY.is_empty());
    assert!(size_of::<History>() <= 4 * size_of::<usize>());
    assert_eq!(EMPTY.iter().next(), None);
    assert_eq!(EMPTY.iter().next_back(), None);
}

#[test]
fn extend_with_a_clone_of_itself_keeps_both() {
    let mut history: History = numbered(40).into_iter().collect();
    let again = history.clone();
    history.extend(again.iter().cloned());
    assert_eq!(history.len(), 80);
    assert!(history.iter().take(40).eq(history.iter().skip(40)));
}

#[test]
fn debug_lists_the_messages() {
    let history = History::from_iter([Message::user("one"), Message::assistant("two")]);
    let debug = format!("{history:?}");
    assert!(debug.starts_with('[') && debug.contains("one") && debug.contains("two"), "{debug}");
    assert!(!format!("{:?}", history.iter().skip(1)).is_empty());
}
