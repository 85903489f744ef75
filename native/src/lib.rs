//! Batches of a PyTorch profiler trace in, rows of numbers out.
//!
//! A batch is a JSON list of events. Events of the kinds that Python has described are taken if
//! they are exactly of the expected shape: their numbers become a row of 64-bit integers, their
//! names and nested arguments become codes of an interned text. All other events are handed back
//! as text. A batch that is not strictly JSON is refused as a whole. So this reader never decides
//! what a damaged or unusual event means: the reader in Python does.
//!
//! Which categories, arguments and names are taken is said by Python (`ingest/kineto/frequent.py`),
//! from the same structs that its own reader decodes into.

mod again;
mod boundary;
pub mod interned;
pub mod json;
pub mod reader;
