//! The reply as server-sent events: one `data:` line per event of the backend.
//!
//! Order: a chunk with the role (chat only, sent before the first token is made), a chunk per batch of tokens, a chunk
//! with the finish reason, a chunk with the usage if wanted, `[DONE]`. An error takes the place of all that would
//! follow, `[DONE]` included. Dropping the stream, as the server does when the client goes away, drops the backend's
//! events and so cancels the request.

use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures_util::stream::{BoxStream, Stream, StreamExt};

use super::ApiError;
use super::reply::{ReplyHead, ended_early, write_numbers};
use super::request::ReplyOptions;
use super::tokenizer::write_tokens;
use crate::live::backend::{FinishReason, GenerateEvent, Generation, ServeError};

/// The body of a streamed reply.
pub(super) struct ReplyStream {
    /// `None` once the last line is out.
    events: Option<BoxStream<'static, Result<GenerateEvent, ServeError>>>,
    worker: String,
    head: ReplyHead,
    options: ReplyOptions,
    /// `data: ` and the fields in front of `choices`: the same in every chunk.
    chunk_start: String,
    opened: bool,
    completion_tokens: usize,
    /// Lines under construction. Its memory is used again once the server has sent them.
    lines: BytesMut,
}

impl ReplyStream {
    /// A stream over a request's events.
    pub fn new(generation: Generation, head: ReplyHead, options: ReplyOptions) -> ReplyStream {
        let Generation { worker, events, .. } = generation;
        let chunk_start = format!("data: {}", head.json(head.surface.chunk_object));
        let lines = BytesMut::with_capacity(chunk_start.len() * 4);
        let events = Some(events);
        ReplyStream { events, worker, head, options, chunk_start, opened: false, completion_tokens: 0, lines }
    }

    /// Writes an event's lines. A buffer takes whatever is written to it, so there is no error to see.
    fn write(&mut self, event: Option<Result<GenerateEvent, ServeError>>) {
        let _ = match event {
            Some(Ok(GenerateEvent::Tokens { token_ids, times_ns, arrived_ns, cached_tokens })) => {
                self.write_chunk_of_tokens(&token_ids, &times_ns, arrived_ns, cached_tokens)
            }
            Some(Ok(GenerateEvent::Held(params))) => self.write_held(&params),
            Some(Ok(GenerateEvent::Finished { reason, cached_tokens })) => {
                self.events = None;
                self.write_end(reason, cached_tokens)
            }
            Some(Err(error)) => {
                self.events = None;
                self.write_error(&error.into())
            }
            None => {
                self.events = None;
                self.write_error(&ended_early(&self.worker))
            }
        };
    }

    fn write_chunk_of_tokens(
        &mut self,
        token_ids: &[u32],
        times_ns: &[u64],
        arrived_ns: u64,
        cached_tokens: u32,
    ) -> std::fmt::Result {
        self.completion_tokens += token_ids.len();
        let (surface, out) = (self.head.surface, &mut self.lines);
        out.write_str(&self.chunk_start)?;
        out.write_str(r#""choices":[{"index":0,"#)?;
        out.write_str(surface.delta_open)?;
        write_tokens(out, token_ids)?;
        out.write_str(surface.delta_close)?;
        if self.options.token_ids {
            write_numbers(out, r#","token_ids":"#, token_ids)?;
        }
        out.write_str(r#","logprobs":null,"finish_reason":null}]"#)?;
        if self.options.continuous_usage {
            write!(out, ",{}", self.head.usage_json(self.completion_tokens, cached_tokens))?;
        }
        if self.options.times {
            write_numbers(out, r#","mockfleet":{"times_ns":"#, times_ns)?;
            write!(out, r#","arrived_ns":{arrived_ns}}}"#)?;
        }
        out.write_str("}\n\n")
    }

    fn write_chunk_without_tokens(&mut self, delta: &str, finish_reason: &str) -> std::fmt::Result {
        let start = &self.chunk_start;
        let choice = format_args!(r#"{{"index":0,{delta},"logprobs":null,"finish_reason":{finish_reason}}}"#);
        write!(self.lines, "{start}\"choices\":[{choice}]}}\n\n")
    }

    fn write_end(&mut self, reason: FinishReason, cached_tokens: u32) -> std::fmt::Result {
        self.write_chunk_without_tokens(self.head.surface.closing_delta, &format!("\"{}\"", reason.name()))?;
        if self.options.final_usage {
            let (start, usage) = (&self.chunk_start, self.head.usage_json(self.completion_tokens, cached_tokens));
            write!(self.lines, "{start}\"choices\":[],{usage}}}\n\n")?;
        }
        self.lines.write_str("data: [DONE]\n\n")
    }

    /// A chunk without a choice.
    fn write_held(&mut self, params: &serde_json::Value) -> std::fmt::Result {
        write!(self.lines, "{}\"choices\":[],\"kv_transfer_params\":{params}}}\n\n", self.chunk_start)
    }

    fn write_error(&mut self, error: &ApiError) -> std::fmt::Result {
        write!(self.lines, "data: {}\n\n", error.to_json())
    }
}

impl Stream for ReplyStream {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let Some(events) = &mut this.events else { return Poll::Ready(None) };
        if !this.opened
            && let Some(delta) = this.head.surface.opening_delta
        {
            // As in `write`, a buffer takes everything.
            let _ = this.write_chunk_without_tokens(delta, "null");
        } else {
            let event = ready!(events.poll_next_unpin(context));
            this.write(event);
        }
        this.opened = true;
        Poll::Ready(Some(Ok(this.lines.split().freeze())))
    }
}
