//! Serves everything, with a Rust function for scheduled jobs.
//!
//! ```sh
//! cargo run -p postrider --example function -- postrider.toml
//! postrider jobs function put monthly-close --builtin close-month
//! postrider jobs invoke monthly-close --input '{"month": "2026-02"}'
//! ```

// docs:begin
use std::sync::Arc;

use postrider::{
    async_trait,
    functions::{Function, FunctionError, Functions, Invoked},
};
use serde_json::{Value, json};

/// Closes the books of a month. It may be called again for the same run, so a repeated call must be harmless.
struct CloseMonth;

#[async_trait]
impl Function for CloseMonth {
    async fn call(&self, invoked: &Invoked<'_>) -> Result<Value, FunctionError> {
        let Some(month) = invoked.input["month"].as_str() else {
            return Err(FunctionError::lasting("`month` is missing; give it as in {\"month\": \"2026-02\"}"));
        };
        Ok(json!({ "closed": month, "attempt": invoked.attempt }))
    }
}

/// The Rust functions of this application, by the names that `{"builtin": NAME}` refers to.
fn functions() -> Functions {
    Functions::default().with("close-month", Arc::new(CloseMonth))
}
// docs:end

use postrider::{CancellationToken, Config, adapters::Adapters};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let file = std::env::args().nth(1).ok_or("name a configuration file")?;
    let config = Config::from_toml(&std::fs::read_to_string(file)?)?;
    let shutdown = CancellationToken::new();
    let interrupted = shutdown.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        interrupted.cancel();
    });
    postrider::serve(config, Adapters::none(), functions(), shutdown).await?;
    Ok(())
}
