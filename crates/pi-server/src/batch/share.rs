//! How many tokens of which prompt the next step gets.
//!
//! Every answer gets its token first. What is left of the step goes to prompts, in equal parts; while answers are being made,
//! it is only as much as can be computed in about a fifth of a second, so that a long prompt does not stall them. How tokens
//! are divided over steps does not change a bit of the result, so the clock may decide this.

use std::time::Duration;

/// How much longer a step may take for the sake of prompts while answers are being made.
const PATIENCE: Duration = Duration::from_millis(200);
/// Tokens of prompts that a step takes at least, so that none starves.
const LEAST: usize = 8;

/// How long tokens of prompts take, as measured.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    seconds_per_token: Option<f64>,
}

impl Pace {
    /// A step with `prompt` tokens of prompts took so long.
    pub(crate) fn measured(&mut self, prompt: usize, time: Duration) {
        if prompt >= LEAST {
            let now = time.as_secs_f64() / prompt as f64;
            self.seconds_per_token = Some(self.seconds_per_token.map_or(now, |old| 0.7 * old + 0.3 * now));
        }
    }

    /// Most tokens of prompts for a step of at most `batch` tokens, of which `answers` belong to answers.
    pub(crate) fn room(&self, batch: usize, answers: usize) -> usize {
        let left = batch.saturating_sub(answers);
        if answers == 0 {
            return left;
        }
        let affordable = match self.seconds_per_token {
            Some(s) if s > 0.0 => (PATIENCE.as_secs_f64() / s) as usize,
            _ => 32,
        };
        left.min(affordable.max(LEAST))
    }
}

/// Divides `room` tokens among prompts that still need `wanted`, in equal parts; what one does not need goes to the others, what
/// cannot be divided goes to the first.
pub(crate) fn divide(room: usize, wanted: &[usize]) -> Vec<usize> {
    let mut given = vec![0; wanted.len()];
    let mut left = room;
    loop {
        let hungry: Vec<usize> = (0..wanted.len()).filter(|&i| given[i] < wanted[i]).collect();
        if left == 0 || hungry.is_empty() {
            return given;
        }
        let (each, over) = (left / hungry.len(), left % hungry.len());
        for (k, &i) in hungry.iter().enumerate() {
            // what is over goes out when there is nothing else to divide
            let part = if each > 0 { each } else { usize::from(k < over) };
            let part = part.min(wanted[i] - given[i]);
            given[i] += part;
            left -= part;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_equally_and_nothing_is_wasted() {
        assert_eq!(divide(10, &[100, 100]), [5, 5]);
        assert_eq!(divide(10, &[2, 100]), [2, 8]);
        assert_eq!(divide(11, &[100, 100, 100]), [4, 4, 3]);
        assert_eq!(divide(2, &[9, 9, 9]), [1, 1, 0]);
        assert_eq!(divide(100, &[3, 4]), [3, 4]);
        assert_eq!(divide(0, &[3]), [0]);
        assert_eq!(divide(5, &[]), Vec::<usize>::new());
    }

    #[test]
    fn a_prompt_alone_gets_the_whole_step_and_beside_answers_only_what_does_not_stall_them() {
        let mut pace = Pace::default();
        assert_eq!(pace.room(512, 0), 512);
        assert_eq!(pace.room(512, 3), 32, "before anything was measured");
        pace.measured(100, Duration::from_millis(100));
        assert_eq!(pace.room(512, 3), 200);
        assert_eq!(pace.room(64, 3), 61);
        pace.measured(1, Duration::from_secs(100));
        assert_eq!(pace.room(512, 3), 200, "short steps say little");
        let mut slow = Pace::default();
        slow.measured(10, Duration::from_secs(10));
        assert_eq!(slow.room(512, 1), LEAST);
        assert_eq!(slow.room(4, 4), 0);
    }
}
