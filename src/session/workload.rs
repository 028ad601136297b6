//! What is to be sent: requests with their prompts as recipes, in sessions.

use std::path::Path;

use thiserror::Error;

use crate::rng::Seed;
use crate::session::plan::{PlannedSession, PlannedTurn};
use crate::trace::{
    PrefixRatioOptions, PromptPlan, ReadOptions, TokenExpander, Trace, TraceError, WorkloadError, plan_sessions,
    prefix_ratio, read_all,
};

/// One request to be sent.
#[derive(Clone, Debug)]
pub struct WorkItem {
    /// The prompt; its tokens are made when it is sent.
    pub prompt: PromptPlan,
    /// Prompt length.
    pub input_tokens: u32,
    /// Output tokens to ask for.
    pub output_tokens: u32,
}

/// A workload.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name, for the result folder.
    pub name: String,
    /// The requests, by row.
    pub items: Vec<WorkItem>,
    /// The sessions that they form.
    pub sessions: Vec<PlannedSession>,
    /// Token ids are below this.
    pub vocab_tokens_needed: u32,
    /// What the user should know of it.
    pub notes: Vec<String>,
}

/// Why there is no workload.
#[derive(Debug, Error)]
pub enum WorkloadBuildError {
    /// The trace cannot be used.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A generator's option is out of range.
    #[error(transparent)]
    Options(#[from] WorkloadError),
}

impl Workload {
    /// A trace file; `need_timestamps` if it is replayed by its own arrival times.
    pub fn from_trace(path: &Path, options: &ReadOptions, need_timestamps: bool) -> Result<Self, WorkloadBuildError> {
        let trace = read_all(path, options)?;
        let mut name = path.file_name().map_or_else(|| "trace".to_owned(), |name| name.to_string_lossy().into_owned());
        for ending in [".gz", ".jsonl", ".json"] {
            name = name.strip_suffix(ending).unwrap_or(&name).to_owned();
        }
        Self::from_rows(name, &trace, need_timestamps)
    }

    /// Rows that are read already.
    pub fn from_rows(name: String, trace: &Trace, need_timestamps: bool) -> Result<Self, WorkloadBuildError> {
        let expander = TokenExpander::new(trace)?;
        let plans = plan_sessions(trace, need_timestamps)?;
        let items: Vec<WorkItem> = trace
            .rows
            .iter()
            .enumerate()
            .filter_map(|(index, row)| {
                let prompt = expander.prompt(index)?.clone();
                Some(WorkItem { prompt, input_tokens: row.input_tokens, output_tokens: row.output_tokens })
            })
            .collect();
        let sessions = plans
            .into_iter()
            .map(|plan| PlannedSession {
                session_id: plan.session_id,
                start_ms: plan.start_ms,
                turns: plan
                    .turns
                    .into_iter()
                    .map(|turn| PlannedTurn { row: turn.row_index as u64, delay_ms: turn.delay_ms })
                    .collect(),
            })
            .collect();
        let mut notes = Vec::new();
        if let Some(first) = &trace.first_skipped {
            notes.push(format!("{} bad rows were skipped; the first: {first}", trace.skipped_rows));
        }
        Ok(Workload { name, items, sessions, vocab_tokens_needed: expander.vocab_tokens_needed(), notes })
    }

    /// The standard prefix workload: groups of requests that share a prefix.
    pub fn prefix(seed: Seed, options: &PrefixRatioOptions) -> Result<Self, WorkloadBuildError> {
        let workload = prefix_ratio(seed, options)?;
        let items: Vec<WorkItem> = workload
            .requests
            .into_iter()
            .map(|request| WorkItem {
                input_tokens: request.prompt.len_tokens(),
                prompt: request.prompt,
                output_tokens: request.output_tokens,
            })
            .collect();
        let sessions = (0..items.len())
            .map(|row| PlannedSession {
                session_id: None,
                start_ms: Some(0.0),
                turns: vec![PlannedTurn { row: row as u64, delay_ms: 0.0 }],
            })
            .collect();
        Ok(Workload {
            name: format!("prefix-ratio-{}", options.prefix_ratio),
            items,
            sessions,
            vocab_tokens_needed: workload.vocab_tokens_needed,
            notes: Vec::new(),
        })
    }
}
