//! Workers named by hand.

use super::super::*;
use super::NOTHING;

#[test]
fn every_spelling_of_an_address_becomes_one() {
    for (typed, url) in [
        ("http://127.0.0.1:50051", "http://127.0.0.1:50051"),
        ("grpc://127.0.0.1:50051", "http://127.0.0.1:50051"),
        ("127.0.0.1:50051", "http://127.0.0.1:50051"),
        ("HTTP://LocalHost:80/", "http://localhost:80"),
        ("gpu-1.my_net.example:065535", "http://gpu-1.my_net.example:65535"),
        ("[::1]:50051", "http://[::1]:50051"),
        ("grpc://[0:0::0:1]:50051", "http://[::1]:50051"),
    ] {
        assert_eq!(parse_worker_url(typed).unwrap(), url, "{typed}");
        assert_eq!(parse_worker_url(url).unwrap(), url, "normalising twice changes nothing");
    }
}

#[test]
fn what_is_no_address_is_named_with_its_fault() {
    for (typed, fault) in [
        ("", "the value is empty"),
        ("localhost", "there is no port"),
        ("http://localhost", "there is no port"),
        ("localhost:", "there is no port"),
        (":50051", "there is no host"),
        ("http://:50051", "there is no host"),
        ("http://", "there is no port"),
        ("a:0", "the port is `0`, not 1 to 65535"),
        ("a:65536", "the port is `65536`, not 1 to 65535"),
        ("a:+80", "the port is `+80`, not 1 to 65535"),
        ("a:b", "the port is `b`, not 1 to 65535"),
        ("https://a:1", "`https` is encrypted, and workers speak plain HTTP"),
        ("ftp://a:1", "the scheme is `ftp`"),
        ("http://a:1/v1", "`/v1` follows the address"),
        ("a:1?x", "`?x` follows the address"),
        ("http://a:1//", "`/` follows the address"),
        ("me@a:1", "`@` in the host"),
        (" a:1", "` ` in the host"),
        ("a:1,b:2", "the host is `a:1,b`, and an IPv6 address needs square brackets"),
        ("::1:50051", "the host is `::1`, and an IPv6 address needs square brackets"),
        ("[::1]", "there is no port"),
        ("[::1", "`[` is not closed"),
        ("[x]:1", "`x` is not an IPv6 address"),
        ("[::1]x:1", "the host is `[::1]x`, and an IPv6 address needs square brackets"),
        ("é:1", "`é` in the host"),
    ] {
        let error = parse_worker_url(typed).unwrap_err().to_string();
        let expected = "expected http://host:port, grpc://host:port or host:port";
        assert_eq!(error, format!("worker `{typed}`: {fault}, {expected}"));
    }
}

#[test]
fn a_list_keeps_its_order_and_every_worker_comes_once() {
    let urls = parse_worker_list(&["b:2", "grpc://a:1", "http://b:1"]).unwrap();
    assert_eq!(urls, ["http://b:2", "http://a:1", "http://b:1"]);
    assert_eq!(parse_worker_list::<String>(&[]).unwrap(), NOTHING);
    let error = parse_worker_list(&["b:1", "grpc://a:1", "http://A:1/"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "worker `http://A:1/` is the same as `grpc://a:1` (http://a:1), expected every worker once"
    );
}
