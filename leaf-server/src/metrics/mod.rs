//! What a server counts and measures, and the page that shows it.

mod page;
mod process;
mod requests;
mod tags;

pub(crate) use page::{CONTENT_TYPE, page};
pub(crate) use requests::{Operation, Requests, data_thread, use_cells_of};
pub(crate) use tags::TagMemory;
