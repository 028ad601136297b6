//! Workers named by hand: `--workers URL…`.
//!
//! People write an address in several ways; everything behind this file sees one, `http://host:port`. Two spellings of
//! one address are noticed, two names of one machine (`localhost`, `127.0.0.1`) are not: nothing is looked up here.

use std::collections::HashMap;
use std::net::Ipv6Addr;

use super::error::DiscoveryError;

/// Normalises every entry and keeps their order.
///
/// # Errors
/// [`DiscoveryError::WorkerUrl`] for the first entry that is not an address, [`DiscoveryError::Duplicate`] for the
/// first that means the same as an earlier one.
pub fn parse_worker_list<S: AsRef<str>>(values: &[S]) -> Result<Vec<String>, DiscoveryError> {
    let mut typed_as: HashMap<String, &str> = HashMap::with_capacity(values.len());
    let mut urls = Vec::with_capacity(values.len());
    for value in values {
        let value = value.as_ref();
        let url = parse_worker_url(value)?;
        if let Some(first) = typed_as.insert(url.clone(), value) {
            return Err(DiscoveryError::Duplicate { first: first.to_string(), second: value.to_string(), url });
        }
        urls.push(url);
    }
    Ok(urls)
}

/// Turns `http://host:port`, `grpc://host:port` or `host:port` into `http://host:port`, with the host in lower case.
/// One slash at the end is forgiven; an IPv6 address stands in square brackets.
///
/// # Errors
/// [`DiscoveryError::WorkerUrl`] with the value and what is wrong with it.
pub fn parse_worker_url(value: &str) -> Result<String, DiscoveryError> {
    match normalise(value) {
        Ok(url) => Ok(url),
        Err(fault) => Err(DiscoveryError::worker_url(value, fault)),
    }
}

fn normalise(value: &str) -> Result<String, String> {
    if value.is_empty() {
        return Err("the value is empty".to_string());
    }
    let address = match value.split_once("://") {
        None => value,
        Some((scheme, address)) => match scheme.to_ascii_lowercase().as_str() {
            "http" | "grpc" => address,
            "https" | "grpcs" => return Err(format!("`{scheme}` is encrypted, and workers speak plain HTTP")),
            _ => return Err(format!("the scheme is `{}`", scheme.escape_debug())),
        },
    };
    let address = address.strip_suffix('/').unwrap_or(address);
    if let Some(at) = address.find(['/', '?', '#']) {
        return Err(format!("`{}` follows the address", address[at..].escape_debug()));
    }
    let (host, port) = split_port(address)?;
    Ok(format!("http://{}:{}", parse_host(host)?, parse_port(port)?))
}

/// Host and port as typed; the colons within brackets are the address's own.
fn split_port(address: &str) -> Result<(&str, &str), String> {
    let no_port = || "there is no port".to_string();
    let from = if address.starts_with('[') { address.find(']').ok_or("`[` is not closed")? } else { 0 };
    let colon = address[from..].rfind(':').map(|at| from + at).ok_or_else(no_port)?;
    let (host, port) = (&address[..colon], &address[colon + 1..]);
    if port.is_empty() { Err(no_port()) } else { Ok((host, port)) }
}

fn parse_host(host: &str) -> Result<String, String> {
    if host.is_empty() {
        return Err("there is no host".to_string());
    }
    if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return match inner.parse::<Ipv6Addr>() {
            Ok(address) => Ok(format!("[{address}]")),
            Err(_) => Err(format!("`{}` is not an IPv6 address", inner.escape_debug())),
        };
    }
    if host.contains(':') {
        return Err(format!("the host is `{}`, and an IPv6 address needs square brackets", host.escape_debug()));
    }
    match host.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))) {
        Some(c) => Err(format!("`{}` in the host", c.escape_debug())),
        None => Ok(host.to_ascii_lowercase()),
    }
}

fn parse_port(port: &str) -> Result<u16, String> {
    // Parsing alone would take `+80`.
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse() {
        Ok(number) if digits && number > 0 => Ok(number),
        _ => Err(format!("the port is `{}`, not 1 to 65535", port.escape_debug())),
    }
}

/// The port of a normalised URL; 0 for anything else.
pub(super) fn port_of(url: &str) -> u16 {
    url.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0)
}
