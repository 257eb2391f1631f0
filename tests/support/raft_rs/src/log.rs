//! The log of one member, in memory: what `raft` reads, durable or not. The test keeps what is durable.

use raft::eraftpb::{ConfState, Entry, EntryType, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};
use serde_json::{json, Value};

pub struct Log {
    pub hard: HardState,
    /// Index and term of the last entry before the first.
    pub base: (u64, u64),
    pub entries: Vec<Entry>,
    /// Configurations in the log, and the one at `base`.
    pub configs: Vec<(u64, ConfState)>,
}

impl Log {
    pub fn last(&self) -> u64 {
        self.base.0 + self.entries.len() as u64
    }

    /// Configurations of these entries, after those before them that stay.
    pub fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(self.base.0 < first.index && first.index <= self.last() + 1, "a gap in the log");
        self.entries.truncate((first.index - self.base.0 - 1) as usize);
        self.configs.retain(|(index, _)| *index < first.index);
        for entry in entries {
            self.note_config(entry);
            self.entries.push(entry.clone());
        }
    }

    pub fn note_config(&mut self, entry: &Entry) {
        if entry.get_entry_type() == EntryType::EntryConfChangeV2 {
            let text = std::str::from_utf8(&entry.context).expect("a configuration");
            let config: Value = serde_json::from_str(text).expect("a configuration");
            self.configs.push((entry.index, conf_state(&config)));
        }
    }

    pub fn install(&mut self, snapshot: &Snapshot) {
        let metadata = snapshot.get_metadata();
        self.base = (metadata.index, metadata.term);
        self.entries.clear();
        self.configs = vec![(metadata.index, metadata.get_conf_state().clone())];
    }

    pub fn compact(&mut self, index: u64) {
        let term = self.term(index).expect("an entry that is there");
        self.entries.drain(..(index - self.base.0) as usize);
        self.base = (index, term);
        let (_, config) = self.configs.iter().rev().find(|(at, _)| *at <= index).unwrap().clone();
        self.configs.retain(|(at, _)| *at > index);
        self.configs.insert(0, (index, config));
    }
}

impl Storage for Log {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(RaftState::new(self.hard.clone(), self.configs.last().unwrap().1.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low <= self.base.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        let from = (low - self.base.0 - 1) as usize;
        let mut found = self.entries[from..(high - self.base.0 - 1) as usize].to_vec();
        raft::util::limit_size(&mut found, max_size.into());
        Ok(found)
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index == self.base.0 {
            return Ok(self.base.1);
        }
        if index < self.base.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        match self.entries.get((index - self.base.0 - 1) as usize) {
            Some(entry) => Ok(entry.term),
            None => Err(Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.base.0 + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, _: u64, _: u64) -> Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = self.base;
        metadata.set_conf_state(self.configs[0].1.clone());
        Ok(snapshot)
    }
}

pub fn conf_state(config: &Value) -> ConfState {
    ConfState::from((numbers(&config[0]), numbers(&config[1])))
}

pub fn config_of(state: &ConfState) -> Value {
    json!([state.get_voters(), state.get_learners()])
}

pub fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().expect("a list").iter().map(|each| each.as_u64().expect("a number")).collect()
}
