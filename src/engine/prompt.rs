//! A prompt as an engine needs it: its length, the identities of its full blocks, and the tokens behind them.
//!
//! The identities follow from the tokens. A live server has tokens and lets the engine hash them; the replay makes both
//! identities and tail from a trace's recipe and never expands a prompt of ten thousand tokens.

use std::sync::Arc;

use crate::engine::hash::{Chain, block_chain};

/// A prompt.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// Token ids.
    Tokens(Vec<u32>),
    /// A prompt whose blocks are known.
    Hashed {
        /// Length, in tokens.
        len_tokens: u32,
        /// Identities of its full blocks at the engine's block size.
        chain: Chain,
        /// Tokens behind the last full block; fewer than a block.
        tail: Arc<[u32]>,
    },
}

impl From<Vec<u32>> for Prompt {
    fn from(tokens: Vec<u32>) -> Self {
        Prompt::Tokens(tokens)
    }
}

impl Prompt {
    /// Hashes a prompt's blocks of `block_size` tokens and forgets all tokens but those of the tail.
    pub fn hashed(tokens: &[u32], block_size: u32) -> Self {
        let chain = block_chain(tokens, block_size as usize);
        let tail = tokens[chain.len() * block_size as usize..].into();
        Prompt::Hashed { len_tokens: tokens.len() as u32, chain: chain.into(), tail }
    }

    /// Identities of its full blocks of `block_size` tokens, which is the engine's.
    pub fn chain(&self, block_size: u32) -> Chain {
        match self {
            Prompt::Tokens(tokens) => block_chain(tokens, block_size as usize).into(),
            Prompt::Hashed { chain, .. } => chain.clone(),
        }
    }

    /// Length, in tokens.
    pub fn len_tokens(&self) -> u32 {
        match self {
            Prompt::Tokens(tokens) => tokens.len() as u32,
            Prompt::Hashed { len_tokens, .. } => *len_tokens,
        }
    }
}
