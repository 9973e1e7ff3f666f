//! Functions that the model may call.
//!
//! Models were trained to write calls in a form that their chat template shows. A [`ToolFormat`] is one such form: the grammar of
//! calls is made for it, and what the model writes is read in it. Calls are always written under the grammar, so that names are those
//! of functions that exist, and arguments match their schemas.
//!
//! | file | what |
//! |---|---|
//! | `format` | the forms there are, and how a template shows its own |
//! | `request` | the functions of a request, and whether they must be called |
//! | `grammar` | what an answer with calls may look like |
//! | `recognise` | text and calls from an answer, as it comes |

mod format;
mod grammar;
mod recognise;
mod request;

pub use format::ToolFormat;
pub(crate) use grammar::grammar;
pub(crate) use recognise::{Part, Recogniser};
pub(crate) use request::{Choice, Function, Tools, read};
