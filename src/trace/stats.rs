//! What a trace is like: lengths, arrivals, and how much of it a cache could reuse.
//!
//! Reuse is counted for one cache that never evicts and that holds each prompt as soon as its row is met, in file
//! order. Only a prefix is reused: the first hash of a row that was not met before ends its match.

use rustc_hash::{FxBuildHasher, FxHashSet};

use super::row::TraceRow;

/// Smallest, mean and largest length, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LengthStats {
    /// Sum over all rows.
    pub sum_tokens: u64,
    /// Smallest.
    pub min_tokens: u32,
    /// Sum divided by the number of rows; 0 without rows.
    pub mean_tokens: f64,
    /// Largest.
    pub max_tokens: u32,
}

/// Figures of a whole trace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TraceStats {
    /// Number of rows.
    pub rows: u64,
    /// Prompt lengths.
    pub input: LengthStats,
    /// Output lengths.
    pub output: LengthStats,
    /// Hashes in all rows together.
    pub total_blocks: u64,
    /// Different hashes.
    pub distinct_blocks: u64,
    /// Hashes that a cache without eviction reuses.
    pub reused_blocks: u64,
    /// Prompt tokens that a cache without eviction reuses; a row's last block counts only as far as its prompt reaches.
    pub reused_tokens: u64,
    /// Milliseconds between the earliest and the latest timestamp; 0 without timestamps.
    pub duration_ms: f64,
    /// Different timestamps.
    pub distinct_timestamps: u64,
    /// Rows without a timestamp.
    pub rows_without_timestamp: u64,
}

impl TraceStats {
    /// Figures of these rows, whose hashes stand for `block_tokens` tokens each.
    pub fn of(rows: &[TraceRow], block_tokens: u32) -> Self {
        let total_blocks = rows.iter().map(|row| row.hash_ids.len()).sum::<usize>();
        let mut seen = FxHashSet::with_capacity_and_hasher(total_blocks / 2, FxBuildHasher);
        let (mut reused_blocks, mut reused_tokens) = (0u64, 0u64);
        for row in rows {
            let matched = row.hash_ids.iter().take_while(|hash| seen.contains(*hash)).count() as u64;
            seen.extend(row.hash_ids.iter().copied());
            reused_blocks += matched;
            reused_tokens += matched.saturating_mul(block_tokens.into()).min(row.input_tokens.into());
        }
        let mut timestamps: Vec<f64> = rows.iter().filter_map(|row| row.timestamp_ms).collect();
        timestamps.sort_by(f64::total_cmp);
        let duration_ms = match (timestamps.first(), timestamps.last()) {
            (Some(first), Some(last)) => last - first,
            _ => 0.0,
        };
        let rows_without_timestamp = (rows.len() - timestamps.len()) as u64;
        timestamps.dedup();
        TraceStats {
            rows: rows.len() as u64,
            input: LengthStats::of(rows.iter().map(|row| row.input_tokens)),
            output: LengthStats::of(rows.iter().map(|row| row.output_tokens)),
            total_blocks: total_blocks as u64,
            distinct_blocks: seen.len() as u64,
            reused_blocks,
            reused_tokens,
            duration_ms,
            distinct_timestamps: timestamps.len() as u64,
            rows_without_timestamp,
        }
    }

    /// Part of all hashes that a cache without eviction reuses, from 0 to 1.
    pub fn infinite_cache_reused_block_ratio(&self) -> f64 {
        ratio(self.reused_blocks, self.total_blocks)
    }

    /// Part of all prompt tokens that a cache without eviction reuses, from 0 to 1.
    pub fn infinite_cache_reused_token_ratio(&self) -> f64 {
        ratio(self.reused_tokens, self.input.sum_tokens)
    }
}

impl LengthStats {
    fn of(lengths: impl Iterator<Item = u32> + Clone) -> Self {
        let count = lengths.clone().count() as u64;
        let sum_tokens = lengths.clone().map(u64::from).sum();
        LengthStats {
            sum_tokens,
            min_tokens: lengths.clone().min().unwrap_or(0),
            mean_tokens: ratio(sum_tokens, count),
            max_tokens: lengths.max().unwrap_or(0),
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
