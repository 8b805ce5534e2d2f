//! Finding the first thing that is wrong with what was stored.

use std::collections::VecDeque;

use ed25519_dalek::VerifyingKey;
use uuid::Uuid;

use crate::{
    AuditCheckpoint, AuditRecord, ChainRegistryHead, ChainStart, MerkleTree, genesis_hash,
};

/// The first thing that is wrong with a chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainVerifyError {
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
pub struct VerifiedChain {
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
    checkpoints: VecDeque<AuditCheckpoint>,
    tree: MerkleTree,
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
        checkpoints: impl IntoIterator<Item = AuditCheckpoint>,
    ) -> Result<Self, ChainVerifyError> {
        let mut checkpoints: Vec<_> = checkpoints.into_iter().collect();
        checkpoints.sort_by_key(|checkpoint| checkpoint.size);
        let mut check = Self {
            chain,
            keys: keys.to_vec(),
            checkpoints: VecDeque::new(),
            tree: MerkleTree::new(),
            head: genesis_hash(chain),
            covered: 0,
            closed: None,
        };
        for checkpoint in &checkpoints {
            check.verify_checkpoint(checkpoint)?;
        }
        check.checkpoints = checkpoints.into();
        check.compare_checkpoints()?;
        Ok(check)
    }

    /// Takes the next record.
    pub fn verify_next_record(&mut self, record: &AuditRecord) -> Result<(), ChainVerifyError> {
        let (seq, expected) = (record.seq, self.tree.leaf_count());
        if record.chain != self.chain {
            return Err(ChainVerifyError::OtherChain { seq });
        }
        if seq > expected {
            return Err(ChainVerifyError::Gap { expected, found: seq });
        }
        if seq < expected {
            return Err(ChainVerifyError::Duplicate { seq });
        }
        if self.closed.is_some() {
            return Err(ChainVerifyError::AfterClose { seq });
        }
        if record.prev != self.head {
            return Err(ChainVerifyError::WrongPrevious { seq });
        }
        if !record.has_valid_hash() {
            return Err(ChainVerifyError::WrongHash { seq });
        }
        if record.entry.validate_fields().is_err() {
            return Err(ChainVerifyError::BadEntry { seq });
        }
        self.head = record.hash;
        self.tree.push(record.hash);
        self.compare_checkpoints()
    }

    /// Says how the chain is, once all its records were taken.
    pub fn finish_verification(self) -> Result<VerifiedChain, ChainVerifyError> {
        let records = self.tree.leaf_count();
        if let Some(checkpoint) = self.checkpoints.back() {
            return Err(ChainVerifyError::Missing { size: checkpoint.size, records });
        }
        Ok(VerifiedChain {
            chain: self.chain,
            records,
            covered: self.covered,
            closed: self.closed.is_some(),
        })
    }

    fn verify_checkpoint(&self, checkpoint: &AuditCheckpoint) -> Result<(), ChainVerifyError> {
        let size = checkpoint.size;
        if checkpoint.chain != self.chain {
            return Err(ChainVerifyError::OtherCheckpoint { size });
        }
        let good = self.keys.iter().any(|key| checkpoint.verify_signature(key).is_ok());
        if good { Ok(()) } else { Err(ChainVerifyError::BadSignature { size }) }
    }

    /// Compares with the checkpoints made when the chain was as long as it is now.
    fn compare_checkpoints(&mut self) -> Result<(), ChainVerifyError> {
        let size = self.tree.leaf_count();
        while let Some(checkpoint) = self.checkpoints.pop_front_if(|next| next.size == size) {
            if checkpoint.root != self.tree.merkle_root() || checkpoint.head != self.head {
                return Err(ChainVerifyError::WrongRoot { size });
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
    tip: ChainRegistryHead,
}

impl LinkCheck {
    /// Begins at the first chain of the installation.
    pub fn new(keys: &[VerifyingKey]) -> Self {
        Self { keys: keys.to_vec(), tip: ChainRegistryHead::ORIGIN }
    }

    /// Takes the next start.
    pub fn verify_next_start(&mut self, start: &ChainStart) -> Result<(), BadLink> {
        let (number, expected) = (start.number, self.tip.number.saturating_add(1));
        if number != expected {
            return Err(BadLink::Number { expected, found: number });
        }
        if start.previous != self.tip.link {
            return Err(BadLink::WrongPrevious { number });
        }
        if !self.keys.iter().any(|key| start.verify_signature(key).is_ok()) {
            return Err(BadLink::BadSignature { number });
        }
        self.tip = start.registry_head();
        Ok(())
    }

    /// The end of the list so far, to be compared with a copy kept elsewhere.
    pub fn registry_head(&self) -> ChainRegistryHead {
        self.tip
    }
}
