//! An application that runs Postrider inside its own process, with a Rust function for scheduled jobs.

use std::{error::Error, sync::Arc};

use postrider::{
    CancellationToken, Config,
    adapters::Adapters,
    async_trait,
    functions::{Function, FunctionError, Functions, Invoked},
};
use serde_json::{Value, json};

/// Greets the person that the input names.
struct Greet;

#[async_trait]
impl Function for Greet {
    async fn call(&self, invoked: &Invoked<'_>) -> Result<Value, FunctionError> {
        let name = invoked.input["name"].as_str().ok_or(FunctionError::lasting("`name` is missing"))?;
        Ok(json!({ "greeting": format!("Hello, {name}.") }))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let shutdown = CancellationToken::new();
    let functions = Functions::default().with("greet", Arc::new(Greet));
    let server = postrider::serve(Config::default(), Adapters::none(), functions, shutdown.clone());
    let server = tokio::spawn(server);
    tokio::signal::ctrl_c().await?;
    shutdown.cancel();
    Ok(server.await??)
}
