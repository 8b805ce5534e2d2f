//! Finding the first thing that is wrong with what was stored.

use std::collections::VecDeque;

use ed25519_dalek::VerifyingKey;
use uuid::Uuid;

use crate::{ChainStart, Checkpoint, Record, Tip, Tree, genesis};

/// The first thing that is wrong with a chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Records are missing.
    #[error("record {expected} is missing, the next one is {found}")]
    Gap {
        /// The record that should come.
        expected: u64,
        /// The one that came.
        found: u64,
    },
    /// A record comes again, or too late.
    #[error("record {seq} comes twice or out of order")]
    Duplicate {
        /// Its place.
        seq: u64,
    },
    /// A record belongs to another chain.
    #[error("record {seq} is of another chain")]
    OtherChain {
        /// Its place.
        seq: u64,
    },
    /// A record does not follow the one before it.
    #[error("record {seq} does not follow the one before it")]
    WrongPrevious {
        /// Its place.
        seq: u64,
    },
    /// A record does not say what was hashed.
    #[error("record {seq} was changed")]
    WrongHash {
        /// Its place.
        seq: u64,
    },
    /// A record says what no writer accepts.
    #[error("record {seq} could not have been written")]
    BadEntry {
        /// Its place.
        seq: u64,
    },
    /// A record stands after the end of the chain.
    #[error("record {seq} stands after the end of the chain")]
    AfterClose {
        /// Its place.
        seq: u64,
    },
    /// A checkpoint belongs to another chain.
    #[error("the checkpoint of size {size} is of another chain")]
    OtherCheckpoint {
        /// Its size.
        size: u64,
    },
    /// A checkpoint was changed, or signed by somebody else.
    #[error("the checkpoint of size {size} was changed or not signed by us")]
    BadSignature {
        /// Its size.
        size: u64,
    },
    /// The records are not those a checkpoint was made over.
    #[error("the records are not those the checkpoint of size {size} was made over")]
    WrongRoot {
        /// Its size.
        size: u64,
    },
    /// A checkpoint covers records that are missing at the end.
    #[error("a checkpoint covers {size} records and there are {records}")]
    Missing {
        /// The size of the checkpoint.
        size: u64,
        /// How many records there are.
        records: u64,
    },
}

/// What was found about a chain that is in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The chain.
    pub chain: Uuid,
    /// How many records it has.
    pub records: u64,
    /// How many of them a signed checkpoint covers. The others are only held by their hashes,
    /// which somebody with the whole chain in hand could make anew.
    pub covered: u64,
    /// Whether it is closed: then nothing is missing at its end.
    pub closed: bool,
}

/// Checks the records of one chain as they are read, in order.
#[derive(Debug)]
pub struct ChainCheck {
    chain: Uuid,
    keys: Vec<VerifyingKey>,
    checkpoints: VecDeque<Checkpoint>,
    tree: Tree,
    head: [u8; 32],
    covered: u64,
    /// The size at which the chain was closed.
    closed: Option<u64>,
}

impl ChainCheck {
    /// Begins with the checkpoints of the chain, in any order. Each must be signed with one of
    /// the keys: a chain may have been recovered after its key was replaced.
    pub fn new(
        chain: Uuid,
        keys: &[VerifyingKey],
        checkpoints: impl IntoIterator<Item = Checkpoint>,
    ) -> Result<Self, Problem> {
        let mut checkpoints: Vec<_> = checkpoints.into_iter().collect();
        checkpoints.sort_by_key(|checkpoint| checkpoint.size);
        let mut check = Self {
            chain,
            keys: keys.to_vec(),
            checkpoints: VecDeque::new(),
            tree: Tree::new(),
            head: genesis(chain),
            covered: 0,
            closed: None,
        };
        for checkpoint in &checkpoints {
            check.signed(checkpoint)?;
        }
        check.checkpoints = checkpoints.into();
        check.compare()?;
        Ok(check)
    }

    /// Takes the next record.
    pub fn record(&mut self, record: &Record) -> Result<(), Problem> {
        let (seq, expected) = (record.seq, self.tree.size());
        if record.chain != self.chain {
            return Err(Problem::OtherChain { seq });
        }
        if seq > expected {
            return Err(Problem::Gap { expected, found: seq });
        }
        if seq < expected {
            return Err(Problem::Duplicate { seq });
        }
        if self.closed.is_some() {
            return Err(Problem::AfterClose { seq });
        }
        if record.prev != self.head {
            return Err(Problem::WrongPrevious { seq });
        }
        if !record.is_whole() {
            return Err(Problem::WrongHash { seq });
        }
        if record.entry.check().is_err() {
            return Err(Problem::BadEntry { seq });
        }
        self.head = record.hash;
        self.tree.push(record.hash);
        self.compare()
    }

    /// Says how the chain is, once all its records were taken.
    pub fn finish(self) -> Result<Verified, Problem> {
        let records = self.tree.size();
        if let Some(checkpoint) = self.checkpoints.back() {
            return Err(Problem::Missing { size: checkpoint.size, records });
        }
        Ok(Verified {
            chain: self.chain,
            records,
            covered: self.covered,
            closed: self.closed.is_some(),
        })
    }

    fn signed(&self, checkpoint: &Checkpoint) -> Result<(), Problem> {
        let size = checkpoint.size;
        if checkpoint.chain != self.chain {
            return Err(Problem::OtherCheckpoint { size });
        }
        let good = self.keys.iter().any(|key| checkpoint.verify(key).is_ok());
        if good { Ok(()) } else { Err(Problem::BadSignature { size }) }
    }

    /// Compares with the checkpoints made when the chain was as long as it is now.
    fn compare(&mut self) -> Result<(), Problem> {
        let size = self.tree.size();
        while let Some(checkpoint) = self.checkpoints.pop_front_if(|next| next.size == size) {
            if checkpoint.root != self.tree.root() || checkpoint.head != self.head {
                return Err(Problem::WrongRoot { size });
            }
            self.covered = size;
            if checkpoint.closed {
                self.closed = Some(size);
            }
        }
        Ok(())
    }
}

/// The first thing that is wrong with the list of chains.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLink {
    /// A chain is missing before this one, or it comes out of order.
    #[error("chain {found} comes where {expected} should")]
    Number {
        /// The number that should come.
        expected: u64,
        /// The one that came.
        found: u64,
    },
    /// A chain does not hold the hash of the one before.
    #[error("chain {number} does not follow the one before it")]
    WrongPrevious {
        /// Its number.
        number: u64,
    },
    /// A start was changed, or signed by somebody else.
    #[error("the start of chain {number} was changed or not signed by us")]
    BadSignature {
        /// Its number.
        number: u64,
    },
}

/// Checks the starts of all chains of an installation as they are read, in order.
#[derive(Debug)]
pub struct LinkCheck {
    keys: Vec<VerifyingKey>,
    tip: Tip,
}

impl LinkCheck {
    /// Begins at the first chain of the installation.
    pub fn new(keys: &[VerifyingKey]) -> Self {
        Self { keys: keys.to_vec(), tip: Tip::ORIGIN }
    }

    /// Takes the next start.
    pub fn start(&mut self, start: &ChainStart) -> Result<(), BadLink> {
        let (number, expected) = (start.number, self.tip.number.saturating_add(1));
        if number != expected {
            return Err(BadLink::Number { expected, found: number });
        }
        if start.previous != self.tip.link {
            return Err(BadLink::WrongPrevious { number });
        }
        if !self.keys.iter().any(|key| start.verify(key).is_ok()) {
            return Err(BadLink::BadSignature { number });
        }
        self.tip = start.tip();
        Ok(())
    }

    /// The end of the list so far, to be compared with a copy kept elsewhere.
    pub fn tip(&self) -> Tip {
        self.tip
    }
}
