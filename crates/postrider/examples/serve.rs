//! Runs the whole server inside an application, next to work of the application's own.
//!
//! ```sh
//! cargo run -p postrider --example serve -- postrider.toml
//! ```

// docs:begin
use postrider::{CancellationToken, Config, Error, Role, Server, adapters::Adapters, functions::Functions};

/// Everything that `postrider serve` does, until the token is cancelled.
async fn run_postrider(text: &str, shutdown: CancellationToken) -> Result<(), Error> {
    let mut config = Config::from_toml(text)?;
    // Every key of the file is a field.
    config.campaigns.jobs_max = 4;
    postrider::serve(config, Adapters::none(), Functions::default(), shutdown).await
}

/// The HTTP API alone; other processes have the other roles.
async fn run_api(config: Config, shutdown: CancellationToken) -> Result<(), Error> {
    Server { roles: vec![Role::Api], ..Server::new(config) }.run(shutdown).await
}
// docs:end

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let mut arguments = std::env::args().skip(1);
    let text = std::fs::read_to_string(arguments.next().ok_or("name a configuration file")?)?;
    let shutdown = CancellationToken::new();
    let interrupted = shutdown.clone();
    // The application's own work: here it waits for Ctrl-C.
    let work = tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        interrupted.cancel();
    });
    match arguments.next().as_deref() {
        Some("api") => run_api(Config::from_toml(&text)?, shutdown).await?,
        _ => run_postrider(&text, shutdown).await?,
    }
    work.await?;
    println!("postrider has stopped, and the application goes on");
    Ok(())
}
