//! Timing from tables: what steps of a real engine take, measured or estimated at the points of a grid.
//!
//! Prefill milliseconds over batch × total new tokens × prefix tokens of a request, decode milliseconds over batch ×
//! context tokens of a request. The tables are asked as the reference asks its estimator: with the number of requests and
//! integer means (NVIDIA Dynamo 1.6.1, timing provider `aic`: `predict_prefill(batch, mean prompt − mean prefix, mean
//! prefix)` and `predict_decode(batch, mean context, 2)`, no decode below 1 ms). Between the points the times are linear
//! along every axis; outside they are those of the edge, and the price says so.

use std::fmt;

use serde::ser::{SerializeStruct, Serializer};

use super::grid::Grid;
use super::{DecodeBatch, PrefillBatch, Price};

/// The reference lets no decode take less, milliseconds.
const LEAST_DECODE_MS: f64 = 1.0;

/// The tables of one engine.
#[derive(Clone, PartialEq)]
pub struct ProfileTable {
    pub(super) name: String,
    /// Batch, total new tokens, prefix tokens of a request.
    pub(super) prefill: Grid<3>,
    /// Batch, context tokens of a request.
    pub(super) decode: Grid<2>,
}

impl ProfileTable {
    /// The name by which it was found.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Nothing for no new tokens.
    pub(super) fn prefill(&self, batch: PrefillBatch) -> Price {
        let new_tokens = batch.new_tokens_of_means();
        if new_tokens == 0 {
            return Price::default();
        }
        let prefix_tokens = batch.mean_prefix_tokens();
        let (ms, clamped) = self.prefill.at([u64::from(batch.requests), new_tokens, prefix_tokens]);
        Price { ms, clamped }
    }

    /// For a batch that is not empty.
    pub(super) fn decode(&self, batch: DecodeBatch) -> Price {
        let mean_context = batch.context_tokens / u64::from(batch.sequences);
        let (ms, clamped) = self.decode.at([u64::from(batch.sequences), mean_context]);
        Price { ms: ms.max(LEAST_DECODE_MS), clamped }
    }
}

/// The name and the sizes: thousands of numbers help nobody.
impl fmt::Debug for ProfileTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefill, decode) = (self.prefill.dimensions(), self.decode.dimensions());
        f.debug_struct("ProfileTable")
            .field("name", &self.name)
            .field("prefill", &prefill)
            .field("decode", &decode)
            .finish_non_exhaustive()
    }
}

/// Writes `{"profile": NAME}` for a table.
pub(super) fn serialize_name<S: Serializer>(table: &ProfileTable, serializer: S) -> Result<S::Ok, S::Error> {
    let mut fields = serializer.serialize_struct("Profile", 1)?;
    fields.serialize_field("profile", &table.name)?;
    fields.end()
}
