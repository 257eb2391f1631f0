//! One member: commands in; out comes what is to be written, sent and applied.

use crate::log::{conf_state, config_of, numbers, Log};
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, Entry, EntryType, HardState, Message,
    MessageType, Snapshot,
};
use raft::{Config, RawNode, SnapshotStatus, StateRole, Storage};
use serde_json::{json, Value};
use std::collections::VecDeque;

const TYPES: [MessageType; 10] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgTimeoutNow,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
];

/// What may be said when the writes before it are durable.
struct Kept {
    number: u64,
    writes: bool,
    /// The index of a state that is among them.
    state: Option<u64>,
    messages: Vec<Message>,
}

pub struct Member {
    node: RawNode<Log>,
    kept: VecDeque<Kept>,
    /// What came of a command, so far.
    writes: Vec<Value>,
    messages: Vec<Value>,
    reads: Vec<Value>,
    committed: u64,
}

impl Member {
    /// `about`: what is durable: `{hard: [term, vote, commit], base: [index, term, config], entries, size}`.
    pub fn start(me: u64, about: &Value) -> Member {
        let [term, vote, commit] = numbers(&about["hard"])[..] else { panic!("three numbers") };
        let mut hard = HardState::default();
        (hard.term, hard.vote, hard.commit) = (term, vote, commit);
        let base = &about["base"];
        let mut log = Log {
            hard,
            base: (base[0].as_u64().unwrap(), base[1].as_u64().unwrap()),
            entries: Vec::new(),
            configs: vec![(base[0].as_u64().unwrap(), conf_state(&base[2]))],
        };
        log.append(&entries_of(log.base.0 + 1, &about["entries"]));
        let committed = log.base.0;
        let config = Config {
            id: me,
            election_tick: 10,
            heartbeat_tick: 1,
            applied: committed,
            max_size_per_msg: about["size"].as_u64().unwrap(),
            check_quorum: true,
            pre_vote: true,
            ..Default::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&config, log, &logger).expect("a member");
        Member {
            node,
            kept: VecDeque::new(),
            writes: Vec::new(),
            messages: Vec::new(),
            reads: Vec::new(),
            committed,
        }
    }

    pub fn carry_out(&mut self, what: &str, command: &Value) {
        let node = &mut self.node;
        let argument = &command[2];
        match what {
            // Answers of members that it does not know, and what its state has no use for, are errors to `raft`.
            "step" => {
                let message = message_of(argument);
                let stands = message.get_msg_type() == MessageType::MsgTimeoutNow;
                if !(stands && self.kept.iter().any(|kept| kept.state.is_some())) {
                    drop(node.step(message));
                }
            }
            "propose" => {
                for payload in argument.as_array().unwrap() {
                    node.propose(Vec::new(), bytes(payload)).expect("a leader that takes proposals");
                }
            }
            "change" => {
                let mut change = ConfChangeV2::default();
                change.set_changes(vec![single(argument)].into());
                node.propose_conf_change(bytes(&command[3]), change).expect("a leader");
            }
            "transfer" => node.transfer_leader(argument.as_u64().unwrap()),
            "keep" => node.raft.abort_leader_transfer(),
            "read" => node.read_index(argument.as_u64().unwrap().to_le_bytes().to_vec()),
            // Not while a state is being written: `raft` looks for entries that it has in place of.
            "campaign" if self.kept.iter().any(|kept| kept.state.is_some()) => {}
            // Nor of a sole voter with entries that are being written: it is elected at once, and `raft` takes
            // for granted that its log is durable then.
            "campaign"
                if node.raft.prs().is_singleton()
                    && node.raft.raft_log.persisted < node.raft.raft_log.last_index() => {}
            "campaign" => node.campaign().expect("it may always be asked to"),
            // In place of an election timeout: it knows no leader, and holds to none.
            "lose" => node.raft.leader_id = raft::INVALID_ID,
            "ping" => node.ping(),
            "quorum" => {
                let alive = numbers(argument);
                for (id, progress) in node.raft.mut_prs().iter_mut() {
                    progress.recent_active = alive.contains(id);
                }
                let mut question = Message::default();
                question.set_msg_type(MessageType::MsgCheckQuorum);
                node.raft.step(question).expect("it may always be asked");
            }
            "unreachable" => node.report_unreachable(argument.as_u64().unwrap()),
            "sent" => {
                let arrived = command[3].as_bool().unwrap();
                let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
                node.report_snapshot(argument.as_u64().unwrap(), status);
            }
            "durable" => self.durable(argument.as_u64().unwrap()),
            "compact" => node.mut_store().compact(argument.as_u64().unwrap()),
            _ => panic!("{what} is no command"),
        }
    }

    fn durable(&mut self, number: u64) {
        let (mut last, mut state) = (0, None);
        while self.kept.front().is_some_and(|kept| kept.number <= number || !kept.writes) {
            let kept = self.kept.pop_front().unwrap();
            last = kept.number;
            state = kept.state.or(state);
            self.messages.extend(kept.messages.iter().map(message_as));
        }
        if last > 0 {
            self.node.on_persist_ready(last);
        }
        if let Some(index) = state {
            self.committed = self.committed.max(index);
            self.node.advance_apply_to(index);
        }
    }

    /// All that is to be done since the last command.
    pub fn done(&mut self) -> Value {
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            let number = ready.number();
            self.messages.extend(ready.take_messages().iter().map(message_as));
            for read in ready.take_read_states() {
                let token = u64::from_le_bytes(read.request_ctx.try_into().unwrap());
                self.reads.push(json!([token, read.index]));
            }
            let committed = ready.take_committed_entries();
            let entries = ready.take_entries();
            let snapshot = (ready.snapshot() != &Snapshot::default()).then(|| ready.snapshot().clone());
            let hard = ready.hs().cloned();
            let writes = ready.must_sync();
            if let Some(hard) = &hard {
                self.node.mut_store().hard = hard.clone();
            }
            if let Some(snapshot) = &snapshot {
                self.node.mut_store().install(snapshot);
            }
            self.node.mut_store().append(&entries);
            if writes {
                let hard = &self.node.store().hard;
                self.writes.push(json!({
                    "number": number,
                    "hard": [hard.term, hard.vote, hard.commit],
                    "snapshot": snapshot.as_ref().map(snapshot_as),
                    "entries": entries.iter().map(entry_as).collect::<Vec<_>>(),
                    "first": entries.first().map(|entry| entry.index),
                }));
            }
            let messages = ready.take_persisted_messages();
            let state = snapshot.map(|snapshot| snapshot.get_metadata().index);
            self.kept.push_back(Kept { number, writes, state, messages });
            self.node.advance_append_async(ready);
            self.follow_configs(&entries);
            if let Some(last) = committed.last() {
                self.committed = last.index;
                self.node.advance_apply_to(last.index);
            }
            self.durable(0);
        }
        self.answer()
    }

    /// Have the configuration in force that the log says, step by step.
    fn follow_configs(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        let steps: Vec<ConfState> = {
            let configs = &self.node.store().configs;
            let before = configs.iter().rposition(|(index, _)| *index < first.index).unwrap_or(0);
            configs[before..].iter().map(|(_, config)| config.clone()).collect()
        };
        // The first undoes what was cut off; with nothing cut off it changes nothing.
        for wanted in steps {
            self.take_config(&wanted);
        }
    }

    fn take_config(&mut self, wanted: &ConfState) {
        let now = self.node.raft.prs().conf().to_conf_state();
        let mut changes: Vec<(ConfChangeType, u64)> = Vec::new();
        for voter in wanted.voters.iter().filter(|each| !now.voters.contains(each)) {
            changes.push((ConfChangeType::AddNode, *voter));
        }
        for learner in wanted.learners.iter().filter(|each| !now.learners.contains(each)) {
            changes.push((ConfChangeType::AddLearnerNode, *learner));
        }
        let all = now.voters.iter().chain(&now.learners);
        for gone in all.filter(|each| !wanted.voters.contains(each) && !wanted.learners.contains(each)) {
            changes.push((ConfChangeType::RemoveNode, *gone));
        }
        for (kind, member) in changes {
            let mut one = ConfChangeSingle { node_id: member, ..Default::default() };
            one.set_change_type(kind);
            let mut change = ConfChangeV2::default();
            change.set_changes(vec![one].into());
            self.node.apply_conf_change(&change).expect("a change of one member");
        }
    }

    fn answer(&mut self) -> Value {
        let raft = &self.node.raft;
        let role = match raft.state {
            StateRole::Follower => "follower",
            StateRole::PreCandidate => "pre-candidate",
            StateRole::Candidate => "candidate",
            StateRole::Leader => "leader",
        };
        let peers: Vec<Value> = match raft.state {
            StateRole::Leader => {
                let others = raft.prs().iter().filter(|(id, _)| **id != raft.id);
                let mut all: Vec<_> = others.map(|(id, at)| (*id, at.matched, at.committed_index)).collect();
                all.sort_unstable();
                all.into_iter().map(|at| json!(at)).collect()
            }
            _ => Vec::new(),
        };
        json!({
            "writes": std::mem::take(&mut self.writes),
            "messages": std::mem::take(&mut self.messages),
            "reads": std::mem::take(&mut self.reads),
            "apply": self.committed,
            "role": role,
            "leader": raft.leader_id,
            "hard": [raft.term, raft.vote, raft.raft_log.committed],
            "last": self.node.store().last(),
            "handing": raft.lead_transferee.is_some(),
            "config": config_of(&raft.prs().conf().to_conf_state()),
            "peers": peers,
            "base": self.node.store().first_index().unwrap() - 1,
        })
    }
}

fn single(change: &Value) -> ConfChangeSingle {
    let mut one = ConfChangeSingle { node_id: change[1].as_u64().unwrap(), ..Default::default() };
    one.set_change_type(match change[0].as_str().unwrap() {
        "Add" => ConfChangeType::AddLearnerNode,
        "Promote" => ConfChangeType::AddNode,
        "Remove" => ConfChangeType::RemoveNode,
        other => panic!("{other} is no change"),
    });
    one
}

fn bytes(text: &Value) -> Vec<u8> {
    text.as_str().expect("text").as_bytes().to_vec()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// An entry: `[term, kind, payload]`; kinds are empty 0, command 1, configuration 2.
fn entry_as(entry: &Entry) -> Value {
    match entry.get_entry_type() {
        EntryType::EntryConfChangeV2 => json!([entry.term, 2, text(&entry.context)]),
        EntryType::EntryNormal if entry.data.is_empty() => json!([entry.term, 0, ""]),
        EntryType::EntryNormal => json!([entry.term, 1, text(&entry.data)]),
        EntryType::EntryConfChange => panic!("an entry that was not asked for"),
    }
}

fn entries_of(first: u64, list: &Value) -> Vec<Entry> {
    let list = list.as_array().expect("entries").iter();
    list.zip(first..)
        .map(|(each, index)| {
            let mut entry = Entry { term: each[0].as_u64().unwrap(), index, ..Default::default() };
            match each[1].as_u64().unwrap() {
                2 => {
                    entry.set_entry_type(EntryType::EntryConfChangeV2);
                    entry.context = bytes(&each[2]).into();
                }
                _ => entry.data = bytes(&each[2]).into(),
            }
            entry
        })
        .collect()
}

/// A snapshot: `[index, term, configuration, state]`.
fn snapshot_as(snapshot: &Snapshot) -> Value {
    let metadata = snapshot.get_metadata();
    json!([metadata.index, metadata.term, config_of(metadata.get_conf_state()), text(&snapshot.data)])
}

fn message_as(message: &Message) -> Value {
    json!({
        "type": message.get_msg_type() as i32,
        "to": message.to,
        "from": message.from,
        "term": message.term,
        "log_term": message.log_term,
        "index": message.index,
        "entries": message.entries.iter().map(entry_as).collect::<Vec<_>>(),
        "commit": message.commit,
        "reject": message.reject,
        "reject_hint": message.reject_hint,
        "context": match message.get_context().try_into() {
            Ok(token) => u64::from_le_bytes(token),
            Err(_) => 0,
        },
    })
}

fn message_of(value: &Value) -> Message {
    let number = |name: &str| value[name].as_u64().unwrap_or(0);
    let mut message = Message {
        to: number("to"),
        from: number("from"),
        term: number("term"),
        log_term: number("log_term"),
        index: number("index"),
        commit: number("commit"),
        reject: value["reject"].as_bool().unwrap_or(false),
        reject_hint: number("reject_hint"),
        ..Default::default()
    };
    let kind = TYPES.into_iter().find(|each| *each as u64 == number("type")).expect("a type of message");
    message.set_msg_type(kind);
    if value["entries"].is_array() {
        message.entries = entries_of(message.index + 1, &value["entries"]).into();
    }
    if number("context") > 0 {
        message.context = number("context").to_le_bytes().to_vec().into();
    }
    if kind == MessageType::MsgRequestVote {
        // It is asked after a round of pre-votes, or because the leader wills it: no lease stands against it.
        message.context = raft::CAMPAIGN_TRANSFER.into();
    }
    let about = &value["snapshot"];
    if about.is_array() {
        let snapshot = message.mut_snapshot();
        snapshot.data = bytes(&about[3]).into();
        let metadata = snapshot.mut_metadata();
        metadata.index = about[0].as_u64().unwrap();
        metadata.term = about[1].as_u64().unwrap();
        metadata.set_conf_state(conf_state(&about[2]));
    }
    message
}
