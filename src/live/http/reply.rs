//! The reply as one object, and what it has in common with the chunks of a stream.

use std::fmt::Write;

use futures_util::StreamExt;
use serde::Serialize;

use super::ApiError;
use super::request::ReplyOptions;
use super::surface::Surface;
use super::tokenizer::write_tokens;
use crate::live::backend::{FinishReason, GenerateEvent, Generation, ServeError};

/// What every object of a reply starts with.
pub(super) struct ReplyHead {
    pub surface: &'static Surface,
    pub id: String,
    pub model: String,
    pub created: u64,
    pub prompt_tokens: usize,
}

/// Token counts, as OpenAI nests them.
#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Serialize)]
struct PromptTokensDetails {
    cached_tokens: u32,
}

/// What the simulation knows beyond OpenAI's fields.
#[derive(Serialize)]
struct Placement<'a> {
    worker: &'a str,
    overlap_blocks: Option<u32>,
    arrived_ns: Option<u64>,
    first_token_ns: Option<u64>,
    last_token_ns: Option<u64>,
}

impl ReplyHead {
    /// The fields in front of `choices`, from the brace on, ending in a comma.
    pub fn json(&self, object: &str) -> String {
        let (id, model, created) = (json_of(&self.id), json_of(&self.model), self.created);
        format!(r#"{{"id":{id},"object":"{object}","created":{created},"model":{model},"#)
    }

    /// The field `usage`.
    pub fn usage_json(&self, completion_tokens: usize, cached_tokens: u32) -> String {
        let usage = Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens,
            total_tokens: self.prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
        };
        format!(r#""usage":{}"#, json_of(&usage))
    }
}

/// Waits for all of a request's events and writes its reply.
pub(super) async fn collect(
    generation: Generation,
    head: &ReplyHead,
    options: ReplyOptions,
) -> Result<String, ApiError> {
    let Generation { worker, overlap_blocks, mut events } = generation;
    let mut tokens: Vec<u32> = Vec::new();
    let mut kv_transfer_params = None;
    let mut placement =
        Placement { worker: &worker, overlap_blocks, arrived_ns: None, first_token_ns: None, last_token_ns: None };
    loop {
        match events.next().await {
            Some(Ok(GenerateEvent::Tokens { token_ids, times_ns, arrived_ns, .. })) => {
                tokens.extend(token_ids);
                placement.arrived_ns.get_or_insert(arrived_ns);
                placement.first_token_ns = placement.first_token_ns.or(times_ns.first().copied());
                placement.last_token_ns = times_ns.last().copied().or(placement.last_token_ns);
            }
            Some(Ok(GenerateEvent::Held(params))) => kv_transfer_params = Some(params),
            Some(Ok(GenerateEvent::Finished { reason, cached_tokens })) => {
                let mut json = whole_json(head, options, &tokens, reason, cached_tokens, &placement);
                if let Some(params) = kv_transfer_params {
                    // In place of the closing brace.
                    json.pop();
                    let _ = write!(json, r#","kv_transfer_params":{params}}}"#);
                }
                return Ok(json);
            }
            Some(Err(error)) => return Err(error.into()),
            None => return Err(ended_early(&worker)),
        }
    }
}

/// The error of a backend whose events end without saying why.
pub(super) fn ended_early(worker: &str) -> ApiError {
    let message = "its events ended before the request did".to_owned();
    ServeError::WorkerFailed { worker: worker.to_owned(), message }.into()
}

fn whole_json(
    head: &ReplyHead,
    options: ReplyOptions,
    tokens: &[u32],
    reason: FinishReason,
    cached_tokens: u32,
    placement: &Placement<'_>,
) -> String {
    let surface = head.surface;
    let mut json = head.json(surface.object);
    json.push_str(r#""choices":[{"index":0,"#);
    json.push_str(surface.text_open);
    // A string takes whatever is written to it.
    let _ = write_tokens(&mut json, tokens);
    json.push_str(surface.text_close);
    if options.token_ids {
        let _ = write_numbers(&mut json, r#","token_ids":"#, tokens);
    }
    let (reason, usage) = (reason.name(), head.usage_json(tokens.len(), cached_tokens));
    let _ =
        write!(json, r#","logprobs":null,"finish_reason":"{reason}"}}],{usage},"mockfleet":{}}}"#, json_of(placement));
    json
}

/// Writes `key` and a list of numbers.
pub(super) fn write_numbers<N: Copy + Into<u64>>(out: &mut impl Write, key: &str, numbers: &[N]) -> std::fmt::Result {
    out.write_str(key)?;
    out.write_char('[')?;
    for (place, number) in numbers.iter().enumerate() {
        let comma = if place == 0 { "" } else { "," };
        let number: u64 = (*number).into();
        write!(out, "{comma}{number}")?;
    }
    out.write_char(']')
}

/// JSON of a value that always has one: texts, numbers and structs of these.
fn json_of(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
