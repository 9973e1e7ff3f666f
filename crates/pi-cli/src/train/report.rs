//! What was found for each layer, as a table and as JSON.

use pi_engine::train::{Timing, Trained};
use serde_json::{Value, json};
use std::fmt::Write;

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// A row per layer, and what it comes to. `weights` are the bytes of all of the model's.
pub fn table(trained: &Trained, timing: &Timing, weights: u64) -> String {
    let mut text = String::from(
        "| layer | kind  | rank | threshold | recall  | of magnitudes | predicted | fire    | predicted / fire | of the weights | of the time | KL alone |\n\
         | ----: | ----- | ---: | --------: | ------: | ------------: | --------: | ------: | ---------------: | -------------: | ----------: | -------: |\n",
    );
    for (i, l) in trained.layers.iter().enumerate() {
        let cells = match l.in_use() {
            Some((candidate, used)) => {
                let p = used.point;
                [
                    candidate.rank().map_or("-".into(), |r| r.to_string()),
                    format!("{:.3}", p.threshold),
                    percent(p.recall),
                    percent(p.magnitude),
                    percent(p.share),
                    format!("{:.2}", p.share / l.active.max(1e-9)),
                    percent(timing.bytes[i] as f64 / weights.max(1) as f64),
                    percent(timing.shares[i]),
                    format!("{:.5}", used.kl),
                ]
            }
            None => ["-"; 9].map(String::from),
        };
        let [rank, threshold, recall, magnitude, share, ratio, size, time, kl] = cells;
        let _ = writeln!(
            text,
            "| {:>5} | {:<5} | {rank:>4} | {threshold:>9} | {recall:>7} | {magnitude:>13} | {share:>9} | {:>7} | {ratio:>16} | {size:>14} | {time:>11} | {kl:>8} |",
            l.layer,
            l.kind(),
            percent(l.active),
        );
    }
    if let Some(t) = &trained.settled.trial {
        let _ = writeln!(
            text,
            "neurons looked at: {} on average, {} skipped; predictors are {} of the weights and take {} of a token's time",
            percent(t.marked),
            percent(1.0 - t.marked),
            percent(timing.bytes.iter().sum::<u64>() as f64 / weights.max(1) as f64),
            percent(timing.shares.iter().sum()),
        );
    }
    text
}

/// The same for programs, with all candidates.
pub fn layers(trained: &Trained, timing: &Timing, weights: u64) -> Value {
    let layer = |(i, l): (usize, &pi_engine::train::Choice)| {
        let (candidate, used) = l.in_use().unzip();
        let p = used.map(|u| u.point);
        let others = l.candidates.iter().map(|c| {
            let at = c.curve.with_recall(0.95);
            json!({
                "kind": c.kind().name(), "rank": c.rank(), "size_of_gate": c.size,
                "share_for_95_percent_of_magnitudes": at.share, "recall_there": at.recall,
            })
        });
        json!({
            "layer": l.layer,
            "kind": l.kind(),
            "rank": candidate.and_then(|c| c.rank()),
            "threshold": p.map(|p| p.threshold).filter(|t| t.is_finite()),
            "recall": p.map(|p| p.recall),
            "magnitude_recall": p.map(|p| p.magnitude),
            "predicted_share": p.map(|p| p.share),
            "active_share": l.active,
            "size_of_gate": candidate.map(|c| c.size),
            "size_of_weights": timing.bytes[i] as f64 / weights.max(1) as f64,
            "time_share": timing.shares[i],
            "kl_alone": used.map(|u| u.kl),
            "tried": l.tried,
            "candidates": others.collect::<Vec<_>>(),
        })
    };
    trained.layers.iter().enumerate().map(layer).collect()
}
