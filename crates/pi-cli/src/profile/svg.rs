//! Pictures as text: just enough SVG for the figures.

use std::fmt::{Display, Write};

/// A part of a picture, with its size in pixels.
pub struct Figure {
    pub width: f64,
    pub height: f64,
    body: String,
}

impl Figure {
    /// Nothing, of that size.
    pub fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    /// A filled rectangle.
    pub fn rect(&mut self, [x, y, w, h]: [f64; 4], fill: &str) {
        let _ = write!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.2}\" height=\"{h:.2}\" fill=\"{fill}\" shape-rendering=\"crispEdges\"/>"
        );
    }

    /// A line through points. `style` is any of SVG's attributes besides colour and width.
    pub fn line(&mut self, points: &[(f64, f64)], colour: &str, width: f64, style: &str) {
        let points: String = points.iter().map(|(x, y)| format!("{x:.1},{y:.1} ")).collect();
        let points = points.trim_end();
        let _ = write!(
            self.body,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" {style}/>"
        );
    }

    /// Text that begins (`start`), is centred (`middle`) or ends (`end`) at a place of its base line.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: &str, style: &str, text: impl Display) {
        let text = escaped(&text.to_string());
        let _ = write!(self.body, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{text}</text>");
    }

    /// Adds another figure below, under a title.
    pub fn append(&mut self, title: &str, other: &Self) {
        self.text((12.0, self.height + 26.0), "start", "font-size=\"16\" font-weight=\"600\"", title);
        let _ = write!(self.body, "<g transform=\"translate(0 {:.1})\">{}</g>", self.height + 36.0, other.body);
        self.width = self.width.max(other.width);
        self.height += 36.0 + other.height;
    }

    /// An element to be put into a page.
    pub fn element(&self) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0}\" height=\"{1:.0}\" viewBox=\"0 0 {0:.0} {1:.0}\" \
             font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#222\">{2}</svg>",
            self.width, self.height, self.body
        )
    }

    /// A file of its own, on white.
    pub fn document(&self) -> String {
        let mut page = Self::new(self.width, self.height);
        page.rect([0.0, 0.0, self.width, self.height], "#fff");
        page.body += &self.body;
        format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n", page.element())
    }
}

/// The text with everything replaced that means something in SVG and HTML, or may not stand there at all.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A colour between dark violet (0) and yellow (1), equally far apart for equal steps (the stops of "viridis").
pub fn colour(at: f64) -> String {
    const STOPS: [[f64; 3]; 5] =
        [[68.0, 1.0, 84.0], [59.0, 82.0, 139.0], [33.0, 145.0, 140.0], [94.0, 201.0, 98.0], [253.0, 231.0, 37.0]];
    let at = at.clamp(0.0, 1.0) * (STOPS.len() - 1) as f64;
    let below = (at as usize).min(STOPS.len() - 2);
    let part = at - below as f64;
    let [r, g, b] = [0, 1, 2].map(|i| (STOPS[below][i] + part * (STOPS[below + 1][i] - STOPS[below][i])).round() as u8);
    format!("#{r:02x}{g:02x}{b:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_text() {
        let mut f = Figure::new(10.0, 10.0);
        f.text((0.0, 0.0), "start", "", "</text><script>\"&\u{1}");
        assert!(f.document().contains("&lt;/text&gt;&lt;script&gt;&quot;&amp;\u{fffd}</text>"));
    }

    #[test]
    fn colours_run_from_one_end_to_the_other() {
        assert_eq!((colour(0.0), colour(0.25), colour(1.0)), ("#440154".into(), "#3b528b".into(), "#fde725".into()));
        assert_eq!((colour(-1.0), colour(2.0)), (colour(0.0), colour(1.0)));
    }
}
