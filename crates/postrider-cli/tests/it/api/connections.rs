//! Connections that nobody uses are not kept.

use std::io::{Read, Write};

use super::Stage;
use crate::http;

#[tokio::test]
async fn a_connection_that_says_nothing_or_half_of_something_is_closed() -> anyhow::Result<()> {
    let stage = Stage::with("[api]\nrate_per_second = 0\nheader_timeout_seconds = 1\n").await?;
    let get = "GET /healthz HTTP/1.1\r\nhost: here\r\n";
    for (what, said, answers) in [
        ("nothing", String::new(), 0),
        ("half a line", "GET /hea".to_owned(), 0),
        ("half a head", get.to_owned(), 0),
        ("a request and nothing more", format!("{get}\r\n"), 1),
        ("a request and half of another", format!("{get}\r\n{get}"), 1),
    ] {
        let (mut stream, _) = http::connect(&stage.server.http_url)?;
        stream.write_all(said.as_bytes())?;
        let mut got = String::new();
        // A connection that stays open is an error here, in the end.
        stream.read_to_string(&mut got).map_err(|error| anyhow::anyhow!("{what}: {error}"))?;
        assert_eq!(got.matches("HTTP/1.1 200").count(), answers, "{what}: {got}");
    }
    stage.get(&stage.acme.viewer, "/whoami")?.expect(200)?;
    Ok(())
}
