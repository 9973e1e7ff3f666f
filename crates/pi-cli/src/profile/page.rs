//! A page with the figures and numbers, complete in itself.

use super::{
    figures,
    report::{Report, Shares},
    svg::escaped,
};
use pi_engine::pi_predictor::profile::Profile;
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:760px;margin:2em auto;padding:0 1em}\
h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}svg{max-width:100%;height:auto}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
td,th{padding:.15em .8em;text-align:right;border-bottom:1px solid #ddd}td.name{text-align:left}";

/// The page.
pub fn html(profile: &Profile, report: &Report) -> String {
    let name = escaped(&report.model);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}: active neurons</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\n\
         <h1>{name}: active neurons</h1>\n<p>{} tokens, {} neurons in {} layers. {} of the neurons fire for a token on average. \
         80 % of the activations come from {} of the neurons.{}</p>\n",
        report.tokens,
        report.whole.neurons,
        report.layers.len(),
        percent(report.whole.active_share),
        percent(report.whole.share_for_80),
        if report.complete { "" } else { " Not all texts were counted to their ends." },
    );
    for (title, figure) in figures::titled(profile, report) {
        let _ = writeln!(page, "<h2>{title}</h2>\n{}", figure.element());
    }
    page += "<h2>Layers</h2>\n<table><tr><th rowspan=\"2\">layer</th><th rowspan=\"2\">active</th><th rowspan=\"2\">never \
             active</th><th colspan=\"3\">share of neurons that gives</th></tr><tr><th>50 %</th><th>80 %</th><th>90 % of \
             activations</th></tr>\n";
    let mut row = |name: &str, s: &Shares| {
        let shares =
            [s.share_for_50, s.share_for_80, s.share_for_90].map(|v| format!("<td>{}</td>", percent(v))).concat();
        let active = format!("{:.2} %", 100.0 * s.active_share);
        let _ = writeln!(page, "<tr><td>{name}</td><td>{active}</td><td>{}</td>{shares}</tr>", s.never_active);
    };
    report.layers.iter().for_each(|l| row(&l.layer.to_string(), &l.shares));
    row("all", &report.whole);
    page += "</table>\n<h2>Texts</h2>\n<table><tr><th></th><th>tokens</th><th>active</th><th>80 % of activations from</th>\
             <th></th></tr>\n";
    for (i, text) in report.texts.iter().enumerate() {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{:.2} %</td><td>{}</td><td class=\"name\">{}</td></tr>",
            i + 1,
            text.tokens,
            100.0 * text.active_share,
            percent(text.share_for_80),
            escaped(&text.name)
        );
    }
    page += "</table>\n</body></html>\n";
    page
}
