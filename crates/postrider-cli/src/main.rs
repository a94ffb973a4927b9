//! The program `postrider`.
// These macros panic when a write fails: a log reader that exits would stop the server.
#![warn(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod stderr;

mod cli;
mod configuration;
mod logging;
mod shutdown;

use std::process::ExitCode;

// The commands use these modules of the library under `crate::`.
use postrider::{config, connections, installation, wire};
use postrider_model::error_chain;

/// A worker allocates a few dozen small values per item. With the system's allocator it takes a fifth more time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let invocation = cli::Invocation::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            message!("error: cannot start the async runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(cli::run(invocation)) {
        Ok(code) => code,
        Err(error) if error.is::<cli::OutputClosed>() => ExitCode::SUCCESS,
        Err(error) => {
            message!("error: {}", error_chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}
