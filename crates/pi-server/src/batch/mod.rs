//! Continuous batching: one thread owns the session; requests come to it as jobs and take slots as they become free.
//!
//! | file | what |
//! |---|---|
//! | `job` | a request as the thread sees it, and what it answers |
//! | `inbox` | where requests come in, and what else wakes the thread |
//! | `queue` | who may wait, and how many |
//! | `slot` | a sequence of the session, and the request that has it |
//! | `prefix` | which slot has computed most of a prompt already |
//! | `share` | how many tokens of which prompt the next step gets |
//! | `worker` | the thread: steps until there is nothing to do |

pub(crate) mod inbox;
pub(crate) mod job;
mod prefix;
pub(crate) mod queue;
mod share;
mod slot;
pub(crate) mod worker;
