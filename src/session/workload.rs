//! What is to be sent: requests with their prompts as recipes, in sessions.

use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use crate::rng::Seed;
use crate::session::plan::{PlannedSession, PlannedTurn};
use crate::trace::{
    PrefixRatioOptions, PromptMaker, PromptPlan, ReadOptions, ReadSummary, SessionPlanner, Trace, TraceError, TraceRow,
    WorkloadError, prefix_ratio, read_rows,
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
    /// Higher ones are served first where a queue goes by it; in the router's, by default, a second of earlier arrival each.
    pub priority: i32,
    /// Tier in the router's queue; higher ones go first, whatever the rest.
    pub strict_priority: u32,
}

/// A workload.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name, for the result folder.
    pub name: String,
    /// The requests, by row.
    pub items: Vec<WorkItem>,
    /// The sessions that they form; shared with the driver.
    pub sessions: Arc<[PlannedSession]>,
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
        let mut name = path.file_name().map_or_else(|| "trace".to_owned(), |name| name.to_string_lossy().into_owned());
        for ending in [".gz", ".jsonl", ".json"] {
            name = name.strip_suffix(ending).unwrap_or(&name).to_owned();
        }
        let mut builder = Builder::new(options.block_tokens, need_timestamps)?;
        let summary = read_rows(path, options, |row| builder.push(row))?;
        builder.finish(name, &path.display().to_string(), summary)
    }

    /// Rows that are read already.
    pub fn from_rows(name: String, trace: &Trace, need_timestamps: bool) -> Result<Self, WorkloadBuildError> {
        let mut builder = Builder::new(trace.block_tokens, need_timestamps)?;
        trace.rows.iter().for_each(|row| builder.push(row));
        let summary = ReadSummary {
            rows: trace.rows.len() as u64,
            skipped_rows: trace.skipped_rows,
            first_skipped: trace.first_skipped.clone(),
        };
        builder.finish(name, &trace.path_display, summary)
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
                priority: 0,
                strict_priority: 0,
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

/// Makes a workload of rows, one after another: of a row only what the run needs is kept.
struct Builder {
    prompts: PromptMaker,
    sessions: SessionPlanner,
    items: Vec<WorkItem>,
    /// Token ids did not suffice; what comes after is not looked at.
    too_many_blocks: bool,
}

impl Builder {
    fn new(block_tokens: u32, need_timestamps: bool) -> Result<Self, TraceError> {
        Ok(Builder {
            prompts: PromptMaker::new(block_tokens, 0)?,
            sessions: SessionPlanner::new(need_timestamps),
            items: Vec::new(),
            too_many_blocks: false,
        })
    }

    fn push(&mut self, row: &TraceRow) {
        self.sessions.push(row);
        if self.too_many_blocks {
            return;
        }
        match self.prompts.prompt(row) {
            Some(prompt) => {
                let (priority, strict_priority) = (row.priority.unwrap_or(0), row.strict_priority.unwrap_or(0));
                let (input_tokens, output_tokens) = (row.input_tokens, row.output_tokens);
                self.items.push(WorkItem { prompt, input_tokens, output_tokens, priority, strict_priority });
            }
            None => self.too_many_blocks = true,
        }
    }

    /// `file` is for messages. Faults of the rows' contents come to light here: a file that cannot be read comes first.
    fn finish(self, name: String, file: &str, summary: ReadSummary) -> Result<Workload, WorkloadBuildError> {
        if self.too_many_blocks {
            return Err(TraceError::TooManyBlocks { file: file.to_owned() }.into());
        }
        let plans = self.sessions.finish(file, summary.skipped_rows)?;
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
        if let Some(first) = &summary.first_skipped {
            notes.push(format!("{} bad rows were skipped; the first: {first}", summary.skipped_rows));
        }
        let vocab_tokens_needed = self.prompts.vocab_tokens_needed();
        Ok(Workload { name, items: self.items, sessions, vocab_tokens_needed, notes })
    }
}
