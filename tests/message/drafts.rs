//! Random histories: valid histories with a few random faults.

use omni_agent::message::{Content, History, Message, Role, Timestamp, ToolResult, ToolUse};
use proptest::{collection::vec, prelude::*};
use serde_json::json;

const IDS: [&str; 3] = ["a", "b", "c"];

pub(crate) fn uses(id: &str) -> ToolUse {
    ToolUse::new(id, "tool", json!({}))
}

/// A block of a draft. Each result and each text block has a different text, so that the blocks can be told apart.
#[derive(Clone, Copy, Debug)]
enum Block {
    Text,
    Use(usize),
    Result(usize),
}

fn block() -> impl Strategy<Value = Block> {
    prop_oneof![
        Just(Block::Text),
        (0..IDS.len()).prop_map(Block::Use),
        (0..IDS.len()).prop_map(Block::Result)
    ]
}

type Draft = Vec<(Role, Vec<Block>)>;

/// Returns a valid exchange: a prompt, some tool uses, and their results in any order. There may be a text among the
/// results, and an answer at the end.
fn exchange() -> impl Strategy<Value = Draft> {
    let ids = Just(vec![0, 1, 2]).prop_shuffle();
    (ids, 0..=IDS.len(), 0usize..15, any::<bool>(), any::<bool>()).prop_map(
        |(mut ids, count, order, text, answer)| {
            ids.truncate(count);
            let mut asked: Vec<Block> = ids.iter().map(|&id| Block::Use(id)).collect();
            asked.insert(0, Block::Text);
            let mut draft = vec![(Role::User, vec![Block::Text]), (Role::Assistant, asked)];
            if !ids.is_empty() {
                let turn = order % ids.len();
                ids.rotate_left(turn);
                let mut results: Vec<Block> = ids.iter().map(|&id| Block::Result(id)).collect();
                if text {
                    results.insert(order % (results.len() + 1), Block::Text);
                }
                draft.push((Role::User, results));
            }
            if answer {
                draft.push((Role::Assistant, vec![Block::Text]));
            }
            draft
        },
    )
}

/// A fault to add to a history. Its positions are taken modulo the number of elements.
#[derive(Clone, Debug)]
enum Harm {
    DropMessage(usize),
    DropBlock(usize, usize),
    AddBlock(usize, usize, Block),
    RepeatBlock(usize, usize, usize),
    MoveBlock(usize, usize, usize),
    SplitMessage(usize, usize),
    SwapMessages(usize, usize),
    Turn(usize),
    Cut(usize),
}

fn harm() -> impl Strategy<Value = Harm> {
    let n = || any::<prop::sample::Index>().prop_map(|index| index.index(1 << 20));
    prop_oneof![
        n().prop_map(Harm::DropMessage),
        (n(), n()).prop_map(|(m, b)| Harm::DropBlock(m, b)),
        (n(), n(), block()).prop_map(|(m, b, block)| Harm::AddBlock(m, b, block)),
        (n(), n(), n()).prop_map(|(m, b, to)| Harm::RepeatBlock(m, b, to)),
        (n(), n(), n()).prop_map(|(m, b, to)| Harm::MoveBlock(m, b, to)),
        (n(), n()).prop_map(|(m, b)| Harm::SplitMessage(m, b)),
        (n(), n()).prop_map(|(a, b)| Harm::SwapMessages(a, b)),
        n().prop_map(Harm::Turn),
        n().prop_map(Harm::Cut),
    ]
}

fn inflict(draft: &mut Draft, harm: &Harm) {
    if draft.is_empty() {
        return;
    }
    let count = draft.len();
    match *harm {
        Harm::DropMessage(m) => {
            draft.remove(m % count);
        }
        Harm::DropBlock(m, b) => {
            let blocks = &mut draft[m % count].1;
            if !blocks.is_empty() {
                blocks.remove(b % blocks.len());
            }
        }
        Harm::AddBlock(m, b, block) => {
            let blocks = &mut draft[m % count].1;
            blocks.insert(b % (blocks.len() + 1), block);
        }
        Harm::RepeatBlock(m, b, to) | Harm::MoveBlock(m, b, to) => {
            let blocks = &mut draft[m % count].1;
            if blocks.is_empty() {
                return;
            }
            let at = b % blocks.len();
            let block = if matches!(harm, Harm::MoveBlock(..)) { blocks.remove(at) } else { blocks[at] };
            draft[to % count].1.push(block);
        }
        Harm::SplitMessage(m, b) => {
            let (role, blocks) = &mut draft[m % count];
            let rest = blocks.split_off(b % (blocks.len() + 1));
            let role = *role;
            draft.insert(m % count + 1, (role, rest));
        }
        Harm::SwapMessages(a, b) => draft.swap(a % count, b % count),
        Harm::Turn(m) => {
            let role = &mut draft[m % count].0;
            *role = if *role == Role::User { Role::Assistant } else { Role::User };
        }
        Harm::Cut(m) => draft.truncate(m % count),
    }
}

fn build(draft: Draft) -> History {
    let mut number = 0;
    let mut distinct = || {
        number += 1;
        format!("#{number}")
    };
    let messages = draft.into_iter().zip(0..).map(|((role, blocks), time)| {
        let content: Vec<Content> = blocks
            .into_iter()
            .map(|block| match block {
                Block::Text => Content::from(distinct()),
                Block::Use(id) => ToolUse::new(IDS[id], "tool", json!({ "n": distinct() })).into(),
                Block::Result(id) => ToolResult::ok(&uses(IDS[id]), distinct()).into(),
            })
            .collect();
        let mut message = Message::new(role, content);
        message.timestamp = Timestamp(time);
        message
    });
    messages.collect()
}

pub(crate) fn any_history() -> impl Strategy<Value = History> {
    (vec(exchange(), 0..4), vec(harm(), 0..4)).prop_map(|(exchanges, harms)| {
        let mut draft: Draft = exchanges.into_iter().flatten().collect();
        for harm in harms {
            inflict(&mut draft, &harm);
        }
        build(draft)
    })
}
