//! Tasks that concern the installation as a whole.

pub mod retention;
pub mod witness;
