//! A receiver of callbacks with scripted answers.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::*;

pub struct Receiver {
    listener: TcpListener,
    pub url: String,
}

impl Receiver {
    pub async fn new(path: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}{path}", listener.local_addr().unwrap());
        Self { listener, url }
    }

    /// Head and body of the next callback, which is answered with this status.
    pub async fn next(&self, status: u16) -> (String, String) {
        let (mut stream, _) = in_time(self.listener.accept()).await.unwrap();
        let mut read = String::new();
        let (head, body) = loop {
            let mut bytes = [0; 4096];
            let n = stream.read(&mut bytes).await.unwrap();
            read.push_str(std::str::from_utf8(&bytes[..n]).unwrap());
            if let Some((head, body)) = read.split_once("\r\n\r\n") {
                let length = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap();
                if body.len() == length.parse::<usize>().unwrap() {
                    break (head.to_owned(), body.to_owned());
                }
            }
        };
        let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.unwrap();
        (head, body)
    }
}
